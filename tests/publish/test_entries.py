"""Entries of data: bytes that front ends keep for cached code, in modules and in packs."""

from __future__ import annotations

import math
import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, run_fresh
from mock_directory import FaultyFiles, cache_on
from processes import Crowd

from compcache import (
    Cache,
    CacheWarning,
    CompcacheError,
    FormatError,
    GlobalValidationError,
    InvalidNameError,
    ModuleSource,
    PickleNotAllowedError,
    PrunePolicy,
    StorageError,
    frontend,
)
from compcache.formats.entry import EntryRecord, decode_entry, encode_entry, index_name
from compcache.publish.packs import entries_of, packs_in
from compcache.signing.keys import generate_key
from compcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def put_each(cache: Cache, names: Iterable[str], data: bytes = b"data", **options: Any) -> None:
    """Each in a pack of its own."""
    for name in names:
        frontend.put_entry(cache, name, data, kind="k", **options)
        frontend.write_entries(cache)


def packs(cache: Cache) -> list[bytes]:
    cache._store.index.refresh()
    return [pack for pack in packs_in(cache._store.index.segments) if cache._store.exists(pack)]


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_entries_are_read_at_once_and_by_others_when_the_cache_is_closed(directory: Path) -> None:
    with Cache(directory) as cache:
        first = frontend.put_entry(cache, "a name", b"some bytes", kind="types")
        assert frontend.get_entry(cache, "a name", "types") == b"some bytes"
        assert frontend.get_entry(cache, "a name", "others") is None
        assert frontend.get_entry(cache, "another", "types") is None
        assert frontend.put_entry(cache, "a name", b"some bytes", kind="types") == first
        assert frontend.put_entry(cache, "a name", b"other bytes", kind="types") != first
    with Cache(directory, readonly=True) as cache:
        assert frontend.get_entry(cache, "a name", "types") == b"other bytes"


def test_a_process_that_exits_or_forks_writes_what_waits_once(directory: Path) -> None:
    code = """
    import os
    from compcache import Cache, frontend
    cache = Cache(directory)
    frontend.put_entry(cache, "of the parent", b"1", kind="k")
    child = os.fork()
    if not child:
        assert cache._entries._waiting == {}
        os._exit(0)
    result = os.waitpid(child, 0)[1]
    """
    assert run_fresh(directory, code) == 0
    with Cache(directory) as cache:
        assert frontend.get_entry(cache, "of the parent", "k") == b"1"
        assert len(packs(cache)) == 1


def test_workers_of_multiprocessing_write_what_waits(directory: Path) -> None:
    code = """
    import multiprocessing
    from compcache import Cache, frontend
    def work(number):
        cache = Cache(directory)
        frontend.put_entry(cache, f"of {number}", b"1", kind="k")
    workers = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    result = [worker.exitcode for worker in workers]
    """
    assert run_fresh(directory, code) == [0, 0]
    with Cache(directory) as cache:
        assert [frontend.get_entry(cache, f"of {number}", "k") for number in range(2)] == [b"1", b"1"]


def test_a_thousand_entries_are_a_few_files(directory: Path) -> None:
    with Cache(directory) as cache:
        for number in range(1000):
            frontend.put_entry(cache, f"name {number}", bytes([number % 256]) * 600, kind="k")
    found = files(directory)
    assert len(found) <= 8
    assert sum(path.stat().st_size for path in found) < 1_000_000
    with Cache(directory) as cache:
        assert all(frontend.get_entry(cache, f"name {number}", "k") == bytes([number % 256]) * 600 for number in range(1000))
        assert cache.check().findings == ()


def test_packs_that_come_one_by_one_are_put_together(cache: Cache, directory: Path) -> None:
    put_each(cache, [f"name {number}" for number in range(80)])
    assert len(packs(cache)) <= 9
    assert len(list((directory / "modules-v1").rglob("*.ccm"))) == len(packs(cache))
    with Cache(directory) as other:
        assert all(frontend.get_entry(other, f"name {number}", "k") == b"data" for number in range(80))
        assert other.check().findings == ()


@pytest.mark.parametrize("seed", range(6))
def test_no_segment_lists_a_pack_that_was_put_together_with_others(cache: Cache, seed: int) -> None:
    """The large pack is the last segment that a bounded merge takes; the names of segments, and so their order, depend on the content."""
    for turn, count in enumerate((1000, *[100] * 9)):
        for number in range(count):
            frontend.put_entry(cache, f"n{number}", b"%d %d" % (turn, seed), kind="k")
        frontend.write_entries(cache)
    cache._store.index.refresh()
    packs = packs_in(cache._store.index.segments)
    assert packs
    assert all(map(cache._store.exists, packs))


def test_a_process_with_an_older_index_finds_what_was_put_together(cache: Cache, directory: Path) -> None:
    put_each(cache, ["first", "second"])
    with Cache(directory) as other:
        assert other.exists, "its store has the index"
        assert frontend.get_entry(other, "first", "k") == b"data"
        put_each(cache, [f"name {number}" for number in range(20)])
        assert frontend.get_entry(other, "first", "k") == b"data"
        assert frontend.get_entry(other, "second", "k") == b"data", "its file was not open"


def test_an_entry_is_found_while_others_merge_its_file_again_and_again(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a new entry under its name would count as older than the one that was not found."""
    find, turns = Store.find, iter(range(3))

    def find_before_a_merge(store: Store, name: str) -> list[tuple[bytes, int]]:
        found = list(find(store, name))
        if store is reader and next(turns, None) is not None:
            while store.exists(found[0][0]):
                put_each(cache, [os.urandom(4).hex()])
        return found

    put_each(cache, ["first", "second"])
    with Cache(directory) as other:
        reader = other._store
        monkeypatch.setattr(Store, "find", find_before_a_merge)
        assert reader.read_entry("k", "second") is not None
        assert next(turns, None) is None, "each turn has merged the file"


@pytest.mark.parametrize("plain", [False, True])
def test_a_removed_entry_is_gone_in_whatever_order_files_are_read(tmp_path: Path, plain: bool) -> None:
    """File systems list by the digests of names, which depend on the content, or by time."""
    found = []
    for number in range(12):
        with Cache(tmp_path / str(number)) as cache:
            put_each(cache, [f"name {place}" for place in range(10)], b"%d" % number)
            frontend.remove_entry(cache, "name 3", "k")
            frontend.write_entries(cache)
        merged = next((tmp_path / str(number) / "index-v1").glob("01-*"))
        merged.rename(merged.with_suffix(".moved")).rename(merged)
        with Cache(tmp_path / str(number)) as other:
            assert plain or other.exists
            found.append(frontend.get_entry(other, "name 3", "k"))
    assert found == [None] * 12


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("merges", [False, True])
def test_the_last_entry_of_a_name_holds(cache: Cache, directory: Path, merges: bool, plain: bool) -> None:
    for number in range(5):
        put_each(cache, ["a name", f"name {number}"], str(number).encode())
    frontend.remove_entry(cache, "name 3", "k")
    frontend.write_entries(cache)
    if merges:
        put_each(cache, [f"other {number}" for number in range(20)])
    with Cache(directory) as other:
        assert plain or other.exists
        assert frontend.get_entry(other, "a name", "k") == b"4"
        assert frontend.get_entry(other, "name 3", "k") is None
        assert frontend.get_entry(other, "name 2", "k") == b"2"
        frontend.put_entry(other, "name 3", b"back", kind="k")
    with Cache(directory) as other:
        assert plain or other.exists
        assert frontend.get_entry(other, "name 3", "k") == b"back"


@pytest.mark.slow
def test_of_processes_that_store_one_name_one_wins_for_all(directory: Path) -> None:
    code = """
    from compcache import Cache, frontend
    with Cache(directory) as cache:
        barrier()
        for round in range(20):
            frontend.put_entry(cache, "a name", f"{number} {round}".encode(), kind="k")
            cache._entries.flush()
    with Cache(directory) as cache:
        result = frontend.get_entry(cache, "a name", "k")
    """
    with Crowd(directory, [code] * 3) as crowd:
        crowd.release()
        crowd.results()
    code = """
    from compcache import Cache, frontend
    result = frontend.get_entry(Cache(directory), "a name", "k")
    """
    answers = {run_fresh(directory, code) for _ in range(3)}
    assert len(answers) == 1
    assert answers.pop().endswith(b" 19")


def test_entries_are_no_functions(cache: Cache) -> None:
    module_id = cache.add_module(ModuleSource(adder("f", 1), entries={"types": b"f64"}))
    put_each(cache, ["f", "g"])
    assert [function.func_name for function in cache.functions()] == ["f"]
    assert [module.module_id for module in cache.modules()] == [module_id]
    assert (list(cache), len(cache), cache.has("g")) == (["f"], 1, False)
    assert cache.stats().modules == 1
    assert frontend.get_entry(cache, "f", "types") == b"f64"


def test_an_entry_is_gone_with_what_it_requires(cache: Cache, directory: Path) -> None:
    module_ids = [cache.add_module(ModuleSource(adder(name, 1))) for name in ("f", "g")]
    frontend.put_entry(cache, "of f", b"1", kind="k", requires=[module_ids[0]])
    frontend.put_entry(cache, "of both", b"1", kind="k", requires=module_ids)
    frontend.put_entry(cache, "of g", b"1", kind="k", requires=[module_ids[1]])
    frontend.write_entries(cache)
    cache.remove("f")
    with Cache(directory) as other:
        assert [frontend.get_entry(other, name, "k") for name in ("of f", "of both", "of g")] == [None, None, b"1"]
        (pack,) = packs(other)
        assert [entry.name for entry in entries_of(other._store, pack) or ()] == ["of g"], "half of them were dead"
    cache.prune(PrunePolicy(match="g"))
    assert packs(cache) == []
    assert cache.check().findings == ()


def test_a_pack_stays_with_what_it_belongs_to(cache: Cache) -> None:
    """A prune by limits removes what was not used; entries are as young as their modules, and pinned with them."""
    old, pinned = (cache.add_module(ModuleSource(adder(name, 1))) for name in ("old", "pinned"))
    put_each(cache, ["of the old"], requires=[old])
    put_each(cache, ["of the pinned"], requires=[pinned])
    cache.pin("pinned")
    cache.prune(PrunePolicy(max_modules=0))
    assert [function.func_name for function in cache.functions()] == ["pinned"]
    assert frontend.get_entry(cache, "of the pinned", "k") == b"data"
    assert frontend.get_entry(cache, "of the old", "k") is None


def test_a_pack_without_index_entry_stays_with_what_is_pinned(cache: Cache, directory: Path) -> None:
    """Another process has written the pack and not yet its index entry, or was killed before it did."""
    old, pinned = (cache.add_module(ModuleSource(adder(name, 1))) for name in ("old", "pinned"))
    put_each(cache, ["of the old"], requires=[old])
    put_each(cache, ["of the pinned"], requires=[pinned])
    cache.pin("pinned")
    assert len(packs(cache)) == 2
    shutil.rmtree(directory / "index-v1")
    with Cache(directory) as other:
        report = other.prune(PrunePolicy(max_bytes=0))
        assert len(report.removed_packs) == 1
        assert frontend.get_entry(other, "of the pinned", "k") == b"data"
        assert frontend.get_entry(other, "of the old", "k") is None


def test_the_index_is_made_again_with_entries(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1), entries={"types": b"f64"}))
    put_each(cache, ["a name"])
    shutil.rmtree(directory / "index-v1")
    with Cache(directory) as other:
        assert frontend.get_entry(other, "a name", "k") == b"data"
        assert frontend.get_entry(other, "f", "types") == b"f64"
        assert other.check().findings == ()


def test_entries_of_layers_are_read(directory: Path, tmp_path: Path) -> None:
    with Cache(tmp_path / "below") as below:
        frontend.put_entry(below, "a name", b"below", kind="k")
        frontend.put_entry(below, "pickled", b"below", kind="pickle:k") if frontend.allows_pickle(below) else None
    with Cache(directory, layers=[tmp_path / "below"]) as cache:
        assert frontend.get_entry(cache, "a name", "k") == b"below"
        frontend.put_entry(cache, "a name", b"here", kind="k")
        frontend.write_entries(cache)
        assert frontend.get_entry(cache, "a name", "k") == b"here"


def test_who_does_not_unpickle_neither_stores_nor_reads_pickles(directory: Path, tmp_path: Path) -> None:
    with Cache(directory, allow_pickle=True) as cache:
        frontend.put_entry(cache, "a name", b"pickle", kind="pickle:k")
    with Cache(directory) as cache:
        with pytest.raises(PickleNotAllowedError, match="allow_pickle=True"):
            frontend.get_entry(cache, "a name", "pickle:k")
        with pytest.raises(PickleNotAllowedError):
            frontend.put_entry(cache, "a name", b"pickle", kind="pickle:k")
        with pytest.raises(PickleNotAllowedError):
            frontend.find(cache, "a name", lambda _: True, kind="pickle:k")
    with Cache(tmp_path / "above", layers=[directory], allow_pickle=True) as cache:
        assert frontend.get_entry(cache, "a name", "pickle:k") is None, "nothing says who has written the layer"


@pytest.mark.parametrize("signed", [False, True])
def test_entries_travel_in_bundles(cache: Cache, tmp_path: Path, signed: bool) -> None:
    key = generate_key("test")
    module_id = cache.add_module(ModuleSource(adder("f", 1)))
    other = cache.add_module(ModuleSource(adder("g", 1)))
    put_each(cache, ["of f"], requires=[module_id])
    put_each(cache, ["of g"], requires=[other])
    put_each(cache, ["f"], b"about f")
    options: dict[str, Any] = {"publish_key": str(key)} if signed else {}
    with Cache(cache.path, **options) as exporting:
        exporting.export(["f"], tmp_path / "f.ccb")
    with Cache(tmp_path / "there") as there:
        there.import_bundle(tmp_path / "f.ccb", **({"trusted_keys": [str(key.public())]} if signed else {}))
        assert there.get_target("f")(1) == 2
        assert [frontend.get_entry(there, name, "k") for name in ("of f", "of g", "f")] == [b"data", None, b"about f"]


def test_pickles_are_taken_from_a_bundle_with_a_trusted_signature_only(directory: Path, tmp_path: Path) -> None:
    with Cache(directory, allow_pickle=True) as cache:
        module_id = cache.add_module(ModuleSource(adder("f", 1)))
        frontend.put_entry(cache, "of f", b"pickle", kind="pickle:k", requires=[module_id])
        frontend.write_entries(cache)
        cache.export(["f"], tmp_path / "f.ccb")
    with Cache(tmp_path / "there", allow_pickle=True) as there, pytest.raises(CompcacheError, match="pickled"):
        there.import_bundle(tmp_path / "f.ccb")


def test_entries_travel_through_a_remote_store(directory: Path, tmp_path: Path) -> None:
    remote = f"file://{tmp_path / 'remote'}"
    name = "dot-" + "0" * 32
    with Cache(directory, remote=remote, remote_mode="write") as cache:
        frontend.put_entry(cache, name, b"data", kind="k")
        frontend.write_entries(cache)
        assert cache.flush_uploads(30)
    with Cache(tmp_path / "there", remote=remote) as there:
        for _ in range(50):
            found = frontend.get_entry(there, name, "k")
            if found is not None:
                break
        assert found == b"data"
    with Cache(tmp_path / "there") as there:
        assert frontend.get_entry(there, name, "k") == b"data"


def test_an_entry_decides_which_realization_is_taken(cache: Cache) -> None:
    for number in (1, 2, 3):
        frontend.add_realizations(cache, ModuleSource(adder("f", number), entries={"types": str(number).encode()}), alone=True)
    frontend.add_realizations(cache, ModuleSource(adder("f", 4)), alone=True)
    seen: list[bytes] = []

    def accept(data: bytes) -> bool:
        seen.append(data)
        return data == wanted

    for wanted in (b"2", b"3", b"1", b"2"):
        target = frontend.find(cache, "f", accept, kind="types")
        assert target is not None
        assert target(0) == int(wanted)
    wanted = b"5"
    assert frontend.find(cache, "f", accept, kind="types") is None
    assert set(seen) == {b"1", b"2", b"3"}


def test_a_realization_that_is_loaded_is_not_taken_for_another(cache: Cache) -> None:
    for number in (1, 2):
        frontend.add_realizations(cache, ModuleSource(adder("f", number), entries={"types": str(number).encode()}), alone=True)
    targets = [frontend.find(cache, "f", lambda data, wanted=wanted: data == wanted, kind="types") for wanted in (b"1", b"2", b"1")]  # type: ignore[misc]
    assert [target(0) for target in targets if target is not None] == [1, 2, 1]


def test_threads_put_and_get(cache: Cache) -> None:
    def work(thread: int) -> None:
        for number in range(100):
            frontend.put_entry(cache, f"{thread} {number}", b"data", kind="k")
            assert frontend.get_entry(cache, f"{thread} {number}", "k") == b"data"
            if number % 10 == 9:
                frontend.write_entries(cache)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frontend.write_entries(cache)
    assert all(frontend.get_entry(cache, f"{thread} {number}", "k") for thread in range(4) for number in range(100))


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_names_that_cannot_be_used(cache: Cache, name: str) -> None:
    with pytest.raises(InvalidNameError):
        frontend.put_entry(cache, name, b"", kind="k")
    with pytest.raises(InvalidNameError):
        frontend.put_entry(cache, "a name", b"", kind=name)


def test_a_read_only_cache_refuses_entries(directory: Path) -> None:
    with Cache(directory, readonly=True) as cache, pytest.raises(StorageError, match="readonly=True"):
        frontend.put_entry(cache, "a name", b"", kind="k")


def test_a_full_disk_at_the_end_is_told(directory: Path) -> None:
    files_ = FaultyFiles(directory, count=lambda operation: operation.name == "write")
    cache = cache_on(files_)
    frontend.put_entry(cache, "a name", b"data", kind="k")
    files_.plan = lambda _: OSError(28, os.strerror(28))
    with pytest.raises(StorageError, match="No space left"):
        cache.close()
    files_.plan = None
    assert frontend.get_entry(cache, "a name", "k") == b"data", "it waits still"
    cache.close()
    with Cache(directory) as other:
        assert frontend.get_entry(other, "a name", "k") == b"data"


def test_a_damaged_pack_is_set_aside(cache: Cache, directory: Path) -> None:
    put_each(cache, ["a name"])
    (pack,) = packs(cache)
    path = cache._store.module_path(pack)
    with open(path, "r+b") as file:
        file.seek(200)
        file.write(b"damage")
    with Cache(directory) as other, pytest.warns(CacheWarning, match="damaged"):
        assert frontend.get_entry(other, "a name", "k") is None
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    "record",
    [
        EntryRecord("k", "n", 0, (), b"", gone=False),
        EntryRecord("k", "n\ud800", 2**64 - 1, (bytes(16), b"x" * 16), b"data" * 100, gone=True),
    ],
)  # fmt: skip
def test_the_codec(record: EntryRecord) -> None:
    payload = encode_entry(record)
    assert decode_entry(payload) == record
    for size in range(len(payload)):
        with pytest.raises(Exception, match="entry"):
            decode_entry(payload[:size])
    assert index_name("a", "b") != index_name("ab", "")


def test_packs_are_not_counted_as_modules(cache: Cache, directory: Path) -> None:
    module_id = cache.add_module(ModuleSource(adder("f", 1), entries={"types": b"f64"}))
    put_each(cache, ["f", "of f"], b"x" * 1000, requires=[module_id])
    info, stats = cache.info(), cache.stats()
    assert (info.modules, info.functions, info.realizations) == (stats.modules, stats.functions, stats.realizations) == (1, 1, 1)
    assert info.size == stats.size == sum(path.stat().st_size for path in directory.rglob("*.ccm"))
    for policy in (PrunePolicy(max_modules=1), PrunePolicy(max_modules=1, older_than="30d")):
        report = cache.prune(policy)
        assert (report.modules_before, report.removed) == (1, ())
    assert frontend.get_entry(cache, "of f", "k") == b"x" * 1000, "a limit for modules is none for packs"
    assert cache.clear() == 1


def test_a_prune_tells_what_packs_free(cache: Cache) -> None:
    module_id = cache.add_module(ModuleSource(adder("f", 1)))
    put_each(cache, ["a name", "another"], b"x" * 1000)
    size = sum(cache._store.files.stat(cache._store.module_path(pack)).st_size for pack in packs(cache))
    report = cache.prune(PrunePolicy(max_bytes=0), dry_run=True)
    assert [module.module_id for module in report.removed] == [module_id]
    assert sum(pack.size for pack in report.removed_packs) == size
    assert (report.modules_before, report.modules_after, report.size_after) == (1, 0, 0)
    done = cache.prune(PrunePolicy(max_bytes=0))
    assert (done.removed_packs, done.freed_size) == (report.removed_packs, report.freed_size)
    assert cache.stats().evicted_modules == 1
    assert packs(cache) == []


def test_who_signs_what(directory: Path) -> None:
    """Packs merge with those of the same signer alone: what nobody has signed gets no signature, and one that is there is not lost."""
    key, names = generate_key("test"), [f"name {number}" for number in range(12)]
    with Cache(directory) as cache:
        put_each(cache, ["unsigned"], b"not theirs")
    with Cache(directory, publish_key=str(key)) as cache:
        put_each(cache, names)
        assert len(packs(cache)) < len(names)
    with Cache(directory) as cache:
        put_each(cache, [f"of nobody {number}" for number in range(12)])
    with Cache(directory, trusted_keys=[str(key.public())]) as cache:
        assert all(frontend.get_entry(cache, name, "k") == b"data" for name in names)
        with pytest.warns(CacheWarning, match="not signed"):
            assert frontend.get_entry(cache, "unsigned", "k") is None


def test_entries_of_a_signing_key_stay_where_others_write(directory: Path) -> None:
    with Cache(directory, signing_key=b"key") as cache:
        put_each(cache, [f"name {number}" for number in range(3)])
    with Cache(directory) as cache:
        put_each(cache, [f"of nobody {number}" for number in range(20)])
    with Cache(directory, signing_key=b"key") as cache:
        assert [frontend.get_entry(cache, f"name {number}", "k") for number in range(3)] == [b"data"] * 3


def test_retargeting_believes_no_pickles_of_a_layer(directory: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    with Cache(layer) as cache:
        cache.add_module(ModuleSource(adder("f", 1), targets=["bdver2"], entries={"pickle:k": b"pickle", "k": b"data"}))
    with Cache(directory, layers=[layer], allow_pickle=True) as cache:
        assert frontend.get_entry(cache, "f", "pickle:k") is None
        assert cache.get_target("f")(1) == 2
        assert frontend.get_entry(cache, "f", "pickle:k") is None
        assert frontend.get_entry(cache, "f", "k") == b"data"


def test_a_layer_whose_packs_are_put_together_is_read_on(directory: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    with Cache(layer) as below, Cache(directory, layers=[layer]) as cache:
        put_each(below, ["first", "second"])
        assert frontend.get_entry(cache, "first", "k") == b"data"
        put_each(below, [f"name {number}" for number in range(12)])
        assert frontend.get_entry(cache, "second", "k") == b"data"


def test_what_was_replaced_does_not_come_back(cache: Cache, tmp_path: Path) -> None:
    module_id = cache.add_module(ModuleSource(adder("f", 1)))
    cache.add_module(ModuleSource(adder("g", 1)))
    put_each(cache, ["of f", "g"], b"old")
    put_each(cache, ["of f"], b"new", requires=[module_id])
    frontend.remove_entry(cache, "g", "k")
    frontend.write_entries(cache)
    cache.export(["g"], tmp_path / "g.ccb")
    cache.remove("f")
    assert frontend.get_entry(cache, "of f", "k") is None
    put_each(cache, [f"name {number}" for number in range(12)])
    assert frontend.get_entry(cache, "of f", "k") is None
    with Cache(tmp_path / "there") as there:
        there.import_bundle(tmp_path / "g.ccb")
        assert frontend.get_entry(there, "g", "k") is None


def test_entries_that_wait_are_gone_with_what_they_require(cache: Cache, directory: Path) -> None:
    module_id = cache.add_module(ModuleSource(adder("f", 1)))
    frontend.put_entry(cache, "of f", b"data", kind="k", requires=[module_id])
    cache.remove("f")
    assert frontend.get_entry(cache, "of f", "k") is None
    frontend.put_entry(cache, "waits", b"data", kind="k")
    cache.clear()
    assert frontend.get_entry(cache, "waits", "k") is None
    cache.close()
    with Cache(directory) as other:
        assert frontend.get_entry(other, "waits", "k") is None


def test_entries_are_put_beside_those_that_others_have_put(cache: Cache, directory: Path) -> None:
    """Of an index that was read before the other process wrote."""
    put_each(cache, ["a name"], b"1")
    assert frontend.get_entry(cache, "a name", "k") == b"1"
    with Cache(directory) as other:
        put_each(other, ["a name"], b"2")
    put_each(cache, ["a name"], b"1")
    with Cache(directory) as other:
        assert frontend.get_entry(other, "a name", "k") == b"1"


@pytest.mark.parametrize(
    ("data", "options", "error"),
    [
        (10, {}, TypeError), ("text", {}, TypeError), (bytes((1 << 25) + 1), {}, ValueError),
        (b"", {"requires": ["ab"]}, ValueError), (b"", {"requires": ["x" * 32]}, ValueError), (b"", {"kind": None}, InvalidNameError),
    ],
    ids=["number", "text", "large", "short", "no number", "no kind"],
)  # fmt: skip
def test_what_is_no_entry(cache: Cache, data: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        frontend.put_entry(cache, "a name", data, **{"kind": "k", **options})
    if not options:
        with pytest.raises(error):
            ModuleSource(adder("f", 1), entries={"k": data})


@pytest.mark.slow
def test_a_full_disk_loses_none_of_many(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compcache.miss.entries._MAX_AGE", math.inf)  # else a slow machine writes, and fails, before a thousand wait
    files_ = FaultyFiles(directory, count=lambda operation: operation.name == "write")
    cache = cache_on(files_)
    frontend.put_entry(cache, "first", b"data", kind="k")
    frontend.write_entries(cache)
    files_.plan = lambda _: OSError(28, os.strerror(28))
    taken = []
    for number in range(1100):
        try:
            frontend.put_entry(cache, f"name {number}", b"data", kind="k")
            taken.append(f"name {number}")
        except StorageError:
            pass
    files_.plan = None
    assert len(taken) >= 1000
    cache.close()
    with Cache(directory) as other:
        assert all(frontend.get_entry(other, name, "k") == b"data" for name in taken)


def test_accepting_may_fail_in_any_way(cache: Cache) -> None:
    frontend.add_realizations(cache, ModuleSource(adder("f", 1), entries={"k": b"1"}), alone=True)

    def fail(error: Exception) -> bool:
        raise error

    for error in (FormatError("of the front end"), FileNotFoundError("of the front end"), GlobalValidationError("no", reason="no")):
        assert frontend.find(cache, "f", lambda _, error=error: fail(error), kind="k") is None  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        frontend.find(cache, "f", lambda _: fail(ZeroDivisionError()), kind="k")
    assert len(cache.realizations("f")) == 1


def test_signatures_go_with_their_modules(directory: Path) -> None:
    with Cache(directory, publish_key=str(generate_key("test"))) as cache:
        put_each(cache, [f"name {number}" for number in range(20)])
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.remove("f")
        assert len(list((directory / "signatures-v1").iterdir())) == len(packs(cache))


@pytest.mark.parametrize("plain", [False, True])
def test_an_entry_without_its_module_is_none(cache: Cache, directory: Path, plain: bool) -> None:
    """The file may go without a prune, which would rewrite the pack."""
    module_id = cache.add_module(ModuleSource(adder("f", 1)))
    put_each(cache, ["of f"], requires=[module_id])
    os.unlink(cache._store.module_path(bytes.fromhex(module_id)))
    with Cache(directory) as other:
        assert plain or other.exists
        assert frontend.get_entry(other, "of f", "k") is None


def test_an_entry_of_the_index_leads_to_no_other_entry(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend.add_realizations(cache, ModuleSource(adder("f", 1), entries={"types": b"f64"}), alone=True)
    put_each(cache, ["another"])
    find = Store.find
    wrong = {index_name("k", "a name"): index_name("k", "another"), index_name("others", "f"): index_name("types", "f")}

    def mislead(store: Store, name: str, *args: Any, **kwargs: Any) -> Any:
        return find(store, wrong.get(name, name), *args, **kwargs)

    monkeypatch.setattr(Store, "find", mislead)
    with Cache(directory, readonly=True) as other:
        assert frontend.get_entry(other, "a name", "k") is None
        assert frontend.find(other, "f", lambda _: True, kind="others") is None
        assert frontend.find(other, "f", lambda _: True, kind="types") is not None


@pytest.mark.slow
def test_packs_that_others_have_signed_stay_as_they_are(directory: Path) -> None:
    """One that is made of it would lack their signature; what it hides or has hidden must not come back."""
    with Cache(directory, publish_key=str(generate_key("test"))) as signing:
        put_each(signing, ["signed", "removed"])
        kept = set(packs(signing))
    with Cache(directory) as cache:
        frontend.remove_entry(cache, "removed", "k")
        frontend.write_entries(cache)
        put_each(cache, [f"name {number}" for number in range(80)])
        frontend.compact_index(cache)
        assert kept < set(packs(cache))
        assert frontend.get_entry(cache, "signed", "k") == b"data"
    with Cache(directory) as other:
        assert frontend.get_entry(other, "removed", "k") is None


def test_a_pack_that_is_open_is_not_read_when_it_is_gone(cache: Cache, directory: Path) -> None:
    put_each(cache, ["a name", "another"])
    with Cache(directory) as reader, Cache(directory) as other:
        assert frontend.get_entry(reader, "a name", "k") == b"data"
        put_each(other, ["a name"], b"newer")
        put_each(other, [f"name {number}" for number in range(20)])  # they are put together
        assert frontend.get_entry(reader, "a name", "k") == b"newer"
        other.clear()
        assert frontend.get_entry(reader, "a name", "k") is None
