"""Kernels beside a module: whose they are, and which code has any."""

from __future__ import annotations

import os
import sys
import zipfile
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, run_fresh

from compcache import Cache, Function, ModuleSource
from compcache.numba import package as package_module
from compcache.numba.kernels.find import DIRECTORY, Kernels, find_kernels
from compcache.numba.kernels.find import _caches as opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FunctionType

OTHER_USER = 54_321


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A module with kernels beside it, of which it packaged two signatures of `f`, and one of `g`."""
    (tmp_path / "module.py").touch()
    with Cache(tmp_path / DIRECTORY, layers=()) as cache:
        for name, addend in (("module.f", 1), ("module.f#1", 2), ("module.g", 3)):
            cache.add_module(ModuleSource(adder("k", addend), {name: Function("i64(i64)", symbol="k")}))
    opened.clear()
    yield tmp_path
    for kept in opened.values():
        kept.close()
    opened.clear()


def function_of(text: str, place: Path | None, filename: str = "module.py") -> FunctionType:
    """What `exec` makes of a text, in a module with this file, or in none."""
    space: dict[str, Any] = {"__name__": "module"} | ({} if place is None else {"__file__": str(place / filename)})
    exec(compile(text, str(place / filename) if place else "<string>", "exec"), space)
    function: FunctionType = space["f"]
    return function


TEXT = "def f(x): return x"


def test_kernels_are_beside_the_file_of_the_module(package: Path) -> None:
    found = find_kernels(function_of(TEXT, package))
    assert isinstance(found, Kernels)
    assert found(1) == 2
    renamed = function_of(TEXT, package)
    renamed.__qualname__ = "g"
    assert find_kernels(renamed)(1) == 4
    renamed.__qualname__ = "h"
    assert find_kernels(renamed) is None


def test_code_without_a_file_has_no_kernels(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the current directory, in which anybody may have put some."""
    monkeypatch.chdir(package)
    assert find_kernels(function_of(TEXT, None)) is None
    assert not opened


def test_kernels_run_from_an_archive_of_packages_where_numba_is_not_installed(package: Path) -> None:
    """Packages in the archive may have entry points, of which only Numba's matter, and only with Numba."""
    with zipfile.ZipFile(package / "program.pyz", "w") as archive:
        archive.writestr("other-1.dist-info/entry_points.txt", "[console_scripts]\nother = other:main\n")
    text = "from compcache.numba import njit\n@njit('int64(int64)')\ndef g(x): return x\n"
    (package / "module.py").write_text(text, encoding="utf-8")
    script = """
        others = [place for place in sys.path if not place.endswith("-packages")]
        sys.path[:] = [f"{directory}/program.pyz", directory, *others]
        import module
        result = module.g(1), "numba" in sys.modules
    """
    assert run_fresh(package, script) == (4, False)


def test_a_module_without_a_file_is_packaged_only_to_a_named_directory() -> None:
    """Not to the directory above the current one, which an empty path would mean."""
    pytest.importorskip("numba")
    with pytest.raises(ValueError, match="has no file"):
        package_module(ModuleType("made"))


def test_a_directory_that_is_not_there_costs_nothing(tmp_path: Path) -> None:
    assert find_kernels(function_of(TEXT, tmp_path)) is None


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="only the superuser can give files away")
@pytest.mark.parametrize("given", ["directory", "link"])
def test_kernels_of_another_user_than_the_modules_are_refused(package: Path, given: str) -> None:
    place = package / DIRECTORY
    if given == "link":
        place.rename(package / "elsewhere")
        place.symlink_to("elsewhere")
    os.chown(place, OTHER_USER, OTHER_USER, follow_symlinks=False)
    with pytest.raises(ImportError, match="does not belong to the owner of"):
        find_kernels(function_of(TEXT, package))
    os.chown(package / "module.py", OTHER_USER, OTHER_USER)  # the other user's package, which this one has chosen to import
    assert find_kernels(function_of(TEXT, package))(1) == 2


def test_kernels_that_everybody_can_write_are_refused(package: Path) -> None:
    (package / DIRECTORY).chmod(0o777)
    with pytest.raises(ImportError, match=r"everybody can write to .*chmod -R o-w"):
        find_kernels(function_of(TEXT, package))
    (package / DIRECTORY).chmod(0o755)
    (package / "module.py").unlink()
    assert find_kernels(function_of(TEXT, package))(1) == 2
