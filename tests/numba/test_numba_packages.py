"""Packages of other people compute the same with compcache as with Numba's own cache, and are cached as much."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from numba_packages import PACKAGES, Package, python_of, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_computes_the_same_and_hits(package: Package, tmp_path: Path) -> None:
    try:
        python_of(package)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{package.requirement} cannot be installed: {error.stderr[-300:]!r}")
    plain = run(package, tmp_path, backend=False)
    cold = run(package, tmp_path, backend=True)
    warm = run(package, tmp_path, backend=True)
    assert cold.answer == warm.answer == plain.answer
    assert cold.counts is not None
    assert warm.counts is not None
    assert warm.counts[1] == len(warm.counts[2]), "what is not cached is told, what is cached hits"
    if cold.counts[1] > len(cold.counts[2]):
        assert warm.counts[0] > 0
