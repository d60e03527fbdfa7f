"""Pruning a directory: what is gone, what still works, and what a crash leaves."""

from __future__ import annotations

import errno
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from faulty_makers import made_by, set_faults
from helpers import adder, caller, constant, flip_byte, module_file, run_fresh, snapshot
from mock_directory import DyingFiles, FaultyFiles, KilledError, Operation, cache_on, no_permission

from compcache import Cache, CacheWarning, Function, InvalidNameError, ModuleSource, NotCachedError, PrunePolicy, StorageError
from compcache.directory.places import MODULE_LISTS
from compcache.files import Tree
from compcache.maintain import remove
from compcache.maintain.prune import carry_out, propose, prune
from compcache.publish import module_lists
from compcache.store import Store
from compcache.usage import size_estimate

if TYPE_CHECKING:
    from pathlib import Path

    from compcache.formats.index import Index, Segment


def add(cache: Cache, name: str, *, calls: str | None = None, age: float = 0.0) -> str:
    """Add ``name(x) = x + 1``, or one that calls another function; let its file be `age` seconds old."""
    text = caller(name, calls, plus=1) if calls else adder(name, 1)
    module_id = cache.add_module(ModuleSource(text, optimize=0))
    path = module_file(cache.path, module_id)
    os.utime(path, (time.time() - age, time.time() - age))
    return module_id


def test_the_least_recently_used_goes_and_the_rest_works_in_a_fresh_process(
    cache: Cache, directory: Path
) -> None:
    for age, name in enumerate(("new", "middle", "old")):
        add(cache, name, age=100.0 * age)
    add(cache, "top", calls="old")
    with Cache(directory) as user:
        assert user.get_target("top")(1) == 3
    report = cache.prune(PrunePolicy(max_modules=3))
    assert [module.functions for module in report.removed] == [("middle",)]
    assert report.modules_after == 3
    assert report.within_limits
    script = """
    from compcache import Cache
    cache = Cache(directory)
    result = cache.get_target("top")(1), cache.get_target("new")(1), cache.has("middle")
    """
    assert run_fresh(directory, script) == (3, 2, False)


def test_uses_of_other_processes_count(cache: Cache, directory: Path) -> None:
    for name in ("a", "b", "c"):
        add(cache, name, age=1000.0)
    run_fresh(directory, "from compcache import Cache\nCache(directory).get_target('b')\nresult = None")
    report = cache.prune(PrunePolicy(unused_for=500))
    assert sorted(m.functions for m in report.removed) == [("a",), ("c",)]


def test_a_dry_run_tells_the_same_and_changes_nothing(cache: Cache, directory: Path) -> None:
    for name in ("a", "b", "c"):
        add(cache, name, age=1000.0)
    cache.stats()
    before = snapshot(directory)
    told = cache.prune(PrunePolicy(max_modules=1), dry_run=True)
    assert {k: v for k, v in snapshot(directory).items() if "stats" not in k} == {
        k: v for k, v in before.items() if "stats" not in k
    }
    done = cache.prune(PrunePolicy(max_modules=1))
    assert told.removed == done.removed
    assert told.freed_size == done.freed_size > 0
    assert told.dry_run
    assert not done.dry_run


def test_code_that_is_loaded_goes_on_and_is_a_miss_at_once(cache: Cache) -> None:
    module_id = add(cache, "f")
    target = cache.get_target("f")
    cache.prune(PrunePolicy(max_modules=0))
    assert not module_file(cache.path, module_id).exists()
    with pytest.raises(NotCachedError):
        cache.get_target("f")
    assert target(41) == 42


def test_pins_outlive_every_policy_until_they_are_undone(cache: Cache) -> None:
    add(cache, "leaf", age=1000)
    add(cache, "top", calls="leaf", age=1000)
    add(cache, "other")
    assert cache.pin("top")
    assert not cache.pin("top")
    assert cache.pinned() == ("top",)
    report = cache.prune(PrunePolicy(max_bytes=0, older_than=1))
    assert [m.functions for m in report.removed] == [("other",)]
    assert not report.within_limits
    assert cache.get_target("top")(1) == 3
    assert cache.unpin("top")
    assert not cache.unpin("top")
    assert len(cache.prune(PrunePolicy(max_bytes=0)).removed) == 2


def test_a_dry_run_counts_pins_and_others_go_instead(cache: Cache) -> None:
    add(cache, "old", age=1000)
    add(cache, "new")
    cache.pin("old")
    policy = PrunePolicy(max_modules=1)
    for report in (cache.prune(policy, dry_run=True), cache.prune(policy)):
        assert [module.functions for module in report.removed] == [("new",)]
        assert report.within_limits


def test_pins_that_cannot_be_read_hold_everything(directory: Path) -> None:
    with Cache(directory) as cache:
        add(cache, "f", age=1000)
        cache.pin("f")
    files = FaultyFiles(directory, no_permission("pins-v1"), count=lambda _: True)
    with cache_on(files) as cache:
        with pytest.raises(StorageError, match="pins-v1"):
            cache.prune(PrunePolicy(older_than=1))
        files.plan = None
        assert cache.has("f")


def test_pins_hold_any_name(cache: Cache) -> None:
    name = "päth/../with\nlines *"
    cache.pin(name)
    assert cache.pinned() == (name,)


@pytest.mark.parametrize("name", ["", "\0", "\udcff", "x" * (1 << 16) + "x"])
def test_no_pin_is_left_for_a_name_that_no_function_can_have(cache: Cache, name: str) -> None:
    with pytest.raises(InvalidNameError, match="a name of a function must"):
        cache.pin(name)
    assert cache.pinned() == ()
    assert not cache.unpin(name)


def test_the_index_forgets_what_was_removed(cache: Cache) -> None:
    for number in range(12):
        add(cache, f"f{number}")
    cache.prune(PrunePolicy(max_modules=2))
    report = cache.check()
    assert report
    numbers = {step.name: step.numbers for step in report.steps}["index"]
    assert numbers["stale"] == numbers["missing"] == 0


def test_lists_without_segments_go_after_their_time(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that was killed between the removal of a segment and of its list leaves the list."""
    monkeypatch.setattr(module_lists, "_FEW", 0)
    monkeypatch.setattr(module_lists, "_FEWEST", 0)
    add(cache, "f")
    cache.functions()
    lists = directory / MODULE_LISTS.directory
    (listed,) = lists.glob("*.list")
    stray = listed.with_name(f"01-{'0' * len(listed.stem[3:])}.list")
    shutil.copy(listed, stray)
    store = Store(str(directory))
    assert prune(store, PrunePolicy()).leftovers == ()
    report = prune(store, PrunePolicy(), now=time.time() + 3700)
    assert [os.path.basename(file.path) for file in report.leftovers] == [stray.name]
    assert [path.name for path in lists.glob("*.list")] == [listed.name]


def test_leftovers_go_after_their_time(cache: Cache, directory: Path) -> None:
    add(cache, "f")
    (directory / "tmp").mkdir(exist_ok=True)
    (directory / "quarantine").mkdir()
    for name in ("tmp/old", "tmp/new", "quarantine/old", "quarantine/new"):
        (directory / name).write_bytes(b"12345")
    now = time.time()
    report = prune(Store(str(directory)), PrunePolicy(), now=now + 1800)
    assert report.leftovers == ()
    (directory / "tmp" / "new").unlink()
    report = prune(Store(str(directory)), PrunePolicy(), now=now + 7200)
    assert [(os.path.basename(f.path), f.size) for f in report.leftovers] == [("old", 5)]
    report = prune(Store(str(directory)), PrunePolicy(), now=now + 8 * 86400)
    assert sorted(os.path.basename(f.path) for f in report.leftovers) == ["new", "old"]
    assert cache.has("f")


def test_what_was_damaged_just_now_stays_in_quarantine_for_its_time(cache: Cache) -> None:
    module_id = add(cache, "f")
    path = module_file(cache.path, module_id)
    flip_byte(path, 100)
    os.utime(path, (1, 1))
    with pytest.warns(CacheWarning, match="damaged"), pytest.raises(NotCachedError):
        cache.get_target("f")
    assert cache.prune(PrunePolicy()).leftovers == ()
    assert len(os.listdir(f"{cache.path}/quarantine")) == 1


def test_directories_of_other_formats_go_only_when_stale_and_unchanged(cache: Cache, directory: Path) -> None:
    add(cache, "f")
    other = directory / "modules-v0" / "aa"
    other.mkdir(parents=True)
    (other / "x").write_bytes(b"123")
    (directory / "mine").mkdir()
    store = Store(str(directory))
    assert prune(store, PrunePolicy(stale=3600.0)).leftovers == ()
    report = prune(store, PrunePolicy(stale=3600.0), now=time.time() + 7200)
    assert len(report.leftovers) == 3
    assert not (directory / "modules-v0").exists()
    assert (directory / "mine").exists()


def test_a_readonly_cache_prunes_nothing_but_tells_what_it_would(cache: Cache, directory: Path) -> None:
    add(cache, "f")
    with Cache(directory, readonly=True) as reader:
        assert len(reader.prune(PrunePolicy(max_modules=0), dry_run=True).removed) == 1
        with pytest.raises(StorageError, match="readonly"):
            reader.prune(PrunePolicy(max_modules=0))
    assert cache.has("f")


@pytest.mark.slow
def test_a_prune_that_is_killed_anywhere_leaves_no_function_without_what_it_needs(
    directory: Path, tmp_path: Path
) -> None:
    with Cache(directory) as cache:
        for number in range(3):
            add(cache, f"leaf{number}", age=1000)
            add(cache, f"top{number}", calls=f"leaf{number}", age=900)
    steps = 0
    finished = False
    while not finished:
        copy = tmp_path / f"killed{steps}"
        shutil.copytree(directory, copy)
        try:
            prune(Store(str(copy), files=DyingFiles(steps)), PrunePolicy(max_modules=2))
            finished = True
        except KilledError:
            steps += 1
        with Cache(copy) as cache:
            for number in range(3):
                if cache.has(f"top{number}"):
                    assert cache.get_target(f"top{number}")(1) == 3
            assert cache.check()
    assert steps >= 8


def test_a_module_that_a_newcomer_needs_is_spared(directory: Path) -> None:
    with Cache(directory) as cache:
        add(cache, "leaf", age=1000)
        store = Store(str(directory))
        proposal = propose(store, PrunePolicy(older_than=10))
        assert [removed.functions for removed in proposal.report.removed] == [("leaf",)]
        add(cache, "late", calls="leaf")
        report = carry_out(store, proposal)
        assert report.removed == ()
        assert cache.get_target("late")(1) == 3


@pytest.mark.slow
def test_a_size_limit_is_kept_by_additions(directory: Path) -> None:
    with Cache(directory, max_size=40_000) as cache:
        for number in range(12):
            add(cache, f"f{number}")
            size = sum(path.stat().st_size for path in (directory / "modules-v1").rglob("*.ccm"))
            assert size <= 40_000
            assert cache.has(f"f{number}")
        assert not cache.has("f0")
        assert cache.stats().evicted_modules > 0


def test_what_was_just_added_stays_even_where_it_alone_exceeds_the_limit(directory: Path) -> None:
    with Cache(directory, max_size=1) as cache:
        for name in ("f", "g"):
            cache.add_module(ModuleSource(adder(name, 1)))
            assert cache.get_target(name)(1) == 2
        assert not cache.has("f")


def test_the_environment_sets_the_limit_and_zero_means_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPCACHE_MAX_SIZE", "20K")
    with Cache(directory) as cache:
        for number in range(5):
            add(cache, f"f{number}")
        assert cache.stats().max_size == 20 << 10
        assert cache.stats().size <= 20 << 10
    monkeypatch.setenv("COMPCACHE_MAX_SIZE", "0")
    with Cache(directory) as cache:
        assert cache.stats().max_size is None


@pytest.mark.parametrize("limit", ["lots", "9" * 400])
def test_a_limit_that_is_no_size_is_a_warning_at_the_addition(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setenv("COMPCACHE_MAX_SIZE", limit)
    with pytest.warns(UserWarning, match=f"'{limit}' is not a valid size"):
        add(cache, "f")
    assert cache.has("f")


def test_pins_larger_than_the_limit_do_not_make_every_addition_sweep(directory: Path) -> None:
    with Cache(directory, max_size=0) as cache:
        for number in range(8):
            add(cache, f"pin{number}")
            cache.pin(f"pin{number}")
    with Cache(directory, max_size=20_000) as cache:
        for number in range(3):
            add(cache, f"f{number}")
        assert all(cache.has(f"pin{number}") for number in range(8))


@pytest.mark.slow
def test_additions_beside_large_pins_are_only_noted(directory: Path) -> None:
    """A sweep puts the estimate together: a line for each of the additions since says that there was none."""
    with Cache(directory, max_size=0) as cache:
        for number in range(12):
            add(cache, f"pin{number}")
            cache.pin(f"pin{number}")
        size = cache.stats().size
    lines = []
    with Cache(directory, max_size=int(size * 0.9)) as cache:
        for number in range(3):
            add(cache, f"f{number}")
            lines.append((directory / "stats" / "size-v2").read_text().count("\n"))
    assert max(lines) > 1


@pytest.mark.slow
def test_what_is_pinned_used_or_needed_after_the_plan_stays(directory: Path) -> None:
    with Cache(directory) as cache:
        for name in ("leaf", "pinned", "used", "imported", "gone"):
            add(cache, name, age=1000)
        add(cache, "top", calls="leaf", age=1000)
        proposal = propose(cache._store, PrunePolicy(older_than=10))
        assert len(proposal.report.removed) == 6
        assert proposal.report.dry_run
        cache.pin("pinned")
        cache.pin("top")
        add(cache, "new", calls="imported")
        run_fresh(directory, "from compcache import Cache\nCache(directory).get_target('used')\nresult = None")
        report = carry_out(cache._store, proposal)
        assert [module.functions for module in report.removed] == [("gone",)]
        assert not report.dry_run
        assert cache.get_target("top")(1) == 3
        assert cache.get_target("new")(1) == 3


def test_an_estimate_that_cannot_be_written_is_made_up_for_without_a_warning(directory: Path) -> None:
    def no_estimate(operation: Operation) -> BaseException | None:
        return OSError(errno.ENOSPC, "full") if "stats/size-v2" in (operation.path, operation.target) else None

    with Cache(directory) as first:
        add(first, "f0")
    files = FaultyFiles(directory, no_estimate)
    with cache_on(files) as cache:
        add(cache, "f1")
        files.plan = None
        add(cache, "f2")
    size = sum(path.stat().st_size for path in (directory / "modules-v1").rglob("*.ccm"))
    measured, _, *added = map(int, (directory / "stats" / "size-v2").read_text().split())
    assert measured + sum(added) == size


def test_a_module_that_is_stored_already_is_not_counted_again(directory: Path) -> None:
    with Cache(directory) as cache:
        add(cache, "f")
        before = (directory / "stats" / "size-v2").read_text()
        add(cache, "f")
        assert (directory / "stats" / "size-v2").read_text() == before
        cache.add_modules([ModuleSource(adder("g", 1)), ModuleSource(adder("g", 1))])
    measured, _, *added = map(int, (directory / "stats" / "size-v2").read_text().split())
    assert measured + sum(added) == sum(path.stat().st_size for path in (directory / "modules-v1").rglob("*.ccm"))


@pytest.mark.slow
def test_a_long_estimate_is_put_together(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_estimate, "_LONG", 30)
    lengths = []
    with Cache(directory) as cache:
        for number in range(12):
            add(cache, f"f{number}")
            text = (directory / "stats" / "size-v2").read_text()
            lengths.append(text.count("\n"))
    assert 1 in lengths[1:]
    assert max(lengths) < 9
    measured, _, *added = map(int, text.split())
    assert measured + sum(added) == sum(p.stat().st_size for p in (directory / "modules-v1").rglob("*.ccm"))


def test_a_sweep_that_fails_is_told_once(directory: Path) -> None:
    with Cache(directory, max_size=1) as cache:
        add(cache, "f0")
        cache._store.files = Tree(FaultyFiles(directory, fail_unlinks), str(directory))
        with pytest.warns(CacheWarning, match="could not be enforced") as warned:
            [add(cache, f"f{number}") for number in range(1, 4)]
        assert len(warned) == 1


def fail_unlinks(operation: Operation) -> BaseException | None:
    return PermissionError(errno.EACCES, "no") if operation.name == "unlink" and ".ccm" in operation.path else None


def test_a_removal_beside_a_merge_of_the_index_is_done(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))

    def merged_meanwhile(index: Index) -> tuple[Segment, ...]:
        index.refresh()
        for path in (directory / "index-v1").iterdir():
            path.unlink()
        for segment in index.segments:
            segment._tables = None
        return index.segments

    monkeypatch.setattr(remove, "readable_segments", merged_meanwhile)
    with Cache(directory) as cache:
        assert len(cache.remove("f")) == 1
        with pytest.raises(NotCachedError):
            cache.get_target("f")


@pytest.mark.filterwarnings("ignore::compcache.ShadowWarning")
@pytest.mark.parametrize(("policy", "left"), [(PrunePolicy(duplicates=True), {"g": 2, "h": 7}), (PrunePolicy(max_modules=1), {})])
def test_former_code_never_comes_back(cache: Cache, directory: Path, policy: PrunePolicy, left: dict[str, int]) -> None:
    """The older code of `f` is in a module that is used for another function."""
    cache.add_module(ModuleSource(constant("f", 0) + constant("g", 2)))
    cache.add_module(ModuleSource(constant("f", 1)))
    if policy.duplicates:
        cache.add_module(ModuleSource(constant("h", 7)))
    with Cache(directory) as user:
        assert user.get_target("g")() == 2
    cache.prune(policy)
    with Cache(directory) as after:
        assert {name: after.get_target(name)() for name in left} == left
        assert not after.has("f") or after.get_target("f")() == 1


@pytest.mark.filterwarnings("ignore::compcache.CacheWarning")
@pytest.mark.parametrize("policy", [PrunePolicy(duplicates=True), PrunePolicy(max_modules=3), PrunePolicy(unused_for=0.0)])
@pytest.mark.parametrize("indirect", [False, True])
@pytest.mark.parametrize("name", ["f", "f-0123456789abcdef0123456789abcdef"])
def test_code_that_serves_is_kept_beside_code_that_lacks_an_import(
    directory: Path, policy: PrunePolicy, name: str, *, indirect: bool
) -> None:
    """Look-ups pass over the newer code, so the older one is not a duplicate, and the program that uses it needs it."""
    functions = {name: Function("i64(i64)", symbol="f")}
    with Cache(directory) as cache:
        serves = cache.add_module(ModuleSource(adder("f", 7), functions))
        age = time.time() - 1000
        os.utime(module_file(directory, serves), (age, age))
        if indirect:
            cache.add_module(ModuleSource(caller("between", "missing"), imports=["missing"]))
        lacking = "between" if indirect else "missing"
        cache.add_module(ModuleSource(caller("f", lacking), functions, imports=[lacking]))
        cache.add_module(ModuleSource(caller("root", "f", plus=1), imports={"f": name}))
        cache.pin("root")
        assert cache.get_target("root")(1) == 9
    with Cache(directory) as cache:
        cache.prune(policy)
    with Cache(directory) as cache:
        assert cache.get_target("root")(1) == 9


@pytest.mark.filterwarnings("ignore::compcache.CacheWarning")
@pytest.mark.parametrize("policy", [PrunePolicy(duplicates=True), PrunePolicy(max_modules=1), PrunePolicy(max_modules=2)])
def test_former_code_does_not_come_back_beside_code_that_lacks_an_import(cache: Cache, directory: Path, policy: PrunePolicy) -> None:
    """The oldest code of `f` is in a module that is used for another function. The newest code is passed over."""
    cache.add_module(ModuleSource(constant("f", 0) + constant("g", 2)))
    cache.add_module(ModuleSource(constant("f", 1)))
    cache.add_module(ModuleSource(caller("f", "missing"), imports=["missing"]))
    with Cache(directory) as user:
        assert user.get_target("g")() == 2
    cache.prune(policy)
    with Cache(directory) as after:
        assert not after.has("f") or after.get_target("f")() == 1


@pytest.mark.filterwarnings("ignore::compcache.CacheWarning")
@pytest.mark.parametrize("policy", [PrunePolicy(duplicates=True), PrunePolicy(max_modules=3)])
def test_an_import_from_a_layer_is_not_missing_for_a_prune_without_layers(
    directory: Path, tmp_path: Path, policy: PrunePolicy
) -> None:
    with Cache(tmp_path / "layer") as cache:
        cache.add_module(ModuleSource(adder("base", 1)))
    with Cache(directory, layers=[tmp_path / "layer"]) as cache:
        former = add(cache, "f", age=1000.0)
        cache.add_module(ModuleSource(caller("f", "base", plus=10), imports=["base"]))
        cache.add_module(ModuleSource(caller("root", "f", plus=100), imports=["f"]))
        add(cache, "z")
        assert cache.get_target("root")(1) == 112
    with Cache(directory) as cache:
        assert [module.module_id for module in cache.prune(policy).removed] == [former]
    with Cache(directory, layers=[tmp_path / "layer"]) as cache:
        assert cache.get_target("root")(1) == 112


@pytest.mark.filterwarnings("ignore::compcache.CacheWarning")
def test_code_with_a_known_fault_does_not_replace_code_that_lacks_an_import(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(directory) as cache:
        cache.add_module(made_by("f", 7, numba="0.66.0"))
        cache.add_module(ModuleSource(caller("f", "missing"), imports=["missing"]))
        cache.add_module(ModuleSource(caller("root", "f", plus=1), imports=["f"]))
        cache.pin("root")
    set_faults(monkeypatch, "numba==0.66.0")
    with Cache(directory) as cache:
        cache.prune(PrunePolicy(max_modules=1))
        cache.add_module(ModuleSource(adder("missing", 100)))
    with Cache(directory) as cache:
        assert cache.get_target("root")(1) == 102
