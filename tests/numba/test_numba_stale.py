"""No stale answer: two versions of a program run on one cache, and each says what it says with plain Numba."""

from __future__ import annotations

import pytest
from numba_edits import Edit, Told, assert_edit_counts, overloaded, run_own_edits  # noqa: F401 - a fixture

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1500)]
pytest.importorskip("numba")

_STENCIL = """
    import numpy as np
    from numba import njit, stencil

    @stencil(cval=1.0)
    def neighbours(a):
        return a[-1] + 2 * a[1]

    @njit(cache=True)
    def total(a):
        return neighbours(a).sum()

    def f(x, y):
        return total(np.arange(x))
    """
EDITS = [
    Edit(
        "a default that is replaced after the declaration",
        """
    from numba import njit
    def g(x, z=2):
        return x * z
    f = njit(g, cache=True)
    g.__defaults__ = (3,)
    """,
        "z=2", "z=5", call="p.f(7.0)",
    ),
    Edit(
        "a callee's default that is replaced after the declaration",
        """
    from numba import njit
    def g(x, z=2):
        return x * z
    h = njit(g)
    g.__defaults__ = (3,)
    @njit(cache=True)
    def f(x, y):
        return h(x)
    """,
        "z=2", "z=5",
    ),
    Edit(
        "an attribute of a type's instance",
        """
    from numba import njit, types
    from numba.extending import NativeValue, models, overload, register_model, typeof_impl, unbox

    class Quantity: pass

    class QuantityType(types.Type):
        def __init__(self, unit):
            super().__init__(name="Quantity")
            self.unit = unit

    register_model(QuantityType)(models.OpaqueModel)

    @typeof_impl.register(Quantity)
    def typeof_quantity(value, context):
        return QuantityType({"metres": 3})

    @unbox(QuantityType)
    def unbox_quantity(type_, value, context):
        return NativeValue(context.context.get_dummy_value())

    def unit_of(quantity): raise NotImplementedError

    @overload(unit_of)
    def overload_unit_of(quantity):
        factor = quantity.unit["metres"]
        return lambda quantity: factor

    @njit(cache=True)
    def read(quantity, y):
        return unit_of(quantity) + y

    def f(x, y): return read(Quantity(), y)
    """,
        "3",
        "4",
    ),
    Edit(
        "an overload reads an object through one of two equal references",
        overloaded("""
    class Value:
        def __init__(self, value):
            self.value = value

    class Held:
        first, second = Value(3), Value(4)

        def __init__(self, chosen):
            self.first, self.second, self.chosen = Held.first, Held.second, chosen

    held = Held(Held.first)

    @overload(scaled)
    def implementation(x):
        factor = held.chosen.value + 0 * held.first.value + 0 * held.second.value
        return lambda x: x * factor
    """),
        "Held(Held.first)",
        "Held(Held.second)",
    ),
    Edit(
        "a namedtuple's fields change places",
        """
    from collections import namedtuple
    from numba import njit
    Point = namedtuple("Point", ["x", "y"])

    @njit(cache=True)
    def difference(p):
        return p.x - p.y

    def f(a, b):
        return difference(Point(a, b))
    """,
        '["x", "y"]',
        '["y", "x"]',
    ),
    Edit(
        "a namedtuple's fields change places, in a typed list",
        """
    from collections import namedtuple
    from numba import njit, typed
    Point = namedtuple("Point", ["x", "y"])

    @njit(cache=True)
    def difference(points):
        return points[0].x - points[0].y

    def f(a, b):
        points = typed.List()
        points.append(Point(a, b))
        return difference(points)
    """,
        '["x", "y"]',
        '["y", "x"]',
    ),
    Edit(
        "a namedtuple's fields change places, in a dictionary in a tuple",
        """
    from collections import namedtuple
    from numba import njit, typed
    Point = namedtuple("Point", ["x", "y"])

    @njit(cache=True)
    def difference(pair):
        return pair[1]["a"].x - pair[1]["a"].y

    def f(a, b):
        points = typed.Dict()
        points["a"] = Point(a, b)
        return difference((1, points))
    """,
        '["x", "y"]',
        '["y", "x"]',
    ),
    Edit(
        "two classes of one name",
        """
    from collections import namedtuple
    from numba import njit

    def make(fields):
        return namedtuple("Point", fields)

    First, Second = make(["x", "y"]), make(["y", "x"])

    @njit(cache=True)
    def difference(p):
        return p.x - p.y

    def f(a, b):
        return difference(First(a, b)), difference(Second(a, b))
    """,
        "First, Second =",
        "Second, First =",
    ),
    Edit(
        "an enumeration's value changes, in an argument's type",
        """
    import enum
    from numba import njit

    class Kind(enum.Enum):
        ADD = 1
        SUBTRACT = 2

    @njit(cache=True)
    def apply(kind, a, b):
        return a + b if kind.value == 1 else a - b

    def f(a, b):
        return apply(Kind.ADD, a, b)
    """,
        "ADD = 1\n        SUBTRACT = 2",
        "ADD = 2\n        SUBTRACT = 1",
    ),
    Edit(
        "error_model of register_jitable",
        """
    from numba import njit
    from numba.extending import register_jitable

    @register_jitable(error_model="numpy")
    def divide(x, y):
        return x / y

    @njit(cache=True)
    def f(x, y):
        return divide(x, y - 2.0)
    """,
        '"numpy"',
        '"python"',
    ),
    Edit(
        "fastmath of overload",
        overloaded("""
    @overload(scaled, jit_options={"error_model": "numpy"})
    def _(x):
        return lambda x: 1.0 / (x - 7.0)
    """),
        '"numpy"',
        '"python"',
    ),
    Edit(
        "prefer_literal of overload",
        """
    from numba import njit, types
    from numba.extending import overload

    def kind(x):
        raise NotImplementedError

    @overload(kind, prefer_literal=True)
    def _(x):
        answer = 1 if isinstance(x, types.Literal) else 2
        return lambda x: answer

    @njit(cache=True)
    def f(x, y):
        return kind(3)
    """,
        "prefer_literal=True",
        "prefer_literal=False",
    ),
    Edit(
        "a jitclass method reached through register_jitable",
        """
    from numba import float64, njit
    from numba.experimental import jitclass
    from numba.extending import register_jitable

    @jitclass([("by", float64)])
    class Scale:
        def __init__(self, by):
            self.by = by

        def apply(self, x):
            return x * self.by

    @register_jitable
    def helper(x, y):
        return Scale(y).apply(x)

    @njit(cache=True)
    def f(x, y):
        return helper(x, y)
    """,
        "x * self.by",
        "x - self.by",
    ),
    Edit(
        "the fields of a jitclass",
        """
    from numba import float64, int64, njit
    from numba.experimental import jitclass

    @jitclass([("by", float64)])
    class Scale:
        def __init__(self, by):
            self.by = by

    @njit(cache=True)
    def f(x, y):
        return Scale(y + 0.5).by * x
    """,
        '("by", float64)',
        '("by", int64)',
    ),
    Edit(
        "a global changed between compiling callee and caller",
        """
    from numba import njit
    {first}

    @njit
    def callee(x):
        return x * SCALE

    {between}

    @njit(cache=True)
    def f(x, y):
        return callee(x) + y
    """.replace("{first}", "SCALE = 2").replace("{between}", "callee(1.0)\n    SCALE = 200"),
        "callee(1.0)\n",
        "pass\n",
    ),
    Edit(
        "a global array changed between compiling callee and caller",
        """
    import numpy as np
    from numba import njit
    TABLE = np.array([2.0])

    @njit
    def callee(x):
        return x * TABLE[0]

    @njit
    def between(x):
        return callee(x)

    between(1.0)
    TABLE[0] = 200.0

    @njit(cache=True)
    def f(x, y):
        return between(x) + y
    """,
        "    between(1.0)\n",
        "",
    ),
    Edit(
        "a global changed between compiling a cached callee and its caller",
        """
    from numba import njit
    SCALE = 2

    @njit(cache=True)
    def callee(x):
        return x * SCALE

    callee(1.0)
    SCALE = 200

    @njit(cache=True)
    def f(x, y):
        return callee(x) + y
    """,
        "    callee(1.0)\n",
        "",
    ),
    Edit(
        "a stencil's kernel",
        _STENCIL,
        "2 * a[1]",
        "3 * a[1]",
    ),
    Edit(
        "a stencil's option",
        _STENCIL,
        "cval=1.0",
        "cval=5.0",
    ),
    Edit(
        "a helper behind lru_cache and partial",
        overloaded("""
    import functools

    @functools.lru_cache
    def factor(x):
        return x + 1

    three = functools.partial(factor, 2)

    @overload(scaled)
    def _(x):
        by = three()
        return lambda x: x * by
    """),
        "return x + 1",
        "return x + 2",
    ),
    Edit(
        "an argument of a partial",
        overloaded("""
    import functools

    def factor(x):
        return x + 1

    three = functools.partial(factor, 2)

    @overload(scaled)
    def _(x):
        by = three()
        return lambda x: x * by
    """),
        "partial(factor, 2)",
        "partial(factor, 3)",
    ),
    Edit(
        "the methods of a structref",
        """
    from numba import njit, types
    from numba.core.extending import overload_method
    from numba.experimental import structref

    @structref.register
    class PairType(types.StructRef):
        def preprocess_fields(self, fields):
            return tuple((name, types.unliteral(typ)) for name, typ in fields)

    class Pair(structref.StructRefProxy):
        def __new__(cls, x, y):
            return structref.StructRefProxy.__new__(cls, x, y)

    structref.define_proxy(Pair, PairType, ["x", "y"])

    @overload_method(PairType, "difference")
    def _(self):
        return lambda self: self.x - self.y

    @njit(cache=True)
    def f(x, y):
        return Pair(x, y).difference()
    """,
        "lambda self: self.x - self.y",
        "lambda self: self.y - self.x",
    ),
]


@pytest.mark.parametrize("number", range(len(EDITS)), ids=[edit.name for edit in EDITS])
def test_an_edit_counts(number: int, told: Told) -> None:
    assert_edit_counts(told, number)


def test_the_programs_are_cached(told: Told) -> None:
    """All but those that read from outside, and those whose callee was compiled with other values."""
    hits, _, refused = told.warm
    assert hits >= len(EDITS) - len(refused)
    assert len(refused) <= 8
