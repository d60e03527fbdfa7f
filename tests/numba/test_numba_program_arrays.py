"""Arrays that Numba does not copy into code: large ones, and such as have gaps. Stored code gets those of its process, by content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")
pytestmark = pytest.mark.timeout(300)

_KERNELS = """
    import numpy as np
    from DECORATORS import njit

    TABLE = np.arange(200_000.0)
    SAME = np.arange(200_000.0)
    GAPS = np.arange(10.0)[::2]

    @njit(cache=True)
    def at(i):
        return TABLE[i]

    @njit(cache=True)
    def sums(i):
        return TABLE[i] + 10 * SAME[i] + GAPS.sum()

    @njit(cache=True)
    def itself():
        return TABLE

    def make(table):
        @njit(cache=True)
        def inner(i):
            return table[i]
        return inner

    filled = [np.full(200_000, 3.0) for _ in range(2)]
    first, second = map(make, filled)
"""
_ANSWER = """
    import sys
    import kernels

    def answers():
        return [float(kernels.at(3)), float(kernels.sums(4)), kernels.itself() is kernels.TABLE, kernels.first(1), kernels.second(1)]

    before = answers()
    kernels.TABLE[3:5] = 77.0
    kernels.filled[1][1] = 8.0
    result = before, answers(), "numba.core" in sys.modules
"""
_CALLER = """
    from numba import njit
    import kernels

    @njit(cache=True)
    def caller(i):
        return kernels.at(i) + 1

    result = caller(3), backend.misses, backend.refused
"""


def _write(project: Project, decorators: str, table: str = "200_000.0)") -> None:
    source = _KERNELS.replace("DECORATORS", decorators).replace("TABLE = np.arange(200_000.0)", f"TABLE = np.arange({table}")
    project.write(kernels=source)


def _judged(before: float) -> tuple[Any, Any]:
    return [before, 10 * 4.0 + 20.0 + before + 1, True, 3.0, 3.0], [77.0, 77.0 + 40.0 + 20.0, True, 3.0, 8.0]


@pytest.mark.slow
def test_stored_code_has_the_arrays_of_the_process(tmp_path: Path) -> None:
    """Each its own where several hold the same, with what is written to it later, as in Numba; other content is other code."""
    project = Project(tmp_path)
    for table, first in (("200_000.0)", 3.0), ("200_000.0) * 2 - 3", 3.0)):
        _write(project, "compcache.numba", table)
        expected = _judged(first)
        if "*" in table:
            expected[0][1] = 5.0 + 40.0 + 20.0
        environment = {"COMPCACHE_DIR": str(project.cache)}
        said = [project.run(_ANSWER, backend=False, **environment) for _ in range(2)]
        assert said == [(*expected, True), (*expected, False)]


@pytest.mark.slow
def test_with_numba_nothing_is_refused_and_callers_are_linked(tmp_path: Path) -> None:
    project = Project(tmp_path)
    _write(project, "numba")
    plain = project.run_in_fork(_ANSWER)
    assert plain == (*_judged(3.0), True)
    counted = _ANSWER.replace('"numba.core" in sys.modules', "backend.misses, backend.refused")
    assert project.run(counted, backend=True) == (*plain[:2], 5, {})
    assert project.run(counted, backend=True) == (*plain[:2], 0, {})
    assert project.run(_CALLER, backend=True) == (4.0, 1, {})
    assert project.run(_CALLER, backend=True) == (4.0, 0, {})


@pytest.mark.slow
def test_a_large_array_is_not_copied_to_name_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels="""
    import numpy as np
    from compcache.numba import njit

    TABLE = np.zeros(2_000_000)

    @njit
    def at(i):
        return TABLE[i]
    """)
    script = """
    import sys, tracemalloc
    import kernels
    tracemalloc.start()
    value = kernels.at(3)
    result = value, tracemalloc.get_traced_memory()[1] < kernels.TABLE.nbytes, "numba.core" in sys.modules
    """
    environment = {"COMPCACHE_DIR": str(project.cache)}
    assert project.run("import kernels\nresult = kernels.at(3)", backend=False, **environment) == 0.0
    assert project.run(script, backend=False, **environment) == (0.0, True, False)
