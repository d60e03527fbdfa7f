"""Real loads of modules whose records were changed behind right checksums, digests and names, in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import PACKAGE_ROOT, adder, caller, constant

from compcache import Cache, ModuleSource


def fuzz(directory: Path, seed: int, cases: int) -> tuple[int, int]:
    """How many functions were loaded and how many were refused; a crash or an undocumented error is an AssertionError."""
    with Cache(directory) as cache:
        for source in (adder("f", 1), adder("g", 20), caller("h", "f"), constant("k", 1)):
            cache.add_module(ModuleSource(source))
        table = "@table = external global [4 x i8]\ndefine ptr @t() {\n  ret ptr @table\n}\n"
        cache.add_module(ModuleSource(table, globals={"table": b"\1\2\3\4"}))
    script = Path(__file__).with_name("fuzz_loads.py")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), str(directory), f"{directory}-changed", str(seed), str(cases)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
    )
    last = (done.stdout.splitlines() or [""])[-1]
    assert done.returncode == 0, f"{last}: {done.returncode}\n{done.stderr[-3000:]}"
    _, loaded, refused = last.split()
    return int(loaded), int(refused)


@pytest.mark.slow
def test_some_loads_of_changed_records(directory: Path) -> None:
    loaded, refused = fuzz(directory, 1, 25)
    assert loaded
    assert refused


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_loads_of_changed_records(directory: Path, seed: int) -> None:
    loaded, refused = fuzz(directory, 100 + seed, 500)
    print(f"500 modules: {loaded} functions loaded, {refused} refused")
