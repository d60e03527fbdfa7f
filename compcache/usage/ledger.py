"""The sum of the statistics of all processes (`compcache.hit.recorder`), and folding of their files into one file.

Tools and processes that fill a journal use this module. A journal is sealed by renaming it. A process that had it open may still append
to it for a moment, so a sealed journal is folded only after it has been unchanged for a minute. A fold publishes a sum, which names the
files that it contains, and then removes these files. A reader between these steps, or after a fold that was killed, ignores files that
another file contains. Folds take a lock. Where locks do not work, only `fold` with `force` replaces files.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from compcache import files as file_ops
from compcache.digest import KEY_SIZE
from compcache.directory.places import JOURNALS, STATISTICS
from compcache.errors import FormatError, StorageError, UntrustedDirectoryError
from compcache.formats.journal import HOUR
from compcache.formats.statistics import (
    LOADS_KEY,
    MISSES_ID,
    StatsFile,
    UsesInSum,
    decode_journal,
    decode_stats,
    encode_stats,
    encode_sum,
    encode_use,
    is_sum,
    read_inputs,
)  # fmt: skip
from compcache.hit.recorder import JOURNALS_OF_HOST
from compcache.interrupts import suppress
from compcache.publish.atomic_file import publish, unique_name
from compcache.publish.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

    from compcache.files import Files
    from compcache.store import Store

    #: A use by (module_id, name key), with its count and the time of the last one.
    Use = tuple[tuple[bytes, bytes], int, float]
    #: Returns the compile times of modules in seconds, by module_id.
    SecondsOf = Callable[[Sequence[bytes]], Mapping[bytes, float]]

__all__ = ["Ledger", "Uses", "fold", "fold_long", "fold_small", "last_uses_since", "zero_counters"]

_MAX_FILE = 1 << 31  # bytes
#: How often the files are opened again if others were sealed or folded meanwhile.
_ATTEMPTS = 16
#: The age in hours from which counters are kept by day instead of by hour.
_HOURLY = 31 * 24
_LOCK = "stats-fold"
#: The least number of files that `fold_small` merges.
_MIN_FILES = 8
#: The size in bytes from which a file is searched instead of held in memory.
_LONG = 1 << 19
_MAGIC_SIZE = 8
#: The bytes of a journal that are read at a time.
_PIECE = 1 << 22
#: A key after the keys of all uses.
_AFTER_ALL = b"\xff" * (2 * KEY_SIZE + 1)
#: The seconds for which a sealed journal may still grow, because a process opens and writes it in two calls.
SETTLED_SECONDS = 60.0


class Ledger(NamedTuple):
    """The uses of modules, and the misses of functions, in memory. `uses` has (count, last use) by (name key, module_id)."""

    uses: dict[tuple[bytes, bytes], tuple[int, float]]

    def counts(self) -> dict[bytes, int]:
        """Return the number of uses of the functions in each module, by module_id. Modules without uses are absent."""
        counts: dict[bytes, int] = {}
        for (key, module_id), (count, _) in self.uses.items():
            if key != LOADS_KEY and module_id != MISSES_ID:
                counts[module_id] = counts.get(module_id, 0) + count
        return counts

    def last_uses(self) -> dict[bytes, float]:
        """Return the time of the last use of each module."""
        latest: dict[bytes, float] = {}
        for (_, module_id), (_, last_use) in self.uses.items():
            if last_use > latest.get(module_id, 0.0):
                latest[module_id] = last_use
        latest.pop(MISSES_ID, None)
        return latest

    def misses(self) -> dict[bytes, int]:
        """Return the number of misses of each function by name key. Functions without a miss for a month may be absent."""
        return {name: count for (name, module_id), (count, _) in self.uses.items() if module_id == MISSES_ID}


def _statistics_files(store: Store, since: Uses | None = None) -> list[str]:
    """Return the names of the statistics files and journals, without files that `since` lists as damaged or with their current size."""
    names = store.names_in(store.directory(STATISTICS))
    names = [name for name in names if JOURNALS.includes(name) or STATISTICS.includes(name)]
    if since is None:
        return names
    return [name for name in names if name not in since.torn and not _has_size(store, name, since.files.get(name))]


def _has_size(store: Store, name: str, size: int | None) -> bool:
    """Return whether a statistics file has this size in bytes. Return False for None, or if the status of the file cannot be read."""
    with suppress(OSError):
        return store.files.stat(store.path(STATISTICS, name)).st_size == size
    return False


class Uses:
    """The sum of statistics files. Long files are searched and not held in memory.

    A file that another file contains is ignored. If two files contain the same file, which only folds without working locks can cause, the
    file that contains fewer files is ignored.

    Args:
        store: the cache directory.
        names: the names of the files; None for all files.
        verify: read long sums in full first, to find damaged sums.
        since: only the files that have changed since these statistics were read.
    """

    def __init__(self, store: Store, names: Iterable[str] | None = None, *, verify: bool = False, since: Uses | None = None) -> None:
        current = _statistics_files(store, since) if names is None else list(names)
        for _ in range(_ATTEMPTS):
            self._open_files(store, current, verify=verify)
            if names is not None:
                break
            opened, current = current, _statistics_files(store, since)
            if current == opened:
                break  # if the names differ, files were sealed or folded in the meantime

    def _open_files(self, store: Store, names: Iterable[str], *, verify: bool) -> None:
        """Read the short files, open the long files (see `_open_long`), and set the fields to their sum. Add damaged files to `torn`."""
        short: dict[str, StatsFile] = {}
        long: dict[str, list[UsesInSum]] = {}
        self.torn: tuple[str, ...] = ()
        #: The sizes of the readable files in bytes, with files that other files contain.
        self.files: dict[str, int] = {}
        for name in names:
            try:
                opened = _open_long(store, name, verify=verify)
                content = None if opened is not None else _read_short(store, name)
            except FormatError:
                self.torn += (name,)
                continue
            if opened is not None:
                self.files[name], long[name] = opened
            elif content is not None:
                self.files[name], short[name] = content.size, content
        #: The names of the files that each file contains.
        self.inputs = {name: content.inputs for name, content in short.items()} | {name: file[0].inputs for name, file in long.items()}
        effective = _effective_files(self.inputs)
        contents = [short[name] for name in effective if name in short]
        self._long = [file for name in effective for file in long.get(name, ())]
        self._short = _add_uses(contents)
        self._sorted = sorted(self._short)
        self.counters = _add_counters([*[content.counters for content in contents], *[file.counters() for file in self._long]])
        self.is_empty = not self._long and not self._short

    def sorted_uses(self, start: bytes = b"", end: bytes = _AFTER_ALL) -> Iterator[Use]:
        """Yield the uses of modules with `start` <= module_id < `end`, in the order of module_ids and name keys."""
        sources: list[Iterable[Use]] = [file.uses_between(start, end) for file in self._long]
        sources.append(self._short_uses(self._sorted[bisect_left(self._sorted, start) : bisect_left(self._sorted, end)]))
        if len(sources) == 1:
            yield from sources[0]
            return
        for key, group in groupby(heapq.merge(*sources, key=itemgetter(0)), key=itemgetter(0)):
            uses = list(group)
            yield key, sum(count for _, count, _ in uses), max(last_use for *_, last_use in uses)

    def _short_uses(self, module_ids: Iterable[bytes]) -> Iterator[Use]:
        """Yield the uses of modules in short files, in the order of name keys for each module."""
        for module_id in module_ids:
            for key, (count, last_use) in sorted(self._short[module_id].items()):
                yield (module_id, key), count, last_use

    def of_directory(self, first_byte: int) -> dict[bytes, tuple[int, float]]:
        """Return the number of uses and the time of the last use of each module whose module_id begins with `first_byte`."""
        totals: dict[bytes, tuple[int, float]] = {}
        end = bytes([first_byte + 1]) if first_byte < 0xFF else _AFTER_ALL  # noqa: PLR2004 - the largest byte
        for (module_id, key), count, last_use in self.sorted_uses(bytes([first_byte]), end):
            if module_id != MISSES_ID:
                counted, latest = totals.get(module_id, (0, 0.0))
                totals[module_id] = counted + (count if key != LOADS_KEY else 0), max(last_use, latest)
        return totals

    def ledger(self) -> Ledger:
        """Return all uses and misses as a ledger, which is held in memory."""
        return Ledger({(key, module_id): (count, last_use) for (module_id, key), count, last_use in self.sorted_uses()})

    def of(self, module_ids: Iterable[bytes], missed: Iterable[bytes] = ()) -> Ledger:
        """Return a ledger with only the uses of these modules, and the misses of functions with these name keys."""
        uses: dict[tuple[bytes, bytes], tuple[int, float]] = {}

        def add(key: bytes, module_id: bytes, use: tuple[int, float]) -> None:
            """Add a count of uses, and keep the later time of the last use."""
            earlier_count, earlier_use = uses.get((key, module_id), (0, 0.0))
            count, last_use = use
            uses[key, module_id] = earlier_count + count, max(earlier_use, last_use)

        for module_id in sorted(module_ids):
            for key, use in self._short.get(module_id, {}).items():
                add(key, module_id, use)
            for file in self._long:
                for key, use in file.uses_of(module_id):
                    add(key, module_id, use)
        misses = self._short.get(MISSES_ID, {})
        for name in sorted(missed):
            if name in misses:
                add(name, MISSES_ID, misses[name])
            for file in self._long:
                for key, use in file.uses_of(MISSES_ID, name):
                    add(key, MISSES_ID, use)
        return Ledger(uses)

    def counters_with_loads(self, seconds_of: SecondsOf, now: float) -> dict[tuple[int, str], float]:
        """Return the counters, with the loads and the seconds that they saved. Hours more than `_HOURLY` before `now` are merged into days.

        `seconds_of` is called for the modules of one directory at a time, in the order of module_ids. A load of any other module,
        which was removed since or is in a layer, counts with the mean time of all compilations of this cache.
        """
        oldest = int(now) // HOUR - _HOURLY
        counters: dict[tuple[int, str], float] = {}

        def add(hour: int, name: str, amount: float) -> None:
            counters[hour, name] = counters.get((hour, name), 0) + amount

        for (hour, name), amount in self.counters.items():
            add(hour if hour >= oldest else hour - hour % 24, name, amount)
        spent, compiled = [sum(n for (_, name), n in counters.items() if name == each) for each in ("compile_seconds", "compilations")]
        mean = spent / compiled if compiled else 0.0
        for _, uses in groupby(self.sorted_uses(), key=_first_byte):
            loads = [(module_id, count, int(last_use) // HOUR) for (module_id, key), count, last_use in uses if key == LOADS_KEY]
            seconds = seconds_of([module_id for module_id, *_ in loads]) if loads else {}
            for module_id, count, hour in loads:
                add(hour, "loads", 1.0 * count)
                add(hour, "saved_seconds", seconds.get(module_id, mean) * count)
        return counters


def _first_byte(use: Use) -> int:
    """Return the first byte of the module_id of a use, by which the cache divides modules into directories."""
    (module_id, _), _, _ = use
    return module_id[0]


def _add_uses(contents: Iterable[StatsFile]) -> dict[bytes, dict[bytes, tuple[int, float]]]:
    """Add up the uses in files, and return the count and the time of the last use by module_id and name key."""
    by_module: dict[bytes, dict[bytes, tuple[int, float]]] = {}
    for content in contents:
        for (key, module_id), (count, last_use) in content.uses.items():
            uses = by_module.setdefault(module_id, {})
            earlier_count, earlier_use = uses.get(key, (0, 0.0))
            uses[key] = earlier_count + count, max(last_use, earlier_use)
    return by_module


def _add_counters(summands: Iterable[Mapping[tuple[int, str], float]]) -> dict[tuple[int, str], float]:
    """Add up counters by key, and return the sums."""
    counters: dict[tuple[int, str], float] = {}
    for summand in summands:
        for key, value in summand.items():
            counters[key] = counters.get(key, 0) + value
    return counters


def _read_short(store: Store, name: str) -> StatsFile | None:
    """Return the content of a statistics file; None if it was folded in the meantime, or if this user cannot read it.

    Raise `FormatError` if the file is damaged.
    """
    data = store.read_file(STATISTICS, name, max_size=_MAX_FILE)
    return decode_stats(data) if data is not None else None


def _open_long(store: Store, name: str, *, verify: bool) -> tuple[int, list[UsesInSum]] | None:
    """Return the size of a long file, and the sums that are searched for its uses.

    Return None for a file that `_read_short` reads or rejects: it is short or too long, cannot be opened, or can be changed by other users.
    With `verify`, the checksum of a sum is verified, which reads the whole file. Raise `FormatError` if the file is damaged.
    """
    if store.exposed:
        return None
    with suppress(OSError):
        opened = store.files.open_owned(store.path(STATISTICS, name), file_ops.READ_FLAGS)
        status = store.files.fstat(opened.number)
        if not _LONG <= status.st_size <= _MAX_FILE or store.is_foreign(status):
            return None

        def read(offset: int, size: int) -> bytes:
            return file_ops.read_at(store.files, opened, offset, size)

        if is_sum(read(0, _MAGIC_SIZE)):
            stored_sum = UsesInSum(read, status.st_size)
            if verify:
                stored_sum.require_intact()
            return status.st_size, [stored_sum]
        return status.st_size, list(_spill_journal(read))
    return None


def _spill_journal(read: Callable[[int, int], bytes]) -> Iterator[UsesInSum]:
    """Split a long journal into pieces, and yield the sum of each piece as a temporary file that can be searched."""
    position, pending = 0, b""
    while True:
        part = read(position, _PIECE)
        position += len(part)
        text, gap, remainder = (pending + part).rpartition(b"\n\n") if part else (pending, b"", b"")
        if text or not part:
            content = decode_journal(text)
            uses = {key: content.uses[key] for key in sorted(content.uses, key=lambda use: (use[1], use[0]))}
            scratch = Scratch()
            scratch.write(encode_stats(content.counters, uses))
            yield UsesInSum(scratch.read, scratch.size)
        if not part:
            return
        pending = gap + remainder


def last_uses_since(store: Store, earlier: Uses) -> dict[bytes, float]:
    """Return the time of the last use of each module that was used after the statistics `earlier` were read, or shortly before."""
    return Uses(store, since=earlier).ledger().last_uses()


def _effective_files(inputs: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names of the files that no other file contains. `inputs` has the files that each file contains.

    If two files contain the same file, only the file with more inputs is returned.
    """
    covered_names: set[str] = set()
    chosen = []
    for name in sorted(inputs, key=lambda name: (-len(inputs[name]), name)):
        contents = {name, *inputs[name]}
        if covered_names.isdisjoint(contents):
            chosen.append(name)
        covered_names |= contents
    return chosen


def fold(
    store: Store, seconds_of: SecondsOf, *, now: float, present: Container[bytes] | None = None, force: bool = False
) -> tuple[Uses, dict[tuple[int, str], float]]:
    """Add up all statistics files, and replace the files to which no process appends by their sum.

    Return the sum of all files, and its counters with loads and saved seconds. No file is replaced if the cache is read-only, if another
    process folds, or, without `force`, if locks do not work.

    Args:
        store: the cache directory.
        seconds_of: returns the compile times of modules, which each load saves. Called in the order of module_ids.
        now: the current time, in seconds since the epoch.
        present: the modules whose uses are kept, searched in the order of module_ids; None keeps the uses of all modules.
        force: replace files even if locks do not work.
    """
    from compcache.publish.locks import wait_lock

    with wait_lock(store, _LOCK, timeout=2.0) if not store.readonly else nullcontext(False) as owned:
        if not (owned or (owned is None and force)):
            uses = Uses(store, verify=True)
            return uses, uses.counters_with_loads(seconds_of, now)
        names = _seal_journals(store)
        uses = Uses(store, names, verify=True)
        counters = uses.counters_with_loads(seconds_of, now)
        settled = [name for name in uses.files if _is_settled(store, name, uses.inputs[name], now)]
        if len(settled) > 1 or any(not uses.inputs[name] for name in settled):
            settled_uses = uses if len(settled) == len(uses.files) else Uses(store, settled, verify=True)
            settled_counters = counters if settled_uses is uses else settled_uses.counters_with_loads(seconds_of, now)
            uses.files.update(_replace_by_sum(store, settled_uses, names, settled_counters, _kept_uses(settled_uses, present, now)))
    return uses, counters


def _kept_uses(uses: Uses, present: Container[bytes] | None, now: float) -> Iterator[Use]:
    """Yield the uses that a fold at the time `now` keeps: uses of modules in `present`, and misses of the last month.

    If `present` is None, the uses of all modules and all misses are kept. Otherwise older misses are dropped, because the number of
    requested names has no limit.
    """
    oldest = now - _HOURLY * HOUR if present is not None else 0.0
    for use in uses.sorted_uses():
        (module_id, key), _, last_use = use
        if key == LOADS_KEY:
            continue  # `Uses.counters_with_loads` has added the loads to the counters
        is_kept = last_use >= oldest if module_id == MISSES_ID else present is None or module_id in present
        if is_kept:
            yield use


def fold_long(store: Store) -> None:
    """Seal each long journal, and replace each long journal that was sealed a minute ago by its sum.

    Readers search the sums, so they parse little even if processes write without a pause. Do nothing if the cache is read-only, if other
    users can write to it, or if the lock is not obtained.
    """
    if store.readonly or store.exposed:
        return
    now = time.time()
    long = [name for name in _statistics_files(store) if _is_long_journal(store, name, now)]
    if not long:
        return
    from compcache.publish.locks import wait_lock

    with wait_lock(store, _LOCK, timeout=0) as owned:
        if owned:
            for name in _seal_journals(store, long):
                if _is_settled(store, name, (), now):
                    uses = Uses(store, [name])
                    _replace_by_sum(store, uses, [name], uses.counters, uses.sorted_uses())


def _is_long_journal(store: Store, name: str, now: float) -> bool:
    """Return whether a file is a long journal that is not sealed, or was sealed at least a minute ago."""
    if not JOURNALS.includes(name) and not _is_settled(store, name, (), now):
        return False
    with suppress(OSError):
        opened = store.files.open_owned(store.path(STATISTICS, name), file_ops.READ_FLAGS)
        status = store.files.fstat(opened.number)
        is_long = _LONG // JOURNALS_OF_HOST <= status.st_size <= _MAX_FILE
        return is_long and not is_sum(file_ops.read_at(store.files, opened, 0, _MAGIC_SIZE))
    return False


def _seal_journals(store: Store, names: Iterable[str] | None = None) -> list[str]:
    """Rename journals to statistics files, so that processes start new journals. A journal that cannot be renamed stays.

    Return the sorted names after renaming: of the files `names`, or of all statistics files and journals if `names` is None.
    """
    current = list(names) if names is not None else _statistics_files(store)
    for number, name in enumerate(current):
        if JOURNALS.includes(name):
            with suppress(OSError):
                sealed = STATISTICS.file_name(unique_name())
                store.files.rename(store.path(JOURNALS, name), store.path(STATISTICS, sealed))
                current[number] = sealed
    return sorted(current)


def _is_settled(store: Store, name: str, inputs: Collection[str], now: float) -> bool:
    """Return whether no process appends to a file any more: it is a sum, which has `inputs`, or a sealed journal unchanged for a minute."""
    if inputs:
        return True
    with suppress(OSError):
        status = store.files.stat(store.path(STATISTICS, name))
        return STATISTICS.includes(name) and max(status.st_mtime, status.st_ctime) < now - SETTLED_SECONDS
    return False


def _replace_by_sum(
    store: Store, folded: Uses, names: Iterable[str], counters: Mapping[tuple[int, str], float], uses: Iterable[Use]
) -> dict[str, int]:
    """Publish a sum of counters and uses, and remove the files that it contains: the folded files, and the files that these contain.

    Only files in `names` are removed. The `uses` must be in the order of module_ids, which makes the sum searchable.

    Return the name of the sum and its size in bytes; empty if the sum could not be written.
    """
    contained = {name for inputs in folded.inputs.values() for name in inputs}
    covered_names = [name for name in names if name in folded.files or name in contained]
    name = STATISTICS.file_name(unique_name())
    with suppress(OSError):
        scratch = Scratch()
        for (module_id, key), count, last_use in uses:
            scratch.write(encode_use(module_id, key, count, last_use))
        data = encode_sum(counters, scratch.size, scratch.parts(), covered_names)
        status = publish(store.files, store.temporary, store.path(STATISTICS, name), data)
        _remove_files(store, covered_names)
        return {name: status.st_size}
    return {}


def _remove_files(store: Store, names: Iterable[str]) -> None:
    """Remove statistics files. Files that cannot be removed are skipped."""
    for name in names:
        with suppress(OSError):  # readers ignore the file, because the sum contains it
            store.files.unlink(store.path(STATISTICS, name))


def zero_counters(store: Store, now: float) -> bool:
    """Set all counters, numbers of uses and misses to zero. The times of the last uses are kept, because prunes need them.

    Return False, and change nothing, if another process folds the statistics. Raise `StorageError` if the new statistics cannot be written.
    """
    from compcache.publish.locks import wait_lock

    with wait_lock(store, _LOCK, timeout=5.0) as owned:
        if owned is False:
            return False
        names = _seal_journals(store)
        uses = Uses(store, names, verify=True)
        last_uses = (
            ((module_id, key), 0, last_use)
            for (module_id, key), _, last_use in uses.sorted_uses()
            if module_id != MISSES_ID and key != LOADS_KEY
        )
        if not _replace_by_sum(store, uses, names, {(int(now) // HOUR, "zeroed"): now}, last_uses):
            advice = "'compcache doctor' shows whether this user can write to the directory, and the free space"
            raise StorageError(f"cannot write the statistics of the cache {store.root}: {advice}", path=store.directory(STATISTICS))
        return True


def fold_small(files: Files, root: str) -> None:
    """Seal the journals, and merge the smallest files if there are many files.

    A file after the first few is merged only if all smaller files together are at least half as large. Hence a byte is rewritten a number
    of times that is logarithmic in the total size. Do nothing if the lock is not obtained.
    """
    from compcache.publish.locks import wait_lock
    from compcache.store import Store

    try:
        store = Store(root, files=files)
    except UntrustedDirectoryError:  # only caches opened with trust write statistics to such a directory
        store = Store(root, files=files, trust=True)
    with wait_lock(store, _LOCK, timeout=0) as owned:
        if not owned:
            return
        names = _seal_journals(store)
        if len(names) < _MIN_FILES:
            return
        small = _smallest_files(store, names)
        contained = _read_contained(store, set(names).difference(small))
        free = [name for name in small if name not in contained]
        now, inputs = time.time(), Uses(store, free).inputs
        settled = [name for name in free if name in inputs and _is_settled(store, name, inputs[name], now)]
        if len(settled) > 1:
            uses = Uses(store, settled, verify=True)
            _replace_by_sum(store, uses, names, uses.counters, uses.sorted_uses())


def _read_contained(store: Store, names: Iterable[str]) -> set[str]:
    """Return the names of the files that the statistics files `names` contain, from their heads. Unreadable files contain none."""
    contained: set[str] = set()
    for name in names:
        with suppress(OSError, FormatError):
            opened = store.files.open_owned(store.path(STATISTICS, name), file_ops.READ_FLAGS)
            contained.update(read_inputs(partial(file_ops.read_at, store.files, opened)))
    return contained


def _smallest_files(store: Store, names: Iterable[str]) -> list[str]:
    """Return the smallest files: four, and each further file before the first that is more than twice as large as all smaller ones.

    Missing files are left out.
    """
    sizes = []
    for name in names:
        with suppress(OSError):
            sizes.append((store.files.stat(store.path(STATISTICS, name)).st_size, name))
    sizes.sort()
    total = 0
    chosen: list[str] = []
    for size, name in sizes:
        if len(chosen) >= _MIN_FILES // 2 and size > 2 * total:
            break
        total += size
        chosen.append(name)
    return chosen
