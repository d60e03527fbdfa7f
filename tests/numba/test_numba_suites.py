"""The test suites of packages have the same outcomes with all of their jitted functions cached: cold, and warm."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from numba_suites import SUITES, Suite, differences, run_suite, tests_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(4500)]


@pytest.mark.parametrize("suite", [suite for suite in SUITES if not suite.long], ids=lambda suite: suite.name)
def test_a_suite_has_the_same_outcomes(suite: Suite, tmp_path: Path) -> None:
    try:
        tests_of(suite)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{suite.requirement} cannot be installed: {error.stderr[-300:]!r}")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    plain = run_suite(suite, tmp_path, forced=False)
    assert "passed" in plain.outcomes.values()
    cold = run_suite(suite, tmp_path, forced=True)
    assert differences(plain, cold, suite) == {}
    warm = run_suite(suite, tmp_path, forced=True)
    assert differences(plain, warm, suite) == {}
    assert cold.counts is not None
    assert warm.counts is not None
    assert warm.counts[0] > warm.counts[1], "most of what is compiled hits in the next process"
