"""Objects that compiled code raises and returns are the program's own in each process, as with plain Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

PROGRAM = """
    import collections, enum, functools
    import numba
    njit = functools.partial(numba.njit, cache="backend" in globals())

    class Error(Exception): pass
    class Color(enum.Enum):
        RED = 1
        BLUE = 2
    Point = collections.namedtuple("Point", "x y")

    def make():
        class Local(Exception): pass
        class Shade(enum.Enum):
            RED = 1
            BLUE = 2
        Pair = collections.namedtuple("Pair", "x y")
        @njit
        def raises(x):
            if x > 3:
                raise Error("too much", x)
            return x
        @njit
        def calls(x):
            return raises(x) + 1
        @njit
        def raises_local(x):
            if x > 3:
                raise Local("too much", x)
            return x
        @njit
        def calls_local(x):
            return raises_local(x) + 1
        @njit
        def color(x):
            return Color.RED if x else Color.BLUE
        @njit
        def shade(x):
            return Shade.RED if x else Shade.BLUE
        @njit
        def point(x):
            return Point(x, 2)
        @njit
        def pair(x):
            return Pair(x, 2)
        @njit
        def function(x):
            return raises
        found = []
        for f, cls in ((raises, Error), (calls, Error), (raises_local, Local), (calls_local, Local)):
            try:
                f(5)
            except cls as error:
                found.append((type(error) is cls, error.args))
        found += [color(1) is Color.RED, shade(1) is Shade.RED, type(point(1)) is Point, type(pair(1)) is Pair]
        return [*found, function(1) is raises]

    result = make(), sorted(label.split("(")[0].split(".")[-1] for label in backend.refused) if "backend" in globals() else None
"""


def test_raised_and_returned_objects_are_the_programs_own(tmp_path: Path) -> None:
    project = Project(tmp_path)
    plain, _ = project.run_in_fork(PROGRAM)
    assert plain == [(True, ("too much", 5))] * 4 + [True] * 5
    local = ["calls_local", "function", "pair", "raises_local", "shade"]
    for _ in range(2):
        assert project.run(PROGRAM, backend=True, PYTHONWARNINGS="ignore") == (plain, local)


EMBEDS_AN_ADDRESS = """
    import numpy as np
    from numba import njit, types
    from numba.extending import intrinsic

    BUFFER = np.zeros(1 << 22)  # mapped at a random address

    @intrinsic
    def address(typing_context):
        def generate(context, builder, signature, arguments):
            context.add_dynamic_addr(builder, id(BUFFER), info="the buffer")  # as packages do, and not used
            return context.get_constant(types.intp, BUFFER.ctypes.data)
        return types.intp(), generate

    @njit
    def inner():
        return address()

    @njit(cache=True)
    def f():
        return inner() - 0
"""


def test_an_address_of_this_process_is_not_cached_where_only_another_trace_of_it_is_left(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(embeds=EMBEDS_AN_ADDRESS)
    script = "import embeds\nresult = embeds.f() == embeds.BUFFER.ctypes.data, len(backend.refused)"
    for _ in range(2):
        assert project.run(script, backend=True) == (True, 1)


ALIASES = """
    import collections, enum, functools
    import numba
    njit = functools.partial(numba.njit, cache=True)

    Rows = collections.namedtuple("Row", "x y")
    Failure = type("Error", (Exception,), {})
    Colors = enum.Enum("Color", {"RED": 1, "BLUE": 2})

    @njit
    def rows(x):
        return Rows(x, 2)
    @njit
    def total(r):
        return r.x + r.y
    @njit
    def fails(x):
        if x > 3:
            raise Failure("too much", x)
        return x
    @njit
    def color(x):
        return Colors.RED if x else Colors.BLUE
"""
USED = """
    try:
        {0}fails(5)
    except {0}Failure as error:
        failed = type(error) is {0}Failure, error.args
    made = {0}rows(1)
    result = type(made) is {0}Rows, {0}total(made), {0}total({0}Rows(3, 4)), failed, {0}color(1) is {0}Colors.RED
    result = [*result, backend.hits, sorted(backend.refused)]
"""


@pytest.mark.quick_answer
@pytest.mark.parametrize("place", ["module", "script"])
def test_a_class_may_stand_under_another_name_than_its_own(tmp_path: Path, place: str) -> None:
    project = Project(tmp_path)
    if place == "module":
        project.write(kernels=ALIASES)
        script = "    import kernels\n" + USED.format("kernels.")
    else:
        script = ALIASES + USED.format("")
    for hits in (0, 4):
        assert project.run(script, backend=True) == [True, 3, 7, (True, ("too much", 5)), True, hits, []]


def test_a_class_that_moves_to_another_name_is_another_one(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = "    import kernels\n" + USED.format("kernels.")
    # An entry that was found for the other name, and could not be loaded, would be replaced: the first version would miss again.
    for name, hits in (("Rows", 0), ("Lines", 2), ("Rows", 4), ("Lines", 4)):
        project.write(kernels=ALIASES.replace("Rows", name))
        assert project.run(script.replace("Rows", name), backend=True) == [True, 3, 7, (True, ("too much", 5)), True, hits, []]


@pytest.mark.quick_answer
def test_types_of_variables_are_what_the_program_gave(tmp_path: Path) -> None:
    project = Project(tmp_path)  # compiling adds names to the dictionary, which the second signature sees
    script = """
    import numba
    import numpy as np

    @numba.njit(["f8(f8[::1])", "f4(f4[::1])"], cache=True, locals={"result": numba.types.float32})
    def total(x):
        result = 0.0
        for i in range(x.shape[0]):
            result += x[i]
        return result

    @numba.njit(cache=True)
    def calls(x):
        return total(x)

    result = [float(f(np.ones(3, dtype=kind))) for f in (total, calls) for kind in ("f4", "f8")], backend.hits, sorted(backend.refused)
    """
    for hits in (0, 4):
        assert project.run(script, backend=True) == ([3.0] * 4, hits, [])
