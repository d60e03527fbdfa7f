"""Adds up what processes counted (`compcache.hit.recorder`), and folds their files into one (tools, and who fills a journal).

A journal is sealed by renaming it; who had it open may still append to it for a moment, so that it is folded only
when it has been left alone for a minute, and read as it is until then. A fold publishes the sum, which names the files
that it contains, and then removes those: who reads in between, or after the fold was killed, leaves out what is
contained in another file. Folds take a lock, and where locks do not work nothing is folded but on request.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from compcache import files as file_ops
from compcache.errors import FormatError
from compcache.formats.journal import HOUR
from compcache.formats.statistics import LOADS_KEY, StatsFile, decode_stats, encode_stats, read_inputs
from compcache.publish.atomic_file import publish, unique_name
from compcache.store import JOURNALS, STATISTICS
from compcache.usage.module_rows import decode_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from compcache.files import Files
    from compcache.store import Store
    from compcache.usage.module_rows import Row

__all__ = ["Ledger", "fold", "fold_small", "read_ledger", "settle", "zero"]

_MAX_FILE = 1 << 31
#: Counters older than this are kept by day instead of by hour.
_HOURLY = 31 * 24
_LOCK = "stats-fold"
_MANY = 8
#: For how many seconds a sealed journal may still be appended to: opening and writing are two calls of a process.
SETTLED_SECONDS = 60.0


class Ledger(NamedTuple):
    """The sum of all statistics files.

    `counters` are by (hour, name), `uses` by (name key, module_id) as (count, last use); `encoded_rows` are roster rows
    of modules added lately. `files` are those that were added up, contained ones included; `torn` are damaged.
    """

    counters: dict[tuple[int, str], float]
    uses: dict[tuple[bytes, bytes], tuple[int, float]]
    encoded_rows: bytes
    files: tuple[str, ...]
    torn: tuple[str, ...]

    def rows(self) -> dict[bytes, Row]:
        """The roster rows of modules that were added lately, by module_id; nobody needs them who has the roster."""
        return {row.module_id: row for row in decode_rows(self.encoded_rows)}

    def last_uses(self) -> dict[bytes, float]:
        """When each module was used last."""
        last: dict[bytes, float] = {}
        for (_, module_id), (_, when) in self.uses.items():
            if when > last.get(module_id, 0.0):
                last[module_id] = when
        return last


def _names(store: Store) -> list[str]:
    return sorted([*store.names(JOURNALS), *store.names(STATISTICS)])


def _read(store: Store, names: Iterable[str]) -> tuple[dict[str, StatsFile], list[str]]:
    """The files that can be read, and the names of those that are damaged."""
    contents: dict[str, StatsFile] = {}
    torn = []
    for name in names:
        try:
            data = file_ops.read_file(store.files, store.path(STATISTICS, name), _MAX_FILE)
            contents[name] = decode_stats(data)
        except FormatError:
            torn.append(name)
        except OSError:
            continue  # folded meanwhile, or not ours to read
    return contents, torn


def read_ledger(store: Store) -> Ledger:
    """Add up all statistics files.

    A file that another one contains does not count; of two that contain the same one, which only folds without
    working locks can leave, the smaller does not.
    """
    names = _names(store)
    for _ in range(4):
        contents, torn = _read(store, names)
        before, names = names, _names(store)
        if names == before:
            break  # else files were sealed or folded while they were read
    return _add_up(contents, torn)


def _add_up(contents: Mapping[str, StatsFile], torn: Iterable[str]) -> Ledger:
    counters: dict[tuple[int, str], float] = {}
    uses: dict[tuple[bytes, bytes], tuple[int, float]] = {}
    rows: list[bytes] = []
    for name in _effective(contents):
        content = contents[name]
        rows.append(content.rows)
        for key, value in content.counters.items():
            counters[key] = counters.get(key, 0) + value
        if not uses:
            uses.update(content.uses)
            continue
        for use, (count, last) in content.uses.items():
            before, when = uses.get(use, (0, 0.0))
            uses[use] = (before + count, max(last, when))
    return Ledger(counters, uses, b"".join(rows), tuple(contents), tuple(torn))


def _effective(contents: Mapping[str, StatsFile]) -> list[str]:
    """The files that count, the largest first."""
    taken: set[str] = set()
    chosen = []
    for name in sorted(contents, key=lambda name: (-len(contents[name].inputs), name)):
        covered = {name, *contents[name].inputs}
        if taken.isdisjoint(covered):
            chosen.append(name)
        taken |= covered
    return sorted(chosen, key=lambda name: -len(contents[name].uses))


def fold(
    store: Store,
    seconds_of: Callable[[bytes], float],
    *,
    now: float,
    present: Container[bytes] | None = None,
    force: bool = False,
) -> Ledger:
    """Add up all files and replace them by one, if nobody else is at it.

    Args:
        store: the cache directory.
        seconds_of: the compile time of a module, which every process that loads it saves.
        now: the time.
        present: the modules whose uses are worth keeping; None keeps all.
        force: fold where locks do not work, too.
    """
    from compcache.publish.locks import wait_lock

    if store.readonly:
        return settle(read_ledger(store), seconds_of, now)
    with wait_lock(store, _LOCK, timeout=2.0) as owned:
        if not (owned or (owned is None and force)):
            return settle(read_ledger(store), seconds_of, now)
        _seal(store)
        contents, torn = _read(store, _names(store))
        settled = {name: contents[name] for name in contents if _is_settled(store, name, contents[name], now)}
        if len(settled) > 1 or any(not content.inputs for content in settled.values()):
            _replace(store, settled, contents, settle(_add_up(settled, ()), seconds_of, now), present)
    return settle(_add_up(contents, torn), seconds_of, now)


def _seal(store: Store) -> None:
    """Rename the journals, so that processes begin new ones."""
    for name in _names(store):
        if JOURNALS.includes(name):
            try:
                sealed = STATISTICS.file_name(unique_name())
                store.files.rename(store.path(JOURNALS, name), store.path(STATISTICS, sealed))
            except OSError:
                continue


def _is_settled(store: Store, name: str, content: StatsFile, now: float) -> bool:
    """Whether nobody appends to a file any more: it is a sum, or a journal that was left alone since it was sealed."""
    if content.inputs:
        return True
    try:
        status = store.files.stat(store.path(STATISTICS, name))
    except OSError:
        return False
    return STATISTICS.includes(name) and max(status.st_mtime, status.st_ctime) < now - SETTLED_SECONDS


def settle(ledger: Ledger, seconds_of: Callable[[bytes], float], now: float) -> Ledger:
    """The same ledger with the seconds saved by loads in its counters, and old hours put together to days."""
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
    rows: bytes = b"",
) -> None:
    """Publish a sum and remove what it contains: what is folded, and what was contained in that and is still there."""
    contained = {name for content in folded.values() for name in content.inputs}
    names = [name for name in all_names if name in folded or name in contained]
    uses = ledger.uses
    if present is not None:
        uses = {key: value for key, value in uses.items() if key[1] in present}
    uses = dict(sorted(uses.items(), key=_by_module))
    path = store.path(STATISTICS, STATISTICS.file_name(unique_name()))
    try:
        publish(
            store.files, store.temporary, path, [encode_stats(ledger.counters, uses, names, rows)]
        )
    except OSError:
        return
    _remove(store, names)


def _by_module(use: tuple[tuple[bytes, bytes], tuple[int, float]]) -> bytes:
    """The order in which the roster has modules: what is read together then lies together in memory."""
    return use[0][1]


def _remove(store: Store, names: Iterable[str]) -> None:
    for name in names:
        try:
            store.files.unlink(store.path(STATISTICS, name))
        except OSError:
            continue  # it is contained in a file that says so


def zero(store: Store, now: float) -> bool:
    """Set all counters to zero; when what was used last is kept, because prunes need it.

    Returns:
        Whether it was done: not while another process folds.
    """
    from compcache.publish.locks import wait_lock

    with wait_lock(store, _LOCK, timeout=5.0) as owned:
        if owned is False:
            return False
        _seal(store)
        contents, torn = _read(store, _names(store))
        ledger = settle(_add_up(contents, torn), lambda _: 0.0, now)
        uses = {key: (0, last) for key, (_, last) in ledger.uses.items()}
        zeroed = ledger._replace(counters={(int(now) // HOUR, "zeroed"): now}, uses=uses)
        _replace(store, contents, contents, zeroed, rows=_rows(ledger))
        return True


def _rows(ledger: Ledger) -> bytes:
    from compcache.usage.module_rows import encode_rows

    return b"".join(encode_rows(ledger.rows().values()))


def fold_small(files: Files, root: str) -> None:
    """Seal the journals and put small files together: bounded work, however large the whole is.

    A file is taken along only where all smaller ones together are half as large, so that each byte is written
    again a number of times that is logarithmic in the total.
    """
    from compcache.publish.locks import wait_lock
    from compcache.store import Store

    store = Store(root, files=files, trust=True)
    with wait_lock(store, _LOCK, timeout=0) as owned:
        if not owned:
            return
        _seal(store)
        names = _names(store)
        if len(names) < _MANY:
            return
        small = _small(store, names)
        contained = _contained(store, set(names).difference(small))
        contents, _ = _read(store, [name for name in small if name not in contained])
        now = time.time()
        settled = {name: contents[name] for name in contents if _is_settled(store, name, contents[name], now)}
        if len(settled) > 1:
            ledger = _add_up(settled, ())
            _replace(store, settled, names, ledger, rows=_rows(ledger))


def _contained(store: Store, names: Iterable[str]) -> set[str]:
    """The names of all files that these files contain, without reading the rest of them."""
    found: set[str] = set()
    for name in names:
        try:
            descriptor = store.files.open(
                store.path(STATISTICS, name), file_ops.READ_FLAGS
            )
        except OSError:
            continue
        try:
            found.update(read_inputs(partial(_pread, store.files, descriptor)))
        except (OSError, FormatError):
            continue
        finally:
            store.files.close(descriptor)
    return found


def _pread(files: Files, descriptor: int, offset: int, size: int) -> bytes:
    return files.pread(descriptor, size, offset)


def _small(store: Store, names: Iterable[str]) -> list[str]:
    sizes = []
    for name in names:
        try:
            sizes.append((store.files.stat(store.path(STATISTICS, name)).st_size, name))
        except OSError:
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
