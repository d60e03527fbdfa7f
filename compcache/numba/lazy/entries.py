"""Finds the records of overloads in processes that start without Numba, and loads the code of the overloads.

Each compiled overload has a small record, an entry of data, in addition to the entry with its code. The name of the record contains the
function, the argument types, and the key from `content` and `installation`. The record contains the name of the entry, the numbers of its
wrapper and environments in that entry, and the constants of the environments.
"""

from __future__ import annotations

import compcache
from compcache import frontend
from compcache.digest import blake2b
from compcache.interrupts import reraise_interrupt
from compcache.numba.fingerprints.content import content_of
from compcache.numba.lazy import _dispatch, installed_backend, register_cache_opener
from compcache.numba.lazy.description import DESCRIPTION, Request
from compcache.numba.lazy.installation import settings_and_packages
from compcache.numba.lazy.marshalled import decode_fields
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from compcache.cache import Cache
    from compcache.numba.fingerprints.content import Content

__all__ = [
    "RECORD", "START", "Key", "LoadedCode", "Record", "count_hit", "find_fields", "find_record", "key_of", "load_entry", "open_cache",
]  # fmt: skip


class Key:
    """The key of an overload for starts without Numba.

    Attributes:
        name: the name under which the record of the overload is stored.
        base_name: the name for records of code that reports no source lines.
        content: the content of the function.
        functions: the jitted functions among the arguments.
    """

    __slots__ = ("base_name", "content", "functions", "name")

    def __init__(self, name: str, content: Content, functions: tuple[Any, ...]) -> None:
        self.base_name = name
        self.name = f"{name}-{content.lines}"
        self.content = content
        self.functions = functions


class Record:
    """The record of an overload.

    Attributes:
        entry: the name of the entry with the code.
        lines: the digest of the source lines.
        implementations: the digest of the implementations that the compiler used and the key covers (`Description.implementations`).
        wrapper: the number of the wrapper among the entry's symbols.
        environments: the number of each environment's slot, with the pickled constants.
    """

    __slots__ = ("entry", "environments", "implementations", "lines", "wrapper")

    def __init__(self, entry: str, lines: str, implementations: str, wrapper: int, environments: tuple[tuple[int, bytes], ...]) -> None:
        self.entry = entry
        self.lines = lines
        self.implementations = implementations
        self.wrapper = wrapper
        self.environments = environments

    @property
    def entry_fields(self) -> tuple[str, str, str]:
        """The fields by which a process with Numba finds the entry."""
        return self.entry, self.lines, self.implementations

    @property
    def fields(self) -> tuple[Any, ...]:
        """The arguments of the constructor."""
        return self.entry, self.lines, self.implementations, self.wrapper, self.environments


class LoadedCode:
    """Compiled code in this process.

    Attributes:
        address: the address of the wrapper.
        kept: the objects that must live as long as the code.
        record: the record of the overload.
    """

    __slots__ = ("address", "kept", "record")

    def __init__(self, address: int, kept: tuple[Any, ...], record: Record) -> None:
        self.address = address
        self.kept = kept
        self.record = record


def key_of(function: Any, options: dict[str, Any], types: str, functions: Sequence[Any] = ()) -> Key:
    """Return the present key of an overload of a Python function that is compiled with these options.

    `types` is the text of the argument types. `functions` are the jitted functions among the arguments, in order. Raise `NotLazy` if the
    overload has no key.
    """
    content = content_of(function, tuple(sorted(options.items())), functions)
    state = blake2b(digest_size=16, person=b"compcache-lazy2")
    for text in (content.digest, types, settings_and_packages(open_cache)):
        data = text.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little") + data)
    shown_types = types if len(types) <= _MAX_SHOWN else f"{types[:_MAX_SHOWN]}..."
    label = f"{function.__module__}.{function.__qualname__}({shown_types})"
    return Key(f"{label}-{state.hexdigest()}", content, tuple(functions))


_MAX_SHOWN = 400


def open_cache() -> Cache | None:
    """Return the cache of the installed backend, or else the default cache, opened for Numba's pickles.

    The result is None while the default cache cannot be used. The first such call issues a `CacheWarning`.
    """
    global _cache, _has_warned  # noqa: PLW0603 - a process uses one directory
    backend = installed_backend()
    if backend is not None:
        cache: Cache = backend.cache
        return cache
    if _cache is None:
        try:
            frontend.check_settings()
            opened = compcache.Cache(allow_pickle=True)
            opened.has("compcache.numba")  # the call checks who may write to the directory
            _cache = opened
        except (compcache.CompcacheError, OSError) as error:
            reraise_interrupt(error)
            if not _has_warned:
                from compcache.warning import warn

                _has_warned = True
                warn(f"functions of Numba are not cached in the default cache: {error}; correct this, or set COMPCACHE_DIR")
    return _cache


register_cache_opener(open_cache)
_has_warned = False
_cache: Cache | None = None


def count_hit() -> None:
    """Count a hit in the installed backend, if there is one."""
    backend = installed_backend()
    if backend is not None:
        backend.count(hit=True)


def find_record(cache: Cache, key: Key) -> Record | None:
    """Return the stored record of an overload, or None if no record is stored. Code that reports no source lines is valid for all lines."""
    fields = find_fields(cache, key.name, RECORD) or find_fields(cache, key.base_name, RECORD)
    return None if fields is None else Record(*fields)


#: The kind of the entries that contain records. The constants of environments in them are pickles.
START = "pickle:numba start"
#: The shape of a record's fields (`decode_fields`).
RECORD = "(uuui[(ib)])"


def find_fields(cache: Cache, name: str, shape: str) -> Any:
    """Return the fields of a stored record. Return None if the record is missing, or has another shape than `shape`.

    Shapes are described at `decode_fields`. See `frontend.get_entry` for the exceptions.
    """
    data = frontend.get_entry(cache, name, START)
    if data is None:
        return None
    try:
        return decode_fields(data, shape)
    except ValueError as error:
        reraise_interrupt(error)
        return None


def load_entry(cache: Cache, record: Record) -> LoadedCode | None:
    """Map the code of a record until the process ends, and create its environments.

    Return the code, or None if the entry does not exist, cannot be loaded or is not valid in this process. Raise `NotLazy` if the stored
    constants are not a list. Code that unpickles a constant may raise any exception. See `frontend.find` for the `ValueError`.
    """
    request = Request(record.lines, implementations=record.implementations)
    try:
        target = frontend.find(cache, record.entry, request.accepts, kind=DESCRIPTION)
    except compcache.CompcacheError:
        return None
    if target is None or request.found is None:
        return None
    owners: list[Any] = [target]
    for number, pickled in record.environments:
        slot = target(number)
        environment = _dispatch.make_environment(_unpickle_constants(pickled))
        if slot:
            _dispatch.store_object(slot, environment)
        owners.append(environment)
    address = target(record.wrapper)
    if not address:
        return None
    loaded = LoadedCode(address, tuple(owners), record)
    _mapped_code.append(loaded)
    return loaded


#: All loaded code. It stays mapped, as in Numba, because memory that it has allocated may refer to it.
_mapped_code: list[LoadedCode] = []


def _unpickle_constants(pickled: bytes) -> list[Any]:
    """Return the constants of an environment. Raise `NotLazy` if the pickle does not contain a list."""
    if not pickled:
        return []
    from _pickle import loads

    constants = loads(pickled)  # the cache was opened with allow_pickle
    if not isinstance(constants, list):
        raise NotLazy(f"the constants that are stored with the function have the type {type(constants).__name__}, not list")
    return constants
