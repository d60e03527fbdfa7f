"""What processes count, and that the totals are right whatever happens to the files."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, adder, module_file, run_fresh, snapshot
from mock_directory import DyingFiles, FaultyFiles, KilledError, Operation

from compcache import Cache, ModuleSource, NotCachedError, PrunePolicy, StorageError
from compcache.errors import FormatError
from compcache.files import Files, Tree
from compcache.formats.sorted_keys import SortedKeys
from compcache.formats.statistics import LOADS_KEY, MISSES_ID, StatsFile, counter_of, decode_stats, encode_stats
from compcache.hit import recorder as stats_module
from compcache.hit.recorder import JOURNALS_OF_HOST, Recorder, encode_batch
from compcache.publish import module_lists
from compcache.store import Store
from compcache.usage import ledger as folding_module
from compcache.usage import snapshot as counting
from compcache.usage.ledger import Uses, fold, fold_small

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

HIT = """
from compcache import Cache
cache = Cache(directory)
cache.get_target("f")
result = None
"""


def add(cache: Cache, name: str = "f") -> str:
    return cache.add_module(ModuleSource(adder(name, 1)))


def test_hits_and_saved_seconds_add_up_over_processes(cache: Cache, directory: Path) -> None:
    add(cache)
    for _ in range(3):
        run_fresh(directory, HIT)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.loads, stats.compilations) == (3, 0, 3, 1)
    assert stats.saved_seconds == pytest.approx(3 * stats.compile_seconds)
    assert stats.hit_rate == 1.0
    assert (stats.modules, stats.functions, stats.realizations) == (1, 1, 1)
    assert stats.size == stats.added_size > 0
    cache.remove("f")
    assert cache.stats().saved_seconds == pytest.approx(3 * stats.compile_seconds)  # the time was saved, although the module is gone


def test_a_target_that_is_in_memory_is_no_hit(cache: Cache) -> None:
    add(cache)
    held = cache.get_target("f")
    for _ in range(5):
        assert cache.get_target("f") is held
    assert cache.stats().hits == 1


def test_misses_are_counted_once_and_by_reason(cache: Cache) -> None:
    with pytest.raises(NotCachedError):
        cache.get_target("nothing")
    cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))
    stats = cache.stats()
    assert stats.miss_reasons == {"absent": 2}
    assert stats.hits == 0
    assert stats.compilations == 1


MISSES = """
from compcache import Cache, NotCachedError
cache = Cache(directory)
for name in ("f", "f", "g"):
    try:
        cache.get_target(name)
    except NotCachedError:
        pass
result = None
"""


def test_misses_are_counted_for_each_function(cache: Cache, directory: Path) -> None:
    for _ in range(2):
        run_fresh(directory, MISSES)
    add(cache)
    add(cache, "other")
    assert {row.func_name: row.misses for row in cache.functions()} == {"f": 4, "other": 0}
    assert cache.stats().miss_reasons == {"absent": 6}
    assert {row.func_name: (row.misses, row.uses, row.last_used) for row in cache.functions()} == {"f": (4, 0, 0.0), "other": (0, 0, 0.0)}
    cache.zero_stats()
    assert not any(row.misses for row in cache.functions())


def test_a_program_that_asks_often_writes_one_line(directory: Path) -> None:
    recorder = Recorder(Tree(Files(), str(directory)), str(directory))
    for _ in range(5000):
        recorder.missed(NotCachedError("absent", func_name="f"))
    recorder.flush()
    assert sum(path.stat().st_size for path in (directory / "stats").iterdir()) < 500
    assert list(Uses(Store(str(directory))).ledger().misses().values()) == [5000]


def test_misses_are_forgotten_a_month_after_the_last(directory: Path) -> None:
    now = time.time()
    month = 31 * 24 * 3600
    uses = {
        (b"o" * 16, MISSES_ID): (3, now - month - 9000), (b"n" * 16, MISSES_ID): (4, now - month + 9000), (b"g" * 16, b"gone" * 4): (1, now)
    }
    (directory / "stats").mkdir(parents=True)
    for number in range(2):
        (directory / "stats" / f"1-{number}.stats1").write_bytes(encode_stats({}, uses, [f"made-of-{number}"]))
    fold(Store(str(directory), trust=True), lambda module_ids: dict.fromkeys(module_ids, 1.0), now=now, present=())
    assert Uses(Store(str(directory), trust=True)).ledger().misses() == {b"n" * 16: 8}


def test_history_is_the_statistics_by_hour(cache: Cache, directory: Path) -> None:
    add(cache)
    run_fresh(directory, HIT)
    with pytest.raises(NotCachedError):
        cache.get_target("nothing")
    stats, periods = cache.stats(), cache.history()
    for name in ("hits", "misses", "saved_seconds", "compile_seconds", "added_size", "evicted_size"):
        assert sum(getattr(period, name) for period in periods) == pytest.approx(getattr(stats, name)), name
    assert all(period.start % 3600 == 0 and period.start <= time.time() for period in periods)
    assert cache.history(since=time.time() + 7200) == ()


def test_counters_of_stores_with_long_addresses_are_folded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of earlier versions, which did not shorten them."""
    monkeypatch.setattr(folding_module, "SETTLED_SECONDS", -1.0)
    add(cache)
    addresses = [f"file:///{'a/' * 150}{name}" for name in "bc"]
    for address in addresses:
        cache._store.stats.count(counter_of("remote_hits", address))
        cache._store.stats.count(f"remote_hits@{address}", 2)
    cache._store.stats.flush()
    for _ in range(2):  # seals the journal, replaces it
        cache.prune(PrunePolicy())
    stores = cache.stats().remote_stores
    assert [counts.hits for counts in stores.values()] == [3, 3]
    assert all(name.startswith("file:///a/a/") and len(name) <= 200 for name in stores)


def test_damage_is_a_reason_of_its_own_and_counted(cache: Cache, directory: Path) -> None:
    from helpers import flip_byte

    flip_byte(module_file(directory, add(cache)), 100)
    with (
        pytest.warns(UserWarning, match="damaged"),
        Cache(directory) as opened,
        pytest.raises(NotCachedError),
    ):
        opened.get_target("f")
    stats = cache.stats()
    assert stats.miss_reasons == {"damaged": 1}
    assert stats.corrupt == 1


def test_threads_lose_and_double_nothing(directory: Path) -> None:
    recorder = Recorder(Tree(Files(), str(directory)), str(directory))

    def work() -> None:
        for number in range(2000):
            recorder.hit(f"f{number % 7}", bytes([number % 5 + 1]) * 16)
            if number % 100 == 0:
                recorder.flush()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.flush()
    uses, counters = fold(Store(str(directory)), lambda module_ids: dict.fromkeys(module_ids, 1.0), now=time.time())
    totals = {name: sum(v for (_, n), v in counters.items() if n == name) for name in ("hits", "loads")}
    assert totals == {"hits": 8000, "loads": 5}
    assert sum(count for (_, key), count, _ in uses.sorted_uses() if key != LOADS_KEY) == 8000


def test_nothing_is_lost_wherever_another_thread_writes_out_the_same_events(directory: Path) -> None:
    recorder = Recorder(Tree(Files(), str(directory)), str(directory))
    recorder.count("start")
    lines = 0
    at = -1

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != stats_module.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == at:  # as if the interpreter switched here; nothing is traced meanwhile
                recorder.flush()
        return trace

    before = sys.gettrace()
    rounds = 0
    while lines >= at:
        lines, at, rounds = 0, at + 1, rounds + 1
        for _ in range(3):
            recorder.count("events")
        sys.settrace(trace)
        try:
            recorder.flush()
        finally:
            sys.settrace(before)
    recorder.flush()
    assert rounds > 20
    uses = Uses(Store(str(directory)))
    totals = {name: value for (_, name), value in uses.counters.items()}
    assert totals == {"start": 1, "events": 3 * rounds}


def test_who_comes_second_to_make_the_directory_of_statistics_loses_no_count(directory: Path) -> None:
    directory.mkdir(exist_ok=True)

    def other_is_faster(operation: Operation) -> None:
        if operation.name == "mkdir":
            (directory / "stats").mkdir()

    recorder = Recorder(Tree(FaultyFiles(directory, plan=other_is_faster), str(directory)), str(directory))
    recorder.count("events")
    recorder.flush()
    uses = Uses(Store(str(directory)))
    assert sum(uses.counters.values()) == 1


@pytest.mark.slow
def test_a_forked_child_counts_its_own_and_not_its_parents(directory: Path) -> None:
    script = """
    import os
    from compcache import Cache, ModuleSource
    from helpers import PACKAGE_ROOT, adder
    cache = Cache(directory)
    cache.add_module(ModuleSource(adder("f", 1)))
    cache.get_target("f")
    child = os.fork()
    if child == 0:
        cache.get_target("f")
        cache.close()
        os._exit(0)
    os.waitpid(child, 0)
    cache.close()
    stats = Cache(directory).stats()
    result = stats.hits, stats.added_modules
    """
    tests = str(PACKAGE_ROOT / "tests")
    assert run_fresh(
        directory, f"sys.path.insert(0, {tests!r})\n" + "\n".join(x[4:] for x in script.splitlines())
    ) == (2, 1)


def test_workers_of_multiprocessing_are_counted(cache: Cache, directory: Path) -> None:
    add(cache)
    script = """
    import multiprocessing
    from compcache import Cache

    def work(path):
        cache = Cache(path)
        for _ in range(3):
            cache.get_target("f")

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=work, args=(directory,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    result = [worker.exitcode for worker in workers]
    """
    assert run_fresh(directory, script) == [0, 0]
    assert cache.stats().hits == 6


def test_a_readonly_cache_counts_nothing(cache: Cache, directory: Path) -> None:
    add(cache)
    cache.stats()
    before = snapshot(directory)
    with Cache(directory, readonly=True) as reader:
        reader.get_target("f")
        assert reader.stats().modules == 1
    assert snapshot(directory) == before


def test_the_environment_switches_counting_off(cache: Cache, directory: Path) -> None:
    add(cache)
    run_fresh(directory, HIT, COMPCACHE_STATS="0")
    assert cache.stats().hits == 0


def test_zeroing_that_cannot_be_written_is_an_error(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(cache)
    run_fresh(directory, HIT)
    before = cache.stats()

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("compcache.usage.ledger.publish", fail)
        with pytest.raises(StorageError, match="cannot write the statistics"):
            cache.zero_stats()
    assert cache.stats().hits == before.hits == 1


def test_zeroing_forgets_the_counters_but_not_when_things_were_used(cache: Cache, directory: Path) -> None:
    module_id = add(cache)
    run_fresh(directory, HIT)
    started = time.time()
    cache.zero_stats()
    stats = cache.stats()
    assert (stats.hits, stats.compilations, stats.saved_seconds, stats.loads) == (0, 0, 0.0, 0)
    assert stats.since >= started - 1
    used = Uses(Store(str(directory))).ledger().last_uses()[bytes.fromhex(module_id)]
    assert started - 60 < used <= started
    run_fresh(directory, HIT)
    assert cache.stats().hits == 1


def test_since_counts_only_what_came_later(cache: Cache, directory: Path) -> None:
    add(cache)
    hour = int(time.time()) // 3600
    (directory / "stats" / "old.stats1").write_bytes(encode_stats({(hour - 50, "hits"): 7}, {}))
    run_fresh(directory, HIT)
    assert cache.stats().hits == 8
    assert cache.stats(since=(hour - 2) * 3600.0).hits == 1
    assert cache.stats(since=(hour - 60) * 3600.0).hits == 8


def fill(directory: Path, hosts: int = 6) -> Store:
    """Journals as several hosts would leave them, sealed long ago, each with one hit."""
    recorder = Recorder(Tree(Files(), str(directory)), str(directory))
    stats = directory / "stats"
    for number in range(hosts):
        recorder.hit("f", bytes([number]) * 16)
        recorder.flush()
        (journal,) = stats.glob("*.journal1")
        journal.rename(stats / f"host{number}.stats1")
    return Store(str(directory))


def hits(store: Store) -> float:
    return sum(value for (_, name), value in Uses(store).counters.items() if name == "hits")


@pytest.fixture
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed journals can be folded at once."""
    monkeypatch.setattr(folding_module, "SETTLED_SECONDS", -10.0)


@pytest.mark.usefixtures("_settled")
def test_folding_leaves_one_file_and_the_same_totals(directory: Path) -> None:
    store = fill(directory)
    fold(store, lambda _: {}, now=time.time())
    assert len(list((directory / "stats").glob("*.stats1"))) == 1
    assert hits(store) == 6
    fold(store, lambda _: {}, now=time.time())
    assert hits(store) == 6


@pytest.mark.usefixtures("_settled")
@pytest.mark.parametrize("folder", ["fold", "fold_small", "zero"])
def test_a_fold_that_is_killed_anywhere_counts_nothing_twice(
    directory: Path, tmp_path: Path, folder: str
) -> None:
    fill(directory, 9)
    steps = 0
    finished = False
    while not finished:
        copy = tmp_path / f"copy{steps}"
        shutil.copytree(directory, copy)
        files = DyingFiles(steps)
        try:
            if folder == "fold":
                fold(Store(str(copy), files=files), lambda _: {}, now=time.time())
            elif folder == "zero":
                folding_module.zero_counters(Store(str(copy), files=files), time.time())
            else:
                fold_small(files, str(copy))
            finished = True
        except KilledError:
            steps += 1
        store = Store(str(copy))
        allowed = (0, 9) if folder == "zero" else (9,)
        total = hits(store)
        assert total in allowed
        fold_small(Files(), str(copy))
        assert hits(store) == total
        fold(store, lambda _: {}, now=time.time())
        assert hits(store) == total
    assert steps > 5


def test_a_journal_that_was_just_sealed_is_read_but_not_folded(directory: Path) -> None:
    """A process may have opened it before it was renamed, and write after."""
    store = fill(directory, 2)
    late = next((directory / "stats").glob("host1*"))
    fold(store, lambda _: {}, now=time.time())
    assert late.exists()
    recorder = Recorder(Tree(Files(), str(directory)), str(directory))
    recorder.hit("g", bytes(16))
    recorder.flush()
    (journal,) = (directory / "stats").glob("*.journal1")
    late.write_bytes(late.read_bytes() + journal.read_bytes())
    journal.unlink()
    assert hits(store) == 3


@pytest.mark.usefixtures("_settled")
def test_two_folds_at_once_without_locks_double_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPCACHE_LOCKS", "0")
    store = fill(directory)
    before = {path.name: path.read_bytes() for path in (directory / "stats").iterdir()}
    fold(store, lambda _: {}, now=time.time(), force=True)
    for name, data in before.items():  # the other one had read the same files, and publishes after this one
        (directory / "stats" / name).write_bytes(data)
    (directory / "stats" / "late.stats1").write_bytes(encode_stats({(1, "hits"): 1}, {}, ["unrelated"]))
    assert hits(store) == 7


def test_torn_batches_and_strange_files_do_not_count(directory: Path) -> None:
    store = fill(directory, 2)
    path = directory / "stats" / "host0.stats1"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + whole[:20] + whole)
    (directory / "stats" / "strange.stats1").write_bytes(b"CCSTATS1 and then rubbish")
    (directory / "stats" / "empty.stats1").write_bytes(b"")
    assert hits(store) == 2
    assert Uses(store, verify=True).torn == ("strange.stats1",)


def test_a_sum_survives_the_round_trip_and_no_damage_goes_unnoticed() -> None:
    content = StatsFile(
        counters={(5, "hits"): 2.0, (6, "saved_seconds"): 0.25},
        inputs=("a.stats1", "b.stats1"),
        size=0,
        uses={(b"k" * 16, b"m" * 16): (3, 17.5)},
    )
    data = encode_stats(content.counters, content.uses, content.inputs)
    assert decode_stats(data) == StatsFile(content.counters, content.inputs, len(data), content.uses)
    for at in range(8, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(FormatError):
            decode_stats(bytes(damaged))
    for end in range(8, len(data)):
        with pytest.raises(FormatError):
            decode_stats(data[:end])


def test_processes_of_a_host_append_to_several_journals(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append waits for the appends of other processes to the same file. Forked children have their own process number."""
    recorder = Recorder(Tree(Files(), str(directory)), str(directory))
    (directory / "stats").mkdir(parents=True)
    (directory / "stats" / f"{os.uname().nodename}.journal1").write_bytes(encode_batch(["3600 hits 1"]))  # as former versions name it
    first = os.getpid()
    for number in range(2 * JOURNALS_OF_HOST):
        monkeypatch.setattr(os, "getpid", lambda number=number: first + number)
        recorder.reset()
        recorder.hit("f", bytes([number]) * 16)
    assert len(list((directory / "stats").glob("*.journal1"))) == JOURNALS_OF_HOST + 1
    assert hits(Store(str(directory))) == 2 * JOURNALS_OF_HOST + 1
    fold(Store(str(directory)), lambda _: {}, now=time.time())
    assert not list((directory / "stats").glob("*.journal1"))
    assert hits(Store(str(directory))) == 2 * JOURNALS_OF_HOST + 1


def test_journals_of_ever_new_hosts_are_folded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers on one directory have names of their own, and each may live for one hit."""
    monkeypatch.setattr(folding_module, "SETTLED_SECONDS", -10.0)
    (directory / "stats").mkdir(parents=True)
    most = 0
    for number in range(1000):
        monkeypatch.setattr(stats_module, "_host_name", lambda number=number: f"host-{number}")
        recorder = Recorder(Tree(Files(), str(directory)), str(directory))
        recorder.hit("f", b"m" * 16)
        recorder._at_exit()
        most = max(most, len(os.listdir(directory / "stats")))
    assert most <= 64
    assert hits(Store(str(directory))) == 1000


def test_a_journal_that_has_become_long_is_folded_at_exit(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compcache.hit.recorder._LONG", 1)
    recorder = Recorder(Tree(Files(), str(directory)), str(directory))
    recorder.hit("f", bytes(16))
    recorder._at_exit()
    assert not list((directory / "stats").glob("*.journal1"))
    assert hits(Store(str(directory))) == 1


def test_the_content_of_large_caches_is_counted_without_reading_lists(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FEW", "_FEWEST"):
        monkeypatch.setattr(module_lists, name, 0)
    cache.add_modules([ModuleSource(adder(f"f{number}", number)) for number in range(3)])
    exact = cache.stats()
    monkeypatch.setattr(counting, "_MAX_COUNTED", 0)
    monkeypatch.setattr(SortedKeys, "between", None)
    stats = cache.stats()
    assert (stats.modules, stats.functions, stats.realizations) == (exact.modules, exact.functions, exact.realizations) == (3, 3, 3)
    assert stats.size == exact.size
