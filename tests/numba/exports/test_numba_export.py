"""Exported kernels run, check their arguments and raise, in processes without Numba and llvmlite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(120)]
numba = pytest.importorskip("numba")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Exported kernels, exported once by one process."""
    made = Project(tmp_path_factory.mktemp("export"))
    made.write(kernels=KERNELS, errors="class KernelError(Exception):\n    pass\n")
    assert made.run_in_fork(EXPORT) == ["kernels.total", "half", "greet"]
    return made


KERNELS = """
    import numpy as np
    from numba import njit
    from errors import KernelError

    @njit
    def square(x):
        if x > 1e6:
            raise OverflowError("too large", 1000000, 2.5, True, None)
        return x * x

    @njit
    def total(values, scale):
        result = 0.0
        for value in values:
            if value < 0:
                raise ValueError("negative value")
            result += square(value) * scale
        return result

    @njit(error_model="python")
    def divide(a, b):
        return a // b

    @njit
    def fill(values, start):
        for i in range(len(values)):
            values[i] = start + i

    @njit
    def scratch(n):
        odd = np.zeros(n)
        for i in range(n):
            odd[i] = 2 * i + 1
        items = [0.0]
        for value in np.sort(odd[::2].copy()):
            items.append(value)
        return sum(items)

    @njit
    def own_error(flag):
        if flag:
            raise KernelError("of our own")
        return not flag

    def plain(x):
        return x / 2

    def text(x):
        if x:
            raise ValueError("café")

    @njit
    def computed(x):
        if x < 0:
            raise ValueError(str(x) + " is negative")
        if x > 10:
            raise KernelError("between", x, 2.5, x > 20, None)
        return x

    @njit
    def row_sums(table, sums):
        if table.shape[1] == 0:
            raise IndexError("no columns in", table.shape[0], "rows")
        for i in range(table.shape[0]):
            sums[i] = table[i].sum() + table[i, -1]
        return table.shape[0], sums.mean(), table[-1, -1] > 4

    @njit
    def constants(x):
        return 1, x, True, -2.5

    @njit
    def corner(cube):
        return cube[-1, 0, 1] * 100 + cube.ndim
"""
EXPORT = """
    import kernels
    from compcache import Cache
    from compcache.numba import export
    with Cache("cache") as cache:
        names = [
            export(kernels.total, "float64(float64[::1], int32)", cache=cache),
            export(kernels.plain, "(float32,)", cache=cache, name="half"),
            export(kernels.text, "void(boolean)", cache=cache, name="greet"),
        ]
        export(kernels.divide, "(int64, int64)", cache=cache)
        export(kernels.fill, "void(uint16[::1], uint16)", cache=cache)
        export(kernels.scratch, "(int64,)", cache=cache)
        export(kernels.own_error, "(boolean,)", cache=cache)
        export(kernels.computed, "(int64,)", cache=cache)
        export(kernels.row_sums, "(float64[:, ::1], float64[::1])", cache=cache)
        export(kernels.constants, "(uint8,)", cache=cache)
        export(kernels.corner, "(uint8[:, :, ::1],)", cache=cache)
    result = names
"""
CALL = """
    import sys
    from array import array
    from compcache import Cache
    cache = Cache("cache")
    def outcome(name, *args):
        try:
            return cache.get_target(name)(*args)
        except Exception as error:
            return type(error).__name__, error.args
    result = [{calls}]
    result.append(sorted(name for name in sys.modules if name.partition(".")[0] in ("numba", "llvmlite", "numpy")))
"""


def call(project: Project, *calls: str) -> list[Any]:
    """The outcomes of calls of exported kernels, in a process that must not need any of the compilers."""
    outcomes: list[Any]
    *outcomes, compilers = project.run(
        CALL.format(calls=", ".join(f"outcome({c})" for c in calls)), backend=False
    )
    assert compilers == []
    return outcomes


def test_scalars_and_arrays_come_in_and_scalars_go_out(project: Project) -> None:
    assert call(project, "'kernels.total', array('d', [1, 2, 3]), 2", "'half', 5", "'greet', False") == [
        28.0,
        2.5,
        None,
    ]


def test_a_kernel_writes_into_the_callers_buffer(project: Project) -> None:
    script = "'kernels.fill', data := array('H', [0, 0, 0]), 7", "'kernels.fill', data, 9"
    done = project.run(
        CALL.format(calls=", ".join(f"outcome({c})" for c in script) + ", list(data)"), backend=False
    )
    assert done[:3] == [None, None, [9, 10, 11]]


def test_exceptions_arrive_with_their_python_type_and_arguments(project: Project) -> None:
    assert call(
        project,
        "'kernels.total', array('d', [1, -1]), 2",
        "'kernels.total', array('d', [1e7]), 2",
        "'kernels.divide', 1, 0",
        "'kernels.own_error', True",
        "'greet', True",
    ) == [
        ("ValueError", ("negative value",)),
        ("OverflowError", ("too large", 1000000, 2.5, True, None)),
        ("ZeroDivisionError", ("integer division by zero",)),
        ("KernelError", ("of our own",)),
        ("ValueError", ("café",)),
    ]


def test_arguments_of_exceptions_are_computed_when_they_are_raised(project: Project) -> None:
    assert call(project, *[f"'kernels.computed', {n}" for n in (-3, 15, 25, 5)]) == [
        ("ValueError", ("-3 is negative",)),
        ("KernelError", ("between", 15, 2.5, False, None)),
        ("KernelError", ("between", 25, 2.5, True, None)),
        5,
    ]


TABLE = "memoryview(array('d', range(6))).cast('B').cast('d', [2, 3])"
SUMS = "array('d', [0, 0])"


def test_arrays_keep_their_shape_and_results_may_be_tuples(project: Project) -> None:
    cube = "memoryview(bytearray(range(24))).cast('B', [2, 3, 4])"
    calls = f"'kernels.row_sums', {TABLE}, {SUMS}", f"'kernels.corner', {cube}", "'kernels.constants', 200"
    assert call(project, *calls) == [(2, 11.0, True), 13 * 100 + 3, (1, 200, True, -2.5)]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("array('d', range(6))", "1 dimension"),
        ("memoryview(array('d', range(6))).cast('B').cast('d', [3, 2])[::2]", "non-contiguous"),
        ("memoryview(array('f', range(6))).cast('B').cast('f', [2, 3])", "format 'f'"),
    ],
)
def test_arrays_of_another_shape_are_refused(project: Project, table: str, found: str) -> None:
    ((name, (message,)),) = call(project, f"'kernels.row_sums', {table}, {SUMS}")
    assert name == "ArgumentBufferError"
    assert "must be a C-contiguous f64 buffer of 2 dimensions, not a" in message
    assert found in message


def test_a_kernel_for_one_dimension_takes_no_other(project: Project) -> None:
    """Numba's types say so, unlike signatures with `T[:]`."""
    ((name, (message,)),) = call(project, f"'kernels.total', {TABLE}, 2")
    assert (name, "of 1 dimension, not a memoryview of format 'd' and 2 dimensions" in message) == (
        "ArgumentBufferError",
        True,
    )


def test_computed_arguments_do_not_pile_up(project: Project) -> None:
    script = """
    from compcache import Cache
    import resource
    kernel = Cache("cache").get_target("kernels.computed")
    def raise_often(times):
        for _ in range(times):
            try:
                kernel(15)
            except Exception:
                pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = raise_often(1000)
    result = raise_often(30000) - first
    """
    assert (
        project.run(script, backend=False) < 2000
    )  # KiB; an exception and its description have more than 100 bytes


def test_a_kernel_that_does_not_raise_gives_its_result(project: Project) -> None:
    assert call(project, "'kernels.divide', -7, 2", "'kernels.own_error', False") == [-4, True]


def test_memory_that_stays_inside_the_kernel_is_allocated_without_numba(project: Project) -> None:
    assert call(project, "'kernels.scratch', 1000", "'kernels.scratch', 1000") == [500 * 999.0, 500 * 999.0]


def test_arguments_of_another_type_are_refused(project: Project) -> None:
    outcomes = call(
        project, "'kernels.total', array('f', [1]), 2", "'kernels.total', array('d'), 2**40", "'half', 'x'"
    )
    assert [name for name, _ in outcomes] == ["ArgumentBufferError", "OverflowError", "TypeError"]


def test_exporting_again_replaces_what_was_exported(tmp_path: Path) -> None:
    other = Project(tmp_path)
    other.write(one="def f(x):\n    return x + 1\n")
    script = """
    import one
    from compcache import Cache
    from compcache.numba import export
    with Cache("cache") as cache:
        export(one.f, "(int64,)", cache=cache)
        result = len(cache.realizations("one.f"))
    """
    assert other.run(script, backend=False) == 1
    assert call(other, "'one.f', 1") == [2]
    other.write(one="def f(x):\n    return x + 2\n")
    assert other.run(f"    import warnings; warnings.simplefilter('error')\n{script}", backend=False) == 1
    assert call(other, "'one.f', 1") == [3]


def test_a_process_with_a_stand_in_for_numba_exports(tmp_path: Path) -> None:
    """The modules that export import Numba's own modules, not the stand-ins for them."""
    other = Project(tmp_path)
    other.write(one="from numba import njit\n\n\n@njit\ndef f(x):\n    return x + 1\n")
    script = """
    import sys
    import compcache.numba
    backend = compcache.numba.install("cache", lazy=True)
    import one
    from compcache.numba.lazy import has_numba
    result = [has_numba(), compcache.numba.export(one.f, "(int64,)"), has_numba()]
    """
    assert other.run(script, backend=False) == [False, "one.f", True]
    assert call(other, "'one.f', 1") == [2]


def test_functions_that_nobody_called_may_be_recursive(tmp_path: Path) -> None:
    """Numba asks the dispatcher whether it is compiling, and names what others call in a circle with the options of the caller."""
    other = Project(tmp_path)
    other.write(circle="""
        from numba import njit

        @njit
        def factorial(n):
            return 1 if n < 2 else n * factorial(n - 1)

        @njit
        def even(n):
            if n == 0:
                return True
            return odd(n - 1)

        @njit
        def odd(n):
            if n == 0:
                return False
            return even(n - 1)
    """)
    script = """
    import circle
    from compcache import Cache
    from compcache.numba import export
    with Cache("cache") as cache:
        for function in (circle.factorial, circle.even, circle.odd):
            export(function, "(int64,)", cache=cache)
    """
    other.run(f"{script}\n    result = None", backend=False)
    assert call(other, "'circle.factorial', 6", "'circle.even', 6", "'circle.odd', 6") == [720, True, False]


def test_signatures_that_a_dispatcher_lists_are_called_as_the_dispatcher_is(tmp_path: Path) -> None:
    """With parameters that were left out, and any number of arguments."""
    other = Project(tmp_path)
    other.write(many="""
        from numba import njit

        @njit
        def weighted(x, weight=2.0, *others):
            return x * weight, others

        @njit
        def changed(*items):
            items[0].append(items[1])
            return len(items), items[0]

        @njit
        def failing(*items):
            if len(items) > 1:
                raise ValueError("too many", len(items))
            return 0

        @njit
        def between(items0, *items):
            return items0, items

        @njit
        def hidden(kernel, *items):
            return kernel, items
    """)
    given: dict[str, list[tuple[object, ...]]] = {
        "weighted": [(1.5,), (1.5, 4.0), (1.5, 4.0, 1, "text"), (1.5, 4.0, (1, 2.0))], "failing": [(1,), (1, 2)],
        "between": [(1, 2, 3.0), (1,)], "hidden": [(1, 2.0)],
    }  # fmt: skip
    script = f"""
    import many
    from compcache import Cache
    from compcache.numba import export
    result = []
    with Cache("cache") as cache:
        for name, calls in {given!r}.items():
            function = getattr(many, name)
            for number, arguments in enumerate(calls):
                try:
                    result.append(function(*arguments))
                except ValueError as error:
                    result.append((type(error).__name__, error.args))
                export(function, function.nopython_signatures[-1], cache=cache, name=f"{{name}}{{number}}")
        export(many.changed, "(List(int64, True), int64)", cache=cache)
        export(many.weighted, "(int64, float64, int64)", cache=cache, name="flat")
    """
    expected = other.run(script, backend=False)
    calls = [f"'{name}{number}', *{arguments!r}" for name, cases in given.items() for number, arguments in enumerate(cases)]
    outcomes = call(other, *calls, "'many.changed', [1, 2], 3", "'flat', 2, 0.5, 7", "'flat', 2, 0.5")
    assert outcomes[:-3] == expected
    assert outcomes[-3:-1] == [(2, [1, 2, 3]), (1.0, (7,))]
    assert outcomes[-1] == ("TypeError", ("flat() takes 3 arguments, x: i64, weight: f64, others0: i64; 2 given",))


def test_a_kernel_is_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """Whatever was compiled before, with loops of threads and exceptions."""
    other = Project(tmp_path)
    other.write(loops="""
        import numpy as np
        from numba import njit, prange

        @njit(parallel=True)
        def total(values):
            if len(values) == 0:
                raise ValueError("empty", len(values))
            result = 0.0
            for i in prange(len(values)):
                result += values[i]
            return result, values * 2

        @njit
        def added(first, *others):
            for other in others:
                first += other
            return first
    """)
    script = """
    import loops
    from compcache import Cache
    from compcache.numba import export
    loops.njit(lambda x: x + 1)(1) if {first} else None
    with Cache("cache{first}") as cache:
        for _ in range(1 + {first}):
            export(loops.total, "(float64[::1],)", cache=cache)
            export(loops.added, "(int64, int64, int64)", cache=cache)
        result = [realization.module_id for name in {names} for realization in cache.realizations(name)]
    """
    raises_alike = tuple(map(int, numba.__version__.split(".")[:2])) >= (0, 67)  # before, Numba named what is raised by its address
    names = ("loops.total", "loops.added") if raises_alike else ("loops.added",)
    said = [other.run(script.format(first=first, names=names), backend=False) for first in range(2)]
    assert said[0] == said[1]


REFUSALS = {
    "it is a generator": ("def f(n):\n    for i in range(n):\n        yield i\n", "(int64,)"),
    "the result cannot be converted: exports do not support the type range_state_int64": ("def f(n):\n    return range(n)\n", "(int64,)"),
    "Numba cannot compile it for (int64): Unknown attribute 'foo' of type int64 (": ("def f(n):\n    return n.foo\n", "(int64,)"),
    "its signature declares 2 argument types, but the function has 1 parameter": ("def f(n):\n    return n\n", "(int64, int64)"),
    "its signature declares 1 argument type, but the function requires at least 2": ("def f(x, y, *rest):\n    return x\n", "(int64,)"),
    "/refused5.py, line 3)": ("def f(*rest):\n    t = 0\n    for r in rest:\n        t += r\n    return t\n", "(int64, float64)"),
    "exception class": (
        """\
def make():
    class E(Exception): ...
    def f(n):
        if n < 0:
            raise E('x')
        return n
    return f
f = make()
""", "(int64,)",
    ),
}  # fmt: skip


def test_what_cannot_be_exported_is_refused_with_the_reason(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(**{f"refused{n}": source for n, (source, _) in enumerate(REFUSALS.values())})
    cases = [(f"refused{n}", signature) for n, (_, signature) in enumerate(REFUSALS.values())]
    messages = project.run(
        f"""
    from importlib import import_module
    from compcache import Cache, CompileError
    from compcache.numba import export
    result = []
    with Cache("cache") as cache:
        for name, signature in {cases!r}:
            try:
                export(import_module(name).f, signature, cache=cache)
                result.append("exported")
            except Exception as error:
                result.append(f"{{type(error).__name__}}: {{error}}")
    """,
        backend=False,
    )
    for expected, message in zip(REFUSALS, messages, strict=True):
        assert message.startswith("CompileError: "), message
        assert expected in message
