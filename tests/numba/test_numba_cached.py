"""What Numba caches is cached: a table of small programs, each compared with plain Numba, cold and warm."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")


class Program(NamedTuple):
    """A module `p` and an expression over it."""

    name: str
    source: str
    expression: str


PROGRAMS = [
    Program(
        "a function whose argument calls an intrinsic, before others that call it",
        """
    from numba import njit, types
    from numba.extending import intrinsic

    @intrinsic(prefer_literal=True)
    def twice(typing_context, value):
        def generate(context, builder, signature, arguments):
            return builder.add(arguments[0], arguments[0])
        return types.int64(types.int64), generate

    @njit(cache=True)
    def distance(x, y):
        return twice(x - y)

    @njit(cache=True)
    def apply(function, x, y):
        return function(x, y)

    @njit(cache=True)
    def total(n):
        result = 0
        for i in range(n):
            result += twice(i)
        return result
    """,
        "p.apply(p.distance, 5, 3), p.distance(7, 3), p.total(5)",
    ),
    Program(
        "texts that begin like names of exception classes",
        """
    from numba import njit

    @njit(cache=True)
    def f(x):
        return "@PyExc_" if x else "no error"
    """,
        "p.f(1), p.f(0)",
    ),
    Program(
        "random numbers",
        """
    import numpy as np
    from numba import njit

    @njit(cache=True)
    def f(n):
        np.random.seed(n)
        a = np.random.normal(0.0, 1.0, 4)
        return a.sum() + np.random.rand() + np.random.randint(0, 10) + np.random.choice(np.arange(5.0))
    """,
        "p.f(3)",
    ),
    Program(
        "object mode blocks",
        """
    import numba as nb
    from numba import njit, objmode
    import os

    WORDS = ["a", "bb"]

    def length(word):
        return len(word) + len(os.sep)

    @njit(cache=True)
    def f(x):
        with objmode(y="int64"):
            y = sum(map(length, WORDS)) + x
        with nb.objmode(z="float64"):
            z = float(y) / 2
        return y + z
    """,
        "p.f(3)",
    ),
    Program(
        "stencils",
        """
    import numpy as np
    from numba import njit, stencil

    @stencil
    def neighbours(a):
        return a[-1] + 2 * a[1]

    @stencil(neighborhood=((-1, 1),))
    def window(a):
        total = 0.0
        for i in range(-1, 2):
            total += a[i]
        return total

    @njit(cache=True)
    def f(a):
        return neighbours(a) + window(a)
    """,
        "p.f(__import__('numpy').arange(6.0)).tolist()",
    ),
    Program(
        "numbers of threads",
        """
    from numba import get_thread_id, njit, prange

    @njit(cache=True)
    def f():
        return get_thread_id()

    @njit(cache=True, parallel=True)
    def g(n):
        total = 0
        for i in prange(n):
            total += i + get_thread_id() * 0
        return total
    """,
        "p.f(), p.g(4)",
    ),
    Program(
        "helpers through lru_cache and partial",
        """
    import functools
    from numba import njit, types
    from numba.extending import overload

    @functools.lru_cache
    def factor(name):
        return {"int64": 3}.get(name, 5)

    def add(by, x):
        return x + by

    add_seven = functools.partial(add, 7)

    def scaled(x):
        raise NotImplementedError

    @overload(scaled)
    def _(x):
        by = add_seven(factor(str(x)))
        return lambda x: x * by

    @njit(cache=True)
    def f(x):
        return scaled(x)
    """,
        "p.f(2)",
    ),
    Program(
        "structref constructors",
        """
    from numba import njit, types
    from numba.experimental import structref

    @structref.register
    class PairType(types.StructRef):
        def preprocess_fields(self, fields):
            return tuple((name, types.unliteral(typ)) for name, typ in fields)

    class Pair(structref.StructRefProxy):
        def __new__(cls, x, y):
            return structref.StructRefProxy.__new__(cls, x, y)

        @property
        def x(self):
            return get_x(self)

    structref.define_proxy(Pair, PairType, ["x", "y"])

    @njit(cache=True)
    def get_x(self):
        return self.x

    @njit(cache=True)
    def f(x):
        pair = Pair(x, x + 1)
        return pair.x * 10 + pair.y

    @njit(cache=True)
    def g(pair):
        return pair.x - pair.y
    """,
        "p.f(3), p.g(p.Pair(1, 2.5)), p.Pair(4, 5).x",
    ),
    Program(
        "namespaces without a name",
        """
    import numba
    space = {"njit": numba.njit}
    exec("@njit\\ndef inner(x):\\n    return x + 5\\n", space)
    inner = space["inner"]

    @numba.njit(cache=True)
    def f(x):
        return inner(x) * 2
    """,
        "p.f(1)",
    ),
    Program(
        "functions of SciPy with overloads",
        """
    import scipy.fft
    from numba import njit
    from numba.extending import overload

    @overload(scipy.fft.fft)
    def _(x):
        return lambda x: x * 2

    @njit(cache=True)
    def f(x):
        return scipy.fft.fft(x)
    """,
        "p.f(4.5)",
    ),
    Program(
        "strings, dictionaries, lists and sorting",
        """
    import numpy as np
    from numba import njit, typed, types

    @njit(cache=True)
    def f(n):
        d = typed.Dict.empty(types.unicode_type, types.float64[::1])
        l = typed.List()
        for i in range(n):
            d[str(i)] = np.arange(i) * 1.5
            l.append(i * i)
        return sum([d[key].sum() for key in d]), sorted(l, reverse=True)[0], l
    """,
        "p.f(5)[:2], list(p.f(5)[2])",
    ),
    Program(
        "linear algebra and exceptions",
        """
    import numpy as np
    from numba import njit

    @njit(cache=True)
    def f(a):
        try:
            if a[0, 0] > 100:
                raise ValueError("big")
        except Exception:
            return np.zeros(2)
        return np.linalg.solve(a, np.ones(2)) + a @ np.ones(2)
    """,
        "p.f(__import__('numpy').eye(2) * 4).tolist(), p.f(__import__('numpy').eye(2) * 400).tolist()",
    ),
    Program(
        "recursion across functions and functions as arguments",
        """
    from numba import cfunc, njit, types

    @njit(cache=True)
    def even(n):
        return True if n == 0 else odd(n - 1)

    @njit(cache=True)
    def odd(n):
        return False if n == 0 else even(n - 1)

    @njit(cache=True)
    def twice(g, x):
        return g(g(x))

    @njit(cache=True)
    def plus_three(x):
        return x + 3
    """,
        "p.even(11), p.odd(11), p.twice(p.plus_three, 1)",
    ),
    Program(
        "defaults that cannot be hashed",
        """
    import numpy as np
    from numba import njit

    @njit(cache=True)
    def f(x, weights=np.ones((2, 0)), limits=None):
        return x + weights.size

    @njit(cache=True)
    def g(x):
        return f(x) * 2
    """,
        "[p.f(3) for _ in range(3)], p.g(3), len(p.f.signatures)",
    ),
    Program(
        "overloads for a type of the program, with methods that are registered later",
        """
    from numba import njit, types
    from numba.extending import NativeValue, models, overload, overload_method, register_model, typeof_impl, unbox

    class Shape:
        pass

    class ShapeType(types.Opaque):
        def __init__(self):
            super().__init__("shape")

    shape_type = ShapeType()
    typeof_impl.register(Shape)(lambda value, c: shape_type)
    register_model(ShapeType)(models.OpaqueModel)
    unbox(ShapeType)(lambda typ, value, c: NativeValue(c.context.get_dummy_value()))

    @overload(len)
    def length(shape):
        if isinstance(shape, ShapeType):
            return lambda shape: 7

    @njit(cache=True)
    def f(shape):
        return len(shape)

    @njit(cache=True)
    def g(shape):
        return shape.times(3)

    def register():
        @overload_method(ShapeType, "times")
        def times(shape, number):
            return lambda shape, number: len(shape) * number

    def every():
        first = f(Shape())
        register()
        return first, g(Shape())
    """,
        "p.every()",
    ),
    Program(
        "overloads that keep what they made, and hold what cannot be pickled",
        """
    import contextvars, functools, itertools, threading, weakref
    from numba import njit
    from numba.extending import overload

    class Maker:
        @functools.cached_property
        def factor(self): return 3

    MAKER, MADE, COUNT = Maker(), {}, itertools.count
    LOCKS, LOCAL, ALIVE = (threading.Lock(), threading.RLock()), threading.local(), weakref.WeakValueDictionary()
    CHOSEN, UNSET = contextvars.ContextVar("chosen", default=2), contextvars.ContextVar("unset")

    def scaled(x): ...
    def twice(x): ...

    @overload(scaled)
    def overload_scaled(x):
        global BY
        with LOCKS[0], LOCKS[1]:
            MADE[str(x)] = next(COUNT(MAKER.factor))
        LOCAL.last, ALIVE[str(x)], _ = x, MAKER, UNSET.get(1)
        overload_scaled.calls = getattr(overload_scaled, "calls", 0) + 1
        BY = MADE[str(x)] * CHOSEN.get()
        return lambda x: x * BY

    @njit(cache=True)
    def inner(x):
        return scaled(x)

    @njit(cache=True)
    def f(x):
        return scaled(x) + inner(x + 0.5)
    """,
        "p.f(2)",
    ),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_what_numba_caches_is_cached(program: Program, tmp_path: Path) -> None:
    if "scipy" in program.source or "linalg" in program.source:
        pytest.importorskip("scipy")
    project = Project(tmp_path)
    project.write(p=program.source)
    plain = project.run_in_fork(f"import p\nresult = {program.expression}")
    script = f"""
    import warnings
    warnings.simplefilter("error")
    import p
    value = {program.expression}
    result = value, backend.hits, backend.misses, backend.refused
    """
    cold, _, misses, refused = project.run(script, backend=True)
    assert (cold, refused) == (plain, {})
    assert misses
    assert project.run(script, backend=True)[::2] == (plain, 0)


def test_what_is_found_is_found_after_methods_were_registered_for_a_type_that_its_overloads_name(tmp_path: Path) -> None:
    program = next(program for program in PROGRAMS if "registered later" in program.name)
    project = Project(tmp_path)
    project.write(p=program.source)
    assert project.run("import p\nresult = p.f(p.Shape()), backend.hits", backend=True) == (7, 0)
    late = "import p\np.register()\nresult = p.f(p.Shape()), backend.hits, backend.misses"
    hits = project.run("import p\nresult = p.f(p.Shape()), backend.hits, backend.misses", backend=True)
    assert project.run(late, backend=True) == hits
    assert hits[2] == 0


def test_a_lazy_function_is_freed_with_its_last_reference(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p="""
    from compcache.numba import njit

    def make(number):
        @njit
        def f(x):
            return x + number
        return f
    """)
    script = """
    import gc, weakref
    from p import make

    f = make(2.0)
    f(2.0)
    function = weakref.ref(f.py_func)
    del f
    from numba.core.dispatcher import Dispatcher
    Dispatcher._recent.clear()  # Numba's own references to those that were pickled last
    gc.collect()
    result = function() is None
    """
    assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)), "where Numba compiles it"


@pytest.mark.parametrize("decorator", ["njit", "njit('f8(f8)')", "cfunc('f8(f8)')", "intrinsic", "stencil"])
def test_what_is_declared_after_numba_was_imported_is_freed(decorator: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.register()
    script = f"""
    import compcache.numba
    compcache.numba.install(lazy=True)
    import gc, weakref
    from numba import cfunc, njit, stencil
    from numba.extending import intrinsic
    from numba.core.dispatcher import Dispatcher

    def make(number):
        @{decorator}
        def f({"context, x" if decorator == "intrinsic" else "x"}):
            return x{"[0]" if decorator == "stencil" else ""} + number
        return f

    created = weakref.ref(make(2.0))
    Dispatcher._recent.clear()
    gc.collect()
    result = created() is None
    """
    assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache))


@pytest.mark.parametrize("decorator", ["njit(cache=True)", "cfunc('f8(f8)', cache=True)"])
def test_a_function_is_freed_with_its_last_reference(decorator: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p=f"""
    from numba import cfunc, njit

    def make(number):
        @{decorator}
        def f(x):
            return x + number
        return f
    """)
    script = """
    import gc, weakref
    from numba.core.dispatcher import Dispatcher
    from p import make

    make(1.0)
    gc.collect()
    gc.disable()
    f = make(2.0)
    getattr(f, "ctypes", f)(2.0)
    found = weakref.ref(f)
    del f
    Dispatcher._recent.clear()  # Numba's own references to those that were pickled last
    result = found() is None
    """
    assert project.run(script, backend=False)
    assert project.run(script, backend=True), "where it is compiled"
    assert project.run(script, backend=True), "where it is found"


@pytest.mark.parametrize(
    "decorator",
    ["numba.vectorize(['int64(int64, int64)'], cache=True)", "numba.njit('int64(int64, int64)', cache=True)"],
    ids=["ufuncs", "functions"],
)
def test_functions_made_of_one_by_changing_its_globals_are_cached_with_their_callers(decorator: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p=f"""
    import numba

    def product(a, b):
        return (a * b) % modulus

    def term(x, y):
        return multiply(x, y) + 1

    def make_product(number):
        global modulus
        modulus = number
        return {decorator}(product)

    def make_term(function):
        global multiply
        multiply = function
        return numba.njit("int64(int64, int64)", cache=True)(term)

    def every(*numbers):
        products = [make_product(number) for number in numbers]
        return [make_term(function)(6, 5) for function in products]
    """)
    script = "import p\nresult = p.every({}), backend.hits, backend.misses, backend.refused"
    assert project.run(script.format("7, 4"), backend=True) == ([3, 3], 0, 4, {})
    assert project.run(script.format("7, 4"), backend=True) == ([3, 3], 4, 0, {})
    assert project.run(script.format("7, 9, 4"), backend=True) == ([3, 4, 3], 4, 2, {})


def test_a_generator_that_is_found_can_be_used_by_functions_that_are_compiled(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p="""
    from numba import njit

    def make(factor):
        @njit(cache=True)
        def numbers(n):
            for i in range(n):
                yield i * factor
        return numbers

    doubles, triples = make(2.0), make(3.0)

    @njit
    def total(n):
        result = 0.0
        for x in doubles(n):
            result += x
        for x in triples(n):
            result += 100 * x
        return result

    @njit
    def pass_on(n):
        return triples(n)
    """)
    script = "import p\nresult = (p.total(4), list(p.pass_on(3)), list(p.doubles(2))), backend.misses"
    assert project.run(script, backend=True) == ((1812.0, [0.0, 3.0, 6.0], [0.0, 2.0]), 2)
    assert project.run(script, backend=True) == ((1812.0, [0.0, 3.0, 6.0], [0.0, 2.0]), 0)


def test_what_cannot_be_compared_is_walked_once_for_all_functions_that_ask_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p="""
    from numba import njit
    from numba.extending import overload

    TABLE = {(number, "key"): [number] for number in range(40_000)}

    def shown(x):
        return x

    @overload(shown)
    def overload_shown(x):
        found = TABLE[7, "key"][0]
        return lambda x: x + found

    def make(number):
        return njit(cache=True)(lambda x: shown(x) * number)

    functions = [make(number) for number in range(5)]
    """)
    script = """
    import compcache.numba.identity.dependencies as dependencies
    import p
    walks = []
    walk = dependencies.fingerprint_of_implementations
    def note(*args, **options):
        walks.append((options["overlook_members"], "limits" in options))
        return walk(*args, **options)
    dependencies.fingerprint_of_implementations = note
    result = [f(3) for f in p.functions], walks, len(backend.refused)
    """
    answer, walks, refused = project.run(script, backend=True)
    assert answer == [0, 10, 20, 30, 40]
    # The limit of packages, whose files can be compared instead, does not apply. A walk that overlooks values would be as long.
    assert list(map(tuple, walks)) == [(False, False)]
    assert refused


_LARGE_PACKAGE = """
    import numba
    from numba.extending import overload
    FACTOR = {factor}
    TABLE = {{("key", number): (str(number), (number,)) for number in range(30_000)}}
    def scaled(x): ...
    @overload(scaled)
    def overload_scaled(x):
        factor = FACTOR * len(TABLE["key", 3][1])
        return lambda x: x * factor
"""
_TEXT_PACKAGE = """
    import numba
    from numba.extending import overload
    from .other import __name__ as other
    FACTOR = {factor}
    NAMES = {{"FACTOR": FACTOR}}
    def scaled(x): ...
    @overload(scaled)
    def overload_scaled(x):
        exec("def made(x): return x * FAC" + "TOR", globals())
        assert eval("FACTOR", NAMES) == FACTOR  # which adds to the names
        return made_function()
    def made_function():
        return globals()["ma" + "de"]
"""
_LARGE_PROGRAM = """
    import numba, large
    @numba.njit(cache=True)
    def f(x):
        return large.scaled(x)
    result = f(3), backend.hits, sorted(backend.refused.values())
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_LARGE_PACKAGE, "values can be reached"),
        (_TEXT_PACKAGE, "cannot be compared between processes"),
    ],
    ids=["large", "text"],
)
def test_overloads_that_can_reach_anything_in_their_package_are_identified_by_its_files(text: str, why: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    package = project.source / "large"
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(text.format(factor=2)))
    (package / "other.py").write_text("")
    time.sleep(0.05)  # files that are not older than the process may not be those that it imported
    runs = [project.run(_LARGE_PROGRAM, backend=True) for _ in range(2)]
    assert runs == [(6, 0, []), (6, 1, [])]
    (package / "__init__.py").write_text(textwrap.dedent(text.format(factor=5)))
    time.sleep(0.05)
    assert project.run(_LARGE_PROGRAM, backend=True) == (15, 0, [])
    assert project.run(_LARGE_PROGRAM, backend=True) == (15, 1, [])
    late = "import pathlib, large, os\nos.utime(pathlib.Path(large.__file__).with_name('other.py'))\n" + textwrap.dedent(_LARGE_PROGRAM)
    answer, hits, [reason] = project.run(late, backend=True)
    assert (answer, hits) == (15, 0)
    assert why in reason


_MIXED_PACKAGE = """
    import numba
    from numba.core.typing.templates import AbstractTemplate, infer_global
    from numba.extending import lower_builtin, overload, type_callable
    FACTOR = 2
    TABLE = {("key", number): (str(number), (number,)) for number in range(30_000)}
    def scaled(x): ...
    @overload(scaled)
    def overload_scaled(x):
        return lambda x: x * FACTOR
    def shifted(x): ...
    @overload(shifted)
    def overload_shifted(x):
        length = len(TABLE["key", 3][1])
        return lambda x: x + length
    def doubled(x): ...
    @type_callable(doubled)
    def type_doubled(context):
        return lambda x: x
    @lower_builtin(doubled, numba.types.Integer)
    def lower_doubled(context, builder, sig, args):
        return builder.add(args[0], args[0])
    class Own(numba.types.Type):
        pass
    @infer_global(len)
    class TypeLen(AbstractTemplate):
        def generic(self, args, kws):
            if isinstance(args[0], Own):
                return numba.intp(args[0])
"""


@pytest.mark.parametrize("processes", [("fgh",), ("gfh",), ("f", "gh")], ids="-".join)
def test_code_is_found_whatever_a_process_has_examined_of_a_large_package(processes: tuple[str, ...], tmp_path: Path) -> None:
    """The implementations that a process has examined before the large one are compared by values, and later ones by files."""
    project = Project(tmp_path)
    package = project.source / "mixed"
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(_MIXED_PACKAGE))
    time.sleep(0.05)

    def run(names: str) -> object:
        program = f"""
    import numba, mixed
    @numba.njit(cache=True)
    def f(x):
        return mixed.scaled(x) + len((x, x))
    @numba.njit(cache=True)
    def g(x):
        return len((x, x)) * mixed.shifted(mixed.doubled(x))
    @numba.njit(cache=True)
    def h(x):
        return mixed.scaled(x) - len((x, x))
    @numba.njit(cache=True)
    def i(x):
        return mixed.scaled(x) * len((x, x))
    answers = "".join(str([f, g, h, i]["fghi".index(name)](3)) for name in {names!r})
    result = answers, backend.misses, sorted(backend.refused.values())
    """
        return project.run(program, backend=True)

    answers = {"f": "8", "g": "14", "h": "4", "i": "12"}
    # In the last process but one, `i` is compiled after `f`, `g` and `h` were loaded.
    for names, misses in [*[(names, len(names)) for names in processes], ("fgh", 0), ("fghi", 1), ("fghi", 0)]:
        assert run(names) == ("".join([answers[name] for name in names]), misses, [])


_DEFINING_PACKAGE = """
    import numba
    from numba.extending import overload
    def scaled(x): ...
    @overload(scaled)
    def overload_scaled(x):
        eval(compile("def made(x): return x * " + str(FACTOR), "<string>", "exec"), globals())
        return made
    def shifted(x): ...
    @overload(shifted)
    def overload_shifted(x):
        return function_of(f"def moved(x): return x + {FACTOR}")
    def function_of(text, space={}):
        exec(text, space, space)
        return space["moved"]
    FACTOR = 2
"""


def test_functions_that_overloads_define_by_text_do_not_tell_one_run_from_the_next(tmp_path: Path) -> None:
    """The second and third signature were compiled when these were defined already, which no process has that finds the first."""
    project = Project(tmp_path)
    package = project.source / "defining"
    package.mkdir()
    program = """
    import numba, defining
    @numba.njit(cache=True)
    def f(x):
        return defining.scaled(x)
    @numba.njit(cache=True)
    def g(x):
        return defining.shifted(x)
    result = [f(3), f(2.5), f(2j), g(3), g(2.5), g(2j)], backend.misses
    """
    for factor in (2, 5):
        (package / "__init__.py").write_text(textwrap.dedent(_DEFINING_PACKAGE.replace("FACTOR = 2", f"FACTOR = {factor}")))
        time.sleep(0.05)
        answers = [3 * factor, 2.5 * factor, 2j * factor, 3 + factor, 2.5 + factor, 2j + factor]
        assert project.run(program, backend=True) == (answers, 6)
        assert project.run(program, backend=True) == (answers, 0)


def test_functions_of_packages_that_give_the_files_of_numbas_cache_other_names_are_cached(tmp_path: Path) -> None:
    """These look into the cache objects, and turn caching off where that fails."""
    project = Project(tmp_path)
    project.write(program="""
    import numba
    from numba.core.caching import IndexDataCacheFile
    @numba.njit(cache=True)
    def f(x):
        return x * 3
    cache = f._cache
    cache._impl._filename_base = cache._impl._filename_base + "-r1"
    cache._cache_file = IndexDataCacheFile(cache._cache_path, cache._impl.filename_base, cache._impl.locator.get_source_stamp())
    """)
    script = "import program\nresult = program.f(3), backend.hits, program.f._cache._impl.filename_base.endswith('r1')"
    assert [project.run(script, backend=True) for _ in range(2)] == [(9, 0, True), (9, 1, True)]


def test_a_function_whose_file_is_edited_while_the_program_runs_is_cached(tmp_path: Path) -> None:
    """Entries keep the source of functions for people. The text that is there now need not be valid."""
    project = Project(tmp_path)
    text = "from numba import njit\n\n@njit(cache=True)\ndef f(x):\n    return x + 1\n"
    project.write(program=text)
    script = """
    import program
    with open(program.__file__, "w") as file:
        file.write(TEXT)
    result = program.f(1), backend.hits, backend.misses
    """
    assert project.run(script.replace("TEXT", repr(text.replace("x + 1", "(x +"))), backend=True) == (2, 0, 1)
    project.write(program=text)
    assert project.run(script.replace("TEXT", repr(text)), backend=True) == (2, 1, 0)
