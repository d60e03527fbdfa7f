"""Numba's own cache tests, run against the backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]
pytest.importorskip("numba")

_FILES = "it looks at files of Numba's own format"
#: What does not apply, and why.
NOT_APPLICABLE = {
    "test_caching.TestCache.test_nbi_reproducible_after_touch": _FILES,
    "test_caching.TestCacheFileCollision.test_file_location": _FILES,
    "test_caching.TestCacheFileCollision.test_no_collision": _FILES,
    "test_caching.TestCacheWithCpuSetting.test_user_set_cpu_features": _FILES,
    "test_caching.TestCacheWithCpuSetting.test_user_set_cpu_name": _FILES,
    "npyufunc.test_caching.TestGUfuncCacheTest.test_filename_prefix": _FILES,
    "test_caching.TestCache.test_recompile": "it asserts that a changed global keeps its old value",
}


@pytest.mark.parametrize(
    ("module", "at_least"),
    [("test_caching", 40), ("npyufunc.test_caching", 15), ("test_parfors_caching", 4)],
)
def test_numbas_own_cache_tests_pass(module: str, at_least: int, tmp_path: Path) -> None:
    runner = Path(__file__).absolute().parent / "numba_own_tests.py"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
    done = subprocess.run(
        [sys.executable, runner, tmp_path, f"numba.tests.{module}"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    failed = {name: text for name, text in report["failed"].items() if name not in NOT_APPLICABLE}
    assert not failed, "\n".join(failed.values())
    assert report["run"] >= at_least
