"""Functions with parts in object mode, in processes that import Numba when such a part runs: answers, and globals as they are then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

KERNELS = """
    import numba as nb
    from numba import njit, objmode
    seen = []
    COUNT = 0

    @njit
    def noted(x):
        with objmode(y="int64"):
            seen.append(x)
            y = len(seen) + COUNT
        return y

    @njit
    def outer(x):
        return noted(x) * 10

    @njit(["int64(int64, optional(int64))", "float64(float64, Optional(int64))"])
    def declared(x, by):
        if x > 100:
            return noted(int(x)) * 10
        if by is None:
            with nb.objmode(z="int64"):
                z = COUNT + 1
            return x * z
        return x

    @njit(nb.int64(nb.int64, nb.optional(nb.int64), nb.types.optional(nb.float64)))
    def plain(x, by, then):
        if by is None or then is None:
            return x + 1
        return x * by + int(then)

    @njit("uint64(Optional(uint64))")
    def seeded(by):
        if by is None:
            return 3
        return by
"""
CALLS = """
import sys
import kernels as k
{first}
imported = "numba.core.compiler" in sys.modules
answers += [k.outer(1), k.outer(2), k.noted(7), k.declared(8, None), k.declared(5.0, None)]
k.seen.append(5)
k.COUNT = 100
answers += [k.outer(1), k.outer(2), k.noted(7), k.declared(200, 1), k.declared(8, None)]
answers += [[len(f.overloads) for f in (k.outer, k.noted, k.declared)]]
answers += [type(lifted).__name__ for cres in k.noted.overloads.values() for lifted in cres.lifted]
"""
LAZY = "import compcache.numba\nbackend = compcache.numba.install(lazy=True)\n"


OPTIONAL = """
def said(function, *args):
    try:
        return repr(function(*args))
    except Exception as error:
        return type(error).__name__
values = (1, None, True, 2.5, 1j, "a", np.int8(3), np.uint64(2**63 + 5), np.float32(1.5))
answers = [said(k.plain, 3, by, then) for by in values for then in values] + [said(k.seeded, by) for by in values]
answers += [said(k.declared, x, 7) for x in (8, 8.5, np.int32(4), np.float32(2.5))]
"""


def test_numba_is_imported_when_the_part_runs(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels=KERNELS)
    text = CALLS.replace("{first}", "answers = [k.plain(3, 1, 2.0), k.declared(8, 3)]")
    plain = project.run_in_fork(text + "result = answers")
    script = LAZY + text + "result = answers, imported, backend.misses"
    answers = [project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) for _ in range(3)]
    assert [found for found, _, _ in answers] == [plain] * 3
    assert [imported for _, imported, _ in answers] == [True, False, False]
    assert answers[2][2] == 1  # `noted`, whose values have changed since `outer` was loaded


def test_optional_parameters_take_what_numba_converts(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels=KERNELS)
    first = "import sys, numpy as np, kernels as k\n"
    plain = project.run_in_fork(first + OPTIONAL + "result = answers")
    calls = "k.seeded(1), k.seeded(None), k.seeded(np.uint64(7))\nimported = 'numba.core.compiler' in sys.modules\n"
    script = LAZY + first + calls + OPTIONAL
    answers = [project.run(script + "result = answers, imported", backend=False, COMPCACHE_DIR=str(project.cache)) for _ in range(2)]
    assert answers == [(plain, True), (plain, False)]
