"""Jitted functions as arguments of others, in processes that do not import Numba: answers, and what Numba finds when it takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

KERNELS = """
    from {decorators} import njit

    FACTOR = 3

    @njit
    def squared(x):
        return x * x

    @njit
    def scaled(x):
        return x * FACTOR

    @njit("float64(float64)")
    def halved(x):
        return x / 2

    @njit
    def applied(f, x):
        return f(x) + 1

    @njit
    def summed(f, n, start=0.0):
        total = start
        for i in range(n):
            total += f(float(i))
        return total

    @njit
    def through(f, x):
        return applied(f, x) * 2

    @njit
    def both(pair, x):
        f, g = pair
        return f(g(x))

    @njit
    def same(f):
        return f

    def make(by):
        @njit
        def times(x):
            return x * by
        return times
"""
CALLS = """
import sys, gc
import {module} as k
answers = [
    k.applied(k.squared, 2.5), k.applied(k.scaled, 2), k.applied(k.halved, 3.0), k.applied(f=k.squared, x=3),
    k.summed(k.squared, 5), k.summed(k.scaled, 4, 0.5), k.summed(k.halved, 3, start=2.0), k.through(k.scaled, 1.5),
    k.both((k.scaled, k.scaled), 2.0), k.both((k.squared, k.squared), 2.0),
    k.same(k.squared) is k.squared, k.same(k.squared)(3), [k.applied(k.make(by), 2.0) for by in (2, 3, 2, 2.5)],
    k.applied(k.squared, 4.0), k.applied(k.scaled, 4.0),
]
gc.collect()
imported = "numba" in sys.modules
"""


def run(project: Project, module: str, text: str) -> Any:
    return project.run(text.replace("{module}", module), backend=False, COMPCACHE_DIR=str(project.cache))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write(plain=KERNELS.replace("{decorators}", "numba"), lazy=KERNELS.replace("{decorators}", "compcache.numba"))
    return made


def test_functions_as_arguments_are_found_by_their_content(project: Project) -> None:
    text = CALLS + "result = list(map(repr, answers))"
    plain = run(project, "plain", text)
    assert run(project, "lazy", text) == plain
    assert run(project, "lazy", text + "\nresult = result, imported") == (plain, False)
    edited = KERNELS.replace("{decorators}", "compcache.numba").replace("FACTOR = 3", "FACTOR = 5").replace("x * x", "x * x * x")
    project.write(lazy=edited, plain=edited.replace("compcache.numba", "numba"))
    assert run(project, "lazy", text) == run(project, "plain", text)


def test_numba_takes_over_with_the_functions_that_were_given(project: Project) -> None:
    text = CALLS + """
k.FACTOR = 7
import numba
answers += [k.applied(k.scaled, 2), k.applied(k.squared, 2.5), k.both((k.scaled, k.scaled), 2.0)]
answers += [len(k.both.signatures), len(k.applied.signatures)]
answers += [k.applied(k.scaled, 2j), k.applied(k.make(2), 2.0)]
@numba.njit
def outer(f, x):
    return k.applied(f, x)
answers += [outer(k.scaled, 4.0), outer(k.squared, 1.0), k.same(k.scaled) is k.scaled]
result = list(map(repr, answers))
"""
    run(project, "lazy", CALLS + "result = None")
    assert run(project, "lazy", text) == run(project, "plain", text)


def test_a_function_with_other_globals_than_when_it_ran_is_the_one_that_ran(project: Project) -> None:
    text = """
import {module} as k
answers = [k.scaled(2.0), k.applied(k.scaled, 2.0)]
k.FACTOR = 11
answers += [k.applied(k.scaled, 2.0), k.summed(k.scaled, 3), k.scaled(2), k.applied(k.scaled, 2)]
result = answers
"""
    plain = run(project, "plain", text)
    assert [run(project, "lazy", text) for _ in range(3)] == [plain] * 3
