"""Arrays, tuples, text and random numbers without Numba: results, their types and what they leave behind are Numba's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

KERNELS = """
    import numpy as np
    from collections import namedtuple
    from {decorators} import njit

    Point = namedtuple("Point", ["x", "y"])
    TABLE = np.array([1.5, 2.5])

    @njit
    def total(a):
        result = 0.0
        for value in a.flat:
            result += value
        return result

    @njit
    def axpy(a, x, y):
        for i in range(len(x)):
            y[i] += a * x[i]

    @njit
    def make(n):
        return np.arange(n) * TABLE[1]

    @njit
    def several(a):
        return a.T, a.sum(), a.shape, (a[0], np.float32(1)), a.flags.c_contiguous

    @njit
    def swapped(p):
        return Point(p.y, p.x)

    @njit
    def seeded(n):
        np.random.seed(n)
        return np.random.rand()

    @njit
    def drawn(n):
        return np.random.random(n)

    @njit
    def louder(s):
        return s.upper() + "!"

    @njit
    def listed(a):
        result = [a[0]]
        result.append(a[1])
        return result

    @njit
    def counted(n):
        found = {1: 2.0}
        found[n] = 3.0
        return len(found)

    @njit
    def same(x):
        return x

    @njit
    def at(a, i):
        if i >= a.size:
            raise IndexError("no item", i)
        return a[i]
"""
SAY = """
import gc, sys, warnings
import numpy as np, {module} as k
def shown(value):
    if isinstance(value, np.ndarray):
        kept = value.tolist(), value.dtype.str, value.shape, value.strides, value.flags.writeable, value.flags.owndata
        return type(value).__name__, kept, type(value.base).__name__
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [shown(item) for item in value]
    return type(value).__name__, repr(value)
def said(call):
    try:
        return shown(call())
    except Exception as error:
        return type(error).__name__, str(error)
a = np.arange(6.0).reshape(2, 3)
readonly = a.copy(); readonly.flags.writeable = False
y = np.ones(4)
kinds = [np.arange(1, 4).astype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16", "?")]
scalars = [kind[1] for kind in kinds]
calls = [
    lambda: k.total(a), lambda: k.total(a.T), lambda: k.total(a[:, ::2]), lambda: k.total(readonly),
    lambda: k.total(np.zeros(0)), lambda: k.total(np.array(3.0)), lambda: k.total(np.zeros((2, 2, 2, 2, 2))),
    lambda: k.axpy(2.0, y, y), lambda: k.same(y), lambda: k.axpy(x=y, a=1, y=y), lambda: k.make(4), lambda: k.several(a),
    lambda: k.several(np.asfortranarray(a)), lambda: k.several(readonly), lambda: k.swapped(k.Point(1, 2.5)),
    lambda: k.swapped(k.Point(1.5, True)), lambda: k.seeded(3), lambda: k.drawn(2), lambda: k.louder("straße"),
    lambda: k.listed(y), lambda: k.counted(4), lambda: k.at(a[0], 1), lambda: k.at(y, 9), lambda: k.same((a, (1, y))),
    *[lambda kind=kind: k.same(kind) for kind in kinds], *[lambda s=s: k.same(s) for s in scalars],
    *[lambda kind=kind: k.total(kind[:2]) for kind in kinds[:8]],
]
answers = [said(call) for call in calls]
counts = sys.getrefcount(y), sys.getrefcount(a)
result = answers, [c < 60 for c in counts], "numba.core" in sys.modules
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Runs a script with the kernels, plain or lazy; one process has compiled the lazy ones."""
    made = Project(tmp_path_factory.mktemp("arrays"))
    made.write(plain=KERNELS.replace("{decorators}", "numba"), lazy=KERNELS.replace("{decorators}", "compcache.numba"))

    def run(module: str, text: str) -> Any:
        return made.run(text.replace("{module}", module), backend=False, COMPCACHE_DIR=str(made.cache))

    run("lazy", SAY)
    return run


def test_all_answers_are_numbas(run: Callable[..., Any]) -> None:
    answers, counts, numba = run("lazy", SAY)
    plain, plain_counts, _ = run("plain", SAY)
    assert answers == plain
    assert counts == plain_counts
    assert not numba


def test_arrays_are_used_without_a_store_and_a_loader(run: Callable[..., Any]) -> None:
    """A plain hit stores the addresses of Numba's helpers."""
    text = """
        import sys, numpy as np, compcache.numba
        compcache.numba.install(lazy=True)
        from {module} import total
        unneeded = 'cache', 'store', 'errors', 'files', 'globals', 'hit.loader', 'numba.entries'
        result = total(np.arange(4.0)), [name for name in unneeded if 'compcache.' + name in sys.modules]
    """
    answers = [run("lazy", text) for _ in range(2)]  # the first one notes the installed packages again
    assert answers[1] == (6.0, [])


def test_random_numbers_go_on_where_numba_takes_over(run: Callable[..., Any]) -> None:
    text = """
import sys, {module} as k
first = k.seeded(5), k.drawn(2).tolist()
import numba
result = first, numba.njit(lambda: __import__)  is not None, k.drawn(3).tolist(), numba.njit(k.drawn.py_func)(2).tolist()
"""
    assert run("lazy", text) == run("plain", text)


def test_what_numba_is_left_with(run: Callable[..., Any]) -> None:
    text = """
import sys, numpy as np, {module} as k
class Own(np.ndarray):
    pass
def said(call):
    try:
        return repr(call())
    except Exception as error:
        return type(error).__name__
odd = [np.zeros(3, ">f8"), np.zeros(3, [("a", "f8")]), np.zeros(3).view(Own), np.array(["a"]), np.zeros(3, "f2"), np.datetime64(1, "s")]
odd += [np.zeros(17, "u1")[1:].view("f8"), np.longlong(3), np.array([None]), np.float16(1)]
result = [said(lambda: k.same(x)) for x in odd]
"""
    assert run("lazy", text) == run("plain", text)


def test_arrays_outlive_the_function_that_made_them(run: Callable[..., Any]) -> None:
    text = """
import gc, sys, {module} as k
made = [k.make(1000) for _ in range(100)]
del k, sys.modules["{module}"]
gc.collect()
result = sum(float(a.sum()) for a in made), bool(made[0][-1] == 999 * 2.5)
kept = made  # goes when the interpreter ends
"""
    assert run("lazy", text) == (124875000.0, True)


DERIVED = """
    import numpy as np
    from collections import namedtuple
    from {decorators} import njit, vectorize

    Options = namedtuple("Options", ["scale", "offset"], defaults=(0.5,))

    class Own(np.ndarray):
        pass

    @njit
    def same(a):
        return a, a.sum(), a.T

    @njit("f8(f8[:])")
    def first(a):
        return a[0]

    @njit
    def scaled(x, options=Options(3)):
        return x * options.scale + options.offset

    @vectorize(nopython=True)
    def doubled(x):
        return x * 2
"""


def test_arrays_of_derived_classes_and_defaults_that_are_named_tuples(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = Project(tmp_path_factory.mktemp("derived"))
    project.write(plain=DERIVED.replace("{decorators}", "numba"), lazy=DERIVED.replace("{decorators}", "compcache.numba"))
    calls = """
import sys, numpy as np
a = np.arange(4.0)
arrays = [a, a.view(p.Own), a[::2].view(p.Own), a.reshape(2, 2).view(np.matrix), np.frombuffer(a).view(p.Own)]
result = [repr(p.same(x)) for x in arrays], [type(p.same(x)[0]).__name__ for x in arrays], [p.first(x) for x in arrays[:3]]
result += [repr(p.doubled(x)) for x in arrays], p.scaled(2.0), p.scaled(2, p.Options(4)), p.scaled(2, options=p.Options(4, 1))
without = "numba.core" not in sys.modules
def said(call):
    try:
        return repr(call())
    except Exception as error:
        return type(error).__name__
masked = np.ma.masked_array(a, a > 1)
result += said(lambda: p.same(masked)), said(lambda: p.doubled(masked)), said(lambda: p.first(masked))
result += p.scaled.py_func.__defaults__ != None,
result = result, without
"""
    def run(module: str) -> Any:
        return project.run(f"import {module} as p\n{calls}", backend=False, COMPCACHE_DIR=str(project.cache))

    expected = run("plain")[0]
    assert run("lazy")[0] == expected
    assert run("lazy") == (expected, True)
