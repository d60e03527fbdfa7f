"""Adds up the statistics of all processes (`compcache.hit.recorder`), and folds their files into one.

Used by tools, and by processes that fill a journal. A journal is sealed by renaming it; a process that had it open may
still append to it for a moment, so it is only read until it has been unchanged for a minute, and folded then. A fold
publishes the sum, which names the files that it contains, and then removes those: a reader in between, or after the fold
was killed, ignores files that another one contains. Folds take a lock; without working locks they need `force`.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from compcache import files as file_ops
from compcache.errors import FormatError, UntrustedDirectoryError
from compcache.files import reraise_interrupt
from compcache.formats.journal import HOUR
from compcache.formats.statistics import LOADS_KEY, MISSES_ID, StatsFile, UsesInSum, decode_stats, encode_stats, read_inputs
from compcache.publish.atomic_file import publish, unique_name
from compcache.store import JOURNALS, STATISTICS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping

    from compcache.files import Files
    from compcache.store import Store

__all__ = ["Ledger", "Uses", "fold", "fold_small", "last_uses_since", "read_ledger", "settle", "zero"]

_MAX_FILE = 1 << 31
#: Counters older than this are kept by day instead of by hour.
_HOURLY = 31 * 24
_LOCK = "stats-fold"
_MANY = 8
#: From this size on, in bytes, a sum is searched and not read whole.
_LONG = 1 << 19
#: For how many seconds a sealed journal may still grow: a process opens and writes it in two calls.
SETTLED_SECONDS = 60.0


class Ledger(NamedTuple):
    """The sum of all statistics files.

    `counters` are by (hour, name), `uses` by (name key, module_id) as (count, last use). `files` were added up, contained
    ones included, and had these sizes in bytes; `torn` are damaged.
    """

    counters: dict[tuple[int, str], float]
    uses: dict[tuple[bytes, bytes], tuple[int, float]]
    files: dict[str, int]
    torn: tuple[str, ...]

    def last_uses(self) -> dict[bytes, float]:
        """The time of the last use of each module."""
        last: dict[bytes, float] = {}
        for (_, module_id), (_, when) in self.uses.items():
            if when > last.get(module_id, 0.0):
                last[module_id] = when
        last.pop(MISSES_ID, None)
        return last

    def misses(self) -> dict[bytes, int]:
        """How often each function was missed, by name key; of those that have not been missed for a month some may lack."""
        return {name: count for (name, module_id), (count, _) in self.uses.items() if module_id == MISSES_ID}


def _names(store: Store) -> list[str]:
    names = store.names_in(store.directory(STATISTICS))  # where journals are as well
    return [name for name in names if JOURNALS.includes(name) or STATISTICS.includes(name)]


def _read(store: Store, names: Iterable[str]) -> tuple[dict[str, StatsFile], list[str]]:
    """The readable files, and the names of damaged ones."""
    contents: dict[str, StatsFile] = {}
    torn = []
    for name in names:
        data = store.read_file(STATISTICS, name, most=_MAX_FILE)
        if data is None:
            continue  # folded meanwhile, or not readable for this user
        try:
            contents[name] = decode_stats(data)
        except FormatError:
            torn.append(name)
    return contents, torn


def read_ledger(store: Store) -> Ledger:
    """Add up all statistics files.

    A file that another one contains is ignored. If two contain the same one, which only folds without working locks
    can cause, the smaller is ignored.
    """
    names = _names(store)
    for _ in range(4):
        contents, torn = _read(store, names)
        before, names = names, _names(store)
        if names == before:
            break  # otherwise files were sealed or folded meanwhile
    return _add_up(contents, torn)


def _add_up(contents: Mapping[str, StatsFile], torn: Iterable[str]) -> Ledger:
    counters: dict[tuple[int, str], float] = {}
    uses: dict[tuple[bytes, bytes], tuple[int, float]] = {}
    for name in _effective(contents):
        content = contents[name]
        for key, value in content.counters.items():
            counters[key] = counters.get(key, 0) + value
        if not uses:
            uses.update(content.uses)
            continue
        for use, (count, last) in content.uses.items():
            before, when = uses.get(use, (0, 0.0))
            uses[use] = (before + count, max(last, when))
    sizes = {name: content.size for name, content in contents.items()}
    return Ledger(counters, uses, sizes, tuple(torn))


class Uses:
    """The uses of some modules, looked up in the statistics: long sums are not read whole."""

    def __init__(self, store: Store) -> None:
        names = _names(store)
        long = {name: sum_ for name in names if (sum_ := _long_sum(store, name)) is not None}
        contents, _ = _read(store, [name for name in names if name not in long])
        inputs = {name: content.inputs for name, content in contents.items()}
        taken = _effective_of({**inputs, **{name: file.inputs for name, file in long.items()}})
        self._sums = [long[name] for name in taken if name in long]
        self._others: dict[bytes, list[tuple[bytes, tuple[int, float]]]] = {}
        for (key, module_id), used in _add_up({name: contents[name] for name in taken if name in contents}, ()).uses.items():
            self._others.setdefault(module_id, []).append((key, used))
        self._counters = [*[contents[name].counters for name in taken if name in contents], *[file.counters() for file in self._sums]]
        self.is_empty = not self._sums and not self._others

    def counted(self) -> Ledger:
        """A ledger of the counters alone."""
        counters: dict[tuple[int, str], float] = {}
        for each in self._counters:
            for key, value in each.items():
                counters[key] = counters.get(key, 0) + value
        return Ledger(counters, {}, {}, ())

    def of(self, module_ids: Iterable[bytes], missed: Iterable[bytes] = ()) -> Ledger:
        """A ledger of the uses of these modules, and of the misses of functions with these name keys, alone."""
        uses: dict[tuple[bytes, bytes], tuple[int, float]] = {}

        def add(key: bytes, module_id: bytes, used: tuple[int, float]) -> None:
            before, when = uses.get((key, module_id), (0, 0.0))
            uses[key, module_id] = before + used[0], max(when, used[1])

        for module_id in sorted(module_ids):
            for key, used in self._others.get(module_id, ()):
                add(key, module_id, used)
            for file in self._sums:
                for key, used in file.of(module_id):
                    add(key, module_id, used)
        misses = dict(self._others.get(MISSES_ID, ()))
        for name in sorted(missed):
            if name in misses:
                add(name, MISSES_ID, misses[name])
            for file in self._sums:
                for key, used in file.of(MISSES_ID, name):
                    add(key, MISSES_ID, used)
        return Ledger({}, uses, {}, ())


def _long_sum(store: Store, name: str) -> UsesInSum | None:
    """A statistics file that is a long sum; None for others, which are read whole."""
    if store.exposed:
        return None
    try:
        opened = store.files.open_owned(store.path(STATISTICS, name), file_ops.READ_FLAGS)
        status = store.files.fstat(opened.number)
        if status.st_size < _LONG or store.is_foreign(status):
            return None
        return UsesInSum(lambda at, size: file_ops.read_at(store.files, opened.number, at, size), status.st_size)
    except (OSError, FormatError) as error:
        reraise_interrupt(error)
        return None


def last_uses_since(store: Store, ledger: Ledger) -> dict[bytes, float]:
    """The time of the last use of each module that was used after `ledger` was read, or shortly before; reads changed files only."""
    changed = []
    for name in _names(store):
        try:
            if name not in ledger.torn and store.files.stat(store.path(STATISTICS, name)).st_size != ledger.files.get(name):
                changed.append(name)
        except OSError as error:
            reraise_interrupt(error)
            continue  # folded meanwhile
    contents, _ = _read(store, changed)
    return _add_up(contents, ()).last_uses()


def _effective(contents: Mapping[str, StatsFile]) -> list[str]:
    """The files that no other one contains, the largest first."""
    chosen = _effective_of({name: content.inputs for name, content in contents.items()})
    return sorted(chosen, key=lambda name: -len(contents[name].uses))


def _effective_of(inputs: Mapping[str, Collection[str]]) -> list[str]:
    """The files that no other one contains, of these with what they contain."""
    taken: set[str] = set()
    chosen = []
    for name in sorted(inputs, key=lambda name: (-len(inputs[name]), name)):
        covered = {name, *inputs[name]}
        if taken.isdisjoint(covered):
            chosen.append(name)
        taken |= covered
    return chosen


def fold(
    store: Store,
    seconds_of: Callable[[bytes], float],
    *,
    now: float,
    present: Container[bytes] | None = None,
    force: bool = False,
    prepare: Callable[[Ledger], object] | None = None,
) -> Ledger:
    """Add up all files and replace them by one, unless another process is folding them.

    Args:
        store: the cache directory.
        seconds_of: the compile time of a module, which each load of it saves.
        now: the time.
        present: the modules whose uses are kept; None keeps all.
        force: fold even if locks do not work.
        prepare: called with the sum before `seconds_of` is, to read what that needs.
    """
    from compcache.publish.locks import wait_lock

    with wait_lock(store, _LOCK, timeout=2.0) if not store.readonly else nullcontext(False) as owned:
        if not (owned or (owned is None and force)):
            ledger = read_ledger(store)
            if prepare is not None:
                prepare(ledger)
            return settle(ledger, seconds_of, now)
        contents, torn = _read(store, _seal(store))
        ledger = _add_up(contents, torn)
        if prepare is not None:
            prepare(ledger)
        settled = {name: contents[name] for name in contents if _is_settled(store, name, contents[name], now)}
        if len(settled) > 1 or any(not content.inputs for content in settled.values()):
            replaced = _replace(store, settled, contents, settle(_add_up(settled, ()), seconds_of, now), present, now=now)
            ledger.files.update(replaced)
    return settle(ledger, seconds_of, now)


def _seal(store: Store) -> list[str]:
    """Rename the journals, so that processes start new ones; the names of all files as they are then."""
    names = _names(store)
    for number, name in enumerate(names):
        if JOURNALS.includes(name):
            try:
                sealed = STATISTICS.file_name(unique_name())
                store.files.rename(store.path(JOURNALS, name), store.path(STATISTICS, sealed))
                names[number] = sealed
            except OSError as error:
                reraise_interrupt(error)
                continue
    return sorted(names)


def _is_settled(store: Store, name: str, content: StatsFile, now: float) -> bool:
    """Whether no process appends to a file any more: it is a sum, or a journal sealed and unchanged for a minute."""
    if content.inputs:
        return True
    try:
        status = store.files.stat(store.path(STATISTICS, name))
    except OSError as error:
        reraise_interrupt(error)
        return False
    return STATISTICS.includes(name) and max(status.st_mtime, status.st_ctime) < now - SETTLED_SECONDS


def settle(ledger: Ledger, seconds_of: Callable[[bytes], float], now: float) -> Ledger:
    """The ledger with loads and the seconds they saved in its counters, and old hours merged into days."""
    counters: dict[tuple[int, str], float] = {}
    oldest = int(now) // HOUR - _HOURLY
    for (hour, name), value in ledger.counters.items():
        key = (hour if hour >= oldest else hour - hour % 24, name)
        counters[key] = counters.get(key, 0) + value
    for (name_key, module_id), (count, last) in ledger.uses.items():
        if name_key == LOADS_KEY:
            hour = int(last) // HOUR
            for counter, amount in (("loads", 1.0), ("saved_seconds", seconds_of(module_id))):
                counters[hour, counter] = counters.get((hour, counter), 0) + amount * count
    uses = {key: value for key, value in ledger.uses.items() if key[0] != LOADS_KEY}
    return ledger._replace(counters=counters, uses=uses)


def _replace(
    store: Store,
    folded: Mapping[str, StatsFile],
    all_names: Iterable[str],
    ledger: Ledger,
    present: Container[bytes] | None = None,
    now: float = 0.0,
) -> dict[str, int]:
    """Publish a sum and remove the files that it contains: the folded ones, and those that these already contained.

    Returns:
        The name of the sum and its size; nothing where it could not be written.
    """
    contained = {name for content in folded.values() for name in content.inputs}
    names = [name for name in all_names if name in folded or name in contained]
    uses = ledger.uses
    if present is not None:
        oldest = now - _HOURLY * HOUR  # of misses: there is no end to names that are asked for once
        uses = {
            key: value for key, value in uses.items()
            if (value[1] >= oldest if key[1] == MISSES_ID else key[1] in present)
        }  # fmt: skip
    uses = dict(sorted(uses.items(), key=_by_module))
    name = STATISTICS.file_name(unique_name())
    data = encode_stats(ledger.counters, uses, names)
    try:
        publish(store.files, store.temporary, store.path(STATISTICS, name), [data])
    except OSError as error:
        reraise_interrupt(error)
        return {}
    _remove(store, names)
    return {name: len(data)}


def _by_module(use: tuple[tuple[bytes, bytes], tuple[int, float]]) -> tuple[bytes, bytes]:
    """The order of modules: the uses of one are found without reading the others."""
    return use[0][1], use[0][0]


def _remove(store: Store, names: Iterable[str]) -> None:
    for name in names:
        try:
            store.files.unlink(store.path(STATISTICS, name))
        except OSError as error:
            reraise_interrupt(error)
            continue  # another file names it as contained


def zero(store: Store, now: float) -> bool:
    """Set all counters to zero; the times of last uses are kept, because prunes need them.

    Returns:
        False if another process is folding: nothing was done.
    """
    from compcache.publish.locks import wait_lock

    with wait_lock(store, _LOCK, timeout=5.0) as owned:
        if owned is False:
            return False
        contents, torn = _read(store, _seal(store))
        ledger = settle(_add_up(contents, torn), lambda _: 0.0, now)
        uses = {key: (0, last) for key, (_, last) in ledger.uses.items() if key[1] != MISSES_ID}
        zeroed = ledger._replace(counters={(int(now) // HOUR, "zeroed"): now}, uses=uses)
        _replace(store, contents, contents, zeroed)
        return True


def fold_small(files: Files, root: str) -> None:
    """Seal the journals and merge small files: bounded work, whatever the total size.

    A file is merged only if all smaller ones together are half as large, so that the number of times that a byte is
    rewritten is logarithmic in the total.
    """
    from compcache.publish.locks import wait_lock
    from compcache.store import Store

    try:
        store = Store(root, files=files)
    except UntrustedDirectoryError:  # statistics are written there by caches alone that trust everybody who can write there
        store = Store(root, files=files, trust=True)
    with wait_lock(store, _LOCK, timeout=0) as owned:
        if not owned:
            return
        names = _seal(store)
        if len(names) < _MANY:
            return
        small = _small(store, names)
        contained = _contained(store, set(names).difference(small))
        contents, _ = _read(store, [name for name in small if name not in contained])
        now = time.time()
        settled = {name: contents[name] for name in contents if _is_settled(store, name, contents[name], now)}
        if len(settled) > 1:
            ledger = _add_up(settled, ())
            _replace(store, settled, names, ledger)


def _contained(store: Store, names: Iterable[str]) -> set[str]:
    """The names of all files that these files contain; reads only their heads."""
    found: set[str] = set()
    for name in names:
        try:
            descriptor = store.files.open(store.path(STATISTICS, name), file_ops.READ_FLAGS)
        except OSError as failure:
            reraise_interrupt(failure)
            continue
        try:
            found.update(read_inputs(partial(file_ops.read_at, store.files, descriptor)))
        except (OSError, FormatError) as error:
            reraise_interrupt(error)
            continue
        finally:
            store.files.close(descriptor)
    return found


def _small(store: Store, names: Iterable[str]) -> list[str]:
    sizes = []
    for name in names:
        try:
            sizes.append((store.files.stat(store.path(STATISTICS, name)).st_size, name))
        except OSError as error:
            reraise_interrupt(error)
            continue
    sizes.sort()
    total = 0
    chosen: list[str] = []
    for size, name in sizes:
        if len(chosen) >= _MANY // 2 and size > 2 * total:
            break
        total += size
        chosen.append(name)
    return chosen
