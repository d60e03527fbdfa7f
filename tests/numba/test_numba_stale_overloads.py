"""No stale answer of overloads and intrinsics: what they read, call, import and wrap is edited, as in `test_numba_stale`."""

from __future__ import annotations

import pytest
from numba_edits import Edit, Told, assert_edit_counts, overloaded, reading, run_own_edits  # noqa: F401 - a fixture

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
        "an overload reads a class",
        reading("Settings.FACTOR", """
    class Settings:
        FACTOR = 3
    """),
        "FACTOR = 3",
        "FACTOR = 4",
    ),
    Edit(
        "an overload reads an attribute of an object",
        reading("settings.factor", """
    class Settings:
        def __init__(self, factor):
            self.factor = factor

    settings = Settings(3)
    """),
        "Settings(3)",
        "Settings(4)",
    ),
    Edit(
        "an overload reads an attribute in a slot",
        reading("settings.factor", """
    class Settings:
        __slots__ = ("factor",)
        def __init__(self, factor):
            self.factor = factor

    settings = Settings(3)
    """),
        "Settings(3)",
        "Settings(4)",
    ),
    Edit(
        "an overload reads a property",
        reading("settings.factor", """
    class Settings:
        @property
        def factor(self):
            return 3

    settings = Settings()
    """),
        "return 3",
        "return 4",
    ),
    Edit(
        "an overload calls an inherited method through another one",
        reading("settings.get()", """
    class Base:
        def factor(self):
            return 3

    class Settings(Base):
        def get(self):
            return self.factor()

    settings = Settings()
    """),
        "return 3",
        "return 4",
    ),
    Edit(
        "an overload reads what __getattr__ answers",
        reading("settings.factor", """
    class Settings:
        def __getattr__(self, name):
            return 3

    settings = Settings()
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
        reading('globals()["FAC" + "TOR"]', """
    FACTOR = 3
    """),
        "FACTOR = 3",
        "FACTOR = 4",
    ),
    Edit(
        "an overload reads the environment",
        reading('int(os.environ["FACTOR"])', """
    import os
    """),
        "",
        "",
        environment=("FACTOR", "3", "4"),
    ),
    Edit(
        "an overload reads a file",
        reading('int(Path(__file__).with_name("settings.py").read_text())', """
    from pathlib import Path
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
