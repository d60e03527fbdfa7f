"""Runs tests of a package in one process: ``python numba_suite_runner.py MODE PYTEST_ARGUMENT...``.

MODE is "plain", or "forced": compcache is installed in $COMPCACHE_DIR, and everything that is jitted is cached, whether
it asks for that or not, except Numba's own functions; or "lazy": as ``python -m compcache.numba run`` does it. Prints a line of JSON:
the outcome of each test, what the backend counted, whether Numba was imported, and the functions that this process stored.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def _is_numbas(function: Any) -> bool:
    module = str(getattr(function, "__module__", ""))
    return module.partition(".")[0] == "numba" and not module.startswith("numba.tests")


def _force(owner: type, *, attribute: str = "") -> None:
    """Cache everything that a class of Numba's is made for."""
    original = owner.__init__  # type: ignore[misc]

    def __init__(self: Any, py_func: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that method's place
        original(self, py_func, *args, **kwargs)
        if _is_numbas(py_func):
            return
        if attribute:
            setattr(self, attribute, True)
        elif type(self).enable_caching is owner.enable_caching:  # type: ignore[attr-defined] # CUDA's dispatchers have a cache of their own
            self.enable_caching()

    owner.__init__ = __init__  # type: ignore[misc]


def force_caching() -> None:
    """From now on all of the user's jitted functions are cached."""
    from numba.core.dispatcher import Dispatcher
    from numba.np.ufunc.ufuncbuilder import GUFuncBuilder, UFuncDispatcher

    from compcache.numba.dispatch.cache_object import CacheObject

    _force(Dispatcher)
    _force(UFuncDispatcher)
    _force(GUFuncBuilder, attribute="cache")
    # Many suites turn warnings into errors, and have not requested caching.
    CacheObject._warn_uncached = lambda *_: None  # type: ignore[method-assign]


def list_stored() -> list[str]:
    """The functions and signatures that are stored from now on: in a second process those that the first one should have left to it."""
    from compcache.numba.dispatch import Backend

    stored: list[str] = []
    original = Backend.record_stored

    def record_stored(self: Backend, label: str) -> None:
        stored.append(label)
        original(self, label)

    Backend.record_stored = record_stored  # type: ignore[method-assign]
    return stored


class Outcomes:
    """A pytest plugin that keeps the outcome of each test."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the worst of a test's phases."""
        if report.when == "call" or report.outcome != "passed":
            name = report.nodeid
            if self.found.get(name) != "failed":
                self.found[name] = report.outcome

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be collected is an outcome."""
        if report.failed:
            self.found[report.nodeid] = "not collected"


def main(mode: str, arguments: list[str]) -> None:
    """Run the tests."""
    backend, stored = None, []
    if mode == "forced":
        import compcache.numba

        backend = compcache.numba.install()
        force_caching()
        stored = list_stored()
    elif mode == "lazy":
        import compcache.numba

        backend = compcache.numba.install(lazy=True)
    import pytest

    outcomes = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[outcomes])
    if not outcomes.found:
        raise SystemExit("no test was collected")
    counts = [backend.hits, backend.misses, backend.refused] if backend is not None else None
    print()
    print(json.dumps([outcomes.found, counts, "numba._dispatcher" in sys.modules, stored]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
