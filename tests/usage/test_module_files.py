"""What module files there are, with their sizes and times."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from helpers import adder, module_file

from compcache import Cache, ModuleSource, PrunePolicy
from compcache.store import Store
from compcache.usage.module_files import modules_by_directory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def modules(cache: Cache) -> list[str]:
    return [cache.add_module(ModuleSource(adder(f"f{number}", number), optimize=0)) for number in range(4)]


def look(directory: Path) -> set[str]:
    """The modules that are found."""
    found = {key: status for _, statuses in modules_by_directory(Store(str(directory))) for key, status in statuses.items()}
    sizes = {module_file(directory, key.hex()).stat().st_size == status.size for key, status in found.items()}
    assert sizes == {True}
    return {key.hex() for key in found}


def test_additions_and_removals_are_seen(cache: Cache, modules: list[str], directory: Path) -> None:
    new = cache.add_module(ModuleSource(adder("new", 9), optimize=0))
    assert look(directory) == {*modules, new}
    module_file(directory, modules[0]).unlink()
    assert look(directory) == {*modules[1:], new}
    assert cache.prune(PrunePolicy(max_modules=1)).modules_before == 4
    assert len(look(directory)) == 1


def test_who_asks_for_many_files_hears_how_far_it_is(modules: list[str], directory: Path) -> None:
    heard: list[tuple[int, int]] = []
    store = Store(str(directory))
    fans = len({module_id[:2] for module_id in modules})
    for calls in (fans, fans):
        list(modules_by_directory(store, lambda done, total: heard.append((done, total))))
        assert len(heard) == calls
        assert [done for done, _ in heard] == sorted(done for done, _ in heard)
        assert all(0 < done <= total <= len(modules) ** 2 for done, total in heard)
        assert not heard or heard[-1] == (len(modules), len(modules))
        heard.clear()


@pytest.mark.parametrize("moment", [-5e8, 9.3e9, 1.5e10])
def test_files_may_have_any_times(modules: list[str], cache: Cache, directory: Path, moment: float) -> None:
    """A wrong clock, or an unpacked archive: before 1970, and after 2262, where 64 bits do not hold the nanoseconds."""
    cache.close()
    for path in sorted(directory.rglob("*"), reverse=True):
        os.utime(path, (moment, moment))
    assert look(directory) == set(modules)
    for segment in (directory / "index-v1").iterdir():
        segment.unlink()
    with Cache(directory) as opened:
        assert opened.get_target("f3")(1) == 4
        assert len(list(opened.functions())) == len(modules)
        assert opened.check().findings == ()
    with Cache(directory) as opened:
        assert opened.get_target("f2")(1) == 3
        opened.compact(grace=0)
    for path in (directory / "volumes-v1").iterdir():
        os.utime(path, (moment, moment))
    time.sleep(0.15)
    for _ in range(2):  # the first one verifies
        with Cache(directory) as opened:
            assert opened.get_target("f1")(1) == 2
            is_plain = "_store" not in vars(opened)
    assert is_plain
