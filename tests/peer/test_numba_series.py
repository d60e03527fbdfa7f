"""Numba's whole gate with every series that is supported, in an environment of its own (`make numba-series` has the short form)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers import PACKAGE_ROOT

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

_SERIES = sorted(path.stem for path in (PACKAGE_ROOT / "compcache" / "numba" / "versions").glob("*.json"))


@pytest.mark.parametrize("series", _SERIES)
def test_the_gate_with_a_series_of_numba(series: str) -> None:
    command = [sys.executable, str(PACKAGE_ROOT / "tools" / "numba_versions.py"), "test", "--whole", series]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
