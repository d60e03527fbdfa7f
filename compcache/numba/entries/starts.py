"""Records stored overloads for processes that start without Numba: every mode does, so that each finds what another compiled."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache import frontend
from compcache.files import reraise_interrupt
from compcache.numba.fingerprints.implementations import Implementation, registry, wrapped_by
from compcache.numba.lazy.argument_types import FUNCTION, class_text
from compcache.numba.lazy.entries import START, Key, Record, find_record, key_of, open_cache
from compcache.numba.lazy.installation import packages_are_those_of_keys
from compcache.numba.lazy.marshalled import dump_marshalled
from compcache.numba.registered.refusals import NotLazy
from compcache.numba.registered.type_texts import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compcache import Cache
    from compcache.numba.identity.key import Identity
    from compcache.numba.lazy.description import Description

__all__ = [
    "Entry",
    "environments_of",
    "find_stored",
    "is_recorded",
    "record_start",
    "settings_are_the_environments",
    "start_key",
    "store_fields",
    "text_of",
]

_ENVIRONMENT = "_ZN08NumbaEnv"
#: The offset of an environment's fields in `compcache.numba.lazy._dispatch` and in Numba's `_dynfunc`.
_ENVIRONMENT_FIELDS = object.__basicsize__


def start_key(function: Any, options: Mapping[str, Any], args: Sequence[Any]) -> Key:
    """Return the present key of an overload for arguments of these types, with options in the form of `registered.options`. Raises
    `NotLazy`.
    """
    given: list[Any] = []
    texts = [text_of(type_, given) for type_ in args]
    return key_of(function, dict(options), ", ".join(texts), given)


def is_recorded(cache: Cache, key: Key) -> bool:
    """Return whether a record for starts without Numba exists under a key."""
    return find_record(cache, key) is not None


def record_start(cache_object: Any, cache: Cache, signature: Any, key: Key) -> None:
    """Store the record by which processes find a stored overload without Numba. It is written with later entries.

    Raises:
        NotLazy: the overload needs Numba.
        CompcacheError: it could not be stored.
    """
    if not settings_are_the_environments():
        raise NotLazy("settings of Numba, or the installed packages, have changed since the process began")
    entry = find_stored(cache_object, cache, signature, key)
    record = entry.record(entry.fndesc.llvm_cpython_wrapper_name) if entry is not None else None
    if entry is None or record is None:
        raise NotLazy("its code or its constants need Numba")
    store_fields(cache, key if entry.description.lines else key.without_lines(), record.fields, waits=True)


def text_of(type_: Any, given: list[Any] | None = None) -> str:
    """Return the text of `type_text` for arguments of a type. Jitted functions are appended to `given`. Raises `NotLazy`."""
    from numba.core import types

    if isinstance(type_, types.Omitted):
        return "omitted"
    if isinstance(type_, types.Array) and type(type_) is types.Array and type_.aligned:
        return f"{'' if type_.mutable else 'readonly '}array({text_of(type_.dtype)}, {type_.ndim}d, {type_.layout})"
    if isinstance(type_, types.BaseTuple):
        cls = getattr(type_, "instance_class", tuple)
        return f"{class_text(cls)}({', '.join([text_of(item, given) for item in type_.types])})"
    if isinstance(type_, types.Dispatcher) and given is not None:
        given.append(type_.dispatcher)
        return FUNCTION
    if isinstance(type_, types.Bytes):
        return "bytes"
    text = str(type_)
    if text not in _TEXTS:
        raise NotLazy(f"an argument is of type {text}")
    return text


_TEXTS = frozenset((*NUMBERS, "none", "unicode_type"))


def settings_are_the_environments() -> bool:
    """Return whether Numba's settings equal those of another process with the same environment: no setting was changed in code, and no
    package was installed after the first key of this process.
    """
    from numba.core import config

    if not packages_are_those_of_keys(open_cache):
        return False

    from compcache.numba.identity.settings import config_text

    now = config_text()
    settings = {name: value for name, value in vars(config).items() if name.isupper()}
    try:
        config._env_reloader.process_environ(dict(os.environ))
        fresh = config_text()
    except Exception as error:  # noqa: BLE001 - any exception means that they are not plain
        reraise_interrupt(error)
        return False
    finally:
        vars(config).update(settings)
    return now == fresh and not getattr(config, "USING_SVML", False)


class Entry(NamedTuple):
    """An overload as the backend has stored it. The constants are those of the environments, by symbol."""

    name: str
    identity: Identity
    description: Description
    symbols: tuple[str, ...]
    fndesc: Any
    constants: dict[str, list[Any]]

    def record(self, symbol: str) -> Record | None:
        """Return the record by which a symbol is called without Numba; None if that is not possible."""
        environments = environments_of(self.symbols, self.constants)
        if environments is None:
            return None
        return Record(self.name, self.identity.lines, self.description.implementations, self.symbols.index(symbol), environments)


def find_stored(cache_object: Any, cache: Cache, signature: Any, key: Key | None = None) -> Entry | None:
    """Return the entry that a cache object of the backend has for a signature; None if it cannot be used without Numba.

    The user's implementations that the compiler used must be covered by the key.
    """
    from numba import _dynfunc

    from compcache.numba.entries.load import find
    from compcache.numba.entries.names import func_name_of
    from compcache.numba.identity.key import Identity
    from compcache.numba.lazy.description import KIND_IMAGE

    args = tuple(getattr(signature, "args", signature))
    known = cache_object._identities
    identity = known.get(args) or known.get((args, getattr(signature, "return_type", None)))
    if not isinstance(identity, Identity) or _dynfunc._impl_info["offsetof_env_body"] != _ENVIRONMENT_FIELDS:
        return None
    if key is not None and cache_object.inherits_options(identity):
        raise NotLazy("it was compiled for a caller, with options of that one")
    name = func_name_of(identity, args)
    found = find(cache, name, identity.lines, is_new=True)
    if found is None or not _covers(key, found[1]):
        return None
    kind, _, symbols, payload = pickle.loads(found[1].pickled)  # noqa: S301 - the cache was opened for it
    if kind != KIND_IMAGE:
        return None
    _, fndesc, own_name, own_constants, _, _, referenced = payload[:7]
    constants = {symbol: values for symbol, _, values in referenced} | {own_name: own_constants}
    return Entry(name, identity, found[1], symbols, fndesc, constants)


def _covers(key: Key | None, description: Description) -> bool:
    """Return whether a key has all of the user's implementations that the compiler used or asked for."""
    names = {name for name, _ in description.dependencies} | set(description.answered)
    if not names or key is None:
        return not names
    covered = {id(function) for function in key.content.registered}
    registry.refresh()
    found = [implementation.function for name in names for implementation in registry.by_name.get(name) or [Implementation(None, ())]]
    return all(id(function) in covered or not covered.isdisjoint(map(id, wrapped_by(function))) for function in found)


def environments_of(symbols: Sequence[str], constants: Mapping[str, list[Any]]) -> tuple[tuple[int, bytes], ...] | None:
    """Return the numbers of the slots for environments, with their pickled constants; None if the constants need Numba."""
    rows = []
    for number, symbol in enumerate(symbols):
        if symbol.startswith(_ENVIRONMENT) and symbol in constants:
            pickled = _pickled(constants[symbol])
            if pickled is None:
                return None
            rows.append((number, pickled))
    return tuple(rows)


def _pickled(constants: list[Any]) -> bytes | None:
    """Return the pickled constants of an environment; None if unpickling them needs Numba."""
    if not constants:
        return b""
    try:
        data = pickle.dumps(list(constants), 4)
    except Exception as error:  # noqa: BLE001 - any exception means that they cannot be pickled
        reraise_interrupt(error)
        return None
    return None if b"numba" in data or b"llvmlite" in data or b"__main__" in data else data


def store_fields(cache: Cache, key: Key, fields: tuple[Any, ...], *, waits: bool = False) -> None:
    """Store data for `find_fields` under a key. `waits`: write it together with later entries."""
    stored = frontend.find_stored(cache, _entries_in(fields))
    frontend.put_entry(cache, key.name, dump_marshalled(fields), kind=START, requires=stored.module_ids if stored is not None else ())
    if not waits:
        frontend.write_entries(cache)  # compiling has taken longer, and workers may end without exit handlers


def _entries_in(fields: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the entries that the data under a key names: one for an overload or a loop, otherwise one for each signature."""
    first, second, *_ = fields
    if isinstance(first, str):
        return (first,)
    return tuple(record[0] for record in (second if isinstance(first, list) else (first,)))
