"""Stores and loads the records of overloads for processes that start without Numba.

For each compiled overload there is a small record, an entry of data, in addition to the backend's entry. Its name has the function, the
argument types, and the key from `content` and `installation`. It contains the name of the entry with the code, the numbers of its wrapper
and environments in that entry, and the constants of the environments.
"""

from __future__ import annotations

from compcache import frontend
from compcache.digest import blake2b
from compcache.errors import CacheWarning, CompcacheError
from compcache.files import reraise_interrupt
from compcache.numba.fingerprints.content import content_of
from compcache.numba.lazy import _dispatch
from compcache.numba.lazy.description import DESCRIPTION, Request
from compcache.numba.lazy.installation import settings_and_packages
from compcache.numba.lazy.installed import installed_backend, opens_cache
from compcache.numba.lazy.marshalled import load_marshalled
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from compcache.cache import Cache
    from compcache.numba.fingerprints.content import Content

__all__ = ["RECORD", "START", "Key", "Loaded", "Record", "count_hit", "find_fields", "find_record", "key_of", "load_entry", "open_cache"]


class Key:
    """The name under which an overload's record is stored, the content of its function, and the functions that are arguments.

    `anywhere` is the name for records of code that shows no line of its source.
    """

    __slots__ = ("anywhere", "content", "given", "name")

    def __init__(self, name: str, content: Content, given: tuple[Any, ...]) -> None:
        self.anywhere = name
        self.name = f"{name}-{content.lines}"
        self.content = content
        self.given = given

    def without_lines(self) -> Key:
        """Return the key for code that shows no line of its source."""
        key = Key(self.anywhere, self.content, self.given)
        key.name = key.anywhere
        return key


class Record:
    """The record of an overload.

    `entry` names the backend's entry. `lines` is a digest of its source lines. `implementations` is a digest of what the compiler used and
    the key covers (`Description.implementations`). `wrapper` is the number of the wrapper among the entry's symbols. `environments` has the
    number of each slot for an environment, and its pickled constants.
    """

    __slots__ = ("entry", "environments", "implementations", "lines", "wrapper")

    def __init__(self, entry: str, lines: str, implementations: str, wrapper: int, environments: tuple[tuple[int, bytes], ...]) -> None:
        self.entry = entry
        self.lines = lines
        self.implementations = implementations
        self.wrapper = wrapper
        self.environments = environments

    @property
    def base(self) -> tuple[str, str, str]:
        """The fields that find the entry once Numba is imported."""
        return self.entry, self.lines, self.implementations

    @property
    def fields(self) -> tuple[Any, ...]:
        """The arguments of the constructor."""
        return self.entry, self.lines, self.implementations, self.wrapper, self.environments


class Loaded:
    """Compiled code in this process: the address of its wrapper, and the objects that it needs."""

    __slots__ = ("address", "kept", "record")

    def __init__(self, address: int, kept: tuple[Any, ...], record: Record) -> None:
        self.address = address
        self.kept = kept
        self.record = record


def key_of(function: Any, options: dict[str, Any], types: str, given: Sequence[Any] = ()) -> Key:
    """Return the current key of an overload. `given` are the jitted functions among the arguments, in order.

    Raises:
        NotLazy: the overload has no key.
    """
    content = content_of(function, tuple(sorted(options.items())), given)
    state = blake2b(digest_size=16, person=b"compcache-lazy2")
    for text in (content.digest, types, settings_and_packages(open_cache)):
        data = text.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little") + data)
    shown = types if len(types) <= _MOST_SHOWN else f"{types[:_MOST_SHOWN]}..."
    return Key(f"{function.__module__}.{function.__qualname__}({shown})-{state.hexdigest()}", content, tuple(given))


_MOST_SHOWN = 400


def open_cache() -> Cache | None:
    """Return the cache of the installed backend, or the default one opened for Numba's pickles; None, with one warning, if it cannot be
    used.
    """
    global _cache, _is_unusable  # noqa: PLW0603 - a process uses one directory
    backend = installed_backend()
    if backend is not None:
        cache: Cache = backend.cache
        return cache
    if _cache is None and not _is_unusable:
        from compcache.cache import Cache

        try:
            _cache = Cache(allow_pickle=True)
            _cache.has("compcache.numba")  # checks now who may write to the directory
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            import warnings

            _is_unusable = True
            warnings.warn(f"Numba functions are not cached: {error}", CacheWarning, stacklevel=2)
            _cache = None
    return _cache


opens_cache(open_cache)
_is_unusable = False
_cache: Cache | None = None


def count_hit() -> None:
    """Count a hit, if the installed backend counts."""
    backend = installed_backend()
    if backend is not None:
        backend.count(hit=True)


def find_record(cache: Cache, key: Key) -> Record | None:
    """Return the stored record of an overload, or None."""
    fields = find_fields(cache, key, RECORD) or _fields_of(cache, key.anywhere, RECORD)
    return None if fields is None else Record(*fields)


#: The kind of these entries. Environments in them are unpickled.
START = "pickle:numba start"
#: The shape of a record's fields (`load_marshalled`).
RECORD = "(uuui[(ib)])"


def find_fields(cache: Cache, key: Key, shape: str) -> Any:
    """Return the data under a key (tuples, texts, numbers, see `load_marshalled`); None if nothing with this shape is stored."""
    return _fields_of(cache, key.name, shape)


def _fields_of(cache: Cache, name: str, shape: str) -> Any:
    data = frontend.get_entry(cache, name, START)
    try:
        return None if data is None else load_marshalled(data, shape)
    except ValueError as error:
        reraise_interrupt(error)
        return None


def load_entry(cache: Cache, record: Record) -> Loaded | None:
    """Map the code of a record, and provide what it needs. Return None if the entry is gone or cannot be used here.

    Raises:
        NotLazy: it needs a symbol that only Numba provides.
    """
    request = Request(record.lines, implementations=record.implementations)
    try:
        target = frontend.find(cache, record.entry, request.accepts, kind=DESCRIPTION)
    except CompcacheError:
        return None
    if target is None or request.found is None:
        return None
    kept: list[Any] = [target]
    for number, pickled in record.environments:
        slot = target(number)
        environment = _dispatch.make_environment(_constants(pickled))
        if slot:
            _dispatch.store_object(slot, environment)
        kept.append(environment)
    address = target(record.wrapper)
    return Loaded(address, tuple(kept), record) if address else None


def _constants(pickled: bytes) -> list[Any]:
    if not pickled:
        return []
    from _pickle import loads

    constants = loads(pickled)  # the cache was opened with allow_pickle
    if not isinstance(constants, list):
        raise NotLazy("its constants are not a list")
    return constants
