"""Old code is told from new, in every mode: the smallest program for each part of a key, edited and run again on one cache.

All programs of a mode run in the same few processes. A table says what each of them answers before and after its edit, which replaces text
by other text of the same length, so that nothing but that part differs. Starts without Numba cannot import it here: what they do not find,
they ask for. That is all that a default run has of Numba; the tests marked `peer` have the rest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from helpers import PACKAGE_ROOT
from numba_edits import Edit, kernel, overloaded, write
from numba_helpers import Project, finish
from test_numba_stale import EDITS as EDITS_OF_VALUES
from test_numba_stale_overloads import EDITS as EDITS_OF_OVERLOADS

from compcache import Cache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)
pytest.importorskip("numba")

EDITS = [*EDITS_OF_VALUES, *EDITS_OF_OVERLOADS]

_INSTALLED, _IMPORTED, _RUN = "installed", "imported", "run"
#: The modes in which programs start without Numba: all with its decorators alone, those that register something with it, and others.
_ALL, _REGISTERING, _NEVER = (_IMPORTED, _RUN), (_RUN,), ()
_WANTS_NUMBA = "wants Numba"


class Given(NamedTuple):
    """A program, what it answers before and after its edit, and the modes in which it starts without Numba."""

    edit: Edit
    first: str
    second: str
    modes: tuple[str, ...]


def given(
    name: str, source: str, old: str, new: str, first: str, second: str, *,
    settings: str = "", call: str = "p.f(7.0, 2.0)", modes: tuple[str, ...] = _ALL,
) -> Given:  # fmt: skip
    """A program of these tests."""
    assert (source + settings).count(old) == 1, name
    return Given(Edit(name, source, old, new, settings, call), first, second, modes)


def taken(name: str, first: str, second: str, modes: tuple[str, ...] = _NEVER) -> Given:
    """A program of the other tests."""
    (edit,) = [edit for edit in EDITS if edit.name == name]
    return Given(edit, first, second, modes)


def argument(
    name: str, body: str, old: str, new: str, first: str, second: str, *,
    before: str = "", call: str = "p.f(p.ARGUMENT)", modes: tuple[str, ...] = _ALL,
) -> Given:  # fmt: skip
    """A program whose edit changes what its function is called with."""
    source = kernel(body, "\n    ".join(["import numpy as np", *before.splitlines(), f"ARGUMENT = {old}"])).replace("f(x, y)", "f(x)")
    return given(name, source, f"ARGUMENT = {old}", f"ARGUMENT = {new}", first, second, call=call, modes=modes)


def option(name: str, body: str, old: str, new: str, first: str, second: str, *, before: str = "", call: str = "p.f(7.0, 2.0)") -> Given:
    """A program whose edit changes an option of its function."""
    source = kernel(body, before).replace("@njit\n    def f", f"@njit({old})\n    def f")
    return given(name, source, old, new, first, second, call=call)


def default(name: str, old: str, new: str, first: str, second: str) -> Given:
    """A program whose edit changes the default of an argument."""
    return given(name, kernel("return x, y").replace("f(x, y)", f"f(x, y={old})"), f"y={old}", f"y={new}", first, second, call="p.f(7.0)")


_ENUMERATION = "import enum\n    class Kind(enum.Enum):\n        BY = 3"
_NUMPY = "import numpy as np\n    "
_DIVIDES = "ZeroDivisionError: division by zero"
_NAMES = ", ".join([f"a{number}" for number in range(46)])
_CLOSURE = """
    from numba import njit
    def make(by, inner):
        @njit
        def f(x, y):
            return inner(x) * by
        return f
    f = make(3, njit(lambda x: x + 1))
"""
_GIVEN_FUNCTION = """
    from numba import njit

    @njit
    def inner(x):
        return x * 3

    @njit
    def f(function, x):
        return function(x)
"""
_NAMED = """
    from collections import namedtuple
    from numba import njit
    Point = namedtuple("Point", ["a", "b"])

    @njit
    def f(point):
        return point.a - point.b
"""
_LINE = """
    import traceback
    from numba import njit
    # 1

    @njit
    def f(x, y):
        raise ValueError("it is so")

    def line():
        try:
            f(7.0, 2.0)
        except ValueError as error:
            return traceback.extract_tb(error.__traceback__)[-1].lineno
"""
_TWO_FILES = "from numba import njit\n@njit\ndef inner(x):\n    return x * 3\n@njit\ndef outer(x):\n    return inner(x) + 1\n"
_CALLS_OTHER_FILE = kernel("return outer(x)", "from settings import outer")
_VECTORIZED = """
    from numba import vectorize

    @vectorize(["f8(f8, f8)"], cache=True)
    def f(x, y):
        return x * 3 + y
"""
_LOOPS = """
    from numba import njit, vectorize

    @vectorize(["f8(f8)", "i8(i8)"][::1], cache=True)
    def loops(x):
        return x * x

    @njit(cache=True)
    def f(x, y):
        return loops(x)
"""
_FITTING = """
    from numba import njit

    @njit(["f8(f8, i8)", "f8(i8, f8)"][::1], cache=True)
    def declared(x, y):
        return x * x

    @njit(cache=True)
    def f(x, y):
        return declared(x, y)
"""
_GUVECTORIZED = """
    import numpy as np
    from numba import guvectorize

    @guvectorize(["void(f8[:], f8, f8[:])"], "(n),()->(n)", cache=True)
    def scaled(x, by, result):
        for i in range(x.size):
            result[i] = x[i] * by + 1

    def f(x, y):
        return scaled(np.array([x]), y).tolist()
"""
_CALLBACK = """
    from numba import cfunc

    @cfunc("f8(f8, f8)", cache=True)
    def callback(x, y):
        return x * y

    def f(x, y):
        return callback.ctypes(x, y)
"""
_STENCIL = """
    import numpy as np
    from numba import njit, stencil

    @stencil(cval=1.0)
    def neighbours(a):
        return a[-1] + 2 * a[1]

    @njit
    def f(x):
        return neighbours(x)[1]
"""
_INTRINSIC = """
    from numba import njit
    from numba.extending import intrinsic

    @intrinsic
    def scaled(typingctx, x):
        def codegen(context, builder, sig, args):
            return builder.fadd(args[0], args[0])
        return x(x), codegen

    @njit
    def f(x, y):
        return scaled(x) + y
"""
_OVERLOAD = overloaded("""
    @overload(scaled)
    def _(x):
        return lambda x: x * 3
""")
_NEW_OVERLOAD = overloaded("""
    if 0 == 1:
        @overload(scaled)
        def more(x):
            return lambda x: x * 4

    @overload(scaled)
    def _(x):
        return lambda x: x * 3
""")
_NEW_ATTRIBUTE = """
    from numba import njit, types
    from numba.extending import overload_attribute

    @overload_attribute(types.Float, "scaled")
    def one(x):
        return lambda x: x * 3

    if 0 == 1:
        @overload_attribute(types.Float, "scaled")
        def more(x):
            return lambda x: x * 4

    @njit
    def f(x, y):
        return x.scaled
"""
_JITABLE = """
    from numba import njit
    from numba.extending import register_jitable

    @register_jitable
    def scaled(x):
        return x * 3

    @njit
    def f(x, y):
        return scaled(x) + y
"""
_TYPE = """
    from numba import njit, types
    from numba.extending import NativeValue, make_attribute_wrapper, models, register_model, typeof_impl, unbox

    class Pair:
        low, high = 3.0, 5.0

    class PairType(types.Type):
        def __init__(self):
            super().__init__(name="Pair")

    pair_type = PairType()

    @typeof_impl.register(Pair)
    def type_of(value, context):
        return pair_type

    @register_model(PairType)
    class PairModel(models.StructModel):
        def __init__(self, manager, kind):
            super().__init__(manager, kind, [("low", types.float64), ("top", types.float64)])

    make_attribute_wrapper(PairType, "low", "low")
    make_attribute_wrapper(PairType, "top", "top")

    @unbox(PairType)
    def unbox_pair(typ, obj, c):
        from numba.core import cgutils
        pair = cgutils.create_struct_proxy(typ)(c.context, c.builder)
        pair.low = c.context.get_constant(types.float64, 3.0)
        pair.top = c.context.get_constant(types.float64, 5.0)
        return NativeValue(pair._getvalue())

    @njit
    def g(pair):
        return pair.low

    def f(x, y):
        return g(Pair())
"""
#: What functions are, and what they read.
OF_CONTENT = [
    given("an operation", kernel("return x * y"), "x * y", "x + y", "14.0", "9.0"),
    given("a constant", kernel("return x * 2 + y"), "x * 2", "x * 3", "16.0", "23.0"),
    given("a constant's type", kernel("return 0b01"), "0b01", "True", "1", "True"),
    given("a constant in a tuple", kernel("return (1, 2)[int(y) - 1]"), "(1, 2)", "(1, 3)", "2", "3"),
    given("a function in it", kernel("return (lambda z: z * 3)(x)"), "z * 3", "z * 4", "21.0", "28.0"),
    given("an attribute", kernel("return math.floor(x)", "import math"), "floor", "log10", "7", "0.8450980400142568"),
    default("a default", "3", "4", "(7.0, 3)", "(7.0, 4)"),
    default("a default's type", "0b01", "True", "(7.0, 1)", "(7.0, True)"),
    given("a text", kernel('return "three"'), "three", "seven", "'three'", "'seven'"),
    given("an exception's line", _LINE, "# 1\n", "# 1\n    # 2\n", "8", "9", call="p.line()"),
    given("a global", kernel("return x * BY", "BY = 3"), "BY = 3", "BY = 4", "21.0", "28.0"),
    given("a global's type", kernel("return BY", "BY = 0b01"), "0b01", "True", "1", "True"),
    given("a global's sign", kernel("return math.copysign(x, BY)", "import math\n    BY = +0.0"), "+0.0", "-0.0", "7.0", "-7.0"),
    given("a global text", kernel("return BY", "BY = 'old'"), "old", "new", "'old'", "'new'"),
    given("a global tuple", kernel("return BY[1]", "BY = (1, 2)"), "(1, 2)", "(1, 3)", "2", "3"),
    given(
        "a global scalar's type", kernel("return BY", _NUMPY + "BY = np.float32(0.1)"), "float32", "float64", "0.10000000149011612", "0.1"
    ),
    given(
        "a global type of items", kernel("return x.view(BY).itemsize", _NUMPY + "BY = np.dtype('i4')"), "i4", "i8", "4", "8",
        call="p.f(p.np.zeros(2), 0)",
    ),
    given("a global array", kernel("return BY[1]", _NUMPY + "BY = np.array([1, 2])"), "[1, 2]", "[1, 3]", "2", "3"),
    given("a global array's type", kernel("return BY[1]", _NUMPY + "BY = np.array([0, 0], 'i8')"), "i8", "f8", "0", "0.0"),
    given("a global array's shape", kernel("return BY.shape[0]", _NUMPY + "BY = np.zeros((2, 3))"), "(2, 3)", "(3, 2)", "2", "3"),
    given(
        "a global array's rows are together",
        kernel("return BY.flags.c_contiguous", _NUMPY + "BY = np.zeros((2, 2))[:2, :2]"), "s((2, 2)", "s((4, 4)", "True", "False",
    ),
    given(
        "a global array's columns are together",
        kernel("return BY.flags.f_contiguous", _NUMPY + "BY = np.zeros((2, 2), order='F')[:2, :2]"), "s((2, 2)", "s((4, 4)",
        "True", "False",
    ),
    given("a variable of a closure", _CLOSURE, "make(3", "make(4", "24.0", "32.0"),
    given("a function of a closure", _CLOSURE, "x + 1", "x + 3", "24.0", "30.0"),
    given(
        "an attribute of a module", kernel("return x * settings.BY", "import settings\n"), "BY = 3", "BY = 4", "21.0", "28.0",
        settings="BY = 3",
    ),
    given("a callee", kernel("return inner(x)", "@njit\n    def inner(x):\n        return x * 2"), "x * 2", "x * 3", "14.0", "21.0"),
    given(
        "a callee's default", kernel("return inner(x)", "@njit\n    def inner(x, y=3):\n        return x * y"), "y=3", "y=4", "21.0", "28.0"
    ),
    given("a callee in another file", _CALLS_OTHER_FILE, "x) + 1", "x) + 2", "22.0", "23.0", settings=_TWO_FILES),
    given("a callee's callee", _CALLS_OTHER_FILE, "x * 3", "x * 4", "22.0", "29.0", settings=_TWO_FILES),
    given(
        "a callee's option", kernel("return inner(x, y)", '@njit(error_model="numpy")\n    def inner(x, y):\n        return x / (y - y)'),
        '"numpy"', '"python"', "inf", _DIVIDES,
    ),
]
#: How they are declared, what they are called with, and what is registered with Numba.
OF_USE = [
    option("the error model", "return x / (y - y)", 'error_model="numpy"', 'error_model="python"', "inf", _DIVIDES),
    option("fast mathematics", "return x != x", "fastmath=0 == 1", "fastmath=1 == 1", "True", "False", call="p.f(float('nan'), 2.0)"),
    option(
        "checks of bounds", "return x[y]", "boundscheck=0 == 1", "boundscheck=1 == 1", "5", "IndexError: index is out of bounds",
        before="import numpy as np", call="p.f(p.np.arange(8)[:4], 5)",
    ),
    given(
        "the types of variables",
        kernel("z = x / 2; return z", "from numba import float64, int64").replace("@njit\n", '@njit(locals={"z": float64})\n'),
        '"z": float64', '"z": int64', "3.5", "3",
    ),
    given("a declared result", kernel("return x + y").replace("@njit", '@njit("f8(f8, f8)", cache=True)'), '"f8(', '"i8(', "9.0", "9"),
    given("a ufunc", _VECTORIZED, "x * 3", "x * 4", "np.float64(23.0)", "np.float64(30.0)"),
    given("a ufunc's signature", _VECTORIZED, '"f8(f8', '"f4(f8', "np.float64(23.0)", "np.float32(23.0)"),
    given("the order of loops", _LOOPS, "::1", "::-1", "1.2089258196146292e+24", "0", call="p.f(2 ** 40, 1)"),
    given("the order of signatures", _FITTING, "::1", "::-1", "1.2089258196146292e+24", "0.0", call="p.f(2 ** 40, 1)"),
    given("a general ufunc", _GUVECTORIZED, "by + 1", "by + 2", "[15.0]", "[16.0]"),
    given("a callback", _CALLBACK, "x * y", "x + y", "14.0", "9.0"),
    given("a stencil", _STENCIL, "2 * a", "3 * a", "4.0", "6.0", call="p.f(p.np.arange(4.0))"),
    argument("a number's type", "return x + x", "7", "7.0", "14", "14.0"),
    argument("an item's type", "return x.itemsize", "np.zeros(1, 'i8')", "np.zeros(1, 'i4')", "8", "4"),
    argument("an array's order", "return x.flags.c_contiguous", "np.zeros((2, 2))", "np.zeros((2, 2), order='F')", "True", "False"),
    argument("an array with gaps", "return x.flags.c_contiguous", "np.zeros((2, 2))", "np.zeros((4, 4))[:2, :2]", "True", "False"),
    argument(
        "an array that is only read", "return x[1:]", "np.zeros(2)", "np.frombuffer(bytes(16))", "True", "False",
        call="p.f(p.ARGUMENT).flags.writeable",
    ),
    argument("an array's dimensions", "return x.ndim", "np.zeros(4)", "np.zeros((2, 2))", "1", "2"),
    argument("a tuple's items", "return x[0]", "(1, 2.0)", "(1.0, 2)", "1", "1.0"),
    given("the fields of a named tuple", _NAMED, '["a", "b"]', '["b", "a"]', "5.0", "-5.0", call="p.f(p.Point(7.0, 2.0))"),
    argument(
        "the fields of records", "return x[0].a",
        "np.array([(1, 2)], 'i4,i4').view([('a', 'i4'), ('b', 'i4')])", "np.array([(1, 2)], 'i4,i4').view([('b', 'i4'), ('a', 'i4')])",
        "1", "2", modes=_NEVER,
    ),
    given(
        "the last of many arguments", f"from numba import njit\nLAST = 1\n@njit\ndef f({_NAMES}):\n    return a45\n",
        "LAST = 1", "LAST = 1.0", "1", "1.0", call="p.f(*[0.5] * 45, p.LAST)",
    ),
    given("a function as an argument", _GIVEN_FUNCTION, "x * 3", "x * 4", "21.0", "28.0", call="p.f(p.inner, 7.0)"),
    given("an overload", _OVERLOAD, "x * 3", "x * 4", "23.0", "30.0", modes=_REGISTERING),
    given("an overload more", _NEW_OVERLOAD, "if 0", "if 1", "23.0", "30.0", modes=_REGISTERING),
    given("an attribute more", _NEW_ATTRIBUTE, "if 0", "if 1", "21.0", "28.0", modes=_NEVER),
    given("an intrinsic", _INTRINSIC, "builder.fadd", "builder.fmul", "16.0", "51.0", modes=_REGISTERING),
    given("a function that compiled code may call", _JITABLE, "x * 3", "x * 4", "23.0", "30.0", modes=_REGISTERING),
    given("how a type is unboxed", _TYPE, "float64, 3.0", "float64, 4.0", "3.0", "4.0", modes=_NEVER),
    given("the attributes of a type", _TYPE, '(PairType, "low", "low")', '(PairType, "top", "low")', "3.0", "5.0", modes=_NEVER),
    taken("two classes of one name", "(5.0, -5.0)", "(-5.0, 5.0)"),
    given("a member of an enumeration", kernel("return x * Kind.BY.value", _ENUMERATION), "BY = 3", "BY = 4", "21.0", "28.0", modes=_NEVER),
    taken("the fields of a jitclass", "17.5", "14.0"),
    taken("fastmath of overload", "inf", _DIVIDES),
    taken("functools.wraps makes user code look like a library's", "23.0", "30.0"),
    taken("an overload reads an attribute of an object", "23.0", "30.0"),
    taken("an overload imports inside of itself", "23.0", "30.0"),
    taken("an overload reads a file", "23.0", "30.0"),
    taken("a global changed between compiling callee and caller", "16.0", "1402.0"),
]

_SAYING = """
    import os
    import sys
    from importlib import import_module
    from importlib.machinery import PathFinder

    class NoNumba:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "numba":
                raise ModuleNotFoundError(f"No module named {name!r}", name="numba")

    def forbid_numba():
        sys.meta_path.insert(sys.meta_path.index(PathFinder), NoNumba())

    def say(name, call):
        try:
            return repr(eval(call, {"p": import_module(name)}))
        except ImportError:
            return "wants Numba"
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]

    def in_child(function):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, repr(function()).encode())
            os._exit(0)
        os.close(write)
        with open(read) as pipe:
            said = pipe.read()
        return eval(said) if os.waitpid(child, 0)[1] == 0 else "died"
"""
_SAY = """
from saying import forbid_numba, say
if {forbidden}:
    forbid_numba()
result = [say(*program) for program in {programs!r}]
"""
#: With an installed backend: what it answers, and whether anything of it was compiled.
_SAY_INSTALLED = """
from saying import say
if {by_environment}:
    import numba
    numba.njit(lambda x: x)(1)  # Numba asks packages now whether they extend it
    import os
    assert numba.njit(cache=True)(say).stats.cache_path == os.environ["COMPCACHE_DIR"]
    import compcache.numba
    backend = compcache.numba.install()
def say_and_count(program):
    before = backend.misses
    return say(*program), backend.misses > before
result = [say_and_count(program) for program in {programs!r}]
"""


def _cached(edit: Edit) -> Edit:
    """A program that asks for caching."""
    texts = [edit.source, edit.settings]
    for number, text in enumerate(texts):
        if "cache=True" not in text:
            texts[number] = text.replace("@njit\n", "@njit(cache=True)\n").replace("@njit(", "@njit(cache=True, ").replace(
                "cache=True, cache=True", "cache=True"
            )
    return edit._replace(source=texts[0], settings=texts[1])


class _Programs:
    """The programs of a mode, in a project."""

    def __init__(self, project: Project, mode: str, rows: Sequence[Given]) -> None:
        self.project = project
        self.project.write(saying=_SAYING)
        self.mode = mode
        self.numbers = [number for number, row in enumerate(rows) if mode == _INSTALLED or mode in row.modes]
        self.given = [rows[number] for number in self.numbers]
        self.edits = [_cached(row.edit) if mode == _INSTALLED else row.edit for row in rows]
        self.programs = [(f"program{number}", rows[number].edit.call) for number in self.numbers]

    def write(self, version: int) -> None:
        """Write one version of all programs."""
        write(self.project, self.edits, version, "compcache.numba" if self.mode == _IMPORTED else "numba", forks=False)

    def named(self, answers: Sequence[Any]) -> dict[str, Any]:
        """Answers by the names of the programs."""
        return {row.edit.name: answer for row, answer in zip(self.given, answers, strict=True)}

    def expected(self, version: int | None) -> dict[str, Any]:
        """What the programs must answer; None is where they want Numba."""
        return self.named([_WANTS_NUMBA if version is None else (row.first, row.second)[version] for row in self.given])

    def say(self, version: int, *, forbidden: bool) -> list[str]:
        """The answers of programs that start without Numba."""
        self.write(version)
        script = _SAY.format(forbidden=forbidden, programs=self.programs)
        if self.mode == _IMPORTED:
            said: list[str] = self.project.run(script, backend=False, COMPCACHE_DIR=str(self.project.cache))
            return said
        main = self.project.source / "main.py"
        main.write_text(script + "print()\nprint(repr(result))\n")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
        return list(finish(subprocess.Popen(
            [sys.executable, "-m", "compcache.numba", "run", "--dir", str(self.project.cache), str(main)],
            env=inherited | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(PACKAGE_ROOT)},
            cwd=self.project.source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )))  # fmt: skip

    def say_installed(self, version: int, *, by_environment: bool = False, only: Sequence[str] = ()) -> tuple[list[str], list[bool]]:
        """The answers of programs with the backend, and whether something of each was compiled."""
        self.write(version)
        named = [program for program, row in zip(self.programs, self.given, strict=True) if not only or row.edit.name in only]
        script = _SAY_INSTALLED.format(programs=named, by_environment=by_environment)
        environment = {"COMPCACHE_NUMBA": "1", "COMPCACHE_DIR": str(self.project.cache)} if by_environment else {}
        rows = self.project.run(script, backend=not by_environment, **environment)
        return [said for said, _ in rows], [compiled for _, compiled in rows]

    def move(self) -> None:
        """Move all files, with new times."""
        moved = self.project.source.with_name(f"{self.project.source.name} moved")
        shutil.copytree(self.project.source, moved, copy_function=shutil.copyfile)
        self.project.source = moved


#: Programs that cannot be cached, and some whose code does not have the name of its file.
_REFUSED = {"an overload reads a file", "a global changed between compiling callee and caller"}
_ANYWHERE = ("a constant", "a default", "a callee in another file", "a function of a closure", "an overload")


_GROUPS = pytest.mark.parametrize("rows", [OF_CONTENT, OF_USE], ids=["content", "use"])


@pytest.mark.slow
@_GROUPS
def test_an_installed_backend_tells_old_code_from_new(tmp_path: Path, rows: list[Given]) -> None:
    programs = _Programs(Project(tmp_path), _INSTALLED, rows)
    programs.project.register()

    def compiled(version: int) -> set[str]:
        """The programs of which something was compiled, in a run whose answers are right."""
        said, flags = programs.say_installed(version)
        assert programs.named(said) == programs.expected(version)
        return {row.edit.name for row, flag in zip(programs.given, flags, strict=True) if flag}

    everything = set(programs.expected(0))
    assert compiled(0) == everything
    assert compiled(1) == everything
    assert compiled(0) == _REFUSED & everything
    programs.move()
    expected = [row.second for row in rows if row.edit.name in _ANYWHERE]
    assert programs.say_installed(1, by_environment=True, only=_ANYWHERE) == (expected, [False] * len(expected))


@pytest.mark.slow
def test_an_installed_backend_tells_settings_and_versions(tmp_path: Path) -> None:
    """Each in a child of a process that has imported Numba; only with another setting of bounds it may compile there."""
    programs = _Programs(Project(tmp_path), _INSTALLED, _FOR_SETTINGS)
    right = [row.first for row in programs.given]
    assert programs.say_installed(0) == (right, [True] * len(right))
    script = """
    from saying import in_child, say
    import os, sys, llvmlite, numba, numpy

    def refuse(*_, **__):
        raise ImportError("it would be compiled")

    def changed(variables, module):
        os.environ.update(variables)
        if module:
            sys.modules[module].__version__ = "0.0.99"
        if "NUMBA_BOUNDSCHECK" not in variables:
            numba.core.compiler.compile_extra = refuse
        return [say(*program) for program in PROGRAMS], backend.hits

    result = [in_child(lambda: changed(*case)) for case in CASES]
    """
    cases = [
        ({}, ""), ({"NUMBA_NUM_THREADS": "1"}, ""), ({"NUMBA_BOUNDSCHECK": "1"}, ""), ({"NUMBA_OPT": "1"}, ""),
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, ""), ({}, "numba"), ({}, "llvmlite"), ({}, "numpy"),
    ]  # fmt: skip
    head = f"PROGRAMS, CASES = {programs.programs!r}, {cases!r}\n"
    said = programs.project.run(head + textwrap.dedent(script), backend=True)
    missed = [_WANTS_NUMBA] * len(right)
    checked = [*right[:-1], "IndexError: index is out of bounds"]
    assert said == [(right, len(right)), (right, len(right)), (checked, 0), *[(missed, 0)] * 5]


@pytest.mark.slow
@_GROUPS
def test_starts_without_numba_tell_old_code_from_new(tmp_path: Path, rows: list[Given]) -> None:
    """Programs with decorators of either package have the same code, which either finds."""
    project = Project(tmp_path)
    imported, run = _Programs(project, _IMPORTED, rows), _Programs(project, _RUN, rows)
    registering = _Programs(project, _RUN, [row._replace(modes=() if _IMPORTED in row.modes else row.modes) for row in rows])

    def ascertain(programs: _Programs, version: int, expected: int | None, *, forbidden: bool = True) -> None:
        if programs.given:
            assert programs.named(programs.say(version, forbidden=forbidden)) == programs.expected(expected)

    ascertain(run, 0, 0, forbidden=False)
    ascertain(imported, 1, None)
    ascertain(registering, 1, None)
    ascertain(imported, 0, 0)
    ascertain(imported, 1, 1, forbidden=False)
    ascertain(registering, 1, 1, forbidden=False)
    ascertain(run, 1, 1)
    ascertain(run, 0, 0)


#: Programs with few parts; the last one tells whether bounds are checked.
_FOR_SETTINGS = [
    *[row for row in OF_CONTENT if row.edit.name in ("a constant", "a callee")],
    given("an index", kernel("return x[y]", "import numpy as np"), "x[y]", "x[0]", "5", "0", call="p.f(p.np.arange(8)[:4], 5)"),
]


def _add_metadata(place: Path, name: str, **files: str) -> str:
    metadata = place / f"{name}-0.0.99.dist-info"
    metadata.mkdir(parents=True)
    for file, text in ({"RECORD": f"{name}.py,sha256=none,10\n"} | files).items():
        (metadata / file).write_text(text)
    return str(place)


@pytest.mark.slow
def test_starts_without_numba_tell_settings_and_versions(tmp_path: Path) -> None:
    programs = _Programs(Project(tmp_path), _IMPORTED, _FOR_SETTINGS)
    right = [row.first for row in programs.given]
    assert programs.say(0, forbidden=False) == right
    configured = tmp_path / "configured"
    configured.mkdir()
    (configured / ".numba_config.yaml").write_text("boundscheck: 1\n")
    cases: list[tuple[dict[str, str], str, str]] = [({}, "", ""), ({"NUMBA_NUM_THREADS": "1"}, "", "")]
    harmless = len(cases)
    for name, value in (("BOUNDSCHECK", "1"), ("OPT", "1"), ("CPU_NAME", "generic"), ("CPU_FEATURES", ""), ("ENABLE_AVX", "0")):
        cases.append(({f"NUMBA_{name}": value}, "", ""))
    cases += [({}, _add_metadata(tmp_path / name, name), "") for name in ("numba", "llvmlite", "numpy")]
    cases.append(({}, _add_metadata(tmp_path / "more", "more", **{"entry_points.txt": "[numba_extensions]\ninit = more:init\n"}), ""))
    cases.append(({}, "", str(configured)))
    script = """
    import os, sys
    import numpy
    from saying import forbid_numba, in_child, say

    def changed(variables, path, current):
        os.environ.update(variables)
        if path:
            sys.path.insert(0, path)
        if current:
            os.chdir(current)
        return [say(*program) for program in PROGRAMS]

    forbid_numba()
    result = [in_child(lambda: changed(*case)) for case in CASES]
    """
    head = f"PROGRAMS, CASES = {programs.programs!r}, {cases!r}\n"
    said = programs.project.run(head + textwrap.dedent(script), backend=False, COMPCACHE_DIR=str(programs.project.cache))
    assert said == [right] * harmless + [[_WANTS_NUMBA] * len(right)] * (len(cases) - harmless)


#: Programs that are exported, with their arguments' types and how they are called.
_EXPORTED = {
    "an operation": ("f8(f8, f8)", "(7.0, 2.0)"),
    "a constant": ("f8(f8, f8)", "(7.0, 2.0)"),
    "a default": ("(f8,)", "(7.0,)"),
    "a global": ("(f8, f8)", "(7.0, 2.0)"),
    "a global array": ("(f8, f8)", "(7.0, 2.0)"),
    "a variable of a closure": ("(f8, f8)", "(7.0, 2.0)"),
    "an attribute of a module": ("(f8, f8)", "(7.0, 2.0)"),
    "a callee in another file": ("(f8, f8)", "(7.0, 2.0)"),
    "a callee's callee": ("(f8, f8)", "(7.0, 2.0)"),
    "a callee's option": ("(f8, f8)", "(7.0, 2.0)"),
    "the error model": ("(f8, f8)", "(7.0, 2.0)"),
    "fast mathematics": ("(f8, f8)", "(float('nan'), 2.0)"),
    "checks of bounds": ("(i8[::1], i8)", "(np.arange(8)[:4], 5)"),
    "the types of variables": ("(f8, f8)", "(7.0, 2.0)"),
    "an overload": ("(f8, f8)", "(7.0, 2.0)"),
    "an intrinsic": ("(f8, f8)", "(7.0, 2.0)"),
}
_READ_EXPORTS = """
import numpy as np
import compcache
from saying import forbid_numba
forbid_numba()
cache = compcache.Cache(DIRECTORY)

def outcome(target, arguments):
    try:
        return repr(target(*arguments))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

result = [outcome(cache.get_target(f"exported.{number}"), eval(arguments)) for number, arguments in CALLS]
"""


@pytest.mark.slow
def test_exports_tell_old_code_from_new(tmp_path: Path) -> None:
    """What is exported again takes the place of what was there, and is linked with the callees of now, which are cached as well."""
    programs = _Programs(Project(tmp_path), _INSTALLED, [row for row in (*OF_CONTENT, *OF_USE) if row.edit.name in _EXPORTED])
    signatures = [(number, _EXPORTED[row.edit.name][0]) for number, row in enumerate(programs.given)]
    calls = [(number, _EXPORTED[row.edit.name][1]) for number, row in enumerate(programs.given)]
    export = f"""
    from importlib import import_module
    result = [
        compcache.numba.export(import_module(f"program{{number}}").f, signature, name=f"exported.{{number}}")
        for number, signature in {signatures!r}
    ]
    """
    read = f"DIRECTORY, CALLS = {str(programs.project.cache)!r}, {calls!r}\n{_READ_EXPORTS}"
    assert len(programs.given) == len(_EXPORTED)
    for version in (0, 1, 0):
        programs.write(version)
        programs.project.run(export, backend=True)
        said = programs.project.run(read, backend=False)
        assert programs.named(said) == programs.expected(version)
    with Cache(programs.project.cache) as cache:  # the newest answers in any case: what was exported before only takes space
        assert {len(cache.realizations(f"exported.{number}")) for number, _ in signatures} == {1}
