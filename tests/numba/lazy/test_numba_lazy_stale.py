"""No stale answer of starts without Numba: two versions of each program, each in fresh processes, against plain Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from numba_edits import Edit, kernel, write
from numba_helpers import Project
from test_numba_stale import EDITS as EDITS_OF_VALUES
from test_numba_stale_overloads import EDITS as EDITS_OF_OVERLOADS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]
pytest.importorskip("numba")

EDITS = [*EDITS_OF_VALUES, *EDITS_OF_OVERLOADS]

#: Edits of what programs read that do not import Numba themselves.
OWN = [
    Edit("the body", kernel("return x * 2 + y"), "x * 2", "x * 3"),
    Edit("a constant of another type", kernel("return x // 1, y * 0 + 2"), "0 + 2", "0 + 2.0"),
    Edit("a global of another type", kernel("return 4 / TWO, TWO", "TWO = 2"), "TWO = 2", "TWO = 2.0"),
    Edit("a global's sign", kernel("return x * ZERO", "ZERO = 0.0"), "= 0.0", "= -0.0"),
    Edit("a global that is true", kernel("return ONE, x", "ONE = 1"), "= 1", "= True"),
    Edit("a default", "from numba import njit\n@njit\ndef f(x, y=2):\n    return x * y\n", "y=2", "y=3", call="p.f(7.0)"),
    Edit("an option", kernel("return x / (y - y)").replace("@njit", '@njit(error_model="numpy")'), '"numpy"', '"python"'),
    Edit("a callee", kernel("return g(x)", "@njit\n    def g(x):\n        return x * 2"), "x * 2", "x * 3"),
    Edit(
        "an option of a callee",
        kernel("return g(x, y)", '@njit(error_model="numpy")\n    def g(x, y):\n        return x / (y - y)'),
        '"numpy"', '"python"',
    ),
    Edit("a constant in another module", kernel("return x * FACTOR", "from settings import FACTOR"), "3", "4", "FACTOR = 3"),
    Edit("an attribute of another module", kernel("return x * settings.FACTOR", "import settings\n"), "3", "4", "FACTOR = 3"),
    Edit(
        "a function in another module",
        kernel("return settings.scaled(x)", "import settings\n"),
        "x * 3", "x * 4", "from numba import njit\n@njit\ndef scaled(x):\n    return x * 3\n",
    ),
    Edit(
        "a closure's variable",
        """
    from numba import njit
    def make(by):
        @njit
        def f(x, y):
            return x * by
        return f
    f = make(3)
    """,
        "make(3)", "make(4)",
    ),
    Edit(
        "a closure's function",
        """
    from numba import njit
    def make(inner):
        inner = njit(inner)
        @njit
        def f(x, y):
            return inner(x)
        return f
    f = make(lambda x: x * 3)
    """,
        "x * 3", "x * 4",
    ),
    Edit("a global array", kernel("return x * A[1]", "import numpy as np\n    A = np.array([1, 2])"), "[1, 2]", "[1, 3]"),
    Edit("an array's type", kernel("return A[1]", "import numpy as np\n    A = np.array([1, 2])"), "[1, 2])", "[1, 2], 'f8')"),
    Edit(
        "the message of an exception, and its line",
        kernel('raise ValueError("three")').replace("return", ""), '"three"', '"four"',
        call="try_(p.f)",
    ),
    Edit(
        "a namedtuple's fields, as a result",
        kernel(
            "return Point(x, y)", "from collections import namedtuple\n    Point = namedtuple('Point', ['a', 'b'])"
        ),
        "['a', 'b']", "['b', 'a']",
    ),
    Edit("boundscheck", kernel("return A[5]", "import numpy as np\n    A = np.arange(4)"), "", "",
         call="try_(p.f)", environment=("NUMBA_BOUNDSCHECK", "0", "1")),
    Edit(
        "a module that looks like the standard library's",
        """
    import sys, types
    from numba import njit
    colorsys = types.ModuleType("colorsys")
    colorsys.scaled = njit(lambda x: x * 3)

    @njit
    def f(x, y):
        return colorsys.scaled(x)
    """,
        "x * 3", "x * 4",
    ),
    Edit(
        "functools.wraps makes user code look like a library's",
        next(e.source for e in EDITS if e.name.startswith("functools.wraps makes")), "x * 3", "x * 4",
    ),
    Edit(
        "what a program puts into a library",
        """
    import math
    from numba import njit
    math.PIE = 3

    @njit
    def f(x, y):
        return x * math.PIE
    """,
        "PIE = 3", "PIE = 4",
    ),
]


#: The versions that run one after the other, on one cache.
_RUNS = (0, 0, 1, 1, 0)


class Said(NamedTuple):
    """What the programs said at each run, and whether Numba was imported then."""

    plain: list[list[tuple[str, bool]]]
    lazy: list[list[tuple[str, bool]]]


def say(edits: list[Edit], directory: Path, *, forks: bool) -> Said:
    lazy, plain = [], []
    project = Project(directory)
    for version in _RUNS:
        script = write(project, edits, version, "compcache.numba", forks=forks)
        lazy.append(project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)))
    for version in (0, 1):
        script = write(project, edits, version, "numba", forks=forks)
        plain.append(project.run(script, backend=False, NUMBA_CACHE_DIR=str(directory / str(version))))
    return Said(plain, lazy)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Said:
    return say(OWN, tmp_path_factory.mktemp("own"), forks=True)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Said:
    return say(EDITS, tmp_path_factory.mktemp("others"), forks=False)


@pytest.mark.parametrize("number", range(len(OWN)), ids=[edit.name for edit in OWN])
def test_an_edit_counts_without_numba(number: int, own: Said) -> None:
    said = [answers[number] for answers in own.lazy]
    assert [answer for answer, _ in said] == [own.plain[version][number][0] for version in _RUNS]
    assert [numba for _, numba in said] == [True, False, True, False, False]


@pytest.mark.parametrize("number", range(len(EDITS)), ids=[edit.name for edit in EDITS])
def test_an_edit_counts_where_some_of_numba_is_imported(number: int, others: Said) -> None:
    said = [answers[number][0] for answers in others.lazy]
    assert said == [others.plain[version][number][0] for version in _RUNS]
