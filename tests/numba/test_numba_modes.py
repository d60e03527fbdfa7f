"""What one way of using the package compiled, each of the others finds: the command, the variable, `install()` and our decorators."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import pytest
from helpers import PACKAGE_ROOT
from numba_helpers import Project

import compcache.numba
from compcache.numba import startup
from compcache.numba.lazy.installation import settings_and_packages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("numba")

_IMPORTED = """
    from DECORATORS import njit
    SCALE = 3

    @njit(cache=True)
    def scaled(x):
        return x * SCALE
"""
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
_CHANGING = """
    import numpy as np
    from numba import stencil
    from DECORATORS import njit, prange, vectorize

    K = 1

    @njit(cache=True)
    def deep(x):
        return x * K

    @njit(cache=True)
    def inner(x):
        return deep(x) + K

    def make(n):
        @njit(cache=True)
        def made(x):
            return x + n + K
        return made

    first, second = make(10), make(20)

    @njit(cache=True)
    def argument(x):
        return x - K

    @njit(cache=True)
    def applied(function, x):
        return function(x) + first(x) + second(x) + inner(x)

    @vectorize(cache=True)
    def ufunc(x):
        return deep(x) + 3

    @njit(cache=True)
    def in_loop(x):
        return x + K

    @njit(cache=True, parallel=True)
    def parallel(a):
        for i in prange(a.size):
            a[i] = in_loop(a[i])
        return a.sum()

    @njit(cache=True)
    def in_stencil(x):
        return x + K

    @stencil
    def kernel(a):
        return in_stencil(a[0])

    @njit(cache=True)
    def smooth(a):
        return kernel(a).sum()

    answers = [applied(argument, 1), float(ufunc(1.5)), parallel(np.zeros(2)), smooth(np.zeros(2))]
    K = 5

    @njit(cache=True)
    def caller(x):
        return inner(x), second(x), argument(x), deep(x)

    answers += [first(1), caller(1), caller(1.5), caller(np.float32(2)), inner(1), applied(argument, 2), in_loop(1.0), in_stencil(1.0)]
    print(repr(repr(answers)))
"""
#: The second arguments are the values that the globals have once the first function has run, with which no entry was stored.
_CHANGING_WITHOUT_ENTRIES = """
    import sys
    import numpy as np
    import settings
    from numba import float64, njit as numba_njit, stencil, types
    from DECORATORS import njit
    from numba.experimental import jitclass
    from numba.extending import intrinsic, overload, overload_method, register_jitable

    K = settings.K = int(sys.argv[1])
    A = np.array([K])

    @jitclass([("x", float64)])
    class Scaled:
        def __init__(self, x):
            self.x = x + K

        def get(self):
            return self.x * K

    @numba_njit
    def deep(n):
        return deep(n - 1) + K if n > 0 else K

    @numba_njit
    def helper(x):
        return deep(x) + settings.K * A[0]

    def make():
        k = K

        @numba_njit
        def closure(x):
            return x + k

        def set_cell(value):
            nonlocal k
            k = value

        return closure, set_cell

    closure, set_cell = make()

    @register_jitable
    def registered(x):
        return x * K

    @njit(cache=True)
    def compiled_again(x):
        return x * K

    def read():
        return K

    def calls(x): ...
    def inlines(x): ...

    @overload(calls)
    def of_calls(x):
        k = read()
        return lambda x: x * k + K

    @overload(inlines, inline="always")
    def of_inlines(x):
        k = read()
        return lambda x: x * k + K

    @overload_method(types.UnicodeType, "scaled_by")
    def of_scaled_by(text, x):
        k = K
        return lambda text, x: len(text) + x * k

    @intrinsic
    def generated(context, x):
        k = K

        def generate(context, builder, signature, arguments):
            return builder.mul(arguments[0], context.get_constant(types.int64, 100 * k + K))

        return types.int64(types.int64), generate

    @stencil
    def kernel(a):
        return a[0] * K

    def use(n):
        @njit(cache=True)
        def uses(x):
            extended = calls(x), inlines(x), "text".scaled_by(x), generated(x)
            helpers = helper(x), closure(x), registered(x), compiled_again(x)
            return n, Scaled(x).get(), helpers, extended, kernel(np.ones(3)).sum()
        return uses(10)

    answers = [use(1)]
    if sys.argv[2:]:
        K = settings.K = A[0] = int(sys.argv[2])
        set_cell(K)
        compiled_again.recompile()
        answers.append(use(2))
    print(repr(repr(answers)))
"""
_CHANGING_IMPLEMENTATIONS = """
    import sys
    from DECORATORS import njit
    from numba import types
    from numba.extending import intrinsic, overload, overload_method

    K = int(sys.argv[1])

    @njit(cache=True)
    def helper(x):
        return x * K

    @njit(cache=True)
    def called_before(x):
        return x * K

    def calls_helper(x): ...
    def calls_called_before(x): ...
    def has_constant(x): ...

    @overload(calls_helper)
    def of_calls_helper(x):
        return lambda x: helper(x)

    @overload(calls_called_before)
    def of_calls_called_before(x):
        return lambda x: called_before(x)

    @overload(has_constant)
    def of_has_constant(x):
        k = K
        return lambda x: x + k

    @overload_method(types.UnicodeType, "added_to")
    def of_added_to(text, x):
        k = K
        return lambda text, x: len(text) + x + k

    @intrinsic
    def of_compiler(context, x):
        k = K

        def generate(context, builder, signature, arguments):
            return builder.mul(arguments[0], context.get_constant(types.int64, k))

        return types.int64(types.int64), generate

    def make(kind, n):
        if kind == "helper":
            return njit(cache=True)(lambda x: calls_helper(x) + n)
        if kind == "constant":
            return njit(cache=True)(lambda x: has_constant(x) + n)
        if kind == "constants":
            return njit(cache=True)(lambda x: has_constant(x) + has_constant(0.5) + n)
        if kind == "called before":
            return njit(cache=True)(lambda x: calls_called_before(x) + n)
        if kind == "method":
            return njit(cache=True)(lambda x: "text".added_to(x) + n)
        return njit(cache=True)(lambda x: of_compiler(x) + n)

    kinds = ["helper", "constant", "method", "intrinsic"]
    answers = []
    if sys.argv[2:]:
        answers = [called_before(10), *[make(kind, 0)(10) for kind in kinds]]
        K = int(sys.argv[2])
    answers += [make(kind, 1)(10) for kind in [*kinds, "constants", "called before"]]
    print(repr(repr(answers)))
"""
_CALLED_IN_IMPLEMENTATIONS = """
    from DECORATORS import njit
    from numba.extending import overload

    K = 1

    @njit(cache=True)
    def helper(x):
        return x * K

    def calls_helper(x): ...

    @overload(calls_helper)
    def of_calls_helper(x):
        return lambda x: helper(x)

    @njit(cache=True)
    def count(n):
        for number in range(n):
            yield number * K

    @njit(cache=True)
    def caller(x):
        total = 0
        for number in count(x):
            total += number
        return calls_helper(x) + total

    answers = [caller(10)]
    K = 5

    @njit(cache=True)
    def other(x):
        total = 0
        for number in count(x):
            total += number
        return helper(x) - total

    print(repr(repr([*answers, other(10), helper(10), list(count(3))])))
"""
#: In a fork of a process that has imported Numba, whose configuration is that of the variables from then on.
_FORKED = """
import runpy, sys
from numba.core import config
config.reload_config()
sys.path[:0], sys.argv[:] = [{directory!r}, {root!r}], [{program!r}, *{given!r}]
if {installs}:
    import compcache.numba
    compcache.numba.install()
runpy.run_path({program!r}, run_name="__main__")
"""
_MODES = ("run", "variable", "install", "decorators")


class Outcome(NamedTuple):
    """What a program said, and how many functions it stored and found with Numba."""

    answer: str
    stored: int
    found: int


class Programs:
    """A program that runs in each mode, with the same sources in the same place."""

    def __init__(self, directory: Path, source: str) -> None:
        self.project = Project(directory)
        self.project.register()
        self.source = source

    def start(self, mode: str, cache: Path, *given: str, **variables: str) -> Outcome:
        place = self.project.source
        sources = {"program": self.source, "imported": _IMPORTED, "settings": "K = 0"}
        decorators = "compcache.numba" if mode == "decorators" else "numba"
        self.project.write(**{name: textwrap.dedent(text).replace("DECORATORS", decorators) for name, text in sources.items()})
        program = str(place / "program.py")
        variables = {"COMPCACHE_DIR": str(cache), "NUMBA_DEBUG_CACHE": "1", **variables}
        if mode == "variable":
            variables["COMPCACHE_NUMBA"] = "1"
        if mode in {"run", "decorators"}:
            status, out, err = self._run([*(("-m", "compcache.numba", "run") if mode == "run" else ()), program, *given], variables)
        else:
            installs = mode == "install"
            script = _FORKED.format(directory=str(place), root=str(PACKAGE_ROOT), program=program, given=given, installs=installs)
            status, out, err = self.project.fork(script, variables)
        assert (status, err) == (0, "")
        lines = out.splitlines()
        stored, found = (sum(line.startswith(f"[cache] data {what}") for line in lines) for what in ("saved to", "loaded from"))
        return Outcome(lines[-1], stored, found)

    def _run(self, arguments: list[str], variables: dict[str, str]) -> tuple[int, str, str]:
        """In an interpreter of its own, for starts without Numba."""
        place = self.project.source
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
        own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{place}"}
        done = subprocess.run(
            [sys.executable, *arguments], env=inherited | own | variables, cwd=place, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def uncached(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """What a program with arguments answers without compcache and without code of an earlier start."""

    @functools.cache
    def answer(source: str, *given: str) -> str:
        directory = tmp_path_factory.mktemp("uncached")
        return Programs(directory, source).start("plain", directory / "none", *given).answer

    return answer


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["run", "install", "decorators"])
def test_helpers_in_loaded_code_keep_the_values_of_globals(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _CHANGING)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_CHANGING)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("starts", [("1", "1 5", "1 5"), ("5", "1 5", "1 5")], ids=["loaded", "other"])
def test_what_has_no_entry_is_compiled_from_the_values_that_loaded_code_had(
    tmp_path: Path, uncached: Callable[..., str], mode: str, starts: tuple[str, ...]
) -> None:
    programs = Programs(tmp_path, _CHANGING_WITHOUT_ENTRIES)
    for given in starts:
        answer = programs.start(mode, tmp_path / "cache", *given.split()).answer
        assert answer == uncached(_CHANGING_WITHOUT_ENTRIES, *given.split())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "starts"), [*[(mode, ("1 5", "1 5", "5", "1")) for mode in _MODES], ("variable", ("5", "1 5", "1 5"))])
def test_code_of_implementations_that_ran_with_other_values_is_found_only_with_these_values(
    tmp_path: Path, uncached: Callable[..., str], mode: str, starts: tuple[str, ...]
) -> None:
    programs = Programs(tmp_path, _CHANGING_IMPLEMENTATIONS)
    seen: set[str] = set()
    for given in starts:
        is_known = given in seen
        seen.add(given)
        outcome = programs.start(mode, tmp_path / "cache", *given.split())
        assert outcome.answer == uncached(_CHANGING_IMPLEMENTATIONS, *given.split())
        assert outcome.stored == 0 or not is_known


_CHANGING_ATTRIBUTES = """
    import sys
    from DECORATORS import njit
    from numba import types
    from numba.extending import intrinsic, overload, overload_method

    K = int(sys.argv[1])

    class Base:
        zero = 0.0 * K

    class Settings(Base):
        factor = K

        @classmethod
        def doubled(cls):
            return cls.factor * 2

    class Slotted:
        __slots__ = ("factor",)

    class Settable:
        def __init__(self):
            self.__dict__["factor"] = K
            self.slotted = Slotted()

        @property
        def factor(self):
            return self.__dict__["factor"]

        @property
        def tripled(self):
            return self.factor * 3

    table, item, read = {"factors": [K]}, Settable(), lambda: item.slotted.factor
    item.slotted.factor = read.factor = K

    def target(x): ...

    @overload(target)
    def of_target(x):
        factors = Settings.factor, Settings.doubled(), item.tripled, table["factors"][0], read(), read.factor
        return lambda x: (x, factors)

    @overload(target, inline="always")
    def of_text(x):
        if isinstance(x, types.UnicodeType):
            factor = Settings.factor
            return lambda x: len(x) * factor

    @overload_method(types.UnicodeType, "scaled")
    def of_scaled(text):
        factor = Settings.factor
        return lambda text: len(text) * factor

    @intrinsic
    def generated(context, x):
        factor = Settings.factor

        def generate(context, builder, signature, arguments):
            return builder.mul(arguments[0], context.get_constant(types.int64, factor))

        return types.int64(types.int64), generate

    def use(n):
        return njit(cache=True)(lambda x: (n, target(x), "text".scaled(), generated(x)))(10)

    answers = [use(1)]
    if sys.argv[2:]:
        table["factors"][0] = Settings.factor = item.__dict__["factor"] = item.slotted.factor = read.factor = int(sys.argv[2])
        answers += [use(2), Settings.doubled(), item.tripled, table["factors"][0], read()]
    print(repr(repr(answers)))
"""
_CHANGING_IN_THREADS = """
    import sys
    import threading
    from DECORATORS import njit
    from numba.extending import overload

    class Settings:
        factor = int(sys.argv[1])

    def target(x): ...

    @overload(target)
    def implementation(x):
        factor = Settings.factor
        return lambda x: x * factor

    def use(n):
        return njit(cache=True)(lambda x: target(x) + n)(10)

    answers, is_over = [use(1)], threading.Event()
    if sys.argv[2:]:
        Settings.factor = int(sys.argv[2])
        thread = threading.Thread(target=is_over.wait)
        thread.start()
        answers.append(use(2))
        is_over.set()
        thread.join()
    print(repr(repr(answers)))
"""
_CHANGING_QUEUE = """
    import sys
    from collections import deque
    from DECORATORS import njit
    from numba.extending import overload

    queue = deque([int(sys.argv[1])])

    def target(x): ...

    @overload(target)
    def implementation(x):
        factor = queue[0]
        return lambda x: x * factor

    @njit(cache=True)
    def first(x):
        return target(x)

    @njit(cache=True)
    def second(x):
        return target(x) + 100

    answers = [first(10)]
    if sys.argv[2:]:
        queue[0] = int(sys.argv[2])
        answers.append(second(10))
    print(repr(repr(answers)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", _MODES)
def test_implementations_run_with_the_attributes_that_loaded_code_had(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _CHANGING_ATTRIBUTES)
    for given in ("1", "1 5", "1 5"):
        answer = programs.start(mode, tmp_path / "cache", *given.split()).answer
        assert answer == uncached(_CHANGING_ATTRIBUTES, *given.split())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_attributes_that_other_threads_may_read_are_not_former(tmp_path: Path) -> None:
    """The overload runs with the present ones, and its caller is not stored."""
    programs = Programs(tmp_path, _CHANGING_IN_THREADS)
    programs.start("run", tmp_path / "cache", "1")
    outcome = programs.start("run", tmp_path / "cache", "1", "5")
    assert (outcome.answer, outcome.stored) == ("'[11, 52]'", 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["variable", "run"])
def test_what_cannot_be_compiled_from_former_values_is_not_stored(tmp_path: Path, uncached: Callable[..., str], mode: str) -> None:
    programs = Programs(tmp_path, _CHANGING_QUEUE)
    for given in ("1", "1 5"):
        programs.start(mode, tmp_path / "cache", *given.split())
    assert programs.start(mode, tmp_path / "cache", "1", "1").answer == uncached(_CHANGING_QUEUE, "1", "1")


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
@pytest.mark.parametrize("mode", _MODES)
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
@pytest.mark.parametrize("mode", _MODES)
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
@pytest.mark.parametrize("mode", _MODES)
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


_LOADED_FIRST = """
    import sys
    from numba import njit
    from numba.extending import overload

    *earlier, present = map(int, sys.argv[1:])
    G = (earlier or [present])[0]

    def target(x):
        pass

    @overload(target)
    def implementation(x):
        return (lambda x: x + 1) if G == 1 else (lambda x: x + 50)

    @njit
    def first(x):
        return target(x)

    @njit
    def second(x):
        return target(x) + 100

    value = first(1)
    G = present
    print(value, second(1))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_results_in_code_that_was_loaded_without_numba_are_those_of_this_process(tmp_path: Path, uncached: Callable[..., str]) -> None:
    programs = Programs(tmp_path, _LOADED_FIRST)
    for given in ("1 5", "1 5", "5", "1 5"):
        assert programs.start("run", tmp_path / "cache", *given.split()).answer == uncached(_LOADED_FIRST, *given.split())


_KEPT = """
    import sys
    from numba import njit
    from numba.extending import overload
    import compcache.numba

    *earlier, present = map(int, sys.argv[2:])
    G = (earlier or [present])[0]

    def target(x):
        pass

    @overload(target, inline="always")
    def implementation(x):
        return (lambda x: x + 1) if G == 1 else (lambda x: x + 2)

    @njit
    def uncached(x):
        return target(x)

    if sys.argv[1] == "installed":
        compcache.numba.install()
    if earlier:
        uncached(1)
        G = present
    compcache.numba.install()

    @njit(cache=True)
    def cached(x):
        return target(x) + 100

    print(cached(1))
"""

_DECLINED = """
    import sys
    from numba import njit
    from numba.extending import overload
    import compcache.numba

    compcache.numba.install()
    *earlier, present = map(int, sys.argv[1:])
    G = (earlier or [present])[0]

    class State:
        def knows(self):
            return self.values is None

    state = State()
    state.values = (value for value in (1,))

    def target(x):
        pass

    @overload(target)
    def special(x):
        return None if state.knows() or G == 1 else lambda x: 200

    @overload(target)
    def general(x):
        return lambda x: 100

    @njit(cache=True)
    def first():
        return target(1)

    @njit(cache=True)
    def second():
        return target(1) + 1

    if earlier:
        first()
        G = present
    print(second())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["installed", "later"])
def test_results_of_uncached_code_and_of_the_time_before_the_installation_are_not_taken_for_present_ones(tmp_path: Path, when: str) -> None:
    programs = Programs(tmp_path, _KEPT)
    first, other, same = (programs.start("plain", tmp_path / "cache", when, *given) for given in (("1", "2"), "2", "1"))
    assert [first.answer, other.answer, same.answer] == ["102", "103", "102"]
    assert (other.found, same.found) == (0, 1 if when == "installed" else 0)
    assert programs.start("plain", tmp_path / "cache", when, "1", "2").answer == "102"  # not the entry of the second start


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_implementations_that_declined_have_the_content_of_that_time(tmp_path: Path) -> None:
    programs = Programs(tmp_path, _DECLINED)

    def start(*given: str) -> Outcome:
        return programs.start("plain", tmp_path / "cache", *given, NUMBA_CACHE_DIR=str(tmp_path / "-".join(given)))

    assert [start(*given).answer for given in (("1", "2"), ("2",), ("2", "1"))] == ["101", "201", "201"]
    assert start("1")[::2] == ("101", 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", _MODES)
def test_helpers_that_implementations_call_and_generators_keep_the_values_of_globals(
    tmp_path: Path, uncached: Callable[..., str], mode: str
) -> None:
    programs = Programs(tmp_path, _CALLED_IN_IMPLEMENTATIONS)
    for _ in range(3):
        assert programs.start(mode, tmp_path / "cache").answer == uncached(_CALLED_IN_IMPLEMENTATIONS)


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
@pytest.mark.parametrize("first", _MODES)
@pytest.mark.parametrize(("source", "count"), [(_PROGRAM, 11), (_EXTENDED, 1)], ids=["functions", "extensions"])
def test_each_mode_finds_what_another_compiled(tmp_path: Path, first: str, source: str, count: int) -> None:
    programs = Programs(tmp_path, source)
    base = tmp_path / "base"
    compiled = programs.start(first, base)
    assert (compiled.stored, compiled.found) == (count, 0)
    for second in _MODES:
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
    for name, counts in (("OPT", True), ("BOUNDSCHECK", True), ("DEBUG_CACHE", False), ("DUMP_IR", False), ("NUM_THREADS", False)):
        monkeypatch.setenv(f"NUMBA_{name}", "1")
        assert (name, settings_and_packages() != before) == (name, counts)
        monkeypatch.delenv(f"NUMBA_{name}")
