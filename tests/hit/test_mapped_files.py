"""Where code may be mapped out of files, and what serves it where it may not: a copy in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, run_fresh

from compcache import Cache, ModuleSource
from compcache.hit import _runtime

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux's /proc/self/maps")

#: Which files below the directory are mapped once two modules are loaded, and what they answer when all files were cut short.
LOAD = """
import os
from compcache import Cache
with Cache(directory) as cache:
    two, one = cache.get_target("two"), cache.get_target("one")
    answers = [two(1)]
    with open("/proc/self/maps") as file:
        mapped = sum(directory in line for line in file)
    loader = cache.info().loader
    if cut:
        for place, _, names in os.walk(os.path.join(directory, "modules-v1")):
            for name in names:
                os.chmod(os.path.join(place, name), 0o600)
                os.truncate(os.path.join(place, name), 0)
    answers += [one(1), two(1)]
result = answers, mapped, loader, "llvmlite" in sys.modules if not cut else None
"""


@pytest.fixture
def filled(cache: Cache, directory: Path) -> Path:
    cache.add_module(ModuleSource(adder("one", 1)))
    cache.add_module(ModuleSource(caller("two", "one", plus=40)))
    return directory


def test_files_of_a_local_file_system_are_mapped(filled: Path) -> None:
    answers, mapped, loader, _ = run_fresh(filled, "cut = False" + LOAD)
    assert answers == [42, 2, 42]
    assert mapped >= 2
    assert "mapped from their files (" in loader


def test_what_is_copied_survives_files_that_are_cut(filled: Path) -> None:
    answers, mapped, loader, _ = run_fresh(filled, "cut = True" + LOAD, COMPCACHE_MAP_FILES="0")
    assert answers == [42, 2, 42]
    assert mapped == 0
    assert "copied to memory, then mapped (" in loader
    assert "COMPCACHE_MAP_FILES" in loader


@pytest.mark.slow
def test_a_setting_maps_files_everywhere(filled: Path) -> None:
    _, mapped, loader, _ = run_fresh(filled, "cut = False" + LOAD, COMPCACHE_MAP_FILES="1")
    assert mapped >= 2
    assert "COMPCACHE_MAP_FILES" in loader


@pytest.mark.parametrize("place", ["/proc", "/sys"])
def test_file_systems_that_are_not_listed_are_not_mapped(place: str) -> None:
    opened = os.open(place, os.O_RDONLY)
    try:
        name, is_mapped = _runtime.file_system(opened)
    finally:
        os.close(opened)
    assert name.startswith("type ")
    assert not is_mapped


def test_what_is_no_descriptor_is_not_mapped() -> None:
    assert _runtime.file_system(-5) == ("type 0", False)
    with pytest.raises(TypeError):
        _runtime.file_system("1")  # type: ignore[arg-type]
