"""No stale answer: two versions of a program run on one cache, and each says what it says with plain Numba."""

from __future__ import annotations

import pytest
from numba_edits import Edit, Told, assert_edit_counts, overloaded, run_own_edits  # noqa: F401 - a fixture

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1500)]
pytest.importorskip("numba")


_MAKER = """
    import functools

    def make(factor, x):
        return lambda x: x * factor

    class Maker:
        factor = 5

        def __init__(self, factor):
            self.factor = factor

        def make(self, x):
            return make(self.factor, x)

        def __call__(self, x):
            return make(self.factor, x)

        @classmethod
        def make_alike(cls, x):
            return make(cls.factor, x)

    @functools.lru_cache
    def cached(x):
        return make(FACTOR, x)

    partial = functools.partial(make, 2)
    partial.__name__ = partial.__qualname__ = "partial"
    partial.__module__ = __name__
    """
_READER = """
    {defined}

    @overload(scaled)
    def overload_scaled(x):
        {read}
        return lambda x: x * factor
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
        "an overload reads a class",
        overloaded("""
    class Settings:
        FACTOR = 3

    @overload(scaled)
    def _(x):
        by = Settings.FACTOR
        return lambda x: x * by
    """),
        "FACTOR = 3",
        "FACTOR = 4",
    ),
    Edit(
        "an overload reads an attribute of an object",
        overloaded("""
    class Settings:
        def __init__(self, factor):
            self.factor = factor

    settings = Settings(3)

    @overload(scaled)
    def _(x):
        by = settings.factor
        return lambda x: x * by
    """),
        "Settings(3)",
        "Settings(4)",
    ),
    Edit(
        "an overload reads an attribute in a slot",
        overloaded("""
    class Settings:
        __slots__ = ("factor",)
        def __init__(self, factor):
            self.factor = factor

    settings = Settings(3)

    @overload(scaled)
    def _(x):
        by = settings.factor
        return lambda x: x * by
    """),
        "Settings(3)",
        "Settings(4)",
    ),
    Edit(
        "an overload reads a property",
        overloaded("""
    class Settings:
        @property
        def factor(self):
            return 3

    settings = Settings()

    @overload(scaled)
    def _(x):
        by = settings.factor
        return lambda x: x * by
    """),
        "return 3",
        "return 4",
    ),
    Edit(
        "an overload calls an inherited method through another one",
        overloaded("""
    class Base:
        def factor(self):
            return 3

    class Settings(Base):
        def get(self):
            return self.factor()

    settings = Settings()

    @overload(scaled)
    def _(x):
        by = settings.get()
        return lambda x: x * by
    """),
        "return 3",
        "return 4",
    ),
    Edit(
        "an overload reads what __getattr__ answers",
        overloaded("""
    class Settings:
        def __getattr__(self, name):
            return 3

    settings = Settings()

    @overload(scaled)
    def _(x):
        by = settings.factor
        return lambda x: x * by
    """),
        "return 3",
        "return 4",
    ),
    Edit(
        "an overload imports inside of itself",
        overloaded("""
    @overload(scaled)
    def _(x):
        from settings import FACTOR
        return lambda x: x * FACTOR
    """),
        "FACTOR = 3",
        "FACTOR = 4",
        "FACTOR = 3",
    ),
    Edit(
        "an overload imports a module inside of itself",
        overloaded("""
    @overload(scaled)
    def _(x):
        import settings as s
        by = s.FACTOR
        return lambda x: x * by
    """),
        "FACTOR = 3",
        "FACTOR = 4",
        "FACTOR = 3",
    ),
    Edit(
        "an overload reads an attribute by getattr",
        overloaded("""
    import settings

    @overload(scaled)
    def _(x):
        by = getattr(settings, "FACTOR")
        return lambda x: x * by
    """),
        "FACTOR = 3",
        "FACTOR = 4",
        "FACTOR = 3",
    ),
    Edit(
        "an overload reads globals()",
        overloaded("""
    FACTOR = 3

    @overload(scaled)
    def _(x):
        by = globals()["FAC" + "TOR"]
        return lambda x: x * by
    """),
        "FACTOR = 3",
        "FACTOR = 4",
    ),
    Edit(
        "an overload reads the environment",
        overloaded("""
    import os

    @overload(scaled)
    def _(x):
        by = int(os.environ["FACTOR"])
        return lambda x: x * by
    """),
        "",
        "",
        environment=("FACTOR", "3", "4"),
    ),
    Edit(
        "an overload reads a file",
        overloaded("""
    from pathlib import Path

    @overload(scaled)
    def _(x):
        by = int(Path(__file__).with_name("settings.py").read_text())
        return lambda x: x * by
    """),
        "3",
        "4",
        "3",
    ),
    Edit(
        "an intrinsic reads an object",
        """
    from numba import njit
    from numba.extending import intrinsic

    class Settings:
        def __init__(self, factor):
            self.factor = factor

        def constant(self, context, kind):
            return context.get_constant(kind, self.factor)

    settings = Settings(3.0)

    @intrinsic
    def scaled(typingctx, x):
        def codegen(context, builder, sig, args):
            return builder.fmul(args[0], settings.constant(context, x))
        return x(x), codegen

    @njit(cache=True)
    def f(x, y):
        return scaled(x) + y
    """,
        "Settings(3.0)",
        "Settings(4.0)",
    ),
    Edit(
        "functools.wraps makes user code look like a library's",
        """
    import functools
    import numpy as np
    from numba import njit

    @njit
    @functools.wraps(np.sinc)
    def helper(x):
        return x * 3

    @njit(cache=True)
    def f(x, y):
        return helper(x) + y
    """,
        "x * 3",
        "x * 4",
    ),
    Edit(
        "functools.wraps around an overload",
        overloaded("""
    import functools
    import numpy as np

    @overload(scaled)
    @functools.wraps(np.sinc)
    def _(x):
        return lambda x: x * 3
    """),
        "x * 3",
        "x * 4",
    ),
    Edit(
        "an overload's own attribute",
        overloaded("""
    def factor():
        return factor.by

    factor.by = 3

    @overload(scaled)
    def _(x):
        by = factor()
        return lambda x: x * by
    """),
        "factor.by = 3",
        "factor.by = 4",
    ),
    Edit(
        "a stencil's kernel",
        """
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
    """,
        "2 * a[1]",
        "3 * a[1]",
    ),
    Edit(
        "a stencil's option",
        """
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
    """,
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
    Edit(
        "an overload that had nothing for these types, and that can reach what has no identity",
        overloaded("""
    class Generator:
        def make(self, text):
            space = {}
            exec(text, space)
            return space["made"]

    generators = {"float": Generator()}

    @overload(scaled)
    def special(x):
        if isinstance(x, types.Boolean):
            return generators["float"].make("def made(x): return 5.0")

    @overload(scaled)
    def general(x):
        if isinstance(x, types.Float):
            return lambda x: x * 3
    """),
        "types.Boolean",
        "types.Float",
    ),
    Edit(
        "an overload that had nothing because of the environment",
        overloaded("""
    import os

    @overload(scaled)
    def special(x):
        if os.environ["SPECIAL"] == "yes":
            return lambda x: x * 2

    @overload(scaled)
    def general(x):
        if isinstance(x, types.Float):
            return lambda x: x * 3
    """),
        "unchanged",
        "unchanged",
        environment=("SPECIAL", "no", "yes"),
    ),
    *[
        Edit(f"an overload that is {name}", overloaded(_MAKER + code), first, second)
        for name, code, first, second in (
            ("a bound method", "overload(scaled)(Maker(2).make)", "Maker(2)", "Maker(3)"),
            ("a class method", "overload(scaled)(Maker.make_alike)", "factor = 5", "factor = 6"),
            (
                "an object",
                "maker = Maker(2)\n    maker.__name__ = 'maker'\n    overload(scaled)(maker)",
                "Maker(2)",
                "Maker(3)",
            ),
            ("a partial function", "overload(scaled)(partial)", "make, 2)", "make, 3)"),
            ("a cached function", "FACTOR = 2\n    overload(scaled)(cached)", "FACTOR = 2", "FACTOR = 3"),
        )
    ],
    *[
        Edit(
            f"an overload that reads {name}",
            overloaded(_READER.replace("{defined}", defined).replace("{read}", read)),
            first,
            second,
        )
        for name, defined, read, first, second in (
            (
                "through a metaclass",
                "class Kind(type):\n        def __getitem__(cls, item): return 2\n    class Read(metaclass=Kind): pass",
                "factor = Read[0]",
                "return 2",
                "return 3",
            ),
            (
                "by a pattern",
                "class Read:\n        __match_args__ = ('factor',)\n    read = Read()\n    read.factor = 2",
                "match read:\n            case Read(factor): pass",
                "factor = 2",
                "factor = 3",
            ),
            (
                "an attribute of a type",
                "class Read(types.Type):\n        pass\n    read = Read('read')\n    read.factor = 2",
                "factor = read.factor",
                "factor = 2",
                "factor = 3",
            ),
            (
                "a regular expression",
                "import re\n    read = re.compile('2')",
                "factor = int(read.pattern)",
                "'2'",
                "'3'",
            ),
            (
                "an object's dictionary",
                "class Read: pass\n    read = Read()\n    read.factor = 2",
                "factor = read.__dict__['fac' 'tor']",
                "factor = 2",
                "factor = 3",
            ),
        )
    ],
]


@pytest.mark.parametrize("number", range(len(EDITS)), ids=[edit.name for edit in EDITS])
def test_an_edit_counts(number: int, told: Told) -> None:
    assert_edit_counts(told, number)


def test_the_programs_are_cached(told: Told) -> None:
    """All but those that read from outside, and those whose callee was compiled with other values."""
    hits, _, refused = told.warm
    assert hits >= len(EDITS) - len(refused)
    assert len(refused) <= 8
