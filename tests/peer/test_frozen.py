"""Programs that PyInstaller has put into a directory of their own: what they compile is found when they start again."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]
pytest.importorskip("numba")
pytest.importorskip("PyInstaller")

JITTED = """
import sys
from compcache.numba import njit

FACTOR = 3.0

@njit
def scaled(x):
    return x * FACTOR

print(scaled(2.0), "numba.core.dispatcher" in sys.modules)
"""
DECLARED = """
import compcache.numba
backend = compcache.numba.install()
from numba import njit

@njit(cache=True)
def scaled(x):
    return x * 3.0

print(scaled(2.0), backend.hits, backend.misses)
"""
LIBRARY = '''
import sys
import compcache

cache = compcache.Cache()
if not cache.has("twice"):
    cache.add_module(compcache.ModuleSource("""
        define double @twice(double %x) {
          %sum = fadd double %x, %x
          ret double %sum
        }"""))
    print("added", end=" ")
print(cache.get_target("twice")(3.0), "llvmlite" in sys.modules)
'''


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(JITTED, ["6.0 True", "6.0 False", "6.0 False"], id="without Numba"),
        pytest.param(DECLARED, ["6.0 0 1", "6.0 1 0"], id="the backend"),
        pytest.param(LIBRARY, ["added 6.0 True", "6.0 False"], id="the library"),
    ],
)
def test_a_frozen_program_finds_what_it_compiled(source: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(source)
    options = ["--noconfirm", "--log-level", "ERROR", "--paths", str(PACKAGE_ROOT), "--exclude-module", "scipy", "program.py"]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_", "PYTHON"))}
    subprocess.run([sys.executable, "-m", "PyInstaller", *options], cwd=tmp_path, env=inherited, check=True)
    environment = inherited | {"COMPCACHE_DIR": str(tmp_path / "cache")}
    for expected in said:
        done = subprocess.run(
            [tmp_path / "dist/program/program"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.stdout.strip(), done.stderr) == (expected, ""), done
