"""The project on a machine without a C compiler: set up and run from nothing, with what package indexes have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

_COMPILERS = ("cc", "gcc", "g++", "c++", "c89", "c99", "cpp", "clang", "tcc", "zig")


def is_compiler(name: str) -> bool:
    return name in _COMPILERS or any(part in name for part in ("gcc", "g++", "clang"))


def path_without_compilers(folder: Path) -> str:
    """A folder with links to every program of the path but compilers; linkers stay."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for name in os.listdir(place) if os.path.isdir(place) else []:
            link = folder / name
            if not is_compiler(name) and not link.is_symlink():
                link.symlink_to(os.path.join(place, name))
    return str(folder)


@pytest.mark.parametrize("compiler", ["gcc", "none"])
def test_the_demo_runs_from_a_fresh_checkout(tmp_path: Path, compiler: str) -> None:
    if compiler != "none" and shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".git", ".venv*", "*.so", "__pycache__", "*.egg-info", ".*_cache")
    shutil.copytree(PACKAGE_ROOT, tree, ignore=ignored)
    shutil.rmtree(tree / "build", ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH")}
    if compiler == "none":
        environment["PATH"] = path_without_compilers(tmp_path / "bin")
    done = subprocess.run(
        ["make", f"PYTHON={sys.executable}", "demo"],
        cwd=tree, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (extension,) = (tree / "compcache" / "hit").glob("_runtime*.so")
    assert (b"GCC: (" in extension.read_bytes()) == (compiler == "gcc")
