"""Overloads, intrinsics and functions that compiled code may call, of the program's own: starts without Numba use the same as Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]
pytest.importorskip("numba")

KERNELS = """
    import numpy as np
    from numba import njit, types
    from numba.extending import intrinsic, overload, register_jitable
    from llvmlite import ir
    import settings

    SHIFT = 5
    WIDTHS = {"int64": 3}

    def constant():
        return settings.FACTOR * 10

    @intrinsic
    def shifted(typingctx, x):
        if not isinstance(x, types.Integer):
            return None
        def codegen(context, builder, signature, args):
            return builder.add(args[0], ir.Constant(args[0].type, SHIFT + constant()))
        return x(x), codegen

    def described(x):
        pass

    @overload(described, inline="always")
    def ov_described(x):
        width = WIDTHS.get(str(x), 1)
        if isinstance(x, types.Float):
            return lambda x: x * 0.5
        return lambda x: x * width

    @register_jitable
    def helper(x):
        return x - SHIFT

    @njit
    def f(x):
        return shifted(x) + helper(x)

    @njit("int64(int64)")
    def declared(x):
        return shifted(x) * 2

    @njit
    def g(x):
        return described(x), described(2.5)

    @njit
    def h(x):
        return g(x)[0] + declared(x)
"""
RUN = """
import sys
import compcache.numba
compcache.numba.install(lazy=True)
import k
{before}
result = repr([k.f(3), k.g(3), k.h(4), k.declared(5)]), "numba.core" in sys.modules
"""
PLAIN = RUN.replace("compcache.numba.install(lazy=True)\n", "")


def run(project: Project, before: str = "", **environment: str) -> tuple[str, bool]:
    found: tuple[str, bool] = project.run(
        RUN.replace("{before}", before), backend=False, COMPCACHE_DIR=str(project.cache), **environment
    )
    return found


def plain(project: Project, before: str = "", **environment: str) -> str:
    found: Any = project.run(PLAIN.replace("{before}", before), backend=False, **environment)
    return str(found[0])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write(k=KERNELS, settings="FACTOR = 1\n")
    return made


def test_they_are_found_and_edits_of_all_that_they_read_count(project: Project) -> None:
    assert run(project) == (plain(project), True)
    assert run(project) == (plain(project), False)
    project.write(settings="FACTOR = 2\n")
    assert run(project) == (plain(project), True)
    assert run(project) == (plain(project), False)
    for before, after in (
        ("x * 0.5", "x * 0.25"), ('"int64": 3', '"int64": 4'), ("return x - SHIFT", "return x - SHIFT - 1"), ("builder.add", "builder.sub")
    ):
        assert before in KERNELS
        project.write(k=KERNELS.replace(before, after))
        answer = plain(project)
        assert run(project) == (answer, True)
    project.write(k=KERNELS)
    assert run(project) == (plain(project), False)


def test_what_the_program_changes_while_it_runs_counts(project: Project) -> None:
    run(project)
    for before in (
        "k.SHIFT = 100", "k.WIDTHS['int64'] = 9", "k.settings.FACTOR = 4", "k.constant = lambda: 7", "k.f(3); k.SHIFT = 30",
        "k.overload(k.described)(lambda x: (lambda x: x * 7))", "k.g(1); k.WIDTHS['int64'] = 11",
    ):
        answer = plain(project, before)
        assert [run(project, before)[0] for _ in range(2)] == [answer] * 2, before
    assert run(project) == (plain(project), False)


OUTSIDE = """
    import os
    from numba import njit
    from numba.extending import overload
    import settings

    def imported():
        from os import environ
        return environ["WIDTH"]

    class Held:
        WIDTH = int(os.environ["WIDTH"])

        @staticmethod
        def width():
            return os.environ["WIDTH"]

    def counted():
        pass
    counted.width = int(os.environ["WIDTH"])
"""
READS = (
    "os.environ['WIDTH']", "open('width').read()", "__import__('os').environ['WIDTH']",
    "eval('os.environ[\"WIDTH\"]')", "imported()", "Held.width()", "imported.__globals__['os'].environ['WIDTH']",
)  # fmt: skip
#: What is read of the program's own objects is part of keys.
OF_THE_PROGRAM = ("getattr(settings, 'FAC' + 'TOR')", "counted.width", "Held.WIDTH", "settings.FACTOR")
OVERLOADED = """
    def d{n}(x):
        pass

    @overload(d{n})
    def ov{n}(x):
        width = int({reads})
        return lambda x: x * width

    @njit
    def f{n}(x):
        return d{n}(x)
"""


CALL_EACH = """
import os, compcache.numba
compcache.numba.install(lazy=True)
import k
open("width", "w").write(os.environ["WIDTH"])
result = [getattr(k, f"f{n}")(3) for n in range(COUNT)]
"""
ASK_EACH = """
import compcache.numba
compcache.numba.install(lazy=True)
import k
from compcache.numba.lazy import stand_ins
def asked():
    raise RuntimeError("Numba")
stand_ins.real_numba = asked
def answer(function):
    try:
        return function(3)
    except RuntimeError as error:
        return str(error)
result = [answer(getattr(k, f"f{n}")) for n in range(COUNT)]
"""


def test_what_reads_from_outside_is_not_recorded(project: Project) -> None:
    reads = [*READS, *OF_THE_PROGRAM]
    source = OUTSIDE + "".join(OVERLOADED.replace("{n}", str(n)).replace("{reads}", text) for n, text in enumerate(reads))
    project.write(k=source, settings="import os\nFACTOR = int(os.environ['WIDTH'])\n")
    environment = {"COMPCACHE_DIR": str(project.cache), "WIDTH": "2"}
    count = str(len(reads))
    assert project.run(CALL_EACH.replace("COUNT", count), backend=False, **environment) == [6] * len(reads)
    assert project.run(ASK_EACH.replace("COUNT", count), backend=False, **environment) == ["Numba"] * len(READS) + [6] * len(OF_THE_PROGRAM)
    environment["WIDTH"] = "33"
    assert project.run(CALL_EACH.replace("COUNT", count), backend=False, **environment) == [99] * len(reads)


EARLY = """
    from numba import njit

    @njit
    def first(x):
        return x + 1
    first(1)  # Numba is imported here by the process that compiles it
"""
LATE = """
    from numba import njit
    {before}
    from numba.extending import intrinsic, overload, register_jitable
    {after}

    @intrinsic
    def doubled(typing_context, x):
        def generate(context, builder, signature, args):
            return builder.add(args[0], args[0])
        return x(x), generate

    def tripled(x):
        return x * 3
    @overload(tripled)
    def _tripled(x):
        return lambda x: x * 3

    @register_jitable
    def squared(x):
        return x * x

    @njit("int64(int64)")
    def declared(x):
        return doubled(x) + tripled(x) + squared(x)

    @njit
    def summed(values):
        return declared(len(values))

    @njit(cache=True)
    def of_list(values):
        return declared(len(values)) + values[0]
"""


@pytest.mark.parametrize(("before", "after"), [("", "import early"), ("import early", "")])
def test_what_is_registered_after_numba_was_imported_is_in_keys_too(project: Project, before: str, after: str) -> None:
    """The second process needs neither Numba nor what the first one did not have to compile."""
    project.write(early=EARLY, late=LATE.format(before=before, after=after))
    script = """
import sys, compcache.numba
backend = compcache.numba.install(lazy=True)
import late, numpy
answers = [late.declared(5), late.summed(numpy.arange(3))]
imported = "numba.core.compiler" in sys.modules
result = answers, imported, backend.misses
"""
    with_list = script.replace("imported =", "answers += [late.of_list([7, 8])]\nimported =")
    found = [project.run(text, backend=False, COMPCACHE_DIR=str(project.cache)) for text in (with_list, script, with_list)]
    assert [answers[:2] for answers, _, _ in found] == [[50, 24]] * 3
    assert found[0][0][2] == found[2][0][2] == 2 * 2 + 6 + 4 + 7
    assert [rest for _, *rest in found[1:]] == [[False, 0], [True, 0]]


def test_an_intrinsic_may_have_the_name_of_an_attribute_in_its_code(project: Project) -> None:
    """Its code names `add`, which is also the global that contains the intrinsic itself. A start without Numba is not affected either."""
    project.write(k="""
    from numba import njit, types
    from numba.extending import intrinsic

    @intrinsic
    def add(typingctx, x):
        def codegen(context, builder, signature, args):
            return builder.add(args[0], args[0].type(2))
        return types.int64(types.int64), codegen

    @njit
    def f(x):
        return add(x)
    """)
    script = "import sys, compcache.numba\ncompcache.numba.install(lazy=True)\nimport k\nresult = k.f(3), 'numba.core' in sys.modules"
    assert [project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) for _ in range(2)] == [(5, True), (5, False)]
