"""What one way of using the package compiled, each of the others finds: the command, the variable, `install()` and our decorators."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from numba_modes import MODES, Outcome, Programs, uncached_fixture  # noqa: F401 - fixtures

import compcache.numba
from compcache.numba import startup
from compcache.numba.lazy.installation import settings_and_packages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("numba")

_PROGRAM = """
    import math
    import numpy as np
    from DECORATORS import njit, vectorize
    import imported

    K = 7
    TABLE = np.arange(5.0)

    @njit(cache=True)
    def annotated(x: int, y: "text" = 2) -> float:
        return x + K + y

    @njit(cache=True)
    def array(a):
        total = 0.0
        for i in range(len(a)):
            total += a[i] * TABLE[i % 5] + math.sin(a[i])
        return total

    def make(n):
        @njit(cache=True)
        def inner(x):
            return annotated(x) * n
        return inner

    closure = make(2)

    @njit(cache=True)
    def caller(x):
        return imported.scaled(x) + closure(x)

    @njit(cache=True)
    def raising(x):
        if x < 0:
            raise ValueError("negative")
        return x

    @njit("float64(float64)", cache=True)
    def declared(x):
        return x * 2

    @njit(cache=True, fastmath=True, nogil=True)
    def optioned(x):
        return declared(x) + 1

    @njit(cache=True)
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    namespace = {"njit": njit, "K": K, "__name__": __name__}
    exec("@njit(cache=True)\\ndef generated(x):\\n    return x - K\\n", namespace)

    @vectorize(["float64(float64)"], cache=True)
    def ufunc(x):
        return x * 3

    result = [annotated(1), array(TABLE), closure(3), caller(2), raising(4), optioned(1.5), factorial(5), namespace["generated"](9)]
    print(repr(repr([*result, float(ufunc(2.0))])))
"""
_EXTENDED = """
    from DECORATORS import njit
    from numba.extending import intrinsic, overload, register_jitable

    def stub(x):
        raise NotImplementedError

    @overload(stub)
    def implementation(x):
        def inner(x):
            return x + 11
        return inner

    @register_jitable
    def jitable(x):
        return x * 13

    @intrinsic
    def same(context, x):
        def generate(context, builder, signature, arguments):
            return arguments[0]
        return x(x), generate

    @njit(cache=True)
    def caller(x):
        return stub(x) + jitable(x) + same(x)

    print(repr(repr(caller(3))))
"""
_STARTS = """
    import sys
    import numpy as np
    from DECORATORS import njit, stencil
    from numba.extending import intrinsic, overload, register_jitable

    K = 3

    def stub(x):
        raise NotImplementedError

    @overload(stub)
    def implementation(x):
        return lambda x: x + K

    @register_jitable(inline="always")
    def jitable(x):
        return x * 13

    @intrinsic
    def same(context, x):
        def generate(context, builder, signature, arguments):
            return arguments[0]
        return x(x), generate

    @stencil
    def scaled(a):
        return a[0] * K

    @njit(cache=True, fastmath=True)
    def callee(x, y=2):
        return 1 / x + y

    @njit(cache=True)
    def caller(x):
        return stub(x) + jitable(x) + same(x) + scaled(np.ones(3)).sum() + callee(x)

    @njit(cache=True)
    def applied(function, x):
        return function(x)

    print(repr(repr([caller(3), applied(callee, 4)])), "numba.core.compiler" in sys.modules)
"""
_INHERITS = """
    import sys
    from DECORATORS import njit

    @njit(cache=True)
    def callee(x):
        return 1 / x

    @njit(cache=True, error_model="numpy")
    def caller(x):
        return callee(x)

    def said(function):
        try:
            return function(0.0)
        except ZeroDivisionError:
            return "error"

    print(repr(repr(said({"callee": callee, "caller": caller}[sys.argv[1]]))))
"""
_DECLARED = """
    import os
    from DECORATORS import njit

    K = int(os.environ["SCALE"])

    @njit("f8(f8)")
    def declared(x):
        return x * K

    K = 1

    @njit(cache=True)
    def caller(x):
        return declared(x)

    print(repr(repr(caller(2.0))))
"""
_LOADED = """
    from DECORATORS import cfunc, njit

    FACTOR = 2

    @njit(cache=True)
    def f(x):
        return x * FACTOR

    @cfunc("float64(float64)", cache=True)
    def doubled(x):
        return x * 2

    @njit(cache=True)
    def applied(function, x):
        return function(x) + 1

    answers = [applied(doubled, 3.0), f(1)]
    FACTOR = 5
    print(repr(repr([*answers, f(1), njit(f.py_func)(1)])))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_callbacks_are_arguments_and_functions_get_new_dispatchers_where_nothing_was_compiled(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _LOADED)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_LOADED)


_DISPATCHERS = """
    from DECORATORS import njit, vectorize

    K = 3

    def plain(x):
        return x * K

    first, second, uncached = njit(cache=True)(plain), njit(cache=True, fastmath=True)(plain), njit(plain)
    ufunc = vectorize(plain)

    @njit(cache=True)
    def caller(x):
        return first(x) + uncached(x) + 1

    @njit(cache=True)
    def passes(function, x):
        return function(x) + 2

    def make():
        @njit(cache=True)
        def helper(x):
            return x + K

        @njit(cache=True)
        def outer(x):
            return helper(x)

        return helper, outer

    helper, outer = make()
    answers = [caller(1), passes(second, 1.5), outer(1)]
    K = 50
    new, cached = njit(plain), njit(cache=True)(plain)
    answers += [new(1), cached(1), second(1), second(1.5), uncached(1), first(1), first(2.5), float(ufunc(1.5)), caller(1), caller(1.5)]
    new_helper, new_outer = make()
    answers += [new_helper(1), helper(1), new_outer(1), outer(1), outer(1.5), helper(1.5)]
    first.recompile()
    answers += [first(1), uncached(1), new(1)]
    print(repr(repr(answers)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_dispatchers_of_one_function_have_their_own_code(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _DISPATCHERS)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_DISPATCHERS.replace("cache=True", "cache=False"))


_LOOPS = """
    import warnings
    import numpy as np
    from DECORATORS import guvectorize, njit, vectorize
    from numba.extending import overload

    warnings.simplefilter("ignore")  # that `reduce` is experimental

    @vectorize(cache=True)
    def ufunc(x, y):
        return x * 2 + y

    @vectorize
    def helped(x):
        return x + 1

    @njit
    def helper(a):
        return helped(a)

    @guvectorize("(n)->(n)")
    def general(a, out):
        for i in range(a.size):
            out[i] = a[i] * 2

    @njit(cache=True)
    def mixed(a):
        return ufunc(a, 1.5).sum() + ufunc(a, a).sum()

    @njit(cache=True)
    def reduced(a):
        return ufunc.reduce(a)

    @njit(cache=True)
    def nested(a):
        return helper(a).sum()

    def stub(a):
        raise NotImplementedError

    @overload(stub)
    def of_stub(a):
        return lambda a: helped(a)

    @njit(cache=True)
    def overloaded(a):
        return stub(a).sum()

    @njit(cache=True)
    def generalized(a):
        out = np.empty_like(a)
        general(a, out)
        return out.sum()

    def make(number):
        @vectorize
        def made(x):
            return x * number

        @njit(cache=True)
        def summed(a):
            return made(a).sum()

        return made, summed

    whole, real = np.arange(4), np.arange(4.0)
    answers = [mixed(whole), ufunc.types, ufunc(whole, whole).tolist(), ufunc.types]
    answers += [reduced(real), ufunc.types, ufunc.reduce(whole), ufunc(real, np.float32(1)).dtype, ufunc.types]
    answers += [nested(real), helped.types, helped(whole).dtype, helped.types, overloaded(whole), helped.types]
    answers += [generalized(whole), general.gufunc_builder._sigs if hasattr(general, "gufunc_builder") else 0]
    for number in (3, 4):
        made, summed = make(number)
        answers += [summed(real), made.types, made(whole).dtype, made.types]
    print(repr(repr(answers)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_loaded_code_adds_the_loops_that_the_compiler_adds_to_ufuncs(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _LOOPS)
    outcomes = [programs.start(mode, tmp_path / "cache") for _ in range(3)]
    assert [outcome.answer for outcome in outcomes] == [uncached(_LOOPS)] * 3
    assert outcomes[2].stored == 0


_CACHED_OVERLOAD = """
    from DECORATORS import njit
    from numba.extending import overload

    def target(x): ...

    @overload(target, jit_options={"cache": True})
    def implementation(x):
        return lambda x: x + 1

    @njit(cache=True)
    def caller(x):
        return target(x)

    print(repr(repr(caller(1))))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cached_overload_is_stored_without_a_warning(tmp_path: Path) -> None:
    """The options of its caller omit the function that Python calls, so starts without Numba have no record of it."""
    outcome = Programs(tmp_path, _CACHED_OVERLOAD).start("install", tmp_path / "cache")
    assert outcome.answer == "'2'"


_CHAIN_OF_CALLS = """
    from DECORATORS import njit
    from numba.extending import overload

    K = 1

    def link0():
        return K

    for number in range(1, 3000):
        exec(f"def link{number}():\\n    return K if K else link{number - 1}()")

    def target(x): ...

    @overload(target)
    def implementation(x):
        k = link2999()
        return lambda x: x + k

    @njit(cache=True)
    def caller(x):
        return target(x)

    print(repr(repr(caller(1))))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_long_chains_of_functions_are_loaded(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _CHAIN_OF_CALLS)
    assert [programs.start("install", tmp_path / "cache")[::2] for _ in range(2)] == [("'2'", 0), ("'2'", 1)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_start_without_numba_finds_what_the_variable_compiled(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _STARTS)
    cache = tmp_path / "base"
    compiled = programs.start("variable", cache)
    assert compiled.answer.endswith(" True")
    started = programs.start("run", cache)
    assert (started.answer, started.stored) == (compiled.answer.replace(" True", " False"), 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_was_compiled_with_the_options_of_a_caller_is_the_callers(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _INHERITS)
    said = [programs.start("run", tmp_path / "base", name).answer for name in ("caller", "callee", "callee")]
    assert said == ["'inf'", "\"'error'\"", "\"'error'\""]


_THREADS = """
    import sys, threading
    from DECORATORS import njit

    @njit(cache=True)
    def double(x):
        return x * 2

    @njit(cache=True)
    def triple(x):
        return x * 3

    start, said = threading.Barrier(8), []

    def call(function):
        start.wait()
        said.append(function(1.5))

    threads = [threading.Thread(target=call, args=[function]) for function in [double, triple] * 4]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(sorted(said), "numba.core" in sys.modules)
    """


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "decorators"])
def test_threads_that_need_numba_at_once_wait_for_the_one_that_imports_it(tmp_path: Path, mode: str) -> None:
    programs = Programs(tmp_path, _THREADS)
    said = [programs.start(mode, tmp_path / "base") for _ in range(2)]
    answers = [3.0] * 4 + [4.5] * 4
    assert said == [Outcome(f"{answers} True", 2, 0), Outcome(f"{answers} False", 0, 0)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_declared_function_is_what_it_was_when_it_was_declared(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _DECLARED)
    for mode in ("variable", "run"):
        said = [programs.start(mode, tmp_path / mode, SCALE=scale).answer for scale in ("3", "5", "3")]
        assert (mode, said) == (mode, ["'6.0'", "'10.0'", "'6.0'"])


@pytest.mark.peer
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize(("source", "count"), [(_PROGRAM, 11), (_EXTENDED, 1)], ids=["functions", "extensions"])
def test_each_mode_finds_what_another_compiled(tmp_path: Path, first: str, source: str, count: int) -> None:
    programs = Programs(tmp_path, source)
    base = tmp_path / "base"
    compiled = programs.start(first, base)
    assert (compiled.stored, compiled.found) == (count, 0)
    for second in MODES:
        cache = tmp_path / second
        shutil.copytree(base, cache)
        outcome = programs.start(second, cache)
        assert (second, outcome.answer, outcome.stored) == (second, compiled.answer, 0)


def test_the_command_compiles_a_program_as_python_does(tmp_path: Path) -> None:
    """Statements about the future are the program's own: they are flags of its code, and make texts of annotations."""
    program = tmp_path / "program.py"
    program.write_text("def f(x: int): pass\nprint(f.__annotations__, f.__code__.co_flags)\n")
    environment = {**os.environ, "COMPCACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(PACKAGE_ROOT)}
    said = [
        subprocess.run([sys.executable, *way, program], env=environment, capture_output=True, text=True, check=True).stdout
        for way in ([], ["-m", "compcache.numba", "run"])
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize("value", ["", "0", "False", "off", "no"])
def test_the_variable_can_say_no(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    def install(*_: object, **__: object) -> None:
        pytest.fail("it was installed")

    monkeypatch.setenv("COMPCACHE_NUMBA", value)
    monkeypatch.setattr(compcache.numba, "_install", install)
    startup.init()


def test_a_variable_counts_without_numba_if_the_setting_counts_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings_and_packages()
    counted, harmless = ("OPT", "BOUNDSCHECK", "FULL_TRACEBACKS", "DEVELOPER_MODE"), ("DEBUG_CACHE", "DUMP_IR", "NUM_THREADS")
    for name, counts in [*[(name, True) for name in counted], *[(name, False) for name in harmless]]:
        monkeypatch.setenv(f"NUMBA_{name}", "1")
        assert (name, settings_and_packages() != before) == (name, counts)
        monkeypatch.delenv(f"NUMBA_{name}")
