"""Functions that are declared with signatures, without Numba: compiled when they are declared, with Numba's conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project
from numba_modes import Programs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

KERNELS = """
    import numpy as np
    from {decorators} import njit, jit, types

    FACTOR = 3

    @njit("f8(f8)")
    def scaled(x):
        return x * FACTOR

    @njit(["i8(i8, i8)", "f8(f8, f8)", "c16(c16, c16)"], cache=True)
    def product(x, y=2):
        return x * y + x

    @jit("f4(f8)", nopython=True)
    def narrow(x):
        return x

    @njit("i8(i8)")
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    @njit(["f8(f8[:])", "f8(f8[:, ::1])"])
    def total(a):
        return a.sum()

    @njit("f8(Tuple((f8[:], i4[:, :], f8[::1])), f8)")
    def paired(pair, x):
        return pair[0].sum() + pair[1][1, 0] * x + pair[2][0]

    @njit(["f8(UniTuple(f8[:], 2))", "f8(UniTuple(f8[::1], 2))"])
    def either(pair):
        return pair[0][0] - pair[1][0]

    @njit("void(f8[:], f8)")
    def fill(a, value):
        if value < 0:
            raise ValueError("negative", value)
        a[:] = value

    @njit(types.int64(types.Bytes(types.uint8, 1, "C"), types.int64))
    def digest(data, seed):
        for byte in data:
            seed = seed * 31 + byte
        return seed

    @njit("f8(f8)")
    def plain_callee(x):
        return x + 1

    @njit
    def calls(x):
        return plain_callee(x) + scaled(x) * 0

    @njit(["f8(f4, f8)", "f8(f8, f4)"])
    def ambiguous(x, y):
        return x + y
"""
CALLS = """
import sys
import numpy as np
def outcome(f, *args, **keywords):
    try:
        result = f(*args, **keywords)
    except Exception as error:
        return type(error).__name__, str(error)[:40]
    return type(result).__name__, repr(result)
a = np.arange(4.0)
{calls}
result = [repr(r) for r in result], 'numba.core' in sys.modules
"""
WARM = """
result = [outcome(p.scaled, x) for x in (2.5, 2, True, np.float32(1.5), np.int8(3))]
result += [outcome(p.narrow, x) for x in (0.1, 2)] + [outcome(p.fibonacci, x) for x in (10, 7.9, True)]
result += [outcome(p.total, a), outcome(p.total, a[::2])]
b = np.arange(6, dtype=np.int32).reshape(2, 3)
result += [outcome(p.paired, (x, y, a), 2.0) for x in (a, a[::2]) for y in (b, b.copy("F"), b[:, ::2])]
result += [outcome(p.either, (a[::2], a[1::2]))]
result += [outcome(p.fill, a[1:3], 7), a.tolist(), outcome(p.fill, a, -1.5), outcome(p.calls, 2.0)]
result += [outcome(p.digest, b"abc", seed) for seed in (3, 2.5)]
"""
#: What only Numba knows, each in a process of its own after a call without it.
NUMBA_DECIDES = {
    "no match": "outcome(p.scaled, 'text')",
    "ambiguous": "outcome(p.ambiguous, 1.0, 2.0)",
    "too many": "outcome(p.scaled, 1.0, 2.0)",
    "signatures": "str(p.product.nopython_signatures), p.scaled(2)",
    "a changed global": "[setattr(p, 'FACTOR', 5), p.scaled(1.0), str(p.scaled.signatures), p.scaled(2.0)]",
    "use in a function": "outcome(__import__('numba').njit(lambda x: p.scaled(x) + p.fibonacci(5)), 1.0)",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("declared"))
    made.write(plain=KERNELS.replace("{decorators}", "numba"), lazy=KERNELS.replace("{decorators}", "compcache.numba"))
    return made


def run(project: Project, module: str, calls: str) -> tuple[list[str], bool]:
    script = f"import {module} as p\n" + CALLS.replace("{calls}", calls)
    answer: tuple[list[str], bool] = project.run(script, backend=False, COMPCACHE_DIR=str(project.cache))
    return answer


def test_declared_functions_are_numbas_and_start_without_it(project: Project) -> None:
    expected = run(project, "plain", WARM)[0]
    assert run(project, "lazy", WARM) == (expected, True)
    assert run(project, "lazy", WARM) == (expected, False)



@pytest.mark.parametrize("case", NUMBA_DECIDES)
def test_what_has_no_exact_match_is_numbas(project: Project, case: str) -> None:
    calls = f"result = [p.scaled(2.5), {NUMBA_DECIDES[case]}]"
    assert run(project, "lazy", calls) == run(project, "plain", calls)


@pytest.mark.quick_answer
def test_of_several_overloads_numbas_is_chosen(project: Project) -> None:
    calls = "result = [outcome(p.product, *args) for args in ((7, 2), (7.0, 2), (np.int8(7), True), (np.float32(7), 1j), (5,))]"
    assert run(project, "lazy", calls)[0] == run(project, "plain", calls)[0]


SIGNED = """
    from {decorators} import njit, types

    @njit(types.int64(types.Bytes(types.int8, 1, "C")))
    def length(data):
        return len(data)
"""


@pytest.mark.quick_answer
def test_bytes_with_other_items_than_those_of_python_are_rejected(project: Project) -> None:
    project.write(plain_signed=SIGNED.replace("{decorators}", "numba"), lazy_signed=SIGNED.replace("{decorators}", "compcache.numba"))
    calls = "result = [outcome(p.length, b'abc')]"
    expected = run(project, "plain_signed", calls)[0]
    assert [run(project, "lazy_signed", calls)[0] for _ in range(2)] == [expected, expected]


STALE = """
    from compcache.numba import njit
    FACTOR = {factor}

    @njit("f8(f8)")
    def f(x):
        return x * FACTOR

    @njit
    def g(x):
        return f(x) + 1
"""


@pytest.mark.quick_answer
def test_an_edit_counts_and_a_later_change_does_not(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = "import sys, p\np.FACTOR = 100\nresult = p.f(2), p.g(2.0), 'numba.core' in sys.modules"
    for factor, expected in ((3, (6.0, 7.0)), (3, (6.0, 7.0)), (4, (8.0, 9.0)), (3, (6.0, 7.0))):
        project.write(p=STALE.replace("{factor}", str(factor)))
        answer = project.run(script, backend=False, COMPCACHE_DIR=str(project.cache))
        assert answer[:2] == expected


@pytest.mark.quick_answer
def test_an_error_of_a_declaration_is_raised_there(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = """
        from {decorators} import njit
        result = []
        for signature in ("f8(unknown)", "f8", "f8(f8[:])"):
            try:
                njit(signature)(compile("def f(x): return x.y", "f.py", "exec") and (lambda x: x.y))
                result.append("none")
            except Exception as error:
                result.append(type(error).__name__)
    """
    answers = [
        project.run(script.replace("{decorators}", name), backend=False, COMPCACHE_DIR=str(project.cache))
        for name in ("numba", "compcache.numba", "compcache.numba")
    ]
    assert answers[0] == answers[1] == answers[2]


RECURSIVE = """
    from {decorators} import njit

    @njit("i8(i8)"{cached})
    def factorial(n):
        return 1 if n <= 1 else n * factorial(n - 1)

    @njit{calls}
    def calls(n):
        return factorial(n) + 1

    @njit("i8(i8)"{cached})
    def declared(n):
        return factorial(n) - calls(n)
"""


@pytest.mark.quick_answer
def test_callers_of_a_declared_function_that_calls_itself_are_found(tmp_path: Path) -> None:
    lazy = Project(tmp_path)
    lazy.write(p=RECURSIVE.format(decorators="compcache.numba", cached="", calls=""))
    script = "import p, sys\nresult = [p.calls(5), p.declared(4)], 'numba.core' in sys.modules"
    said = [lazy.run(script, backend=False, COMPCACHE_DIR=str(lazy.cache)) for _ in range(2)]
    assert said == [([121, -1], True), ([121, -1], False)]


def test_the_backend_finds_callers_of_a_declared_function_that_calls_itself(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p=RECURSIVE.format(decorators="numba", cached=", cache=True", calls="(cache=True)"))
    script = "import p\nresult = [p.calls(5), p.declared(4)], backend.hits, backend.misses, backend.refused"
    said = [project.run(script, backend=True) for _ in range(2)]
    assert said == [([121, -1], 0, 3, {}), ([121, -1], 3, 0, {})]


@pytest.mark.quick_answer
def test_one_function_is_declared_again_with_other_globals(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p="""
        from compcache.numba import njit, vectorize
        FACTOR = 1
        def function(x):
            return x * FACTOR
        def declare(value):
            global FACTOR
            FACTOR = value
            return njit("i8(i8)")(function), vectorize(["i8(i8)"])(function)
    """)  # fmt: skip
    script = """
        import p, sys
        made = [p.declare(value) for value in (2, 3)]
        result = [[int(one(5)) for one in row] for row in made], "numba.core" in sys.modules
    """
    for imports in (True, False):
        assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == ([[10, 10], [15, 15]], imports)


WITHOUT_TEXTS = """
    import numpy
    from DECORATORS import njit
    from numba import from_dtype, types

    FACTOR = 3
    record = numpy.dtype([("a", "i8"), ("b", "f8")])

    @njit([types.float64(from_dtype(record)[:]), "float64(float64)"])
    def first(rows):
        return 2.0 * FACTOR

    @njit((types.ByteArray(types.uint8, 1, "C"),))
    def second(data):
        return data[0] * FACTOR

    print(first(numpy.zeros(2, record)) + second(bytearray(b"a")))
"""


@pytest.mark.parametrize("mode", ["run", "decorators"])
def test_functions_whose_signatures_have_no_text_are_found(tmp_path: Path, mode: str) -> None:
    programs = Programs(tmp_path, WITHOUT_TEXTS)
    assert [programs.start(mode, tmp_path / "cache") for _ in range(2)] == [("297.0", 3, 0), ("297.0", 0, 3)]
    programs.source = WITHOUT_TEXTS.replace("FACTOR = 3", "FACTOR = 4")
    assert programs.start(mode, tmp_path / "cache") == ("396.0", 3, 0)
