"""For authors of front ends: what a compiler needs of a cache beside the methods that its users call.

A front end (Numba's is `compcache.numba`) turns a program's functions into modules, decides what each of them depends on, and
hands call targets on. `docs/frontend.md` has one in fifty lines. All functions take an open `compcache.Cache` first; the errors of a closed cache are its own.
"""

from __future__ import annotations

from compcache.cache import func_names_of
from compcache.errors import CompcacheError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from compcache.build.source import ModuleSource
    from compcache.cache import Cache
    from compcache.hit.target import TypedCallTarget
    from compcache.miss.compile_once import Addition

__all__ = [
    "add_missing",
    "add_realizations",
    "allows_pickle",
    "compact_index",
    "find",
    "find_stored",
    "forget_uncached",
    "note_uncached",
    "read_note",
    "settings_of",
    "temporary_directory",
    "write_note",
]

#: How many notes a directory keeps.
_MOST_NOTES = 64


def find(cache: Cache, func_name: str, request: object = None) -> TypedCallTarget | None:
    """The call target of a function, or None where it cannot be loaded; a miss is not counted.

    The remote store is asked for what is missing, for as long as a compile would wait for it.

    Args:
        cache: where to look.
        func_name: the function.
        request: what global variables that are decoded for it are given (`compcache.globals.LoadContext.request`). A definition of a
            kind of the front end's own may refuse, and then another realization is tried: so entries are accepted or passed over.
    """
    try:
        return cache._load(func_name, request=request)
    except CompcacheError as error:
        if cache._closed:
            raise
        session = cache._session()
        if not session.remote_url():
            return None
        from compcache.miss.compile_once import find_fetched

        return find_fetched(session, func_name, error, request)


def add_realizations(cache: Cache, source: ModuleSource, *, alone: bool = False) -> tuple[str, ...]:
    """Compile a module for each of its targets and publish it, as `Cache.add_module` does.

    Args:
        cache: where to store it.
        source: the code.
        alone: nothing is imported that the source does not name, whatever the cache holds; and others of its name may be there,
            which whoever loads it tells apart (`find` with a `request`).

    Returns:
        The module_ids of all targets, that of the one for this host first.

    Raises:
        CompileError, LinkError, StorageError, ...: what `Cache.add_module` raises.
    """
    cache._require_open()
    from compcache.miss.build import add

    return add(cache._session(), source, alone=alone)


def add_missing(cache: Cache, functions: Iterable[str], build: Callable[[], ModuleSource]) -> Addition:
    """Compile and publish a module unless every one of these functions is cached. Nothing is loaded.

    Other processes that want the first of them meanwhile wait for this one, for a bounded time.

    Args:
        cache: where to look and to store.
        functions: the func_names that the module is for; at least one.
        build: called where one of them is missing; returns the source of a module that exports them all.

    Raises:
        UndefinedSymbolError: the module does not export one of them.
        CompileError, LinkError, StorageError, ...: what `Cache.add_module` raises.
    """
    cache._require_open()
    from compcache.miss.compile_once import add_missing as add

    if not callable(build):
        raise TypeError(f"add_missing(): build must be a function that returns the source, not {type(build).__name__}")
    return add(cache._session(), tuple(func_names_of(functions)), build)


def find_stored(cache: Cache, functions: Iterable[str]) -> Addition | None:
    """The modules that hold these functions if this host can use a realization of each; else None. Nothing is loaded."""
    cache._require_open()
    from compcache.miss.compile_once import find_stored as stored

    return stored(cache._session(), tuple(func_names_of(functions)))


def read_note(cache: Cache, name: str) -> bytes | None:
    """What `write_note` has stored under a name; None where nothing is, or what is there cannot be believed.

    A note is for what a front end has found out about the system and takes long: it may be gone at any time.
    """
    cache._require_open()
    return cache._store.read_note(name)


def write_note(cache: Cache, name: str, data: bytes) -> None:
    """Store a note in place of the one of this name; see `read_note`. The newest 64 are kept. A failure is harmless."""
    cache._require_open()
    store = cache._store
    if not store.readonly and store.index.segments:
        from compcache.publish.atomic_file import keep_file
        from compcache.store import NOTES

        keep_file(store, NOTES, store.note_name(name), store.seal_note(name, data) + data, _MOST_NOTES)


def note_uncached(cache: Cache, name: str, reason: str) -> None:
    """Record for `Cache.explain` why a function was compiled and not cached; never fails."""
    from compcache.inspect.uncached import note

    cache._store.stats.refused(name, reason)
    note(cache._store, name, reason)


def forget_uncached(cache: Cache, name: str) -> None:
    """Undo `note_uncached`: the function is cached now."""
    from compcache.inspect.uncached import forget

    forget(cache._store, name)


def compact_index(cache: Cache) -> None:
    """Merge what was added one by one, so that look-ups open fewer files: for the end of a process that has added. A failure is harmless."""
    if not cache._closed and not cache._store.readonly:
        from compcache.publish.index_merge import compact

        compact(cache._store)


def settings_of(cache: Cache) -> dict[str, Any]:
    """The arguments with which `Cache` opens the same directory in the same way, in another process for example.

    The signing key is among them, and trust is: the process that asks has checked or vouched for the directory.
    """
    store, session = cache._store, cache._session()
    return {
        "path": cache.path, "readonly": store.readonly, "verify": store.verify, "signing_key": store.signing_key,
        "trust": True, "allow_pickle": allows_pickle(cache), "max_size": session.max_size,
        "lock_timeout": session.lock_timeout, "layers": cache.layers, "min_llvm": store.min_llvm or None,
        "trusted_keys": tuple(map(str, store.trusted_keys)), "publish_key": str(store.publish_key or ""),
        "remote": session.remote_url(),  # what the environment says here may not be said there
        "remote_mode": session.remote_mode(),
    }  # fmt: skip


def allows_pickle(cache: Cache) -> bool:
    """Whether the cache was opened with allow_pickle=True."""
    return cache._loader.allow_pickle


def temporary_directory(cache: Cache) -> str:
    """A directory in the cache for short-lived files; what is left there is removed by prunes. It may not exist."""
    return cache._store.temporary


#: Members of `Cache` that were moved here, by their names there: functions, and what were properties.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "find_target": find, "add_realizations": add_realizations, "add_missing": add_missing, "find_stored": find_stored, "read_note": read_note,
    "write_note": write_note, "note_uncached": note_uncached, "forget_uncached": forget_uncached, "compact_index": compact_index,
}  # fmt: skip
_PROPERTIES: dict[str, Callable[..., Any]] = {"settings": settings_of, "allow_pickle": allows_pickle, "temporary_directory": temporary_directory}


def moved(cache: Cache, name: str) -> Any:
    """A member of `Cache` that is a function of this module now, for one release; with a warning.

    Raises:
        AttributeError: it never was one.
    """
    new = _FUNCTIONS.get(name) or _PROPERTIES.get(name)
    if new is None:
        raise AttributeError(f"{type(cache).__name__!r} object has no attribute {name!r}", name=name, obj=cache)
    import functools
    import warnings

    message = f"Cache.{name} is compcache.frontend.{new.__name__} now, which takes the cache first; the old name goes with the next release"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return new(cache) if name in _PROPERTIES else functools.partial(new, cache)
