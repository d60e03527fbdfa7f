"""Exported kernels give and take what Numba's give and take: arrays, containers, text; without Numba, with and without NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from numba_exports import COMPARE, COMPARED, EXPORT
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]
pytest.importorskip("numba")

KERNELS = """
    import math
    from collections import namedtuple
    import numpy as np
    from numba import njit, objmode, types

    Point = namedtuple("Point", "x y")
    TABLE = np.arange(6.0).reshape(2, 3)
    row = np.dtype([("n", np.int32), ("x", np.float64)], align=True)
    SIGNATURES = {}

    def kernel(*signature, **options):
        def decorate(function):
            SIGNATURES[function.__name__] = signature
            return njit(**options)(function)
        return decorate

    f8 = types.float64

    @kernel(types.int64)
    def made(n):
        return np.arange(n) * 2.0

    @kernel(types.int64)
    def cube(n):
        return np.ones((n, 2, 3), np.int16)[:, ::-1].T

    @kernel(f8[:, ::1])
    def same(a):
        return a

    @kernel(f8[:, :])
    def view(a):
        return a[1:, ::2].T

    @kernel(types.Array(f8, 1, "A", readonly=True))
    def tail(a):
        return a[1:]

    @kernel(f8[::1, :])
    def fortran(a):
        return a[0, 1] + a.sum()

    @kernel(f8[::1, :])
    def solved(a):
        return np.asfortranarray(a * 2)

    @kernel()
    def constant():
        return TABLE

    @kernel(types.int64)
    def views_of_constant(n):
        return TABLE[::-1, n], TABLE.T[n:], TABLE[n:n], TABLE[1, ::-2]

    @kernel(f8[:], nogil=True)
    def without_gil(a):
        return a + 1

    @kernel(types.complex128, types.complex64[:])
    def complexes(z, a):
        return z * 2, a * np.complex64(1j), a[0]

    @kernel(types.int64, types.unicode_type)
    def nested(n, text):
        return n, (text + "é", (n, True, None)), np.full((n, n), 1.5, np.float32), text

    @kernel(types.unicode_type)
    def texts(text):
        return text * 2, text[::-1], text + "😀", len(text), text

    @kernel(types.Bytes(types.uint8, 1, "C"))
    def octets(data):
        return data, len(data), data[0]

    @kernel(types.NamedUniTuple(f8, 2, Point))
    def turned(p):
        return Point(p.y, -p.x)

    @kernel(types.Tuple((types.int8, types.Tuple((f8, types.boolean)), types.UniTuple(f8[::1], 2))))
    def taken_apart(t):
        return t[1][0] + t[0], t[1][1], t[2][1]

    @kernel(types.optional(f8))
    def perhaps(x):
        if x is None:
            return None
        if x > 10:
            raise ValueError("more than ten")
        return x + 1

    @kernel(types.optional(f8[:]))
    def perhaps_array(x):
        return 0.0 if x is None else x.sum()

    @kernel(types.List(types.int64, reflected=True))
    def extended(items):
        items.append(len(items))
        return [i * 0.5 for i in items]

    @kernel(types.List(types.int64, reflected=True))
    def same_list(items):
        return items

    @kernel(types.int64)
    def arrays(n):
        return [np.full(i, i * 1.5) for i in range(n)]

    @kernel(types.int64)
    def records(n):
        rows = np.zeros(n, row)
        for i in range(n):
            rows[i].n = i
            rows[i].x = i / 2
        return rows

    @kernel(types.NPDatetime("D")[::1], types.int64)
    def days(dates, n):
        return dates[n:], dates == dates[0]

    @kernel(types.int64)
    def scalar_array(n):
        return np.array(n * 2.5)

    @kernel(types.int64, types.unicode_type)
    def printing(n, text):
        print("n is", n, n * 0.5, text)
        return n

    @kernel(f8, types.float32)
    def gammas(x, y):
        return math.gamma(x), math.lgamma(x), math.gamma(y), math.lgamma(y)

    @kernel(types.int64)
    def partly(n):
        with objmode(y="float64"):
            y = float(str(n) + "5")
        return y + 1

    @kernel(types.int64)
    def raising(n):
        a = np.zeros(n)
        if n == 3:
            raise ValueError("three", n)
        return a
"""
@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Kernels, exported once by one process."""
    made = Project(tmp_path_factory.mktemp("objects"))
    made.write(kernels=KERNELS, compared=COMPARED)
    made.run_in_fork(EXPORT)
    return made


CASES = """
    import numpy as np
    from kernels import Point
    grid = lambda: np.arange(12.0).reshape(3, 4)
    frozen = lambda: np.frombuffer(bytes(range(32)), np.float64)
    CASES = {
        "made": [lambda: (0,), lambda: (5,)],
        "cube": [lambda: (4,)],
        "same": [lambda: (grid(),)],
        "view": [lambda: (grid(),), lambda: (grid()[::2, ::-1],), lambda: (np.asfortranarray(grid()),)],
        "tail": [lambda: (grid()[0],), lambda: (grid()[:, 1],), lambda: (frozen(),)],
        "fortran": [lambda: (np.asfortranarray(grid()),)],
        "solved": [lambda: (np.asfortranarray(grid()),)],
        "constant": [lambda: ()], "views_of_constant": [lambda: (1,)],
        "without_gil": [lambda: (grid()[:, 2],)],
        "complexes": [lambda: (1 + 2j, np.arange(3, dtype=np.complex64)), lambda: (3, np.ones(4, np.complex64)[::2])],
        "nested": [lambda: (2, "abc"), lambda: (0, "ж")],
        "texts": [lambda t=t: (t,) for t in ("", "abc", "é", "straße", "жук", "a😀b")],
        "octets": [lambda: (b"abc",), lambda: (b"\\0" * 3,)],
        "turned": [lambda: (Point(1.0, 2.0),)],
        "taken_apart": [lambda: ((3, (2.5, True), (np.zeros(2), np.ones(3))),)],
        "perhaps": [lambda: (None,), lambda: (1.5,), lambda: (11.0,)],
        "perhaps_array": [lambda: (None,), lambda: (np.ones(3),)],
        "extended": [lambda: ([1, 2],), lambda: ([5],)],
        "same_list": [lambda: ([1, 2],)],
        "arrays": [lambda: (3,), lambda: (0,)],
        "records": [lambda: (3,)],
        "days": [lambda: (np.array(["2024-02-28", "2024-02-29"], "M8[D]"), 1)],
        "scalar_array": [lambda: (3,)],
        "printing": [lambda: (3, "é")],
        "gammas": [lambda x=x: (x, x) for x in (3.5, 0.25, 170.5, 30.0, -0.5, -2.25, 1e-300, 172.0, float("inf"), 1.0, 2.0, 7.0)],
        "partly": [lambda: (3,)],
        "raising": [lambda: (3,), lambda: (2,)],
    }
"""


def test_results_are_those_of_numba(project: Project) -> None:
    """Types, dtypes, shapes, strides, flags, identity, what happens to arguments, exceptions."""
    assert project.run(CASES + COMPARE, backend=False) == []


def test_printed_text_is_that_of_numba(project: Project) -> None:
    script = """
    import contextlib, io
    import kernels
    from compcache import Cache
    def printed(function):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            made = [function(n, text) for n in (-3, 0, 1 << 40) for text in ("", "abc", "é", "😀")]
        return out.getvalue(), made
    ours, theirs = printed(Cache("cache").get_target("kernels.printing")), printed(kernels.printing)
    result = ours == theirs, ours[0].splitlines()[1]
    """
    assert project.run(script, backend=False) == (True, "n is -3 -1.5 abc")


CALL = """
    import sys
    from array import array
    from compcache import Cache
    cache = Cache("cache")
    {first}
    def call(name, *args):
        try:
            return cache.get_target("kernels." + name)(*args)
        except Exception as error:
            return type(error).__name__, str(error)
    result = {calls}
    result = result, sorted(n for n in sys.modules if n in ("numba", "llvmlite", "numpy"))
"""


def run(project: Project, calls: str, first: str = "") -> tuple[Any, list[str]]:
    """What calls give in a process that imports neither Numba nor llvmlite, and which of the three modules it has."""
    answer: tuple[Any, list[str]] = project.run(CALL.format(calls=calls, first=first), backend=False)
    return answer


def test_without_numpy_arrays_are_memoryviews_that_own_their_memory(project: Project) -> None:
    first = "m = memoryview(array('d', range(12))).cast('B').cast('d', [3, 4])"
    made, view = "call('made', 4)", "call('view', m)"
    calls = f"({made}.tolist(), {made}.format, {made}.readonly, {view}.tolist(), {view}.strides, call('constant').readonly)"
    assert run(project, calls, first) == (
        ([0.0, 2.0, 4.0, 6.0], "d", False, [[4.0, 8.0], [6.0, 10.0]], (16, 32), True), [],
    )  # fmt: skip


def test_memory_of_a_buffer_lives_as_long_as_the_result(project: Project) -> None:
    first = """
    data = array("d", range(1000))
    kept = cache.get_target("kernels.tail")(data)
    del data
    [array("d", bytes(8000)) for _ in range(100)]
    """
    assert run(project, "sum(kept)", first) == (sum(range(1000)), [])


def test_containers_need_no_numpy(project: Project) -> None:
    calls = """[call("texts", "añ😀"), call("perhaps", None), call("perhaps", 1), call("extended", [1]), call("octets", b"xy"),
        tuple(call("turned", __import__("collections").namedtuple("Point", "x y")(1, 2)))]"""
    texts, none, one, extended, octets, refused = run(project, calls)[0]
    assert (texts[0], none, one, extended, octets) == ("añ😀añ😀", None, 2.0, [0.5, 0.5], (b"xy", 2, 120))
    assert refused[0] == "TypeError"
    assert "p must be a Point (float64, float64), not (1, 2)" in refused[1] or "Point(x=1, y=2)" in refused[1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("'fortran', np.ones((2, 2))[::-1]", "ArgumentBufferError", "with 2 dimensions in Fortran order, not an array of float64"),
        ("'view', np.ones(3)", "ArgumentBufferError", "a must be an array of float64 with 2 dimensions, not an array of float64, shape"),
        ("'view', np.ones((2, 2), 'f')", "ArgumentBufferError", "not an array of float32"),
        ("'view', np.ones((2, 2), '>f8')", "ArgumentBufferError", "not an array of >f8"),
        ("'without_gil', np.frombuffer(bytes(8))", "ArgumentBufferError", "a must be an array of float64"),
        ("'view', [[1.0]]", "ArgumentBufferError", "not [[1.0]]"),
        ("'extended', [1, 2.5]", "TypeError", "items must be a list of int64, not [1, 2.5]"),
        ("'extended', [2 ** 64]", "OverflowError", "items must be a list of int64"),
        ("'taken_apart', (200, (1.0, True), (np.ones(1), np.ones(1)))", "OverflowError", "t must be a tuple (int8, "),
        ("'texts', b'x'", "TypeError", "text must be str, not bytes"),
        ("'perhaps', 'x'", "TypeError", "x must be float64 or None, not str"),
        ("'complexes', '1', np.ones(1, 'F')", "TypeError", "z must be complex128, not str"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(project: Project, call: str, error: str, message: str) -> None:
    (name, text), _ = run(project, f"call({call})", "import numpy as np")
    assert (name, message in text) == (error, True), text


def test_nothing_leaks(project: Project) -> None:
    """Memory and references after a million calls, where they succeed and where they raise."""
    script = """
    import resource, sys
    import numpy as np
    from compcache import Cache
    cache = Cache("cache")
    grid, dates = np.ones((40, 50)), np.array(["2024-02-28"], "M8[D]")
    calls = [("made", 1000), ("same", grid), ("view", grid), ("nested", 20, "añ"), ("texts", "añ😀" * 50), ("octets", b"abc"),
             ("extended", [1]), ("arrays", 5), ("perhaps", 11.0), ("perhaps", None), ("raising", 2), ("constant",),
             ("days", dates, 0), ("view", np.ones(3)), ("extended", [1, "x"]), ("without_gil", grid[:, 1]),
             ("taken_apart", (3, (2.5, True), (grid[0], "x"))), ("taken_apart", (3, (2.5, True), (grid[0], grid[1])))]
    targets = [(cache.get_target("kernels." + name), args) for name, *args in calls]
    def repeat(times):
        for _ in range(times):
            for target, args in targets:
                try:
                    target(*args)
                except Exception:
                    pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.getrefcount(grid), sys.getrefcount(None)
    first = repeat(300)
    grown = [after - before for before, after in zip(first, repeat(1_000_000 // len(targets)))]
    """
    grown = project.run(f"{script}\n    result = grown", backend=False)
    assert grown[0] < 3000  # KiB: a byte of each call would be 1,000, one array of each round 440,000
    assert grown[1] == 0
    assert abs(grown[2]) < 100


def test_threads_make_arrays_at_the_same_time(project: Project) -> None:
    script = """
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    from compcache import Cache
    target = Cache("cache").get_target("kernels.without_gil")
    given = [np.full(2000, float(n)) for n in range(8)]
    def work(n):
        return all((target(given[n]) == n + 1).all() for _ in range(500))
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(work, range(8)))
    """
    assert project.run(script, backend=False) == [True] * 8


def test_an_array_outlives_the_cache_and_its_code(project: Project) -> None:
    script = """
    import gc
    import numpy as np
    from compcache import Cache
    cache = Cache("cache")
    kept = [cache.get_target("kernels.made")(5), cache.get_target("kernels.constant")(), cache.get_target("kernels.arrays")(3)[2],
            cache.get_target("kernels.tail")(np.arange(4.0))]
    cache.close()
    gc.collect()
    result = [a.tolist() for a in kept]
    """
    assert project.run(script, backend=False) == [
        [0, 2, 4, 6, 8], [[0, 1, 2], [3, 4, 5]], [3, 3], [1, 2, 3],
    ]  # fmt: skip


def test_a_kernel_of_another_version_is_refused(tmp_path: Path) -> None:
    """The plan's version is compared before anything in it is used."""
    from compcache import Cache, ModuleSource
    from compcache.numba.exports.objects import format_objects

    text = format_objects(b"CCNP" + (999).to_bytes(4, "little") + bytes(24), (), {}, {}, "")
    code = text + "\ndefine ptr @f() {\n  %plan = call ptr @compcache.numba.plan()\n  ret ptr null\n}\n"
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(code, {"f": "object()"}))
        with pytest.raises(ImportError, match="export the kernel again"):
            cache.get_target("f")()
