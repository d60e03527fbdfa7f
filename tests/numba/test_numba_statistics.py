"""The statistics of a directory say of Numba's functions what happened to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

import compcache

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")

KERNELS = """
from numba import njit
from numba.extending import overload
from numba.core.compiler import Compiler

class Own(Compiler):
    pass

def one():
    return 1

@overload(one)
def ol_one():
    value = sum(range(40_000_000)) % 2 + 1  # takes half a second while Numba compiles
    return lambda: value

@njit(cache=True)
def inner(x):
    return x + one()

@njit(cache=True)
def outer(x):
    return inner(x) * 2

@njit(pipeline_class=Own)
def refused(x):
    return x - 1
"""
SCRIPT = "import kernels, time\nresult = kernels.{call}, time.process_time()"


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
def test_what_was_compiled_just_now_is_no_hit(tmp_path: Path, lazy: bool) -> None:
    """What a process compiles it has missed, in the time that Numba took; the next one saves that."""
    project = Project(tmp_path)
    project.write(kernels=KERNELS.replace("from numba import njit", "from compcache.numba import njit") if lazy else KERNELS)

    def run() -> float:
        value, seconds = project.run(SCRIPT.format(call="outer(kernels.inner(19))"), backend=not lazy, COMPCACHE_DIR=str(project.cache))
        assert value == 42
        return float(seconds)

    took = run()
    cache = compcache.Cache(project.cache)
    cold = cache.stats()
    assert (cold.hits, cold.miss_reasons, cold.saved_seconds) == (0, {"absent": 2}, 0)
    assert cold.compilations == 2
    assert 0.3 < cold.compile_seconds < took
    run()
    warm = cache.stats()
    assert (warm.hits, warm.misses, warm.compile_seconds) == (2, 2, cold.compile_seconds)
    assert warm.saved_seconds == pytest.approx(cold.compile_seconds)


@pytest.mark.slow
def test_refusals_are_misses(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels=KERNELS.replace("@njit(pipeline", "@njit(cache=True, pipeline"))
    for number in (1, 2):
        value, _ = project.run(SCRIPT.format(call="refused(43)"), backend=True, NUMBA_CACHE_DIR=str(tmp_path / f"other{number}"))
        assert value == 42
        found = compcache.Cache(project.cache).stats()
        assert (found.hits, found.miss_reasons, found.compilations) == (0, {"refused": number}, number)
        assert found.compile_seconds > 0
