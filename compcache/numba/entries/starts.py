"""Records stored overloads for processes that start without Numba.

Processes that use Numba from the start write these records, too.
"""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

from numba import _dynfunc
from numba.core import config, types

from compcache import frontend
from compcache.interrupts import reraise_interrupt, suppress
from compcache.numba.compilation.libraries import ENVIRONMENT_PREFIX
from compcache.numba.entries.load import find_entry
from compcache.numba.entries.names import make_func_name
from compcache.numba.fingerprints.implementations import Implementation, package_of_implementation, registry, wrapped_by
from compcache.numba.identity.dependencies import Dependency
from compcache.numba.identity.key import Identity
from compcache.numba.identity.settings import config_text
from compcache.numba.lazy.argument_types import FUNCTION, NUMBERS, class_text
from compcache.numba.lazy.entries import START, Key, Record, key_of, open_cache
from compcache.numba.lazy.installation import are_packages_unchanged, packages_in_keys
from compcache.numba.lazy.marshalled import encode_fields
from compcache.numba.registered.refusals import NotLazy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compcache import Cache
    from compcache.numba.lazy.description import Description

__all__ = [
    "Entry", "are_settings_from_environment", "argument_text", "find_stored_entry", "make_start_key", "pickle_environments", "record_start",
    "store_fields",
]  # fmt: skip

#: The offset of an environment's fields in `compcache.numba.lazy._dispatch` and in Numba's `_dynfunc`.
_ENVIRONMENT_FIELDS = object.__basicsize__


def make_start_key(function: Any, options: Mapping[str, Any], args: Sequence[Any]) -> Key:
    """Return the present key of an overload for starts without Numba. `options` are from `registered.options`.

    Raise `NotLazy` if the overload needs Numba.
    """
    functions: list[Any] = []
    texts = [argument_text(type_, functions) for type_ in args]
    return key_of(function, dict(options), ", ".join(texts), functions)


def record_start(cache_object: Any, cache: Cache, signature: Any, key: Key) -> None:
    """Store the record by which processes without Numba find a stored overload. The record is written together with later entries.

    Raise `NotLazy` if the overload needs Numba, or `CompcacheError` if the record could not be stored.
    """
    if not are_settings_from_environment():
        raise NotLazy("a new process would have other settings of Numba or other packages: set NUMBA_ variables instead of numba.config")
    entry = find_stored_entry(cache_object, cache, signature, key)
    if entry is None or entry.fndesc.llvm_cpython_wrapper_name not in entry.symbols:  # a caller's options may omit the wrapper
        raise NotLazy("only Numba can load the stored code, which has no wrapper for Python or uses functions that the key omits")
    record = entry.create_record(entry.fndesc.llvm_cpython_wrapper_name)
    if record is None:
        raise NotLazy("only Numba or the main program can unpickle a constant of the function: define the constant's class in a module")
    store_fields(cache, key.name if entry.description.lines else key.base_name, record.fields, may_wait=True)


def argument_text(type_: Any, functions: list[Any] | None = None) -> str:
    """Return the text for a Numba type, which equals the text that `type_text_of_value` returns for an argument of this type.

    The dispatcher of each jitted function is appended to the list `functions`; None if jitted functions are not supported. Raise `NotLazy`
    if compcache needs Numba for arguments of this type.
    """
    if isinstance(type_, types.Omitted):
        return "omitted"
    if isinstance(type_, types.Array) and type(type_) is types.Array and type_.aligned:
        return f"{'' if type_.mutable else 'readonly '}array({argument_text(type_.dtype)}, {type_.ndim}d, {type_.layout})"
    if isinstance(type_, types.BaseTuple):
        cls = getattr(type_, "instance_class", tuple)
        return f"{class_text(cls)}({', '.join([argument_text(item, functions) for item in type_.types])})"
    if isinstance(type_, types.Dispatcher) and functions is not None:
        functions.append(type_.dispatcher)
        return FUNCTION
    if type_ == types.Bytes(types.uint8, 1, "C"):  # the type of Python's bytes
        return "bytes"
    text = str(type_)
    if text not in _SCALAR_TEXTS:
        raise NotLazy(f"an argument has the type {text}, for which compcache needs Numba: pass numbers, texts, arrays or tuples of these")
    return text


_SCALAR_TEXTS = frozenset((*NUMBERS, "none", "unicode_type"))


def are_settings_from_environment() -> bool:
    """Return whether another process with the same environment variables has the same Numba settings and packages.

    The result is False if the program has changed a setting, if a package was installed after this process computed its first key, or if
    Numba uses Intel's vector library (SVML). The function reads the settings from the environment, and restores the present ones.
    """
    if not are_packages_unchanged(open_cache):
        return False
    environment, current = dict(os.environ), config_text()
    if _equal_settings != [environment, current]:
        settings = {name: value for name, value in vars(config).items() if name.isupper()}
        try:
            config._env_reloader.process_environ(environment)
            from_environment = config_text()
        except Exception as error:  # noqa: BLE001 - after any exception, other processes may have other settings
            reraise_interrupt(error)
            return False
        finally:
            vars(config).update(settings)
        if current != from_environment:
            return False
        _equal_settings[:] = environment, current
    return not getattr(config, "USING_SVML", False)


#: The last environment that was read, and the settings, which were the same as those from the environment.
_equal_settings: list[Any] = []


class Entry(NamedTuple):
    """A stored overload.

    Attributes:
        name: the name of the entry.
        identity: the identity of the overload.
        description: the description in the entry.
        symbols: the symbols of the image, by number.
        fndesc: Numba's descriptor of the function.
        constants: the constants of each environment, by the environment's symbol.
    """

    name: str
    identity: Identity
    description: Description
    symbols: tuple[str, ...]
    fndesc: Any
    constants: dict[str, list[Any]]

    def create_record(self, symbol: str) -> Record | None:
        """Return the record by which processes without Numba call the function with this symbol; None as in `pickle_environments`."""
        environments = pickle_environments(self.symbols, self.constants)
        if environments is None:
            return None
        return Record(self.name, self.identity.lines, self.description.implementations, self.symbols.index(symbol), environments)


def find_stored_entry(cache_object: Any, cache: Cache, signature: Any, key: Key | None = None) -> Entry | None:
    """Return the stored entry for a signature; None if there is no such entry, or if only Numba can use it.

    The `key` for starts without Numba must cover the user's implementations that the compiler used (`_uncovered_reason`). With a key, raise
    `NotLazy` if it does not cover an implementation, or if the code was compiled with options of a caller; see `inherits_options` for
    another exception.
    """
    from compcache.numba.lazy.description import KIND_IMAGE

    args = tuple(getattr(signature, "args", signature))
    identities = cache_object._identities
    identity = identities.get(args) or identities.get((args, getattr(signature, "return_type", None)))
    if not isinstance(identity, Identity) or _dynfunc._impl_info["offsetof_env_body"] != _ENVIRONMENT_FIELDS:
        return None
    if key is not None and cache_object.inherits_options(identity):
        raise NotLazy("the function was compiled with the options of a caller: declare these options for the function itself")
    name = make_func_name(identity, args)
    reasons: list[str] = []

    def is_wanted(description: Description) -> bool:
        """Return whether the key covers the implementations of an entry. Otherwise keep the reason."""
        reasons[:] = [_uncovered_reason(key, description)]
        return not reasons[0]

    entry = find_entry(cache, name, identity.lines, is_new=True, is_wanted=is_wanted)
    if entry is None and key is not None and any(reasons):
        raise NotLazy(reasons[0])
    if entry is None:
        return None
    _target, description = entry
    kind, _token, symbols, payload = pickle.loads(description.pickled)  # noqa: S301 - the cache was opened for it
    if kind != KIND_IMAGE:
        return None
    _library, fndesc, env_name, env_constants, _signature, _annotation, referenced, *_lifted = payload
    constants = {symbol: values for symbol, _, values in referenced} | {env_name: env_constants}
    return Entry(name, identity, description, symbols, fndesc, constants)


def _uncovered_reason(key: Key | None, description: Description) -> str:
    """Return why a key does not cover an implementation of the user that the compiler used or tried; "" if the key covers all of them.

    A key covers the functions in its content, and the implementations of packages whose files it contains (`packages_in_keys`). If the
    program has imported such a package, implementations that the compiler compares by their values are not covered, because the program may
    have changed these. None is a key without implementations in its content.
    """
    used = dict(description.used)
    registered_ids = {id(function) for function in key.content.registered} if key is not None else set()
    packages, imported = packages_in_keys()
    registry.refresh()
    for name in sorted(used.keys() | set(description.answered)):
        for implementation in registry.by_name.get(name) or [Implementation(None, ())]:
            function = implementation.function
            if id(function) in registered_ids or not registered_ids.isdisjoint(map(id, wrapped_by(function))):
                continue
            package = package_of_implementation(function) if function is not None else ""
            if package not in packages:
                return f"Numba asks {name}, which the function does not name: move it into a package that registers with Numba"
            if package in imported and name in used and not Dependency(name, used[name]).is_by_files:
                return f"Numba asks {name}, and the program has imported {package}, whose values only a process with Numba can compare"
    return ""


def pickle_environments(symbols: Sequence[str], constants: Mapping[str, list[Any]]) -> tuple[tuple[int, bytes], ...] | None:
    """Return the slot number and the pickled constants of each environment, or None if a constant needs Numba or the main program.

    `symbols` has the symbols of the image, by number, and `constants` the constants of each environment, by the environment's symbol.
    """
    rows = []
    for number, symbol in enumerate(symbols):
        if symbol.startswith(ENVIRONMENT_PREFIX) and symbol in constants:
            pickled = _pickle_constants(constants[symbol])
            if pickled is None:
                return None
            rows.append((number, pickled))
    return tuple(rows)


def _pickle_constants(constants: list[Any]) -> bytes | None:
    """Return the pickled constants of an environment; None if they cannot be pickled, or if unpickling needs Numba or the main program."""
    if not constants:
        return b""
    with suppress(Exception):  # after any exception, only Numba can load the constants
        data = pickle.dumps(list(constants), 4)
        return None if b"numba" in data or b"llvmlite" in data or b"__main__" in data else data
    return None


def store_fields(cache: Cache, name: str, fields: tuple[Any, ...], *, may_wait: bool = False) -> None:
    """Store the fields of a record for starts without Numba under a name. With `may_wait`, the record may be written with later entries.

    Raise `CompcacheError` if the record could not be stored.
    """
    stored = frontend.find_stored(cache, _entry_names(fields))
    frontend.put_entry(cache, name, encode_fields(fields), kind=START, requires=stored.module_ids if stored is not None else ())
    if not may_wait:
        frontend.write_entries(cache)  # writing is fast compared to compiling, and worker processes may end without exit handlers


def _entry_names(fields: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the names of the entries in a record's fields: one name for an overload or a loop, otherwise one for each signature."""
    first, second, *_ = fields
    if isinstance(first, str):
        return (first,)
    records = second if isinstance(first, list) else (first,)
    return tuple(name for name, *_ in records)
