"""What module files there are is remembered per directory, and never believed when the directory has changed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from helpers import adder, module_file

from compcache import Cache, ModuleSource, PrunePolicy
from compcache.files import Files
from compcache.store import Store
from compcache.usage.module_files import list_modules

if TYPE_CHECKING:
    from pathlib import Path


class CountingFiles(Files):
    """Counts the module files that were asked for their status."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = 0

    def lstat(self, path: str, *, dir_fd: int | None = None) -> os.stat_result:  # type: ignore[override]
        self.asked += path.endswith(".ccm")
        return os.lstat(path, dir_fd=dir_fd)


@pytest.fixture
def modules(cache: Cache) -> list[str]:
    return [cache.add_module(ModuleSource(adder(f"f{number}", number), optimize=0)) for number in range(4)]


def settle(directory: Path) -> None:
    """Let the directories of modules have been changed a while ago."""
    for path in (directory / "modules-v1").iterdir():
        os.utime(path, (time.time() - 60, time.time() - 60))


def look(directory: Path) -> tuple[set[str], int]:
    """The modules that are found, and how many files were asked."""
    files = CountingFiles()
    found = list_modules(Store(str(directory), files=files))
    sizes = {module_file(directory, key.hex()).stat().st_size == status.size for key, status in found.items()}
    assert sizes == {True}
    return {key.hex() for key in found}, files.asked


def test_files_are_asked_once_when_their_directory_rests(modules: list[str], directory: Path) -> None:
    settle(directory)
    assert look(directory) == (set(modules), 4)
    assert look(directory) == (set(modules), 0)


def test_a_directory_that_changed_just_now_is_not_remembered(modules: list[str], directory: Path) -> None:
    assert look(directory) == (set(modules), 4)
    assert look(directory) == (set(modules), 4)


def test_additions_and_removals_are_seen(cache: Cache, modules: list[str], directory: Path) -> None:
    settle(directory)
    look(directory)
    new = cache.add_module(ModuleSource(adder("new", 9), optimize=0))
    assert look(directory)[0] == {*modules, new}
    settle(directory)
    look(directory)
    module_file(directory, modules[0]).unlink()
    assert look(directory)[0] == {*modules[1:], new}
    assert cache.prune(PrunePolicy(max_modules=1)).modules_before == 4
    assert len(look(directory)[0]) == 1


@pytest.mark.usefixtures("modules")
def test_a_damaged_memory_is_no_memory(directory: Path) -> None:
    settle(directory)
    told = look(directory)
    memory = directory / "module-lists-v5" / "files"
    data = memory.read_bytes()
    for damaged in (b"", data[:-1], data[:30] + bytes([data[30] ^ 1]) + data[31:], b"x" * len(data)):
        memory.write_bytes(damaged)
        found, asked = look(directory)
        assert found == told[0]
        assert 0 < asked <= told[1]  # those of directories that are not damaged are not
        assert look(directory)[1] == 0


@pytest.mark.usefixtures("modules")
def test_who_may_not_write_remembers_nothing(directory: Path) -> None:
    settle(directory)
    assert len(list_modules(Store(str(directory), readonly=True))) == 4
    assert not (directory / "module-lists-v5" / "files").exists()


def test_who_asks_for_many_files_hears_how_far_it_is(modules: list[str], directory: Path) -> None:
    heard: list[tuple[int, int]] = []
    store = Store(str(directory))
    settle(directory)
    fans = len({module_id[:2] for module_id in modules})
    for calls in (fans, fans):
        list_modules(store, lambda done, total: heard.append((done, total)))
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
    assert look(directory)[0] == look(directory)[0] == set(modules)
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
