"""What signal handlers raise arrives out of everything that a program can ask of a cache, or the answer is right; nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT
from interrupted_ways import WAYS

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = PACKAGE_ROOT / "tests" / "interrupted_ways.py"


def attack(way: str, number: int, seed: int, directory: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), way, str(number), str(seed), str(directory)],
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_interrupts_of_an_import(tmp_path: Path) -> None:
    found = attack("import_bundle", 20, 1, tmp_path)
    assert found["wrong"] == []
    assert found["counts"]["arrived"] > 15


@pytest.mark.fault
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
def test_a_storm_of_interrupts_everywhere(tmp_path: Path, way: str) -> None:
    found = attack(way, int(os.environ.get("COMPCACHE_INTERRUPTS", "400")), 1, tmp_path)
    print(way, found["places"], "places,", found["counts"])
    assert found["wrong"] == []
    assert found["counts"]["arrived"] > 0.9 * sum(found["counts"].values())
