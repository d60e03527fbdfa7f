"""Records overloads that Numba compiled, or the backend loaded, for processes that start without Numba."""

from __future__ import annotations

import os
import pickle
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache import frontend
from compcache.errors import CacheWarning, CompcacheError
from compcache.files import reraise_interrupt
from compcache.numba.entries.names import label_of
from compcache.numba.fingerprints.implementations import Implementation, registry, wrapped_by
from compcache.numba.lazy.argument_types import FUNCTION, class_text, type_text
from compcache.numba.lazy.entries import START, Key, Record, key_of, open_cache
from compcache.numba.lazy.installation import packages_are_those_of_keys
from compcache.numba.lazy.marshalled import dump_marshalled
from compcache.numba.registered.refusals import NotLazy
from compcache.numba.takeover.made import state_of_dispatcher

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from compcache.numba.dispatch.backend import Backend
    from compcache.numba.identity.key import Identity
    from compcache.numba.lazy.description import Description
    from compcache.numba.lazy.state import State
    from compcache.numba.takeover.made import Made

__all__ = [
    "Entry",
    "environments_of",
    "find_stored",
    "key_before",
    "note_unrecorded",
    "record_new",
    "settings_are_the_environments",
    "store_fields",
    "store_records",
    "text_of",
]

_ENVIRONMENT = "_ZN08NumbaEnv"
#: The offset of an environment's fields in `compcache.numba.lazy._dispatch` and in Numba's `_dynfunc`.
_ENVIRONMENT_FIELDS = object.__basicsize__


def key_before(state: State, args: Sequence[Any]) -> Key | NotLazy:
    """The key of an overload for these arguments now, or why it has none."""
    from numba.core import types
    from numba.core.dispatcher import OmittedArg

    omitted = object()
    known = [omitted if isinstance(a, (OmittedArg, types.Omitted)) else a for a in args]
    given: list[Any] = []
    try:
        texts = [type_text(a, omitted, given) for a in known]
        return key_of(state.function, state.key_options, ", ".join(texts), given)
    except NotLazy as error:
        return error.again()


def note_unrecorded(made: Made, before: Container[Any], reason: str) -> None:
    """Record why starts without Numba do not find what a dispatcher has compiled; a start with it may."""
    for signature in made.real.overloads:
        if signature not in before:
            _note_unrecorded(made, signature, reason)


def _note_unrecorded(made: Made, signature: Any, reason: str) -> None:
    label = label_of(f"{made.state.function.__module__}.{made.state.function.__qualname__}", signature)
    if label not in made.backend.refused:
        frontend.note_uncached(made.backend.cache, label, f"was compiled, and starts import Numba for it: {reason}")


def record_new(all_made: Sequence[Made], before: Mapping[int, set[Any]]) -> None:
    """Store the records of overloads that dispatchers did not have before, if they can be used without Numba."""
    new = [
        (made, signature)
        for made in all_made
        if made.state.signatures is None
        for signature in made.real.overloads
        if signature not in before.get(id(made.state), made.state.loaded_signatures)
    ]
    if not new or not settings_are_the_environments():
        return
    found: dict[int, tuple[Backend, list[tuple[Key, tuple[Any, ...]]]]] = {}
    for made, signature in new:
        try:
            given: list[Any] = []
            texts = [text_of(type_, given) for type_ in signature]
            key = key_of(made.state.function, made.state.key_options, ", ".join(texts), given)
            entry = find_stored(made.real._cache, made.backend, signature, key)
            record = entry.record(entry.fndesc.llvm_cpython_wrapper_name) if entry is not None else None
            if entry is not None and record is not None:
                found.setdefault(id(made.backend), (made.backend, []))[1].append(
                    (key if entry.description.lines else key.without_lines(), record.fields)
                )
            else:
                _note_unrecorded(made, signature, "its code or its constants need Numba")
        except NotLazy as error:
            _note_unrecorded(made, signature, str(error))
        except CompcacheError as error:
            _warn(made.state.function.__qualname__, error)
    for backend, records in found.values():
        try:
            store_records(backend, records)
        except CompcacheError as error:
            _warn(", ".join([key.name for key, _ in records]), error)


def _warn(what: str, error: CompcacheError) -> None:
    warnings.warn(f"{what} was not recorded for starts without Numba: {error}", CacheWarning, stacklevel=3)


def text_of(type_: Any, given: list[Any] | None = None) -> str:
    """The text of `type_text` for arguments of a type; jitted functions are appended to `given`. Raises `NotLazy`."""
    from numba.core import types

    if isinstance(type_, types.Omitted):
        return "omitted"
    if isinstance(type_, types.Array) and type(type_) is types.Array and type_.aligned:
        return f"{'' if type_.mutable else 'readonly '}array({text_of(type_.dtype)}, {type_.ndim}d, {type_.layout})"
    if isinstance(type_, types.BaseTuple):
        cls = getattr(type_, "instance_class", tuple)
        return f"{class_text(cls)}({', '.join([text_of(item, given) for item in type_.types])})"
    if isinstance(type_, types.Dispatcher) and given is not None:
        state = state_of_dispatcher(type_.dispatcher)
        if state is not None:
            given.append(state)
            return FUNCTION
    if isinstance(type_, types.Bytes):
        return "bytes"
    text = str(type_)
    if text not in _TEXTS:
        raise NotLazy(f"an argument is of type {text}")
    return text


_TEXTS = frozenset((
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64",
    "complex128", "none", "unicode_type",
))  # fmt: skip


def settings_are_the_environments() -> bool:
    """Whether Numba and its settings equal those of another process with the same environment: none was set in code, and no
    package was installed after the process had made its first key.
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
    """What the backend has stored of an overload; the constants are those of the environments, by symbol."""

    name: str
    identity: Identity
    description: Description
    symbols: tuple[str, ...]
    fndesc: Any
    constants: dict[str, list[Any]]

    def record(self, symbol: str) -> Record | None:
        """The record by which a symbol is called without Numba; None if it cannot be."""
        environments = environments_of(self.symbols, self.constants)
        if environments is None:
            return None
        return Record(self.name, self.identity.lines, self.description.implementations, self.symbols.index(symbol), environments)


def find_stored(cache_object: Any, backend: Backend, signature: Any, key: Key | None = None) -> Entry | None:
    """The entry that a cache object of the backend has for a signature; None if it cannot be used without Numba.

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
    found = find(backend.cache, name, identity.lines, is_new=True)
    if found is None or not _covers(key, found[1]):
        return None
    kind, _, symbols, payload = pickle.loads(found[1].pickled)  # noqa: S301 - the cache was opened for it
    if kind != KIND_IMAGE:
        return None
    _, fndesc, own_name, own_constants, _, _, referenced = payload[:7]
    constants = {symbol: values for symbol, _, values in referenced} | {own_name: own_constants}
    return Entry(name, identity, found[1], symbols, fndesc, constants)


def _covers(key: Key | None, description: Description) -> bool:
    """Whether a key has all of the user's implementations that the compiler used or asked for."""
    names = {name for name, _ in description.dependencies} | set(description.answered)
    if not names or key is None:
        return not names
    covered = {id(function) for function in key.content.registered}
    registry.refresh()
    found = [implementation.function for name in names for implementation in registry.by_name.get(name) or [Implementation(None, ())]]
    return all(id(function) in covered or not covered.isdisjoint(map(id, wrapped_by(function))) for function in found)


def environments_of(symbols: Sequence[str], constants: Mapping[str, list[Any]]) -> tuple[tuple[int, bytes], ...] | None:
    """The numbers of the slots for environments, with their pickled constants; None if these need Numba."""
    rows = []
    for number, symbol in enumerate(symbols):
        if symbol.startswith(_ENVIRONMENT) and symbol in constants:
            pickled = _pickled(constants[symbol])
            if pickled is None:
                return None
            rows.append((number, pickled))
    return tuple(rows)


def _pickled(constants: list[Any]) -> bytes | None:
    """The pickled constants of an environment; None if unpickling them needs Numba."""
    if not constants:
        return b""
    try:
        data = pickle.dumps(list(constants), 4)
    except Exception as error:  # noqa: BLE001 - any exception means that they cannot be pickled
        reraise_interrupt(error)
        return None
    return None if b"numba" in data or b"llvmlite" in data or b"__main__" in data else data


def store_fields(backend: Backend, key: Key, fields: tuple[Any, ...]) -> None:
    """Store what `find_fields` finds under a key."""
    store_records(backend, [(key, fields)])


def store_records(backend: Backend, records: Sequence[tuple[Key, tuple[Any, ...]]]) -> None:
    """Store what `find_fields` finds under each of these keys."""
    cache = backend.cache
    for key, fields in records:
        stored = frontend.find_stored(cache, _entries_in(fields))
        frontend.put_entry(cache, key.name, dump_marshalled(fields), kind=START, requires=stored.module_ids if stored is not None else ())
    frontend.write_entries(cache)  # compiling has taken longer, and workers may end without exit handlers


def _entries_in(fields: tuple[Any, ...]) -> tuple[str, ...]:
    """The entries that what is stored under a key names: one for an overload or a loop, else one for each signature."""
    first, second, *_ = fields
    if isinstance(first, str):
        return (first,)
    return tuple(record[0] for record in (second if isinstance(first, list) else (first,)))
