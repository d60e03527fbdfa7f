"""Questions about everything that are answered as it is read say what is said of all at once, and hold little."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from made_up_modules import publish_module

from compcache import PrunePolicy
from compcache.files import Files
from compcache.formats.statistics import encode_stats
from compcache.identity import label_of
from compcache.maintain.check import check
from compcache.maintain.checks import index as index_checks
from compcache.maintain.prune import propose
from compcache.publish import module_lists, scratch
from compcache.publish.index_merge import merge, merge_all
from compcache.publish.module_lists import ModuleLists
from compcache.publish.module_reader import ModuleSections
from compcache.store import Store
from compcache.usage import costs as costs_module
from compcache.usage import listings, sorting
from compcache.usage.costs import Cost, costs
from compcache.usage.listings import functions, listed_modules, modules
from compcache.usage.snapshot import PresentModules, Slices, look_over
from compcache.usage.sorting import in_order
from compcache.usage.statistics import cache_stats

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Modules with imports, copies and variants of labels; some are used, one has been removed by hand."""
    choose = random.Random(5)
    store = Store(str(tmp_path / "cache"))
    uses = {}
    for number in range(60):
        some = [f"p{number}.f" for number in range(9)] + [f"l-{number:032x}" for number in range(20)]
        names = sorted(set(choose.choices(some, k=choose.choice((1, 3)))))
        module_id = publish_module(store, number, names, [f"p{choose.randrange(9)}.f"] * choose.randrange(2), size=choose.choice((0, 50)))
        if number % 3 == 0:
            uses[b"k" * 16, module_id] = number, time.time()
    (tmp_path / "cache" / "stats").mkdir(exist_ok=True)
    (tmp_path / "cache" / "stats" / "a.stats1").write_bytes(encode_stats({}, uses, ["x"]))
    merge(store.index, store=store)
    store.files.unlink(store.module_path(module_id))
    return store


def test_costs_are_those_of_all_modules(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "_AT_ONCE", 2)
    sums: dict[str, list[float]] = {}
    for module in modules(store):
        for name, _ in module.functions:
            mine, share = sums.setdefault(label_of(name) or name, [0.0, 0.0, 0.0, 0]), 1 / len(module.functions)
            for position, value in enumerate((module.seconds * share, module.size * share, module.uses * share, 1)):
                mine[position] += value
    found = list(costs(store))
    assert [row.name for row in found] == sorted(sums)
    for row in found:
        seconds, size, uses, copies = sums[row.name]
        assert row == Cost(row.name, row.seconds, round(size), 0, round(uses), int(copies))
        assert row.seconds == pytest.approx(seconds)
    assert any(row.uses for row in found)


@pytest.mark.parametrize("run", [3, 1000])
def test_rows_are_sorted_as_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch, run: int) -> None:
    monkeypatch.setattr(sorting, "_RUN", run)
    for rows in (functions(store), modules(store)):
        for key in (lambda row: -row.size, lambda row: -row.last_used, lambda row: row[0]):
            whole = sorted(rows, key=key)
            for limit in (None, 2, 20):
                assert list(in_order(rows, key, limit=limit)) == whole[:limit]
                assert list(in_order(rows, key, limit=limit, reverse=True)) == whole[::-1][:limit]


def peak(ask: Callable[[], object]) -> int:
    ask()  # what is imported and remembered once
    tracemalloc.start()
    try:
        ask()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.stress
def test_memory_does_not_grow_with_the_number_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for buffer in ((module_lists, "_RUN"), (sorting, "_RUN")):
        monkeypatch.setattr(*buffer, 1 << 12)
    for buffer in ((costs_module, "_AT_ONCE"), (index_checks, "_RANGE")):
        monkeypatch.setattr(*buffer, 1 << 10)
    for buffer in ((scratch, "_IN_MEMORY"), (scratch, "_CHUNK")):
        monkeypatch.setattr(*buffer, 1 << 14)
    few, many = (peaks(Store(str(tmp_path / f"{number}"), files=Unsynced()), number) for number in (5000, 10000))
    for before, after in zip(few, many, strict=True):
        assert after < 1.5 * before + 500_000  # five thousand modules fill all buffers; a prune holds some numbers for each module


class Unsynced(Files):
    """File operations that do not wait for the disk."""

    __slots__ = ()

    @staticmethod
    def fsync(_: object) -> None:
        """Nothing."""


def peaks(store: Store, modules_: int) -> list[int]:
    """How much each question holds at most."""
    for number in range(modules_):
        publish_module(store, number, [f"f{number}"], [f"f{number - 1}"] if number % 10 else ())
    merge(store.index, store=store)
    policy = PrunePolicy(max_modules=modules_ - 100, unused_for="30d")
    return [
        peak(lambda: cache_stats(store, None)), peak(lambda: check(store, checksums=False)), peak(lambda: sum(1 for _ in costs(store))),
        peak(lambda: propose(store, policy)), peak(lambda: merge_all(store, set(), PresentModules(Slices(store)))),
    ]  # fmt: skip


class CountingFiles(Unsynced):
    """File operations that count how often the status of each module file is read."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def lstat(self, path: str, *, dir_fd: int | None = None) -> os.stat_result:  # type: ignore[override]
        self.counts[path] += path.endswith(".ccm")
        return os.lstat(path, dir_fd=dir_fd)


@pytest.fixture
def read_modules(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list to which the module_id of each module file is added that is opened for its sections."""
    read: list[bytes] = []
    init = ModuleSections.__init__

    def record(self: ModuleSections, store: Store, module_id: bytes) -> None:
        read.append(module_id)
        init(self, store, module_id)

    monkeypatch.setattr(ModuleSections, "__init__", record)
    return read


@pytest.mark.slow
def test_a_check_without_checksums_reads_each_module_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_modules: list[bytes]
) -> None:
    monkeypatch.setattr(module_lists, "_RUN", 50)
    root = str(tmp_path / "cache")
    store = Store(root, files=Unsynced())
    for number in range(300):  # names far apart import each other
        publish_module(store, number, [f"f{number}"], [f"f{number * 7 % 300}"])
    merge_all(store, set(), PresentModules(Slices(store)))
    ModuleLists(store).counts()
    files = CountingFiles()
    read_modules.clear()
    report = check(Store(root, files=files), checksums=False)
    assert report
    edges = next(step for step in report.steps if step.name == "edges")
    assert edges.checked == edges.numbers["unchecked"] == 294  # six modules import their own functions
    assert len(read_modules) == len(set(read_modules)) == 294
    assert sum(files.counts.values()) < 2 * 300


def test_last_uses_of_all_modules_are_those_of_a_walk_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    overview = look_over(store)
    latest, _ = listings._last_uses(overview.ledger, overview.rows)
    found = {module.module_id: module.last_used for module in modules(store)}
    assert found == {module_id.hex(): latest.get(module_id, 0.0) for module_id in overview.rows}
    own = overview.ledger.last_uses()
    assert any(last_use and module_id not in own for module_id, last_use in latest.items())
    monkeypatch.setattr(listings, "_FIRST", 1)
    monkeypatch.setattr(listings, "_MOST_AT_ONCE", 4)
    assert list(listed_modules(store)) == modules(store)


def test_a_report_searches_no_list_for_single_modules(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[bytes] = []
    between, find = module_lists._List.between, module_lists._List.find

    def record(self: Any, start: bytes, end: bytes) -> Any:
        searches.append(start)
        return between(self, start, end)

    def record_find(self: Any, key: bytes) -> Any:
        assert key[:1] == b"a", f"searched for {key!r}"
        return find(self, key)

    monkeypatch.setattr(module_lists._List, "between", record)
    monkeypatch.setattr(module_lists._List, "find", record_find)
    merge_all(store, set(), PresentModules(Slices(store)))
    searches.clear()
    found = [row for row in costs(store) if row.realizations > 1]
    assert found
    assert len(modules(store)) == 59
    assert len(searches) <= 3 * 256  # each directory once for each of three walks
