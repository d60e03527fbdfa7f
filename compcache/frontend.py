"""Functions for authors of front ends: operations on a cache that compilers need and users do not.

A front end (Numba's is `compcache.numba`) turns a program's functions into modules, determines their dependencies, and passes call targets
to the program. `docs/frontend.md` shows a front end of fifty lines. Functions with the parameter `cache` that use stored functions or
entries raise `StorageError` for a closed cache. The other functions answer questions about LLVM code, symbols, files and settings.
"""

from __future__ import annotations

from compcache.facade import KEY_VARIABLE, PUBLISH_VARIABLE, func_name_of
from compcache.settings import REMOTE_MODE_VARIABLE, REMOTE_VARIABLE, are_set, from_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Any

    from compcache.build.source import ModuleSource
    from compcache.cache import Cache
    from compcache.formats.entry import EntryRecord
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.inspect.uncached import Refusal
    from compcache.miss.compile_once import Addition
    from compcache.miss.entries import PendingEntries
    from compcache.session import Session
    from compcache.usage.costs import Cost
    from compcache.usage.module_files import Progress
    from compcache.usage.summaries import EntrySummary, FunctionSummary, GroupSummary, ModuleSummary

__all__ = [
    "add_missing", "add_realizations", "address_of", "allows_pickle", "check_settings", "check_sources", "compact_index",
    "count_compilation", "count_miss", "find", "find_stored", "forget_uncached", "get_entry", "has_settled", "is_checking", "is_on",
    "list_costs", "list_entries", "list_functions", "list_groups", "list_labels", "list_modules", "list_names", "list_uncached",
    "note_uncached", "passes_vectors", "provider_of", "put_entry", "quote_name", "remove_entry", "remove_functions", "settings_of",
    "symbol_counts", "targets_of", "temporary_directory", "unquote_name", "write_entries",
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
        _require_kind_allowed(cache, kind)
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

    Once a load in this process has failed because the cache lacks an import, functions whose imports are missing count as missing, too.
    So a `build` that adds its callees provides the import again.

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
    from compcache.miss.compile_once import add_missing as add

    if not callable(build):
        raise TypeError(f"add_missing(): build must be a function that returns the source, not {type(build).__name__}")
    if hasattr(functions, "__iter__") and not isinstance(functions, str):
        functions = tuple(functions)
    names = tuple(func_names_of(functions))
    given: tuple[Any, ...] = functions if isinstance(functions, tuple) else (functions,)
    identity = next((name for name in given if not isinstance(name, str)), None)
    if identity is None:
        return add(cache._session(), names, build, source)
    return add(cache._session(), names, lambda: source_of(build(), identity.func_name, identity), source)


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


def is_checking() -> bool:
    """Return whether ``COMPCACHE_CHECK=1`` is set. Then the sources of cached code are compared with the programs' current sources."""
    from compcache.miss.staleness import is_checking as checks

    return checks()


def put_entry(cache: Cache, name_or_identity: str | Identity, data: bytes, *, kind: str, requires: Iterable[str] = ()) -> str:
    """Store an entry: bytes that belong to cached code. The entry replaces any entry of the same kind and name.

    This cache object can read the entry immediately. Other cache objects can read the entry after it is written to disk, with other entries
    in one file. Entries are written when an entry follows more than a second later, by `write_entries`, when the cache is closed, and when
    the process exits. If several processes store the same name, the last entry wins.

    Args:
        cache: the cache that stores the entry.
        name_or_identity: the name of the entry, for example the func_name of the function that it describes.
        data: the bytes.
        kind: the kind of the data. Each kind has its own names. The kind of data that will be unpickled begins with ``pickle:``. Only
            caches opened with allow_pickle=True read such entries, and entries from elsewhere need a trusted signature.
        requires: the module_ids of the modules that the entry needs. If one of them is removed, the entry is removed too.

    Returns:
        An id: 32 hexadecimal digits, equal for equal kinds, names, data and modules.

    Raises:
        StorageError: the cache is read-only or closed, or waiting entries could not be written.
        PickleNotAllowedError: the kind begins with ``pickle:``, and the cache was opened without allow_pickle=True.
        InvalidNameError: the name or the kind cannot be used.
        TypeError: the data is not bytes.
        ValueError: the data has more than 32 MiB, or a module_id is not valid.
    """
    from compcache.build.source import check_entry

    name = _entry_name(cache, name_or_identity, kind)
    modules = [_parse_module_id(module_id) for module_id in requires]
    cache._store.require_writable()
    return _pending_entries(cache).put(kind, name, check_entry(kind, data), modules)


def _parse_module_id(module_id: str) -> bytes:
    """Return the bytes of a module_id. Raise `ValueError` if it is not valid."""
    from compcache.usage.listings import parse_module_id  # few entries require modules

    return parse_module_id(module_id)


def get_entry(cache: Cache, name_or_identity: str | Identity, kind: str) -> bytes | None:
    """Return the data of an entry that `put_entry` or a module (`ModuleSource.entries`) has stored; None if there is no such entry.

    If several modules with entries realize a function, the entry of one module is returned; `find` distinguishes them.

    Args:
        cache: an open cache.
        name_or_identity: the name of the entry.
        kind: the kind of its data.

    Raises:
        InvalidNameError: the name or the kind cannot be used.
        PickleNotAllowedError: entries of the kind are unpickled, and the cache was opened without allow_pickle=True.
        SettingError, ValueError: the settings or the arguments for remote stores are not valid.
    """
    name = _entry_name(cache, name_or_identity, kind)
    if cache._plain._files is not None:
        from compcache.hit.plain_entries import read_entry

        answer = read_entry(cache._plain, kind, name)
        if answer is not None and (answer[0] is not None or not are_set((REMOTE_VARIABLE,))):
            return answer[0]
    record = cache._entries.find(kind, name) if cache._entries is not None else None
    record = record or cache._store.read_entry(kind, name) or _read_remote_entry(cache, kind, name)
    return None if record is None or record.gone else record.data


def _read_remote_entry(cache: Cache, kind: str, name: str) -> EntryRecord | None:
    """Return an entry from the remote store, or a local entry whose modules the remote store may have; None if neither exists.

    The request has the time limit of a compilation. See `Session.remote_url` for the exceptions.
    """
    session = cache._session()
    if not session.remote_url():
        return None
    from compcache.formats.entry import index_name
    from compcache.miss.compile_once import fetch_soon

    record = cache._store.read_entry(kind, name, alone=False)
    if record is None and fetch_soon(session, index_name(kind, name)):
        record = cache._store.read_entry(kind, name, alone=False)
    return record


def remove_entry(cache: Cache, name_or_identity: str | Identity, kind: str) -> None:
    """Remove an entry. Removing a missing entry has no effect. The removal is written to disk like an entry of `put_entry`.

    Args:
        cache: an open cache.
        name_or_identity: the name of the entry.
        kind: the kind of its data.

    Raises:
        StorageError, ...: see `put_entry`.
    """
    name = _entry_name(cache, name_or_identity, kind)
    cache._store.require_writable()
    _pending_entries(cache).put(kind, name, b"", is_removal=True)


def write_entries(cache: Cache) -> None:
    """Write waiting entries to disk, for example before a process ends without exit handlers, or passes work to another process.

    Args:
        cache: an open cache.

    Raises:
        StorageError: the entries could not be written. They remain waiting.
    """
    cache._require_open()
    if cache._entries is not None:
        cache._entries.flush()


def list_entries(cache: Cache) -> tuple[EntrySummary, ...]:
    """Return summaries of the stored entries, sorted by name and kind. Entries that are not yet written are left out.

    Args:
        cache: an open cache.
    """
    cache._require_open()
    from compcache.usage.folding import entries_in
    from compcache.usage.listings import look_over_all

    return tuple(entries_in(look_over_all(cache._store)))


def list_groups(cache: Cache, names: Collection[str] | None = None) -> tuple[GroupSummary, ...]:
    """Return the stored groups (`Cache.add_modules`) with their members, sorted by name.

    Args:
        cache: an open cache.
        names: the names of groups; None for all groups.
    """
    cache._require_open()
    from compcache.usage.groups import groups

    return tuple(groups(cache._store, names))


def list_labels(cache: Cache, part: str) -> set[str]:
    """Return the labels of stored functions, and the names of functions without labels, whose last components are `part`.

    Argument types after `part` are left out of the labels and names.

    Args:
        cache: an open cache.
        part: one or more components of a dotted name. ``solve`` and ``linalg.solve`` find ``linalg.solve``, also with types of arguments.
    """
    cache._require_open()
    from compcache.inspect.names import labels_ending_in

    return labels_ending_in(cache._store, part)


def list_names(cache: Cache, prefix: str, limit: int) -> list[str]:
    """Return the names of stored functions that begin with a prefix, sorted, and nothing else about the functions.

    Args:
        cache: an open cache.
        prefix: the beginning of the names.
        limit: the most names to return. It is not specified which names are left out.
    """
    cache._require_open()
    from compcache.inspect.names import names_starting_with

    return names_starting_with(cache._store, prefix, limit)


def list_functions(
    cache: Cache, prefix: str = "", match: Callable[[str], object] | None = None, *, folded: bool = False, progress: Progress | None = None
) -> Iterator[FunctionSummary]:
    """Yield summaries of the stored functions, sorted by label and name. See `Cache.functions`.

    The first summaries are yielded without reading all functions.

    Args:
        cache: the cache.
        prefix: the beginning of the labels, or of the names of functions without a label.
        match: returns whether a function with this func_name is listed.
        folded: whether all functions with the same label have one summary.
        progress: called repeatedly with (modules read, modules to read), if lists of modules have to be made first.
    """
    cache._require_open()
    from compcache.usage.listings import listed_functions

    return listed_functions(cache._store, progress, match, folded=folded, prefix=prefix)


def list_modules(cache: Cache, prefix: str = "", *, progress: Progress | None = None) -> Iterator[ModuleSummary]:
    """Yield summaries of the stored modules whose module_ids begin with a prefix, in the order of `Cache.modules`.

    Args:
        cache: an open cache.
        prefix: the first hexadecimal digits of module_ids.
        progress: called repeatedly with (modules read, modules to read).

    Raises:
        ValueError: `prefix` contains characters other than hexadecimal digits.
    """
    cache._require_open()
    from compcache.usage.listings import listed_modules

    return listed_modules(cache._store, prefix, progress)


def list_costs(
    cache: Cache, *, progress: Progress | None = None, duplicate: Callable[[str, int, int], object] | None = None
) -> Iterator[Cost]:
    """Yield the costs of stored functions, one item for each label or plain name, sorted by label or name.

    Args:
        cache: the cache.
        progress: called repeatedly with the numbers of read modules and of all modules.
        duplicate: called for each callable function with several realizations: its name, their number, the size of their modules in bytes.
    """
    cache._require_open()
    from compcache.usage.costs import costs

    return costs(cache._store, progress, duplicate)


def _entry_name(cache: Cache, name_or_identity: str | Identity, kind: str) -> str:
    """Return the name of an entry.

    Raise `StorageError` if the cache is closed, `InvalidNameError` for an invalid name or kind, or `PickleNotAllowedError` for a kind that
    may not be unpickled.
    """
    cache._require_open()
    name = func_name_of(name_or_identity)
    for text, description in ((name, "name of an entry"), (kind, "kind of entries")):
        if not isinstance(text, str) or not text or "\0" in text:
            from compcache.build.source import check_name

            check_name(text, description)
    _require_kind_allowed(cache, kind)
    return name


def _require_kind_allowed(cache: Cache, kind: str) -> None:
    """Raise `PickleNotAllowedError` if entries of a kind are pickled and the cache does not allow that; `TypeError` if it is not a str."""
    if not isinstance(kind, str):
        raise TypeError(f"the kind of an entry must be a str, not {type(kind).__name__}")
    if allows_pickle(cache):
        return
    from compcache.formats.entry import PICKLED

    if kind.startswith(PICKLED):
        from compcache.errors import PickleNotAllowedError

        reason = f"entries of the kind {kind!r} are unpickled, but the cache was opened without allow_pickle=True: open it with this option"
        raise PickleNotAllowedError(reason, reason=reason)


def _pending_entries(cache: Cache) -> PendingEntries:
    """Return the front-end entries of a cache that are not yet written."""
    if cache._entries is None:
        from compcache.miss.entries import PendingEntries

        cache._entries = PendingEntries(cache._session())
    return cache._entries


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


def list_uncached(cache: Cache) -> tuple[Refusal, ...]:
    """Return the records of `note_uncached`, the latest first. A few hundred records are kept.

    Args:
        cache: an open cache.
    """
    from compcache.inspect.uncached import read_refusals

    cache._require_open()
    return tuple(read_refusals(cache._store))


def compact_index(cache: Cache) -> None:
    """Merge the index after many additions, so that look-ups open fewer files. Call it at the end of a process that has added functions.

    Do nothing for a closed or read-only cache.

    Args:
        cache: a cache.
    """
    if not cache._closed and not cache._store.readonly:
        from compcache.publish.additions import merge_newest

        merge_newest(cache._store)


def settings_of(cache: Cache, *, secrets: bool = False) -> dict[str, Any]:
    """Return the arguments with which `Cache` opens the same directory, for example in another process.

    These are all arguments but `retarget`, `tune` and `link`, which then have their defaults. The other process checks the directory, too.
    Keys and URLs with passwords are replaced by references to an environment variable or a file, which the other process reads. If a secret
    was passed as a value, the reference lets processes of the same user on this host read the secret from the memory of this process, while
    this process lives.

    Args:
        cache: an open cache.
        secrets: whether to return the values of keys and passwords instead of references, for example for a pipe to a child process.

    Raises:
        ValueError: a secret was passed as a value, and this system does not support references to values.
        SettingError, ValueError: the settings or the arguments for remote stores are not valid.
    """
    store, session = cache._store, cache._session()
    signing, publishing = cache._keys_given
    return {
        "path": cache.path, "readonly": store.readonly, "verify": store.verify,
        "signing_key": _secret_reference(signing, store.signing_key, KEY_VARIABLE, "signing_key", as_values=secrets),
        "trust": store.trust, "allow_pickle": allows_pickle(cache), "max_size": session.max_size,
        "lock_timeout": session.lock_timeout, "layers": cache.layers, "min_llvm": store.min_llvm or None,
        "trusted_keys": tuple(map(str, store.trusted_keys)),
        "publish_key": _secret_reference(publishing, str(store.publish_key or ""), PUBLISH_VARIABLE, "publish_key", as_values=secrets),
        "remote": _remote_references(session, as_values=secrets),  # the other process may have another environment
        "remote_mode": session.remote_mode(),
    }  # fmt: skip


def _secret_reference(
    argument: str | bytes | None, value: str | bytes | None, variable: str, description: str, *, as_values: bool
) -> str | bytes | None:
    """Return a reference to a secret (`reference_to`, with its exception). Return `value` if it is empty or None, or `as_values` is set."""
    if as_values or not value:
        return value
    from compcache.processes.secret_references import reference_to

    return reference_to(argument, value, variable, description)


def _remote_references(session: Session, *, as_values: bool) -> str | None:
    """Return the URLs of the remote stores, or None if no store is set. See `settings_of` for the exceptions.

    URLs with secrets become references, unless `as_values` is set.
    """
    url = session.remote_url()
    if as_values or not url:
        return url
    from compcache.processes.secret_references import is_reference
    from compcache.remote.address import has_secret, split_urls

    if not has_secret(url):
        return url
    argument = session.remote_given
    if argument is None:
        return str(_secret_reference(None, url, REMOTE_VARIABLE, "the remote store", as_values=False))
    names = [
        _secret_reference(item, item, REMOTE_VARIABLE, "the remote store", as_values=not (is_reference(item) or has_secret(item)))
        for item in split_urls(argument)
    ]
    return " ".join(map(str, names))


def allows_pickle(cache: Cache) -> bool:
    """Return whether the cache was opened with allow_pickle=True.

    Args:
        cache: an open cache.
    """
    return cache._plain.allow_pickle


def temporary_directory(cache: Cache) -> str:
    """Return the path of a directory in the cache for temporary files. It may not exist. `Cache.prune` removes leftover files.

    Args:
        cache: an open cache.
    """
    return cache._store.temporary


def symbol_counts(text: str) -> dict[str, int]:
    """Return the number of occurrences of each function and variable in LLVM assembly, its definition or declaration included.

    Args:
        text: LLVM assembly, as LLVM prints it.
    """
    from compcache.build import ir_text

    return ir_text.symbol_counts(text)


def quote_name(name: str) -> str:
    """Return a name in the form that follows ``@`` in LLVM assembly, with quotes if necessary.

    Args:
        name: the name of a function or variable.
    """
    from compcache.build.ir_text import quote

    return quote(name)


def unquote_name(written: str) -> str:
    """Return the name that a written form in LLVM assembly denotes. This is the inverse of `quote_name`.

    Args:
        written: the text after ``@``, with or without quotes.
    """
    from compcache.build.ir_text import unquote

    return unquote(written[1:-1]) if written.startswith('"') else written


def passes_vectors(text: str) -> bool:
    """Return whether code passes wide vectors to or from other modules. Such code can be compiled only for one CPU, not for `targets`.

    Args:
        text: LLVM assembly, as LLVM prints it.
    """
    from compcache.build import ir_text

    return ir_text.passes_vectors(text)


def provider_of(symbol: str) -> str:
    """Return the provider of a native symbol.

    Args:
        symbol: the name of the symbol in C.

    Returns:
        "platform" if every process on this platform has the symbol, "process" if this process has it, otherwise "".
    """
    from compcache.images.platform_symbols import in_process, is_platform_symbol

    if is_platform_symbol(symbol):
        return "platform"
    return "process" if in_process(symbol) else ""


def address_of(symbol: str) -> int:
    """Return the address of a native symbol in this process; 0 if it is not defined. Neither LLVM nor ctypes is imported.

    Args:
        symbol: the name of the symbol in C.
    """
    from compcache.hit.target import load_runtime

    address: int = load_runtime().find_symbol(symbol.encode(), None)
    return address


def targets_of(targets: Iterable[str] | str | None) -> Iterable[str] | str | None:
    """Return `targets`, or the setting ``COMPCACHE_TARGETS`` if `targets` is empty; None to compile only for this host.

    Args:
        targets: the value of `ModuleSource(targets=...)`: names of CPUs, or None.
    """
    from compcache.settings import setting
    from compcache.targets.machine import TARGETS_VARIABLE

    return targets or setting(TARGETS_VARIABLE) or None


def check_settings() -> None:
    """Raise `SettingError` if a setting of remote stores is not valid. Otherwise only misses read these settings."""
    if are_set((REMOTE_VARIABLE, REMOTE_MODE_VARIABLE)):
        from compcache.remote.address import read_mode, read_url

        from_environment(REMOTE_VARIABLE, read_url)
        from_environment(REMOTE_MODE_VARIABLE, read_mode)


def is_on(variable: str) -> bool:
    """Return whether a setting is on (1, on, yes, true). A setting that is not set is off.

    Args:
        variable: the environment variable of the setting, like ``COMPCACHE_CHECK``. Configuration files are also read.

    Raises:
        SettingError: the setting is neither on nor off (0, off, no, false).
    """
    from compcache import settings

    return settings.is_on(variable)


def has_settled(newest: int) -> bool:
    """Return whether the last change of a file is old enough that another change would change the file's times.

    Only then do the times identify the content.

    Args:
        newest: the later of the file's times of modification and change, in nanoseconds.
    """
    from compcache.publish import atomic_file

    return atomic_file.has_settled(newest)


#: The functions that replace former members of `Cache`, by the members' names: methods, and properties.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "find_target": find, "add_realizations": add_realizations, "add_missing": add_missing, "find_stored": find_stored,
    "note_uncached": note_uncached, "forget_uncached": forget_uncached, "compact_index": compact_index,
}  # fmt: skip
_PROPERTIES: dict[str, Callable[..., Any]] = {
    "settings": settings_of,
    "allow_pickle": allows_pickle,
    "temporary_directory": temporary_directory,
}


def moved(cache: Cache, name: str) -> Any:
    """Return the value of a former property of `Cache`, or a former method, from the function that replaces it.

    Issue a `DeprecationWarning`, because version 1.1 removes these members.

    Raises:
        AttributeError: `Cache` never had this member.
    """
    new = _FUNCTIONS.get(name) or _PROPERTIES.get(name)
    if new is None:
        raise AttributeError(f"{type(cache).__name__!r} object has no attribute {name!r}", name=name, obj=cache)
    import functools
    import warnings

    message = f"Cache.{name} will be removed in version 1.1: use compcache.frontend.{new.__name__}(cache, ...) instead"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return new(cache) if name in _PROPERTIES else functools.partial(new, cache)


def remove_functions(
    cache: Cache, names: Iterable[str], *, force: bool = False, derived: bool = False, dry_run: bool = False
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Remove functions and groups, importers before the functions that they import.

    Args:
        cache: an open cache.
        names: the names of functions or groups.
        force: see `Cache.remove`.
        derived: see `Cache.remove`.
        dry_run: remove nothing, and return what would be returned otherwise.

    Returns:
        The ids of the removed modules by name, and the reason for each function or group that was kept.

    Raises:
        FormatError: see `Cache.remove`.
        StorageError: see `Cache.remove`.
    """
    cache._require_open()
    from compcache.maintain import remove

    return remove.remove_functions(cache._store, names, force=force, derived=derived, dry_run=dry_run)
