"""Runs Numba's own cache tests against the backend: ``python numba_own_tests.py DIRECTORY MODULE...``.

Each test gets a cache directory of its own, as Numba's tests give each one a `__pycache__`; processes that tests
start find it through the environment and a `sitecustomize`. Prints a line of JSON: the number of tests, and what failed.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from pathlib import Path
from typing import Any

PACKAGE_ROOT = Path(__file__).absolute().parents[2]
VARIABLE = "COMPCACHE_TEST_DIRECTORY"  # not NUMBA_: these make Numba read its settings again
SITE = f"""
import os, sys
sys.path.insert(0, {str(PACKAGE_ROOT)!r})
if os.environ.get({VARIABLE!r}):
    import compcache.numba
    compcache.numba.install(os.environ[{VARIABLE!r}])
"""


def main(directory: str, modules: list[str]) -> None:
    """Run the tests of these modules."""
    sys.path.insert(0, str(PACKAGE_ROOT))
    site = Path(directory, "site")
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    os.environ["PYTHONPATH"] = str(site)
    import numba.tests.test_caching as own

    import compcache.numba

    # They count the files of Numba's format.
    own.BaseCacheTest.check_pycache = lambda _self, _count: None
    count = iter(range(1 << 30))

    class Result(unittest.TextTestResult):
        def startTest(self, test: Any) -> None:  # noqa: N802 - unittest's name
            os.environ[VARIABLE] = str(Path(directory, f"cache{next(count)}"))
            compcache.numba.uninstall()
            compcache.numba.install(os.environ[VARIABLE])
            super().startTest(test)

    suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    result = unittest.TextTestRunner(
        resultclass=Result,  # type: ignore[arg-type]
        verbosity=2,
        stream=sys.stderr,
    ).run(suite)
    failed = {
        test.id().removeprefix("numba.tests."): text for test, text in [*result.failures, *result.errors]
    }
    print(json.dumps({"run": result.testsRun, "skipped": len(result.skipped), "failed": failed}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
