"""Functions that a front end stores and finds: look-ups, additions, and the functions that it does not cache."""

from __future__ import annotations

from compcache.frontend.entries import require_kind_allowed
from compcache.settings import REMOTE_MODE_VARIABLE, REMOTE_VARIABLE, are_set, from_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from compcache.build.source import ModuleSource
    from compcache.cache import Cache
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.miss.compile_once import Addition

__all__ = [
    "add_missing", "add_realizations", "check_settings", "check_sources", "compact_index", "count_compilation", "count_miss", "find",
    "find_stored", "forget_uncached", "note_uncached",
]  # fmt: skip


def find(
    cache: Cache, func_name: str, accept: Callable[[bytes], bool] | None = None, *, kind: str = "", is_new: bool = False
) -> TypedCallTarget | None:
    """Return the call target of a function; None if it cannot be loaded. A miss is not counted (`count_miss`).

    A missing function is requested from the remote store, with the time limit of a compilation.

    Args:
        cache: the cache to search.
        func_name: the name of the function.
        accept: chooses among several realizations. It is called with the data of a realization's entry of this `kind`
            (`ModuleSource.entries`), before the realization is loaded. A realization is skipped if it has no such entry, if `accept`
            returns false, or if `accept` raises a `CompcacheError`.
        kind: the kind of the entry that `accept` receives (`put_entry`).
        is_new: whether this process has just stored the function, so that the look-up does not count as a hit.

    Raises:
        PickleNotAllowedError: entries of the kind are unpickled, and the cache was opened without allow_pickle=True.
        SettingError, ValueError: the settings or the arguments for remote stores are not valid.
        StorageError: the cache is closed.
        TypeError: `accept` is given, and `kind` is not a str.
    """
    judge = None
    cache._require_open()
    if accept is not None:
        require_kind_allowed(cache, kind)
        if cache._plain._files is not None and not is_new:
            from compcache.hit.plain_entries import load_accepted_function

            target = load_accepted_function(cache._plain, func_name, kind, accept)
            if target is not None:
                return target
        from compcache.hit.judge import Judge

        judge = Judge(cache._store, func_name, kind, accept)
    from compcache.errors import CompcacheError  # the module `errors` creates some thirty classes

    try:
        if is_new and not cache._loader.builds:
            return cache._loader.load(func_name, None, judge)
        return cache._load(func_name, accept=judge)
    except CompcacheError as error:
        if cache._closed:
            raise
        session = cache._session()
        if not session.remote_url():
            return None
        from compcache.miss.compile_once import fetch_and_load

        return fetch_and_load(session, func_name, error, judge)


def check_settings() -> None:
    """Raise `SettingError` if a setting of remote stores is not valid. Otherwise only misses read these settings."""
    if are_set((REMOTE_VARIABLE, REMOTE_MODE_VARIABLE)):
        from compcache.remote.address import read_mode, read_url

        from_environment(REMOTE_VARIABLE, read_url)
        from_environment(REMOTE_MODE_VARIABLE, read_mode)


def count_miss(cache: Cache, func_name: str, *, refused: bool = False) -> None:
    """Count a miss of a function in the statistics.

    Args:
        cache: an open cache.
        func_name: the name of the function.
        refused: whether the function cannot be cached, so that every request for it is a miss.
    """
    from compcache.errors import NotCachedError
    from compcache.formats.journal import MISSES_ID

    cache._require_open()
    if refused:
        cache._store.stats.count("misses.refused", 1, func_name, MISSES_ID)
    else:
        cache._store.stats.missed(NotCachedError.of(func_name, cache.path))


def count_compilation(cache: Cache, func_name: str, seconds: float) -> None:
    """Count a compilation in the statistics, for a function that is not stored.

    Args:
        cache: an open cache.
        func_name: the name of the function.
        seconds: the processor time of the compilation, in seconds.
    """
    cache._require_open()
    cache._store.stats.compiled(seconds, (func_name,))


def add_realizations(cache: Cache, source: ModuleSource, *, alone: bool = False, seconds: float = 0.0) -> tuple[str, ...]:
    """Compile a module for each of its targets and store the results, as `Cache.add_module` does.

    Args:
        cache: the cache that stores the module.
        source: the code and its options.
        alone: whether the module imports only symbols that the source names, even if the cache contains others. The func_name may have
            other realizations; `find` with `accept` distinguishes them.
        seconds: the processor time for generating the source, in seconds, which a hit also saves.

    Returns:
        The module_ids of all targets. The module_id of the target for this host is first.

    Raises:
        CompileError, LinkError, StorageError, ...: see `Cache.add_module`.
    """
    from compcache.miss.build import add

    return add(cache._session(), source, alone=alone, seconds=seconds)


def add_missing(
    cache: Cache, functions: Iterable[str | Identity], build: Callable[[], Any], *, source: ModuleSource | None = None
) -> Addition:
    """Compile and store a module unless the cache contains all of these functions. No code is loaded.

    Meanwhile, other processes that request the first function wait for this process, for a limited time.

    Once a load by this cache object has failed because the directory lacks an import, functions whose imports are missing count as missing,
    too. So a `build` that adds its callees provides the import again.

    Args:
        cache: the cache to search, and to store the module in.
        functions: the functions of the module, by their names or identities; at least one.
        build: returns the source of a module that exports all of these functions. It is called if a function is missing. As for
            `Cache.get_or_compile`, the source may use the plain label of the first identity, which is stored with the functions.
        source: the source, if it is known. Functions with plain names that were compiled from another source are compiled again.

    Returns:
        The modules with the functions, and whether they were compiled (`Addition`).

    Raises:
        TypeError: `build` is not callable.
        ValueError: `functions` is empty.
        UndefinedSymbolError: the module does not export one of the functions.
        CompileError, LinkError, StorageError, ...: see `Cache.add_module`.
    """
    from compcache.cache import func_names_of
    from compcache.content.names import source_of
    from compcache.identity import Identity
    from compcache.miss.compile_once import add_missing as add

    if not callable(build):
        raise TypeError(f"add_missing(): build must be a function that returns the source, not {type(build).__name__}")
    are_several = hasattr(functions, "__iter__") and not isinstance(functions, str)
    given: list[Any] = list(functions) if are_several else [functions]
    names = tuple(func_names_of(given if are_several else functions))
    identity = next((name for name in given if isinstance(name, Identity)), None)
    return add(cache._session(), names, lambda: source_of(build(), identity.func_name, identity) if identity else build(), source)


def find_stored(cache: Cache, functions: Iterable[str], *, source: ModuleSource | None = None) -> Addition | None:
    """Return the stored modules with these functions; None if this host cannot use a realization of each function. No code is loaded.

    Also return None if a function with a plain name was compiled from another source.

    Args:
        cache: an open cache.
        functions: the func_names.
        source: the current source of the functions; None accepts functions compiled from any source.
    """
    from compcache.cache import func_names_of
    from compcache.miss.compile_once import find_addition

    return find_addition(cache._session(), tuple(func_names_of(functions)), source)


def check_sources(cache: Cache, functions: Iterable[str], source: ModuleSource, consequence: str) -> None:
    """Warn (`CacheWarning`) if a function with a plain name was compiled from another source. Do nothing without ``COMPCACHE_CHECK=1``.

    Args:
        cache: an open cache.
        functions: the func_names.
        source: the current source of the functions.
        consequence: the consequence, for the warning: for example "the cached code is used".
    """
    cache._require_open()
    from compcache.cache import func_names_of
    from compcache.miss.staleness import is_checking, warn_about_stale

    if is_checking():
        warn_about_stale(cache._store, func_names_of(functions), source, consequence)


def note_uncached(cache: Cache, name: str, reason: str) -> None:
    """Record the reason why a function was compiled and not cached, for `Cache.explain`. Failures are ignored.

    Args:
        cache: an open cache.
        name: the name of the function, with the types of its arguments if it has several versions.
        reason: the reason, as the continuation of "was compiled and not cached:".
    """
    from compcache.inspect.uncached import record_refusal

    cache._store.stats.refused(name, reason)
    record_refusal(cache._store, name, reason)


def forget_uncached(cache: Cache, name: str) -> None:
    """Remove the record of `note_uncached`, because the function is cached now.

    Args:
        cache: an open cache.
        name: the name that was passed to `note_uncached`.
    """
    from compcache.inspect.uncached import remove_refusal

    remove_refusal(cache._store, name)


def compact_index(cache: Cache) -> None:
    """Merge the index after many additions, so that look-ups open fewer files. Call it at the end of a process that has added functions.

    Do nothing for a closed or read-only cache.

    Args:
        cache: a cache.
    """
    if not cache._closed and not cache._store.readonly:
        from compcache.publish.additions import merge_newest

        merge_newest(cache._store)
