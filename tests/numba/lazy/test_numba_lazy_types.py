"""Types, signatures, warnings and modules that stand for Numba's: they agree with Numba's, become these, and need no Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

AGREE = """
import copy, pickle, sys
from compcache.numba.declarations.types import _NAMES
from compcache.numba import types as stand_in

def samples(t):
    f, i = t.float64, t.int64
    made = {name: getattr(t, name) for name in _NAMES}
    made |= {"a": f[:], "c": f[::1], "c2": f[:, ::1], "f2": f[::1, :], "3d": t.boolean[:, :, :], "of one slice": f[(slice(None),)]}
    made |= {"readonly": t.Array(i, 1, "C", readonly=True), "0d": t.Array(i, 0, "C"), "f1": t.Array(t.c16, 1, "F")}
    made |= {"signature": i(f, f), "of nothing": f(), "to nothing": t.void(f[:], i), "of arrays": i[:](f[::1])}
    return made

def containers(t):
    return {"uniform": t.UniTuple(t.int64, 2), "tuple": t.Tuple((t.int64, t.f8)), "uniform tuple": t.Tuple((t.f8, t.f8)),
            "optional": t.Optional(t.int8), "list": t.ListType(t.f8), "dict": t.DictType(t.unicode_type, t.f8),
            "list of tuples": t.ListType(t.UniTuple(t.int32, 2)), "lists": t.ListType(t.ListType(t.f8[::1])),
            "dict of dicts": t.DictType(t.int64, t.DictType(t.unicode_type, t.Tuple((t.f8, t.int8)))),
            "pointer": t.CPointer(t.f8), "function": t.FunctionType(t.f8(t.f8[:])), "bytes": t.Bytes(t.uint8, 1, "C")}

def shown(value):
    return str(value), repr(value), hash(value), f"{value}", "%s" % value

def has(value):
    return [getattr(value, name, "none") for name in ("ndim", "dtype", "layout", "shape", "name", "mutable")]

def relations(made):
    return {(a, b): (made[a] == made[b], made[a] != made[b]) for a in made for b in made}

def casts(t):
    return [repr(t.int8(3)), repr(t.float32(2.5)), repr(t.boolean(2)), repr(t.complex64(1))]

lazy, lazy_containers = samples(stand_in), containers(stand_in)
seen = {name: (shown(value), has(value) if hasattr(type(value), "_compcache_text") else None) for name, value in lazy.items()}
related = relations(lazy)
free = "numba.core" not in sys.modules and "numpy" not in sys.modules
values = [1, 1 << 62, True, 2.5, 1j, None, "text", (1, 2), (1, 2.5, (True, None))]
from compcache.numba import typeof
of_values = [typeof(value) for value in values]
free = free and "numba.core" not in sys.modules
cast = casts(stand_in)
free = free and "numba.core" not in sys.modules

from numba import types
from compcache.numba.registered.type_texts import text_of
real, real_containers = samples(types), containers(types)
wrong = [name for name, value in real.items() if seen[name] != (shown(value), has(value) if seen[name][1] else None)]
wrong += [pair for pair, value in relations(real).items() if related[pair] != value]
wrong += [name for name, value in real_containers.items() if text_of(value) != text_of(lazy_containers[name])]
for name, value in (real | real_containers).items():
    other = (lazy | lazy_containers)[name]
    same = value == other and other == value and hash(value) == hash(other) and type(value) is type(other) and repr(value) == repr(other)
    if not same or pickle.loads(pickle.dumps(other)) != value or copy.copy(other) != value:
        wrong.append(name)
import numba
wrong += [value for value, found in zip(values, of_values) if found != numba.typeof(value) or numba.typeof(value) != found]
result = free, wrong, cast == casts(types), isinstance(lazy["c2"], types.Array), lazy["int8"] < real["int64"]
"""


@pytest.mark.quick_answer
def test_types_and_signatures_agree_with_numbas_and_become_these(tmp_path: Path) -> None:
    assert Project(tmp_path).run(AGREE, backend=False) == (True, [], True, True, True)


def test_a_look_for_protocols_imports_no_numba(tmp_path: Path) -> None:
    program = """
import sys
from compcache.numba import types
pair = types.UniTuple(types.float64, 2)
found = [hasattr(value, "__array__") for value in (pair, types.float64(pair))]
result = found, "numba.core" in sys.modules
"""
    assert Project(tmp_path).run(program, backend=False) == ([False, False], False)


PROGRAM = """
    import sys, warnings
    import numba as nb
    import numpy as np
    from numba import cfunc, float64, guvectorize, int64, literal_unroll, njit, types, vectorize
    from numba.core import cgutils
    from numba.core.errors import NumbaPerformanceWarning
    from numba.core.types import Type
    from numba.extending import register_jitable
    from numba.typed import List
    import numba.core.types as numba_types

    warnings.simplefilter("ignore", NumbaPerformanceWarning)

    @njit(float64(float64, int64))
    def power(x, n):
        return x ** n

    @njit([int64(int64), types.float64(types.float64)], cache=True)
    def twice(x):
        return x * 2

    @nb.jit((nb.float64[::1],), nopython=True)
    def total(a):
        return a.sum()

    @vectorize([float64(float64, float64), int64(int64, int64)])
    def added(x, y):
        return x + y

    @guvectorize([(float64[:], float64[:])], "(n)->(n)")
    def reversed_(a, result):
        result[:] = a[::-1]

    @cfunc(float64(float64))
    def callback(x):
        return x + 1

    @njit(locals={"small": types.int8, "result": float64})
    def with_locals(x):
        small = x
        result = small
        return result

    @njit
    def of_types(n):
        result = np.empty(n, dtype=float64)
        result[:] = int64(2.7) + numba_types.float64(0.5)
        return result

    @njit
    def of_all(x):
        result = 0.0
        for value in literal_unroll((1, 2.5)):
            result += value * x
        return result

    def everything():
        a = np.arange(3.0)
        return [
            power(2.0, 3), power(2, 3), twice(4), twice(1.5), total(a), added(1, 2).item(), added(a, a).tolist(), reversed_(a).tolist(),
            callback.ctypes(2.0), with_locals(300), of_types(2).tolist(), of_all(2),
        ]

    if __name__ == "__main__":
        print(everything(), "numba.core" in sys.modules)
"""
INSTALL = "import compcache.numba, sys\nbackend = compcache.numba.install(lazy=True)\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A program, with what plain Numba answers, and what the process said that compiled it."""
    made = Project(tmp_path_factory.mktemp("types"))
    made.write(program=PROGRAM)
    plain = made.run_in_fork("import program\nresult = program.everything()")
    assert run(made, "import program\nresult = program.everything()") == plain
    made.write(expected=f"answers = {plain!r}")
    return made


def run(project: Project, text: str) -> object:
    return project.run(INSTALL + text, backend=False, COMPCACHE_DIR=str(project.cache))


def test_a_program_with_types_starts_without_numba_after_one_process(project: Project) -> None:
    text = "import program, expected\nresult = program.everything() == expected.answers, 'numba.core' in sys.modules"
    assert run(project, text) == (True, False)


def test_what_was_imported_lazily_is_numbas_own_afterwards(project: Project) -> None:
    text = """
import program, warnings
held = {"type": program.float64, "array": program.float64[:], "signature": program.int64(program.float64)}
default = program.NumbaPerformanceWarning
before = "numba.core" in sys.modules
import numba
numba.config.DEBUG  # for which nothing stands
result = [before, program.float64 is numba.float64, program.types is numba.core.types, program.nb is numba]
result += [program.List is numba.typed.List]
result += [program.literal_unroll is numba.literal_unroll, program.cgutils is numba.core.cgutils, program.Type is numba.types.Type]
result += [type(held["type"]) is numba.types.Float, isinstance(held["array"], numba.types.Array), held["array"] == numba.float64[:]]
result += [isinstance(held["signature"], numba.core.typing.Signature)]
result += [program.NumbaPerformanceWarning is numba.core.errors.NumbaPerformanceWarning]
result += [issubclass(numba.core.errors.NumbaPerformanceWarning, default), issubclass(DeprecationWarning, default)]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.simplefilter("ignore", default)
    warnings.warn("slow", numba.core.errors.NumbaPerformanceWarning)
    warnings.warn("other", numba.core.errors.NumbaWarning)
result += [len(caught), numba.typeof(numba.typed.List([1])) == numba.types.ListType(numba.int64)]
"""
    assert run(project, text) == [False] + [True] * 13 + [False, 1, True]


def test_functions_that_numba_compiles_read_types_that_were_lazy(project: Project) -> None:
    text = """
import program, numpy as np
held = program.float64
made = {"dtype": program.types.int16}
program.power(2.0, 3)
import numba
numba.config.DEBUG
result = [numba.njit(lambda n: np.zeros(n, held))(2).dtype.name]
result += [numba.njit(numba.float32(held))(lambda x: x + 1)(1.0), numba.typed.List.empty_list(held)._dtype is numba.float64]
result += [np.zeros(1, numba.njit(lambda: np.ones(1, held))().dtype).dtype.name]
result += [numba.typed.Dict.empty(made["dtype"], held)._numba_type_.key_type.name]
"""
    assert run(project, text) == ["float64", 2.0, True, "float64", "int16"]


def test_exceptions_are_caught_by_classes_that_were_taken_before(project: Project) -> None:
    text = """
def caught(*classes):
    before = "numba.core" in sys.modules
    try:
        import numba
        numba.njit(lambda x: x.nothing)(1)
    except classes as error:
        return before, type(error).__name__, isinstance(error, classes), type(error) is numba.core.errors.TypingError
def take():
    from numba import TypingError
    from numba.core.errors import LoweringError, NumbaError, NumbaWarning
    return [(TypingError,), (LoweringError, NumbaError), (NumbaWarning, Exception)], LoweringError
held, other = take()
result = [caught(*classes) for classes in held]
from numba.core.errors import NumbaError, TypingError
result += [issubclass(TypingError, held[0][0]), issubclass(TypingError, held[1][1]), issubclass(TypingError, other)]
result += [str(held[0][0]("x"))[:1]]
"""
    rest = ["TypingError", True, True]
    assert run(project, text) == [(False, *rest), (True, *rest), (True, *rest), True, True, False, "x"]


def test_a_function_with_another_type_is_another(tmp_path: Path) -> None:
    project = Project(tmp_path)
    answers = []
    for name in ("float64", "int16", "int16", "float64"):
        project.write(program=f"""
            from numba import njit, {name} as kind
            import numpy as np

            @njit
            def zeros(n):
                return np.zeros(n, kind)

            @njit(locals={{"y": kind}})
            def cast(x):
                y = x
                return y
        """)
        text = "import program\nresult = program.zeros(1).dtype.name, program.cast(2.5), 'numba.core' in sys.modules"
        answers.append(run(project, text))
    assert answers == [("float64", 2.5, True), ("int16", 2, True), ("int16", 2, False), ("float64", 2.5, False)]


REGISTERS = """
    import sys
    from numba import njit, float64, types
    from numba.extending import get_cython_function_address, intrinsic, overload, register_jitable
    from numba.np.linalg import _LAPACK
    from numba.types import WrapperAddressProtocol
    import numpy as np

    class Fixed(WrapperAddressProtocol):
        def __wrapper_address__(self):
            return ADDRESS

        def signature(self):
            return float64(float64)

    class Derived(Fixed):
        pass

    fixed = Derived()

    def chosen(x):
        return None

    @overload(chosen, inline="always")
    def chosen_(x):
        return (lambda x: x + 1) if isinstance(x, types.Integer) else (lambda x: x + 0.5)

    @register_jitable
    def helped(x):
        return x * 3

    @intrinsic
    def doubled(typing_context, x):
        return x(x), lambda context, builder, signature, args: builder.add(args[0], args[0])

    @njit
    def plain(x):
        return x + 1

    @njit
    def with_overload(x):
        return chosen(x) + helped(x)

    @njit
    def with_intrinsic(x):
        return doubled(x)

    @njit
    def with_pointer(x):
        return fixed(x)

    def everything():
        return [plain(1), with_overload(2), with_overload(2.0), with_intrinsic(4), helped(2), isinstance(fixed, WrapperAddressProtocol)]
"""
CALLBACK = """
import ctypes, math
callback = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: x * 4)
program.ADDRESS = ctypes.cast(callback, ctypes.c_void_p).value
"""


def test_registrations_wait_for_numba(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program=REGISTERS)
    rest = (
        f"first = program.plain(1), 'numba.core' in sys.modules{CALLBACK}\n"
        "result = first, program.everything(), program.with_pointer(2.0)"
    )
    text = f"import program, sys\n{rest}"
    plain = project.run_in_fork(text)
    assert plain[1:] == ([2, 9, 8.5, 8, 6, True], 8.0)
    assert [run(project, text) for _ in range(2)] == [((2, True), *plain[1:]), ((2, False), *plain[1:])]


AFTERWARDS = """
    import numpy as np
    from numba import guvectorize, njit, stencil, vectorize

    @njit("int64(int64)")
    def first(x):
        return x + 1

    import second
"""
SECOND = """
    import numpy as np
    from numba import cfunc, guvectorize, njit, stencil, vectorize

    @njit
    def plain(x):
        return x + 1

    @njit("int64(int64)")
    def declared(x):
        return plain(x) + 1

    @stencil
    def sides(x):
        return x[-1] + x[1]

    @guvectorize(["void(float64[:], float64[:])"], "(n)->(n)")
    def summed(x, result):
        result[:] = sides(x)

    @vectorize(["float64(float64)"])
    def twice(x):
        return x * 2

    @cfunc("float64(float64)")
    def callback(x):
        return x + 1

    def everything():
        a = np.arange(4.0)
        kinds = [type(f).__name__ for f in (plain, declared)] if "numba.core" in __import__("sys").modules else None
        return [plain(1), plain(1.5), declared(2), summed(a).tolist(), twice(a).tolist(), callback.ctypes(1.0)], kinds
"""


def test_what_is_declared_after_numba_was_imported_is_numbas_and_recorded(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program=AFTERWARDS, second=SECOND)
    text = "import program, second\nresult = *second.everything(), 'numba.core' in sys.modules"
    answer = [2, 2.5, 4, [0.0, 2.0, 4.0, 0.0], [0.0, 2.0, 4.0, 6.0], 2.0]
    assert run(project, text) == (answer, ["CPUDispatcher", "CPUDispatcher"], True)
    assert run(project, text) == (answer, None, False)


#: What Python itself asks classes of Numba, with what stands for types, classes and functions of Numba.
ASKED = [
    "isinstance(float64, types.Float), isinstance(float64, Integer), isinstance(3, Integer)",
    "isinstance(float64[:], (types.Array, int))", "isinstance(typeof(1), Integer)",
    "[t for t in (float64, int64) if isinstance(t, types.Float)]",
    "issubclass(types.Array, types.Type), issubclass(int, types.Type)", "issubclass(Integer, (int, types.Number)), Integer.__bases__",
    "isinstance(njit(abs_), Dispatcher), isinstance(abs, Dispatcher)", "isinstance(int64(float64), Signature)",
    "overload_method(types.Array, 'plus')(lambda a: None).__name__", "overload(types.Array.copy)(lambda a: None).__name__",
]  # fmt: skip


@pytest.mark.parametrize("asked", ASKED)
def test_classes_of_numba_know_what_stands_for_numbas_objects(tmp_path: Path, asked: str) -> None:
    project = Project(tmp_path)
    text = f"""
from numba import float64, int64, njit, typeof, types
from numba.core.dispatcher import Dispatcher
from numba.core.types import Integer
from numba.core.typing import Signature
from numba.extending import overload, overload_method
def abs_(x):
    return x
try:
    result = repr(({asked}))
except Exception as error:
    result = repr(error)
"""
    install = "import compcache.numba\ncompcache.numba.install(lazy=True)\n"
    lazy = project.run(install + text, backend=False, COMPCACHE_DIR=str(tmp_path / "cache"))
    assert lazy == project.run_in_fork(text)
