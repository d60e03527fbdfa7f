"""For authors of front ends: functions of a cache that compilers need and users do not.

A front end (Numba's is `compcache.numba`) turns a program's functions into modules, decides what each of them depends on, and
hands call targets on. `docs/frontend.md` has one in fifty lines. Functions that concern a cache take it first, open; the errors of a closed
cache are its own. The others answer questions about the code to store, and about what it was made from.
"""

from __future__ import annotations

from compcache.cache import func_names_of
from compcache.errors import CompcacheError, FormatError, GlobalValidationError
from compcache.facade import KEY_VARIABLE, PUBLISH_VARIABLE
from compcache.files import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Any

    from compcache.build.source import ModuleSource
    from compcache.cache import Cache
    from compcache.directory.module_file import ModuleFile
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
    "add_missing",
    "add_realizations",
    "address_of",
    "allows_pickle",
    "check_sources",
    "compact_index",
    "count_compilation",
    "count_miss",
    "find",
    "find_stored",
    "forget_uncached",
    "get_entry",
    "has_settled",
    "is_checking",
    "is_on",
    "list_costs",
    "list_entries",
    "list_functions",
    "list_groups",
    "list_labels",
    "list_modules",
    "list_uncached",
    "note_uncached",
    "passes_vectors",
    "provider_of",
    "put_entry",
    "quote_name",
    "remove_entry",
    "settings_of",
    "symbol_counts",
    "targets_of",
    "temporary_directory",
    "unquote_name",
    "write_entries",
]


def find(
    cache: Cache, func_name: str, accept: Callable[[bytes], bool] | None = None, *, kind: str = "", is_new: bool = False
) -> TypedCallTarget | None:
    """Return the call target of a function; None if it cannot be loaded. A miss is not counted (`count_miss`).

    A missing function is requested from the remote store, with the patience of a compile.

    Args:
        cache: the cache to search.
        func_name: the function.
        accept: chooses among several realizations. It is called with the entry of this `kind` of a realization (`ModuleSource.entries`),
            before any of it is loaded. A realization is skipped if it has no such entry, if `accept` returns false, or if it raises a
            `CompcacheError` with the reason.
        kind: the kind of that entry; see `put_entry`.
        is_new: this process has just stored it, so finding it does not count as a hit.

    Raises:
        PickleNotAllowedError: entries of the kind are unpickled, and the cache was not opened for that.
    """
    judge = None
    if accept is not None:
        _require_allowed(cache, kind)
        judge = _Judge(cache, func_name, kind, accept)
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
        from compcache.miss.compile_once import find_fetched

        return find_fetched(session, func_name, error, judge)


class _Judge:
    """Shows a front end the entries of realizations; raises if it does not accept one."""

    def __init__(self, cache: Cache, func_name: str, kind: str, accept: Callable[[bytes], bool]) -> None:
        self._store = cache._store
        self._key = kind, func_name
        self._accept = accept
        self._offsets: dict[bytes, int] = {}

    def __call__(self, file: ModuleFile) -> None:
        from compcache.formats.entry import decode_entry, index_name, may_be_read

        kind, name = self._key
        if file.module_id not in self._offsets:
            self._offsets = dict(self._store.find(index_name(kind, name)))
        reason = f"it has no trusted entry of the kind {kind!r}"
        offset = self._offsets.get(file.module_id)
        if offset is not None and may_be_read(kind, elsewhere=file.elsewhere):
            record = decode_entry(file.read_record(offset))
            if (record.kind, record.name) == (kind, name):
                try:  # the error belongs to the front end, not to a file of the cache
                    accepted = self._accept(record.data)
                except (FormatError, OSError) as error:
                    reraise_interrupt(error)
                    raise GlobalValidationError(f"the front end failed: {error}", reason=str(error)) from error
                if accepted:
                    return
                reason = "the front end does not accept it"
        raise GlobalValidationError(reason, reason=reason)


def count_miss(cache: Cache, func_name: str, *, refused: bool = False) -> None:
    """Count a function that was not found; `refused`: it cannot be cached.

    Args:
        cache: an open cache.
        func_name: the function.
        refused: it cannot be cached, so that every request for it will be a miss.
    """
    from compcache.errors import NotCachedError
    from compcache.formats.journal import MISSES_ID

    cache._require_open()
    if refused:
        cache._store.stats.count("misses.refused", 1, func_name, MISSES_ID)
    else:
        message = f"{func_name} is not cached in {cache.path}"
        cache._store.stats.missed(NotCachedError(message, func_name=func_name, cache_dir=cache.path))


def count_compilation(cache: Cache, func_name: str, seconds: float) -> None:
    """Count a function that was compiled and not stored.

    Args:
        cache: an open cache.
        func_name: the function.
        seconds: of processor time.
    """
    cache._require_open()
    cache._store.stats.compiled(seconds, (func_name,))


def add_realizations(cache: Cache, source: ModuleSource, *, alone: bool = False, seconds: float = 0.0) -> tuple[str, ...]:
    """Compile a module for each of its targets and publish it, as `Cache.add_module` does.

    Args:
        cache: where to store it.
        source: the code.
        alone: import only what the source names, whatever the cache holds. Other realizations of the name may exist; a loader
            distinguishes them (`find` with `accept`).
        seconds: the processor time for making the source, which a hit saves as well.

    Returns:
        The module_ids of all targets, that of the one for this host first.

    Raises:
        CompileError, LinkError, StorageError, ...: what `Cache.add_module` raises.
    """
    cache._require_open()
    from compcache.miss.build import add

    return add(cache._session(), source, alone=alone, seconds=seconds)


def add_missing(
    cache: Cache, functions: Iterable[str], build: Callable[[], ModuleSource], *, source: ModuleSource | None = None
) -> Addition:
    """Compile and publish a module unless every one of these functions is cached. Nothing is loaded.

    Other processes that request the first of them wait for this one, for a bounded time.

    Args:
        cache: the cache to search and to store in.
        functions: the func_names that the module is for; at least one.
        build: called if one of them is missing; returns the source of a module that exports them all.
        source: that source, if known: functions with plain names that were compiled from another source are compiled again.

    Raises:
        UndefinedSymbolError: the module does not export one of them.
        CompileError, LinkError, StorageError, ...: what `Cache.add_module` raises.
    """
    cache._require_open()
    from compcache.miss.compile_once import add_missing as add

    if not callable(build):
        raise TypeError(f"add_missing(): build must be a function that returns the source, not {type(build).__name__}")
    return add(cache._session(), tuple(func_names_of(functions)), build, source)


def find_stored(cache: Cache, functions: Iterable[str], *, source: ModuleSource | None = None) -> Addition | None:
    """Return the modules with these functions if this host can use a realization of each; otherwise None. Nothing is loaded.

    None also if a function with a plain name was compiled from another `source`.

    Args:
        cache: an open cache.
        functions: their func_names.
        source: what they would be compiled from now; None: whatever they were compiled from.
    """
    cache._require_open()
    from compcache.miss.compile_once import find_stored as stored

    return stored(cache._session(), tuple(func_names_of(functions)), source)


def check_sources(cache: Cache, functions: Iterable[str], source: ModuleSource, consequence: str) -> None:
    """Warn, with ``COMPCACHE_CHECK=1``, if a function of a plain name was compiled from another source; `consequence` says what follows.

    Args:
        cache: an open cache.
        functions: their func_names.
        source: what they would be compiled from now.
        consequence: what follows, for the warning: "the cached code is used".
    """
    cache._require_open()
    from compcache.miss.staleness import is_checking, warn_of_stale

    if is_checking():
        warn_of_stale(cache._store, func_names_of(functions), source, consequence)


def is_checking() -> bool:
    """Return whether ``COMPCACHE_CHECK=1`` is set: cached code is compared with what programs build now."""
    from compcache.miss.staleness import is_checking as checks

    return checks()


def put_entry(cache: Cache, name_or_identity: str | Identity, data: bytes, *, kind: str, requires: Iterable[str] = ()) -> str:
    """Store bytes that belong to cached code; they replace those of the same kind and name.

    This object can read them at once, others after they are written, many in one file. They are written before the first entry that comes
    a second later, when the cache is closed, when the process exits, or by `write_entries`. If several processes store the same name, the
    last one wins.

    Args:
        cache: where to store them.
        name_or_identity: their name: for example that of the function that they describe.
        data: the bytes.
        kind: the kind of the front end's data; each kind has its own names. The kind of data that will be unpickled begins with
            ``pickle:``. Only caches opened with allow_pickle=True read such entries, and entries from elsewhere need a trusted signature.
        requires: the module_ids without which they have no meaning. They disappear with any of these.

    Returns:
        An id: 32 hexadecimal digits, equal for equal names, data and modules.

    Raises:
        StorageError: the cache is read-only, or they had to be written now and writing failed.
        InvalidNameError: the name or the kind is not usable.
        ValueError: the data has more than 32 MiB, or a module_id is not valid.
    """
    from compcache.build.source import check_entry

    name = _entry_name(cache, name_or_identity, kind)
    modules = []
    for module_id in requires:
        from compcache.usage.listings import module_key

        modules.append(module_key(module_id))
    cache._store.require_writable()
    return _pending(cache).put(kind, name, check_entry(kind, data), modules)


def get_entry(cache: Cache, name_or_identity: str | Identity, kind: str) -> bytes | None:
    """Return the bytes that `put_entry` has stored, or that came with a module (`ModuleSource.entries`); None if there are none.

    If several modules realize a function, each with its entry, the result is the entry of one of them; `find` distinguishes them.

    Args:
        cache: an open cache.
        name_or_identity: the entry's.
        kind: the kind of its data.

    Raises:
        PickleNotAllowedError: entries of the kind are unpickled, and the cache was not opened for that.
    """
    name = _entry_name(cache, name_or_identity, kind)
    record = cache._entries.find(kind, name) if cache._entries is not None else None
    record = record or cache._store.read_entry(kind, name) or _from_elsewhere(cache, kind, name)
    return None if record is None or record.gone else record.data


def _from_elsewhere(cache: Cache, kind: str, name: str) -> EntryRecord | None:
    """Return an entry that the remote store has, or whose modules it may have; wait for it as long as a compile waits."""
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
    """Remove the entry of this kind and name, if there is one.

    Args:
        cache: an open cache.
        name_or_identity: the entry's.
        kind: the kind of its data.

    Raises:
        StorageError, ...: what `put_entry` raises.
    """
    name = _entry_name(cache, name_or_identity, kind)
    cache._store.require_writable()
    _pending(cache).put(kind, name, b"", gone=True)


def write_entries(cache: Cache) -> None:
    """Write the waiting entries for others to read: before a process ends without exit handlers, or hands work on.

    Args:
        cache: an open cache.

    Raises:
        StorageError: they could not be stored; they keep waiting.
    """
    cache._require_open()
    if cache._entries is not None:
        cache._entries.flush()


def list_entries(cache: Cache) -> tuple[EntrySummary, ...]:
    """Return the stored entries of data, sorted by name and kind. Entries that wait in this process are left out.

    Args:
        cache: an open cache.
    """
    cache._require_open()
    from compcache.usage.folding import entries_in
    from compcache.usage.listings import look_over_all

    return tuple(entries_in(look_over_all(cache._store)))


def list_groups(cache: Cache, names: Collection[str] | None = None) -> tuple[GroupSummary, ...]:
    """Return the stored groups (`Cache.add_modules`), or those of these names, with their members, sorted by name.

    Args:
        cache: an open cache.
        names: of groups; None: all.
    """
    cache._require_open()
    from compcache.usage.groups import groups

    return tuple(groups(cache._store, names))


def list_labels(cache: Cache, part: str) -> set[str]:
    """Return the labels of stored functions, or their names without labels, that end with a part of a name behind a dot, or are it.

    Args:
        cache: an open cache.
        part: ``solve`` for ``linalg.solve``, also where types of arguments follow that; ``linalg.solve`` itself.
    """
    cache._require_open()
    from compcache.inspect.names import ending_in

    return ending_in(cache._store, part)


def list_functions(
    cache: Cache, prefix: str = "", match: Callable[[str], object] | None = None, *, folded: bool = False, progress: Progress | None = None
) -> Iterator[FunctionSummary]:
    """Return the stored functions one by one. The first come at once, however many there are. See `Cache.functions` for the rest.

    Args:
        cache: the cache.
        prefix: the beginning of their labels, or of names without a label.
        match: returns whether a function of this name is listed.
        folded: one summary for all functions of a label.
        progress: called now and then with (modules read, modules to read), if lists of modules have to be made first.

    Returns:
        Summaries, sorted by label and name.
    """
    cache._require_open()
    from compcache.usage.listings import listed_functions

    return listed_functions(cache._store, progress, match, folded=folded, prefix=prefix)


def list_modules(cache: Cache, prefix: str = "", *, progress: Progress | None = None) -> Iterator[ModuleSummary]:
    """Return the stored modules whose ids begin with a prefix, one by one, in the order of `Cache.modules`.

    Args:
        cache: an open cache.
        prefix: the first hexadecimal digits of ids.
        progress: called now and then with (modules read, modules to read).

    Raises:
        ValueError: `prefix` has other than hexadecimal digits.
    """
    cache._require_open()
    from compcache.usage.listings import listed_modules

    return listed_modules(cache._store, prefix, progress)


def list_costs(cache: Cache, *, progress: Progress | None = None) -> Iterator[Cost]:
    """Return the costs of stored functions, one label or name at a time, sorted by it.

    Args:
        cache: the cache.
        progress: called now and then with (modules read, modules to read), if lists of modules have to be made first.
    """
    cache._require_open()
    from compcache.usage.costs import costs

    return costs(cache._store, progress)


def _entry_name(cache: Cache, name_or_identity: str | Identity, kind: str) -> str:
    cache._require_open()
    (name,) = func_names_of((name_or_identity,))
    for text, what in ((name, "name of an entry"), (kind, "kind of entries")):
        if not isinstance(text, str) or not text or "\0" in text:
            from compcache.build.source import check_name

            check_name(text, what)
    _require_allowed(cache, kind)
    return name


def _require_allowed(cache: Cache, kind: str) -> None:
    from compcache.formats.entry import PICKLED

    if not isinstance(kind, str):
        raise TypeError(f"the kind of entries is a str, not {type(kind).__name__}")
    if kind.startswith(PICKLED) and not allows_pickle(cache):
        from compcache.errors import PickleNotAllowedError

        reason = f"entries of the kind {kind!r} are unpickled, and the cache was not opened with allow_pickle=True"
        raise PickleNotAllowedError(reason, reason=reason)


def _pending(cache: Cache) -> PendingEntries:
    if cache._entries is None:
        from compcache.miss.entries import PendingEntries

        cache._entries = PendingEntries(cache._session())
    return cache._entries


def note_uncached(cache: Cache, name: str, reason: str) -> None:
    """Record for `Cache.explain` why a function was compiled and not cached; never fails.

    Args:
        cache: an open cache.
        name: the function, with the types of its arguments where it has several versions.
        reason: why, as a sentence that goes on "was compiled and not cached:".
    """
    from compcache.inspect.uncached import record_refusal

    cache._store.stats.refused(name, reason)
    record_refusal(cache._store, name, reason)


def forget_uncached(cache: Cache, name: str) -> None:
    """Undo `note_uncached`: the function is cached now.

    Args:
        cache: an open cache.
        name: as it was given to `note_uncached`.
    """
    from compcache.inspect.uncached import remove_refusal

    remove_refusal(cache._store, name)


def list_uncached(cache: Cache) -> tuple[Refusal, ...]:
    """Return what `note_uncached` has recorded, the latest first: a few hundred are kept.

    Args:
        cache: an open cache.
    """
    from compcache.inspect.uncached import read_refusals

    cache._require_open()
    return tuple(read_refusals(cache._store))


def compact_index(cache: Cache) -> None:
    """Merge the index after additions one by one, so that look-ups open fewer files. For the end of a process that has added functions. A
    failure is harmless.

    Args:
        cache: an open cache.
    """
    if not cache._closed and not cache._store.readonly:
        from compcache.publish.additions import compact

        compact(cache._store)


def settings_of(cache: Cache, *, secrets: bool = False) -> dict[str, Any]:
    """Return the arguments with which `Cache` opens the same directory in the same way, for example in another process.

    Trust is among them, because this process has checked or vouched for the directory. Keys, and URLs with a password, are not contained
    but named, by their environment variable or file, which the other process reads itself. A secret that was given as a value is read from
    the memory of this process, by processes of this user on this host, while this process lives. With `secrets`, the arguments contain the
    values: for a child process, through a descriptor.

    Args:
        cache: an open cache.
        secrets: give keys and passwords themselves, and not where they come from.

    Raises:
        ValueError: a secret was given as a value, and this system has no way to hand it over.
    """
    store, session = cache._store, cache._session()
    signing, publishing = cache._keys_given
    return {
        "path": cache.path, "readonly": store.readonly, "verify": store.verify,
        "signing_key": _secret(signing, store.signing_key, KEY_VARIABLE, "signing_key", told=secrets),
        "trust": True, "allow_pickle": allows_pickle(cache), "max_size": session.max_size,
        "lock_timeout": session.lock_timeout, "layers": cache.layers, "min_llvm": store.min_llvm or None,
        "trusted_keys": tuple(map(str, store.trusted_keys)),
        "publish_key": _secret(publishing, str(store.publish_key or ""), PUBLISH_VARIABLE, "publish_key", told=secrets),
        "remote": _remote(session, told=secrets),  # the other process may have another environment
        "remote_mode": session.remote_mode(),
    }  # fmt: skip


def _secret(given: str | bytes | None, value: str | bytes | None, variable: str, what: str, *, told: bool) -> str | bytes | None:
    if told or not value:
        return value
    from compcache.processes.secret_references import reference_to

    return reference_to(given, value, variable, what)


def _remote(session: Session, *, told: bool) -> str | None:
    url = session.remote_url()
    if told or not url:
        return url
    from compcache.processes.secret_references import is_reference
    from compcache.remote.address import has_secret, split_urls

    if not has_secret(url):
        return url
    from compcache.session import REMOTE_VARIABLE

    given = session.remote_given
    if given is None:
        return str(_secret(None, url, REMOTE_VARIABLE, "the remote store", told=False))
    names = [
        _secret(each, each, REMOTE_VARIABLE, "the remote store", told=not (is_reference(each) or has_secret(each)))
        for each in split_urls(given)
    ]
    return " ".join(map(str, names))


def allows_pickle(cache: Cache) -> bool:
    """Return whether the cache was opened with allow_pickle=True.

    Args:
        cache: an open cache.
    """
    return cache._loader.allow_pickle


def temporary_directory(cache: Cache) -> str:
    """Return a directory in the cache for short-lived files. It may not exist. Prunes remove the files that are left there.

    Args:
        cache: an open cache.
    """
    return cache._store.temporary


def symbol_counts(text: str) -> dict[str, int]:
    """Return how often each function and variable occurs in LLVM assembly as LLVM prints it, including its definition or declaration.

    Args:
        text: LLVM assembly.
    """
    from compcache.build import ir_text

    return ir_text.symbol_counts(text)


def quote_name(name: str) -> str:
    """Return a name as LLVM assembly writes it behind ``@``, in quotes where it needs them.

    Args:
        name: of a function or variable.
    """
    from compcache.build.ir_text import quote

    return quote(name)


def unquote_name(written: str) -> str:
    """Return the name that LLVM assembly writes like this, with quotes or without.

    Args:
        written: what follows the ``@``.
    """
    from compcache.build.ir_text import unquote

    return unquote(written[1:-1]) if written.startswith('"') else written


def passes_vectors(text: str) -> bool:
    """Return whether code exchanges wide vectors with functions outside of it. Such code can be compiled for one CPU only, not for
    `targets`.

    Args:
        text: LLVM assembly.
    """
    from compcache.build import ir_text

    return ir_text.passes_vectors(text)


def provider_of(symbol: str) -> str:
    """Return the provider of a native symbol: "platform" (every process on this platform has it), "process" (this one has it) or "" (none).

    Args:
        symbol: its name in C.
    """
    from compcache.images.platform_symbols import in_process, is_platform_symbol

    return "platform" if is_platform_symbol(symbol) else "process" if in_process(symbol) else ""


def address_of(symbol: str) -> int:
    """Return the address of a native symbol in this process; 0 if it has none. Neither LLVM nor ctypes is imported.

    Args:
        symbol: its name in C.
    """
    from compcache.hit.target import load_runtime

    address: int = load_runtime().find_symbol(symbol.encode(), None)
    return address


def targets_of(targets: Iterable[str] | str | None) -> Iterable[str] | str | None:
    """Return the CPUs of `ModuleSource(targets=...)`, or those of $COMPCACHE_TARGETS if `targets` is None; None for this host alone.

    Args:
        targets: those of a source: names of CPUs, or None.
    """
    from compcache.settings import setting
    from compcache.targets.machine import TARGETS_VARIABLE

    return targets or setting(TARGETS_VARIABLE) or None


def is_on(variable: str) -> bool:
    """Return whether a setting is on (1, on, yes, true); off if it is not set.

    Args:
        variable: the environment variable, like ``COMPCACHE_CHECK``; configuration files count, too.

    Raises:
        SettingError: it is neither on nor off (0, off, no, false).
    """
    from compcache import settings

    return settings.is_on(variable)


def has_settled(newest: int) -> bool:
    """Return whether a file changed long enough ago that another change would alter its times.

    Only then do a file's times identify its content.

    Args:
        newest: the later of the times of modification and change, in nanoseconds.
    """
    from compcache.publish import atomic_file

    return atomic_file.has_settled(newest)


#: Members of `Cache` that were moved here, by their old names: functions, and former properties.
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
    """Return a member of `Cache` that is now a function of this module, with a warning; until version 1.1.

    Raises:
        AttributeError: it never was a member.
    """
    new = _FUNCTIONS.get(name) or _PROPERTIES.get(name)
    if new is None:
        raise AttributeError(f"{type(cache).__name__!r} object has no attribute {name!r}", name=name, obj=cache)
    import functools
    import warnings

    message = f"Cache.{name} is compcache.frontend.{new.__name__} now, which takes the cache first; the old name goes with version 1.1"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return new(cache) if name in _PROPERTIES else functools.partial(new, cache)
