"""Stencils in programs that start without Numba, and ufuncs that are left to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from numba_helpers import Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

KERNELS = """
    import numpy as np
    from {decorators} import guvectorize, njit, stencil

    SCALE = 2.0

    @njit
    def doubled(x):
        return x * 2

    @stencil
    def sides(x):
        return (x[-1] + x[1]) * SCALE

    @stencil(neighborhood=((-2, 2),), cval=7.0)
    def wide(x):
        c = 0.0
        for i in range(-2, 3):
            c += doubled(x[i])
        return c

    @stencil("constant", standard_indexing=("w",))
    def weighted(x, w):
        return x[-1] * w[0] + x[0] * w[1]

    @guvectorize(["void(f8[:], f8[:])"], "(n)->(n)", cache=True)
    def loop(x, y):
        y[:] = sides(x)

    @njit(cache=True)
    def call_sides(x):
        return sides(x)

    @njit
    def call_wide(x):
        return wide(x)

    @njit
    def call_weighted(x, w):
        return weighted(x, w)

    SCALE = 100.0
"""
CALLS = """
import sys, numpy as np, kernels as k
x = np.arange(7.0)
calls = [k.call_sides, k.call_wide, k.loop]
result = [f(x).tolist() for f in calls] + [k.call_weighted(x, np.array([0.5, 2.0])).tolist()]
"""


def run(project: Project, text: str, **variables: str) -> object:
    return project.run(text, backend=False, COMPCACHE_DIR=str(project.cache), **variables)


def test_functions_that_call_stencils_start_without_numba(project: Project) -> None:
    project.write(kernels=KERNELS.replace("{decorators}", "numba"))
    plain = run(project, CALLS)
    project.write(kernels=KERNELS.replace("{decorators}", "compcache.numba"))
    assert run(project, CALLS) == plain
    known = CALLS + "result = result, 'numba.core' in sys.modules"
    assert run(project, known) == (plain, False)
    assert run(project, known.replace("x = np", "k.SCALE = 9.0; x = np")) == (plain, False)  # it is read when it is declared
    ours = CALLS + "result += [k.sides(x).tolist(), k.sides.__class__.__name__, 'numba.core' in sys.modules]"
    sides = [0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 0.0]
    assert run(project, "import kernels as k\nk.SCALE = 9.0\n" + ours) == [*plain, sides, "StencilFunc", True]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("before", "after"),
    [("x[-1] + x[1]", "x[-1] - x[1]"), ("SCALE = 2.0", "SCALE = 3.0"), ("cval=7.0", "cval=8.0"), ("x * 2", "x * 3"),
     ("((-2, 2),)", "((-3, 2),)")],
)  # fmt: skip
def test_edits_of_stencils_count(project: Project, before: str, after: str) -> None:
    project.write(kernels=KERNELS.replace("{decorators}", "compcache.numba"))
    run(project, CALLS)
    assert before in KERNELS
    project.write(kernels=KERNELS.replace("{decorators}", "compcache.numba").replace(before, after))
    ours = run(project, CALLS)
    project.write(kernels=KERNELS.replace("{decorators}", "numba").replace(before, after))
    assert run(project, CALLS) == ours


@pytest.mark.parametrize("start", ["", "import compcache.numba\ncompcache.numba.install(lazy=True)\n"])
def test_the_wrappers_of_ufuncs_that_are_left_to_numba_are_cached(project: Project, start: str) -> None:
    text = """
        from {decorators} import guvectorize
        import numba

        @guvectorize(["void(f8[:], f8[:])"], "(n)->(n)", cache=True)
        def left(x, y):
            for i in range(x.shape[0]):
                y[i] = x[i] * (2 + numba.config.DEBUG)
        """
    project.write(kernels=text.replace("{decorators}", "numba" if start else "compcache.numba"))
    script = start + "import numpy as np, kernels\nresult = kernels.left(np.arange(3.0)).tolist()"
    assert run(project, script) == [0.0, 2.0, 4.0]
    script = script.replace("import", "import contextlib, io, sys\nsaid = io.StringIO()\nsys.stdout, out = said, sys.stdout\nimport", 1)
    script += "\nsys.stdout = out\nresult = result, said.getvalue()"
    result: Any = run(project, script, NUMBA_DEBUG_CACHE="1")
    assert result[0] == [0.0, 2.0, 4.0]
    assert "loaded from 'gufunc wrapper of kernels.left" in result[1]
