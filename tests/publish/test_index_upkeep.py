"""The index of many modules: one process rebuilds it, in parts that nobody sees, and no addition waits for what takes long to merge."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, constant, module_file
from mock_directory import FaultyFiles, Operation, cache_on

from compcache import Cache, CacheWarning, ModuleSource
from compcache.directory.places import MODULE_LISTS
from compcache.errors import FormatError
from compcache.formats.index import Index, Segment
from compcache.formats.statistics import is_sum
from compcache.processes import detached
from compcache.publish import additions, apart, index_merge, index_parts, index_rebuild, module_lists, open_segments, verify
from compcache.publish.additions import merge, merge_large
from compcache.publish.index_merge import LARGE_LEVELS, SMALL_LEVELS
from compcache.publish.index_rebuild import IndexCollector, read_from_the_end, rebuild_index
from compcache.publish.locks import try_lock
from compcache.store import Store
from compcache.usage import ledger
from compcache.usage.listings import functions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The size in bytes of the index entries of a module with one function.
ONE = 168


@pytest.fixture
def many(cache: Cache, directory: Path) -> Cache:
    """Twenty modules, and three of one name; the index is gone."""
    for number in range(20):
        cache.add_module(ModuleSource(adder(f"f{number}", number)))
    for number in range(3):
        cache.add_module(ModuleSource(constant("version", number)))
    lose_index(directory)
    return cache


def lose_index(directory: Path) -> None:
    for path in (directory / "index-v1").iterdir():
        path.unlink()


def in_index(directory: Path) -> tuple[int, int]:
    """How many segments and parts there are, without the mark that says that there are parts."""
    names = [path.name for path in (directory / "index-v1").iterdir()]
    return sum(name.endswith(".idx") for name in names), sum(name.endswith("-part") and "begun" not in name for name in names)


@contextmanager
def rebuilt_elsewhere(directory: Path) -> Iterator[None]:
    """Another thread holds the lock of who rebuilds the index."""
    done, ready = threading.Event(), threading.Event()

    def hold() -> None:
        with try_lock(Store(str(directory)), "index-rebuild"):
            ready.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(10)
    try:
        yield
    finally:
        done.set()
        thread.join()


class KilledError(Exception):
    """Ends a rebuild."""


def kill_after(monkeypatch: pytest.MonkeyPatch, parts: int) -> list[bytes]:
    """Let a rebuild end after so many parts; the modules that are read from now on."""
    read: list[bytes] = []
    publish, add = IndexCollector.write_part, IndexCollector.add
    left = [parts]

    def publish_some(self: IndexCollector, store: Store) -> dict[str, set[str]]:
        if not left[0]:
            raise KilledError
        left[0] -= 1
        return publish(self, store)

    def count(self: IndexCollector, store: Store, module_id: bytes) -> None:
        read.append(module_id)
        add(self, store, module_id)

    monkeypatch.setattr(index_rebuild, "_MODULES_PER_PART", 4)
    monkeypatch.setattr(index_parts, "_TICK", 0)
    monkeypatch.setattr(IndexCollector, "write_part", publish_some)
    monkeypatch.setattr(IndexCollector, "add", count)
    return read


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_a_rebuild_that_was_killed_goes_on(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killing:
        first = kill_after(killing, 3)
        with pytest.raises(KilledError):
            rebuild_index(Store(str(directory)))
        assert in_index(directory) == (0, 3)
        assert len(first) < 23
        looking = Store(str(directory), readonly=True)
        assert not list(looking.find("version")), "another part may have a newer one"
    with monkeypatch.context() as going_on:
        rest = kill_after(going_on, 100)
        with Cache(directory) as other:
            assert other.get_target("version")() == 2
            assert all(other.has(f"f{number}") for number in range(20))
        assert len(first) + len(rest) <= 23 + 8, "what the killed one had in memory is read again, and no more"
        assert len(rest) < 23
    assert not list((directory / "index-v1").glob("*-part"))


@pytest.mark.slow
def test_a_part_is_made_again_where_a_module_was_added_since(many: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killing:
        kill_after(killing, 3)
        with pytest.raises(KilledError):
            rebuild_index(Store(str(directory)))
    with monkeypatch.context() as changing:
        kill_after(changing, 0)  # nobody goes on yet
        with pytest.raises(KilledError):
            many.add_module(ModuleSource(constant("version", 7)))
    monkeypatch.setattr(verify, "_PATIENCE", 0.0)
    with rebuilt_elsewhere(directory):
        for number in range(30, 60):
            many.add_module(ModuleSource(adder(f"f{number}", number)))
        many.add_module(ModuleSource(constant("version", 8)))
    for path in (directory / "index-v1").glob("*.idx"):
        path.unlink()  # what was added meanwhile is known by the modules alone
    with Cache(directory) as other:
        assert all(other.has(f"f{number}") for number in (*range(20), *range(30, 60)))
        assert other.get_target("version")() == 8


@pytest.mark.slow
@pytest.mark.parametrize("at", [0.2, 0.4, 0.6])
def test_a_damaged_part_is_made_again(many: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch, at: float) -> None:
    """A part of a killed rebuild must not end every later rebuild."""
    many.close()
    with monkeypatch.context() as killing:
        kill_after(killing, 3)
        with pytest.raises(KilledError):
            rebuild_index(Store(str(directory)))
    monkeypatch.setattr(index_parts, "_TICK", 0)
    part = max((directory / "index-v1").glob("??-*-part"))
    content = bytearray(part.read_bytes())
    content[int(len(content) * at)] ^= 0x55
    part.write_bytes(content)
    with Cache(directory) as other:
        assert all(other.has(f"f{number}") for number in range(20))
        assert other.get_target("version")() == 2
    assert in_index(directory)[1] == 0


def test_a_check_reports_that_the_index_cannot_be_rebuilt(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Store) -> int:
        raise FormatError("a bucket of an index table is damaged")

    cache.add_module(ModuleSource(adder("f", 1)))
    for path in (directory / "index-v1").glob("*.idx"):
        path.write_bytes(b"damaged")
    monkeypatch.setattr("compcache.maintain.checks.index.rebuild_index", fail)
    with Cache(directory) as other:
        report = other.check(repair=True)
    assert [finding.repaired for finding in report.findings if finding.kind == "index"] == [False]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ETIMEDOUT])
def test_a_rebuild_leaves_out_no_module_that_cannot_be_read_for_a_moment(cache: Cache, directory: Path, number: int) -> None:
    """The index would be complete without it: the older code of its name would be the newest, in all processes."""
    cache.add_module(ModuleSource(constant("f", 1)))
    newest = module_file(directory, cache.add_module(ModuleSource(constant("f", 2))))
    shutil.rmtree(directory / "index-v1")

    def server_is_gone(operation: Operation) -> OSError | None:
        return OSError(number, os.strerror(number), operation.path) if operation.path.endswith(newest.name) else None

    files = FaultyFiles(directory, server_is_gone, count=lambda operation: operation.name == "open")
    with cache_on(files) as other, pytest.warns(CacheWarning, match=f"cannot rebuild the index of .*{newest.name}.*{os.strerror(number)}"):
        assert not other.has("f")
    with Cache(directory) as other:
        assert other.get_target("f")() == 2


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT])
def test_a_module_that_the_disk_cannot_read_stops_no_question(cache: Cache, directory: Path, number: int) -> None:
    bad = module_file(directory, cache.add_module(ModuleSource(constant("bad", 1))))
    cache.add_module(ModuleSource(constant("good", 2)))

    def is_damaged(operation: Operation) -> OSError | None:
        return OSError(number, os.strerror(number), operation.path) if operation.path.endswith(bad.name) else None

    files = FaultyFiles(directory, is_damaged, count=lambda operation: operation.name == "open")
    with cache_on(files) as other:
        assert [row.func_name for row in other.functions()] == ["good"]
        assert other.get_target("good")() == 2
        assert len(other.modules()) == 1
        assert other.stats().functions == other.info().functions == 1
        assert other.get_or_compile("bad", lambda: ModuleSource(constant("bad", 3)))() == 3
        for repair in (False, True):
            (finding,) = other.check(repair=repair).errors
            assert str(bad) in finding.message
            assert finding.message.endswith(f"{os.strerror(number)}; correct this, or remove the file")
        bad.unlink()
        assert not other.check(repair=True).errors


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_what_is_added_while_the_index_is_rebuilt_is_the_newest(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(directory / "numbers-v1")  # 1.0.0 notes none
    monkeypatch.setattr(verify, "_PATIENCE", 0.05)
    publish = index_merge.replace_segments
    adding: list[int] = []

    def meanwhile(*arguments: Any, **keywords: Any) -> None:
        if not adding:
            adding.append(1)
            thread = threading.Thread(target=lambda: Cache(directory).add_module(ModuleSource(constant("version", 9))))
            thread.start()
            thread.join()
        publish(*arguments, **keywords)

    monkeypatch.setattr(index_merge, "replace_segments", meanwhile)
    rebuilding = Store(str(directory))
    with try_lock(rebuilding, "index-rebuild"):
        rebuild_index(rebuilding)
    for _ in range(2):
        with Cache(directory) as other:
            assert other.get_target("version")() == 9
        lose_index(directory)


def test_segments_that_were_opened_stay_readable_while_others_replace_them(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    cache.add_module(ModuleSource(adder("g", 2)))
    reading = Store(str(directory))
    names = ["h", "i"]
    look_up = Index.look_up

    def replace() -> None:
        cache.add_module(ModuleSource(adder(names.pop(), 3)))
        rebuild_index(Store(str(directory)))

    def look_up_after_replacement(index: Index, *arguments: Any, **keywords: Any) -> list[bytes] | None:
        if index is reading.index and names:
            replace()
        return look_up(index, *arguments, **keywords)

    monkeypatch.setattr(Index, "look_up", look_up_after_replacement)
    segments = open_segments.readable_segments(reading.index)
    assert not names
    names.append("j")
    replace()
    assert sum(segment.functions.count for segment in segments) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_others_wait_as_long_as_for_a_miss_and_then_do_without(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_PATIENCE", 0.3)
    calls: list[str] = []
    monkeypatch.setattr(verify, "rebuild_index", lambda store: calls.append(store.root))
    with rebuilt_elsewhere(directory):
        started = time.monotonic()
        assert not Cache(directory).has("f1")
        assert 0.25 < time.monotonic() - started < 50
    assert not calls


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_who_waited_rebuilds_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_PATIENCE", 20.0)
    calls: list[str] = []
    started = threading.Event()

    def slowly(store: Store) -> int:
        calls.append(store.root)
        started.set()
        time.sleep(0.3)
        return rebuild_index(store)

    monkeypatch.setattr(verify, "rebuild_index", slowly)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(Cache(directory).has("f1"))) for _ in range(3)]
    threads[0].start()
    started.wait(10)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 3
    assert len(calls) == 1


# ------------------------------------------------------------------------------------- merges


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Segments of sixteen modules are large; the processes that are started to merge them, which do nothing."""
    started: list[list[str]] = []
    monkeypatch.setattr(module_lists, "_FEW", 0)
    monkeypatch.setattr(index_merge, "segment_level", lambda size: 1 + (size > 8 * ONE) + (size > 16 * ONE) + (size > 80 * ONE))

    def start(_: str, arguments: list[str], __: object) -> int:
        started.append(arguments)
        return 0

    monkeypatch.setattr(apart, "start_detached", start)
    return started


@pytest.mark.slow
def test_no_addition_waits_for_what_takes_long_to_merge(cache: Cache, directory: Path, small: list[list[str]]) -> None:
    for number in range(100):
        cache.add_module(ModuleSource(adder(f"f{number}", number)))
    levels = sorted(segment.level for segment in cache._store.index.segments)
    assert levels.count(LARGE_LEVELS[0]) >= 4
    assert small
    assert small[0] == [str(directory), "0"]
    before = functions(cache._store)
    merge_large(str(directory), trust=False)
    with Cache(directory) as other:
        large = [segment for segment in other._store.index.segments if segment.level in LARGE_LEVELS]
        assert len(large) == 1
        assert (directory / MODULE_LISTS.directory / large[0].name.replace(".idx", ".list")).exists()
        assert functions(other._store) == before
        assert all(other.has(f"f{number}") for number in range(100))


def test_who_merges_large_segments_folds_journals(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question after many additions would parse all of their uses."""
    monkeypatch.setattr(ledger, "_LONG", 200)
    monkeypatch.setattr(ledger, "SETTLED_SECONDS", -10.0)
    counts = []
    for number in range(12):
        cache.add_module(ModuleSource(adder(f"f{number}", number), optimize=0))
        assert cache.get_target(f"f{number}")(1) == number + 1
        cache._store.stats.flush()
        merge_large(str(directory), trust=False)
        paths = list((directory / "stats").glob("*.*1"))
        assert all(is_sum(path.read_bytes()) for path in paths)
        counts.append(len(paths))
    assert counts[0] == 1
    assert max(counts) <= 8
    assert [function.uses for function in functions(Store(str(directory), readonly=True))] == [1] * 12


def test_a_process_does_not_read_the_segments_that_it_has_written(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(ModuleSource(adder("f0", 0)))
    opened: list[str] = []
    open_file = Segment._open_file

    def counted(segment: Segment) -> Any:
        opened.append(segment.name)
        return open_file(segment)

    monkeypatch.setattr(Segment, "_open_file", counted)
    for number in range(1, 6):
        cache.add_module(ModuleSource(adder(f"f{number}", number)))
        assert cache.get_target(f"f{number}")(1) == 1 + number
    assert not opened
    with Cache(directory) as other:
        other.add_module(ModuleSource(adder("f6", 6)))
    cache.add_module(ModuleSource(adder("f7", 7)))
    assert len(set(opened)) == 7
    assert [cache.get_target(f"f{number}")(1) for number in (0, 6, 7)] == [1, 7, 8]


@pytest.mark.slow
def test_who_signs_merges_by_itself(directory: Path, small: list[list[str]]) -> None:
    with Cache(directory, signing_key=b"k" * 32) as cache:
        for number in range(100):
            cache.add_module(ModuleSource(adder(f"f{number}", number)))
        assert sum(segment.level not in SMALL_LEVELS for segment in cache._store.index.segments) == 1
    assert not small


@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_additions_that_fill_no_small_level_are_merged(directory: Path, monkeypatch: pytest.MonkeyPatch, key: bytes | None) -> None:
    with Cache(directory, signing_key=key) as cache:
        with monkeypatch.context() as large:
            large.setattr(index_merge, "_MODULE_SIZE", 1)
            large.setattr(index_merge, "segment_level", lambda _: LARGE_LEVELS[0])
            for number in range(10):
                cache.add_module(ModuleSource(adder(f"f{number}", number)))
        while cache._store.index.refresh() or sum(segment.level in LARGE_LEVELS for segment in cache._store.index.segments) > 3:
            merge(cache._store, is_fresh=True)  # like a later addition: the last one may have met the end of another merge
            time.sleep(0.05)
        assert all(cache.has(f"f{number}") for number in range(10))


@pytest.mark.slow
def test_merging_goes_on_in_a_process_of_its_own(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as fewer:
        fewer.setattr(index_merge, "segment_level", lambda size: 1 if size <= 8 * ONE else 2 if size <= 16 * ONE else 3)
        fewer.setattr(additions, "_MOST_LARGE_SEGMENTS", 1 << 30)
        for number in range(100):
            cache.add_module(ModuleSource(adder(f"f{number}", number)))
    assert sum(segment.level in LARGE_LEVELS for segment in cache._store.index.segments) >= 4
    merge(cache._store)
    while cache._store.index.refresh() or sum(segment.level in LARGE_LEVELS for segment in cache._store.index.segments) > 1:
        time.sleep(0.05)
    assert all(cache.has(f"f{number}") for number in range(100))


def from_the_end(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Let the second process of a rebuild be this one, which reads first; the modules that the rebuild reads itself."""
    read = kill_after(monkeypatch, 100)

    def run(store: Store, _: str, __: str) -> int:
        read_from_the_end(store.root, trust=False)
        read.clear()
        return 1

    monkeypatch.setattr(index_parts, "_MIN_MODULES", 1)
    monkeypatch.setattr(index_parts, "start_subprocess", run)
    monkeypatch.setattr(index_parts, "has_ended", lambda _: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    return read


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_a_second_process_reads_all_that_is_intact(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = sorted((directory / "modules-v1").glob("*/*"))[11]
    damaged.write_bytes(damaged.read_bytes().replace(b"\x7fELF", b"\x7fERR"))
    read = from_the_end(monkeypatch)
    with pytest.warns(UserWarning, match=damaged.name):
        assert rebuild_index(Store(str(directory))) == 22
    assert {*map(bytes.hex, read)} == {path.name[:32] for path in [*damaged.parent.iterdir(), damaged]}
    assert in_index(directory) == (1, 0)
    assert [path.name[:32] for path in (directory / "quarantine").iterdir()] == [damaged.name[:32]]
    with Cache(directory) as other:
        found = [number for number in range(20) if other.has(f"f{number}")]
        assert len(found) >= 19
        assert [other.get_target(f"f{number}")(1) for number in found] == [number + 1 for number in found]


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_the_second_process_ends_before_the_rebuild(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    start = detached.start_detached

    def note(*arguments: Any) -> int:
        started.append(start(*arguments))
        return started[-1]

    monkeypatch.setattr(index_parts, "_MIN_MODULES", 1)
    monkeypatch.setattr(index_parts, "_MAX_WAIT", 0.1)
    monkeypatch.setattr(apart, "start_detached", note)
    monkeypatch.setattr(apart, "_CHILD", "import time\ntime.sleep(600)\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert rebuild_index(Store(str(directory))) == 23
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    monkeypatch.undo()
    lose_index(directory)
    monkeypatch.setattr(index_parts, "_MIN_MODULES", 1)
    assert rebuild_index(Store(str(directory))) == 23, "with a process that reads"
    assert in_index(directory) == (1, 0)
