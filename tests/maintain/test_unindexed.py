"""A module whose addition ended before it was indexed: prunes find it, index it, or remove it if it is damaged."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from helpers import adder, flip_byte, module_file
from mock_directory import Crash, FaultyFiles, MockDirectory, Operation, cache_on, crash_before

from compcache import Cache, ModuleSource, PrunePolicy
from compcache.maintain.prune import prune
from compcache.publish.index_rebuild import index_modules
from compcache.store import Store

if TYPE_CHECKING:
    from pathlib import Path

LATER = 7200.0


def dies_before_the_index(operation: Operation) -> BaseException | None:
    return Crash(operation) if operation.name == "rename" and operation.target.startswith("index-v1") else None


@pytest.fixture
def orphan(cache: Cache, directory: Path) -> str:
    """The module of `lost`, which a process has published and not indexed; `f` is an ordinary function beside it."""
    cache.add_module(ModuleSource(adder("f", 1)))
    before = {path.stem for path in (directory / "modules-v1").rglob("*.ccm")}
    dying = cache_on(FaultyFiles(directory, dies_before_the_index))
    with pytest.raises(Crash):
        dying.add_module(ModuleSource(adder("lost", 5)))
    dying._store.stats.reset()  # who was killed writes nothing at an exit
    (module_id,) = {path.stem for path in (directory / "modules-v1").rglob("*.ccm")} - before
    with Cache(directory) as other:
        assert not other.has("lost")
    return module_id


def later(directory: Path, **options: bool) -> tuple[str, ...]:
    """Prune as if two hours had passed; the modules that were indexed."""
    return prune(Store(str(directory)), PrunePolicy(), now=time.time() + LATER, **options).indexed  # type: ignore[arg-type]


def test_it_is_indexed_after_the_grace_period(orphan: str, directory: Path) -> None:
    assert [f.kind for f in Cache(directory).check().findings if f.kind == "unindexed"] == ["unindexed"]
    assert prune(Store(str(directory)), PrunePolicy()).indexed == ()
    before = MockDirectory.read(directory / "index-v1")
    assert later(directory, dry_run=True) == (orphan,)
    assert MockDirectory.read(directory / "index-v1") == before
    assert later(directory) == (orphan,)
    assert later(directory) == ()
    with Cache(directory) as cache:
        assert cache.get_target("lost")(1) == 6
        assert cache.get_target("f")(1) == 2
        assert not [f for f in cache.check().findings if f.kind in ("unindexed", "stale")]


def test_a_check_waits_for_an_addition_in_progress(orphan: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish_the_addition(_: float) -> None:
        index_modules(Store(str(directory)), [bytes.fromhex(orphan)])

    monkeypatch.setattr("compcache.maintain.checks.index.time.sleep", finish_the_addition)
    os.utime(module_file(directory, orphan))  # it has just been published, however busy the machine is
    assert [f for f in Cache(directory).check().findings if f.kind == "unindexed"] == []


def test_a_damaged_one_is_removed(orphan: str, directory: Path) -> None:
    path = module_file(directory, orphan)
    flip_byte(path, 100)
    report = prune(Store(str(directory)), PrunePolicy(), now=time.time() + LATER)
    assert report.indexed == ()
    assert [(file.path, file.reason) for file in report.leftovers if "module" in file.reason] == [
        (str(path), "a damaged module without an index entry")
    ]
    assert not path.exists()
    with Cache(directory) as cache:
        assert cache.get_target("f")(1) == 2


def test_one_that_the_prune_removes_is_not_indexed(orphan: str, directory: Path) -> None:
    report = prune(Store(str(directory)), PrunePolicy(max_modules=0), now=time.time() + LATER)
    assert orphan in {module.module_id for module in report.removed}
    assert report.indexed == ()


def test_what_carries_no_signature_is_left_alone(orphan: str, directory: Path) -> None:
    store = Store(str(directory), signing_key=b"key")
    report = prune(store, PrunePolicy(), now=time.time() + LATER)
    assert report.indexed == ()
    assert module_file(directory, orphan).exists()


@pytest.mark.usefixtures("orphan")
def test_a_process_that_dies_while_indexing_loses_nothing(directory: Path, tmp_path: Path) -> None:
    tree = MockDirectory.read(directory)
    for number in range(100):
        copy = tree.dump(tmp_path / f"copy{number}")
        store = Store(str(copy), files=FaultyFiles(copy, crash_before(number)))
        try:
            prune(store, PrunePolicy(), now=time.time() + LATER)
        except Crash:
            later(copy)
            with Cache(copy) as cache:
                assert (cache.get_target("lost")(1), cache.get_target("f")(1)) == (6, 2)
        else:
            assert number >= 3
            return
        finally:
            store.stats.reset()
    pytest.fail("the prune did not end")
