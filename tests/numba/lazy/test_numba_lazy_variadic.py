"""Functions with `*args` start without Numba, with Numba's answers and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

KERNELS = """
    from {decorators} import njit

    @njit
    def count(*args):
        return len(args)

    @njit
    def total(first, factor=2.0, *rest):
        result = first * factor
        for x in rest:
            result += x
        return result

    @njit
    def scaled(first, factor=2.0, *rest):
        return first * factor + len(rest)

    @njit
    def items(a, *rest):
        return a, rest

    @njit
    def passed(f, *rest):
        return f(*rest)

    @njit
    def array(*arrays):
        return arrays[0][0] + arrays[1].sum()

    @njit
    def named(a, *, b=2):
        return a + b
"""
CALLS = """
import sys
import numpy as np
import {module} as k

def said(call):
    try:
        answer = call()
    except Exception as error:
        return type(error).__name__
    return repr(answer), type(answer).__name__

x = np.arange(4.0)
calls = [
    lambda: k.count(), lambda: k.count(1), lambda: k.count(1, 2.5, "a"), lambda: k.total(1, 2, 3), lambda: k.total(1.0, 2.0, 3.0, 4.0),
    lambda: k.scaled(1.0, factor=4.0), lambda: k.scaled(factor=1.0, first=2.0), lambda: k.scaled(2), lambda: k.items(1),
    lambda: k.items(a=2),
    lambda: k.items((1, 2), (3, 4.0), None), lambda: k.items(1, 2, 3), lambda: k.passed(k.count, 1, 2, 3),
    lambda: k.passed(k.total, 2.0, 3.0, 1.0),
    lambda: k.array(x, x[::2]), lambda: k.array(x, x), lambda: k.items(x)[0] is x,
]
wrong = [lambda: k.total(), lambda: k.total(1.5), lambda: k.total(1.0, 2.0, 3.0, factor=1.0)]
wrong += [lambda: k.items(b=1), lambda: k.count(a=1), lambda: k.count([object()])]
for i in range(1000):
    k.count(i, x, "text") if {module!r} == "plain" or i else None
answers = [said(call) for call in calls]
imported = "numba" in sys.modules
"""


def test_variable_numbers_of_arguments(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(plain=KERNELS.replace("{decorators}", "numba"), lazy=KERNELS.replace("{decorators}", "compcache.numba"))

    def run(module: str, last: str) -> object:
        text = CALLS.replace("{module!r}", repr(module)).replace("{module}", module) + last
        return project.run(text, backend=False, COMPCACHE_DIR=str(project.cache))

    everything = (
        "\nresult = answers, [said(call) for call in wrong], said(lambda: k.named(1)), said(lambda: k.named(1, b=3)), "
        "str(k.total.signatures[:1])"
    )
    plain = run("plain", everything)
    assert run("lazy", everything) == plain
    assert run("lazy", "\nresult = answers, imported") == (plain[0], False)  # type: ignore[index]
    assert run("lazy", everything) == plain
