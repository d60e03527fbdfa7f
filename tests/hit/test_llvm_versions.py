"""What becomes of realizations that an older LLVM has compiled: used, passed over or removed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder

from compcache import Cache, CacheWarning, NotCachedError, PrunePolicy
from compcache.build import codegen

if TYPE_CHECKING:
    from pathlib import Path

NOW = codegen.llvm_version()
NAME = "f"


@pytest.fixture
def upgraded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that was filled by LLVM 15, after an upgrade."""
    with monkeypatch.context() as patch, Cache(directory) as cache:
        patch.setattr(codegen, "llvm_version", lambda: "15.0.7")
        cache.get_or_compile(NAME, lambda: adder(NAME, 1))
    return directory


def versions(directory: Path) -> list[str]:
    with Cache(directory) as cache:
        return sorted(module.llvm_version for module in cache.modules())


def test_older_code_is_used_unless_somebody_chooses_otherwise(upgraded: Path) -> None:
    with Cache(upgraded) as cache:
        assert cache.get_or_compile(NAME, pytest.fail)(1) == 2
    assert versions(upgraded) == ["15.0.7"]


@pytest.mark.parametrize("chosen", ["argument", "variable"])
def test_older_code_is_passed_over_and_compiled_again(upgraded: Path, monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    if chosen == "variable":
        monkeypatch.setenv("COMPCACHE_MIN_LLVM", NOW)
    with Cache(upgraded, min_llvm=NOW if chosen == "argument" else None, retarget=False) as cache:
        assert not cache.has(NAME)
        with pytest.raises(NotCachedError, match=r"was compiled by LLVM 15.0.7, but this cache requires"):
            cache.get_target(NAME)
        assert cache.get_or_compile(NAME, lambda: adder(NAME, 1))(1) == 2
    assert versions(upgraded) == ["15.0.7", NOW]
    with Cache(upgraded, min_llvm=NOW) as cache:
        assert cache.get_or_compile(NAME, pytest.fail)(1) == 2
        assert {copy.llvm_version for copy in cache.realizations(NAME)} == {"15.0.7", NOW}


def test_code_of_this_llvm_is_used_where_nothing_newer_can_be_compiled(directory: Path) -> None:
    """The hosts of a fleet get the new LLVM one after the other, and the setting at once."""
    message = "requires code of LLVM 99 or later .* and uses code of this LLVM: install a newer llvmlite"
    with Cache(directory, min_llvm="99") as cache:
        with pytest.warns(CacheWarning, match=message):
            assert cache.get_or_compile(NAME, lambda: adder(NAME, 1))(1) == 2
        assert cache.get_or_compile("g", lambda: adder("g", 1))(1) == 2
        assert cache.compile(adder("h", 1)).h(1) == 2
    for retarget in (False, True):
        for name in (NAME, "g"):
            with Cache(directory, min_llvm="99", retarget=retarget) as cache, pytest.warns(CacheWarning, match=message):
                assert cache.get_or_compile(name, pytest.fail)(1) == 2
        with Cache(directory, min_llvm="99", retarget=retarget) as cache, pytest.warns(CacheWarning, match=message):
            assert cache.compile(adder("h", 1)).h(1) == 2
    assert versions(directory) == [NOW] * 3


def test_older_code_is_pruned(upgraded: Path) -> None:
    with Cache(upgraded) as cache:
        cache.get_or_compile("g", lambda: adder("g", 1))
        assert cache.prune(PrunePolicy(min_llvm="15.0.7")).removed == ()
    done = compcache("--dir", upgraded, "prune", "--llvm", NOW.partition(".")[0], "--yes")
    assert (done.status, done.out.split("\t")[0]) == (0, "llvm")
    assert versions(upgraded) == [NOW]


@pytest.mark.parametrize("version", ["new", "22.x", ""])
def test_what_is_not_a_version_is_refused(directory: Path, version: str) -> None:
    with pytest.raises(ValueError, match="is not a version of LLVM"):
        PrunePolicy(min_llvm=version)
    assert "is not a version of LLVM" in compcache("--dir", directory, "prune", "--llvm", version).err
    if version:
        with pytest.raises(ValueError, match="is not a version of LLVM"):
            Cache(directory, min_llvm=version)


PROGRAM = """
import sys
from compcache import Cache
with Cache(sys.argv[1], min_llvm=sys.argv[2] or None) as cache:
    print(cache.get_or_compile("f", lambda: "define i64 @f(i64 %x) {{ ret i64 %x }}")(3))
    print(*sorted({{module.llvm_version for module in cache.modules()}}))
"""


@pytest.mark.peer
@pytest.mark.timeout(600)
def test_two_versions_of_llvmlite_share_a_cache(directory: Path, tmp_path: Path) -> None:
    """LLVM 20 (llvmlite 0.46) fills a cache, this one uses it, passes it over and fills it."""
    packages = tmp_path / "older"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), "llvmlite==0.46.0"]
    subprocess.run(pip, check=True)

    def run(older: bool, min_llvm: str = "") -> list[str]:
        path = os.pathsep.join([str(packages), str(PACKAGE_ROOT)] if older else [str(PACKAGE_ROOT)])
        command = [sys.executable, "-c", PROGRAM.replace("{{", "{").replace("}}", "}"), str(directory), min_llvm]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    value, old = run(older=True)
    assert (value, old.partition(".")[0]) == ("3", "20")
    assert run(older=False) == ["3", old]
    assert run(older=False, min_llvm=NOW) == ["3", " ".join(sorted([old, NOW]))]
    assert run(older=True) == ["3", " ".join(sorted([old, NOW]))]
