"""Starts without Numba: the same answers as Numba gives, in processes that do not import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import run_fresh
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

KERNELS = """
    from {decorators} import njit, jit, prange
    import math

    SCALE = 3
    SHIFT = 2.5

    class KernelError(Exception):
        pass

    @njit
    def callee(x):
        return x * SCALE

    @njit
    def calls(x, y=2):
        if x < 0:
            raise ValueError("negative", 3)
        return callee(x) / y

    @jit(nopython=True, error_model="numpy", nogil=True)
    def divide(x, y):
        return x / y, x // y

    @njit(cache=True)
    def mathematics(x):
        return math.sin(x) + math.exp(x) * SHIFT ** 2 + math.hypot(x, 2.0)

    @njit
    def same(x):
        return x

    @njit(fastmath=True)
    def loop(n):
        total = 0
        for i in prange(n):
            total += i * i
        return total

    @njit
    def several(flag, x):
        return flag, not flag, x, None, (x, 1)

    @njit
    def raises(x):
        if x == 1:
            raise KernelError("own", x)
        if x == 2:
            raise IndexError
        assert x != 3, "three"
        return 10 // (x - 4)

    @njit
    def uncalled(x):
        return x

    def make(by):
        @njit
        def scaled(x):
            return x * by
        return scaled

    twice, thrice = make(2), make(3)

    @njit
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    @njit
    def text(s, n):
        return len(s) * n
"""
CALLS = """
import sys, traceback
import {module} as k

def said(call):
    try:
        answer = call()
    except Exception as error:
        frames = [(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__) if f.filename == k.__file__]
        return type(error).__module__.replace({module!r}, ""), type(error).__name__, repr(error.args), frames
    return repr(answer), repr(type(answer)), isinstance(answer, tuple) and repr([type(a) for a in answer])

calls = [
    lambda: k.calls(1.5), lambda: k.calls(2), lambda: k.calls(2, 4), lambda: k.calls(x=3, y=1.0), lambda: k.callee(5),
    lambda: k.calls(-1.0), lambda: k.calls(1.0, 0), lambda: k.calls(y=1, x=True), lambda: k.divide(1.0, 0.0),
    lambda: k.divide(7, 2), lambda: k.mathematics(0.3), lambda: k.mathematics(2), lambda: k.same(True), lambda: k.same(None),
    lambda: k.same(1), lambda: k.same(-2**63), lambda: k.same(2.5), lambda: k.same(1 + 2j), lambda: k.same((1, (2.0, True))),
    lambda: k.same(()), lambda: k.loop(10), lambda: k.several(True, 1.0), lambda: k.several(False, 7),
    *[lambda x=x: k.raises(x) for x in (1, 2, 3, 4, 5)], lambda: k.twice(4), lambda: k.thrice(4), lambda: k.twice(0.5),
    lambda: k.fibonacci(12), lambda: k.text("wörter", 3), lambda: k.same("text"), lambda: k.same(float("nan")),
]
answers = [said(call) for call in calls]
"""
NAMES = "result = answers, [k.calls.__name__, k.calls.__doc__, k.calls.__module__.replace({module!r}, ''), callable(k.calls)]"
ATTRIBUTES = """
import copy, functools, inspect
result = [repr(inspect.signature(k.calls)), k.calls.__code__.co_name, k.calls.__defaults__, k.calls.__wrapped__.__name__]
result += [copy.copy(k.calls) is k.calls, copy.deepcopy({1: k.calls})[1] is k.calls, inspect.isfunction(k.calls), bool(k.calls)]
result += [hasattr(k.calls, name) for name in ("__globals__", "__closure__", "__self__", "__len__", "__array_interface__")]
result += [functools.wraps(k.calls)(lambda: 1).__name__, inspect.getsource(k.callee).strip().splitlines()[1:], callable(k.calls)]
"""
IMPORTED = "\nresult = result, 'numba' in sys.modules, any(name.startswith(('numba', 'llvmlite')) for name in sys.modules)"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same kernels with Numba's decorators and with the lazy ones, which one process has compiled."""
    made = Project(tmp_path_factory.mktemp("lazy"))
    made.write(plain=KERNELS.replace("{decorators}", "numba"), lazy=KERNELS.replace("{decorators}", "compcache.numba"))
    made.run(script("lazy", CALLS + NAMES), backend=False, COMPCACHE_DIR=str(made.cache))
    return made


def script(module: str, text: str) -> str:
    return text.replace("{module!r}", repr(module)).replace("{module}", module)


def lazily(project: Project, text: str, **environment: str) -> Any:
    return project.run(text, backend=False, COMPCACHE_DIR=str(project.cache), **environment)


def test_all_answers_are_numbas_and_numba_is_not_imported(project: Project) -> None:
    plain = project.run_in_fork(script("plain", CALLS + NAMES))
    answers, numba, parts = lazily(project, script("lazy", CALLS + NAMES) + IMPORTED)
    assert answers == plain
    assert (numba, parts) == (False, False)


@pytest.mark.quick_answer
def test_what_is_not_known_asks_numba_and_is_known_next_time(project: Project, tmp_path: Path) -> None:
    text = "import lazy, sys\nbefore = 'numba' in sys.modules\nanswer = lazy.uncalled(3.5)\n"
    text += "result = before, answer, 'numba' in sys.modules, str(lazy.uncalled.signatures)"
    directory = str(tmp_path / "cache")
    first = project.run(text, backend=False, COMPCACHE_DIR=directory)
    assert first == (False, 3.5, True, "[(float64,)]")
    text = text.replace(", str(lazy.uncalled.signatures)", "")
    assert project.run(text, backend=False, COMPCACHE_DIR=directory) == (False, 3.5, False)


def test_decorating_imports_nothing(project: Project) -> None:
    text = "import sys, lazy\nrepr(lazy.calls), lazy.calls.py_func, lazy.calls.__wrapped__, isinstance(lazy.calls, int)\n"
    assert lazily(project, text + "result = [n for n in ('numba', 'llvmlite', 'numpy', 'ctypes') if n in sys.modules]") == []


def test_a_warm_start_imports_nothing_that_only_misses_need(project: Project) -> None:
    text = f"import sys, compcache.numba\ncompcache.numba.install({str(project.cache)!r}, lazy=True)\nimport lazy\n"
    text += "unneeded = 'cache', 'store', 'errors', 'files', 'formats.entry', 'record', 'wording', 'numba.fingerprints.implementations'\n"
    text += "unneeded += 'numba.fingerprints.state', 'numba.registered.reviewed', 'numba.registered.type_texts'\n"
    text += "result = lazy.callee(5), [name for name in unneeded if f'compcache.{name}' in sys.modules]"
    answers = [project.run(text, backend=False) for _ in range(2)]  # the first one notes the installed packages again
    assert answers[1] == (project.run_in_fork("import plain\nresult = plain.callee(5)"), [])


def test_integers_that_do_not_fit_are_numbas_affair(project: Project) -> None:
    text = CALLS + "result = [said(lambda n=n: k.same(n)) for n in (2**63, 2**70, -2**64)]"
    assert lazily(project, script("lazy", text)) == project.run_in_fork(script("plain", text))


def test_wrong_calls_are_numbas_affair(project: Project) -> None:
    text = CALLS + """
calls = [lambda: k.calls(), lambda: k.calls(1, 2, 3), lambda: k.calls(1, x=2), lambda: k.calls(1, z=2), lambda: k.same([]),
         lambda: k.same(object())]
result = [said(call)[:2] for call in calls]
"""
    assert lazily(project, script("lazy", text)) == project.run_in_fork(script("plain", text))


def test_the_dispatcher_that_takes_over_knows_what_ran(project: Project) -> None:
    text = """
import {module} as k
from collections import namedtuple
first = [k.calls(1.5), k.calls(2), k.same(7)]
from numba.core.dispatcher import Dispatcher
seen = [str(k.calls.signatures), str(k.same.signatures), isinstance(k.calls, Dispatcher), isinstance(k.calls, int)]
seen += [sorted(map(str, k.calls.inspect_types.__self__.overloads)), k.calls.py_func(3, 1), repr(k.calls)[:14]]
seen += ["define" in k.calls.inspect_llvm(k.calls.signatures[0]), k.calls(1.5), k.calls("x" == "x"), str(k.calls.signatures)]
from numba import njit
@njit
def outer(x):
    return k.calls(x) + 1
seen += [outer(1.5), str(k.calls.nopython_signatures)]
import pickle
again = pickle.loads(pickle.dumps(k.calls))
seen += [again(1.5), isinstance(again, Dispatcher)]
result = first, seen
"""
    assert lazily(project, script("lazy", text)) == project.run_in_fork(script("plain", text))


def test_settings_in_code_and_environment_are_obeyed(project: Project, tmp_path: Path) -> None:
    project.write(bounds="""
        import numpy as np
        from {decorators} import njit
        @njit
        def beyond(a):
            return a[a.size] * 0
    """.replace("{decorators}", "compcache.numba"))
    text = """
import sys, bounds, numpy as np
def said():
    try:
        return bounds.beyond(np.arange(3))
    except Exception as error:
        return type(error).__name__
"""
    directory = str(tmp_path / "cache")

    def run(head: str, **environment: str) -> Any:
        tail = "result = said(), 'numba' in sys.modules"
        return project.run(text + head + tail, backend=False, COMPCACHE_DIR=directory, **environment)

    assert run("") == (0, True)
    assert run("") == (0, False)
    assert run("import numba; numba.config.BOUNDSCHECK = 1\n") == ("IndexError", True)
    assert run("") == (0, False)
    assert run("", NUMBA_BOUNDSCHECK="1") == ("IndexError", True)
    assert run("", NUMBA_BOUNDSCHECK="1") == ("IndexError", False)
    assert run("", NUMBA_DISABLE_JIT="1")[0] == "IndexError"
    assert run("") == (0, False)
    floats = "np.arange = np.ones\n"
    changed = "bounds.beyond(np.ones(3, 'f')); import numba; numba.config.BOUNDSCHECK = 1\n"  # after the first overload was compiled
    assert run(changed + floats) == ("IndexError", True)
    assert run(floats)[1]


def test_threads_that_call_first_at_the_same_time(project: Project) -> None:
    text = """
import sys, threading, lazy
start, said = threading.Barrier(8), []
def run():
    start.wait()
    said.append([lazy.calls(1.5), lazy.mathematics(0.25), lazy.same((1, (2.0, True)))])
threads = [threading.Thread(target=run) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
result = said.count(said[0]), 'numba' in sys.modules
"""
    assert lazily(project, text) == (8, False)


def test_a_forked_child_goes_on(project: Project) -> None:
    text = """
import os, sys, lazy
lazy.calls(1.5)
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, repr((lazy.calls(1.5), lazy.fibonacci(12), 'numba' in sys.modules)).encode())
    os._exit(0)
os.waitpid(child, 0)
result = os.read(read, 100).decode()
"""
    assert lazily(project, text) == "(2.25, 144, False)"


def test_ufuncs_and_callbacks_are_numbas_in_compiled_code(project: Project, tmp_path: Path) -> None:
    source = """
        from {decorators} import cfunc, guvectorize, njit, vectorize

        @vectorize
        def next_(x):
            return x + 1

        @vectorize(["float64(float64)"])
        def twice(x):
            return next_(x) * 2

        @guvectorize(["void(float64[:], float64[:])"], "(n)->()")
        def total(x, result):
            result[0] = x.sum()

        @cfunc("float64(float64)")
        def thrice(x):
            return x * 3

        @njit
        def all_of_them(x):
            return next_(x), twice(x), thrice(x)
    """
    project.write(
        plain_ufuncs=source.replace("{decorators}", "numba"), ufuncs=source.replace("{decorators}", "compcache.numba")
    )
    text = """
import warnings
warnings.simplefilter("ignore")
import numpy as np, {module} as u
result = repr(u.all_of_them(2.5)), repr(u.total(np.ones(3))), repr(u.twice(np.ones(2))), repr(u.thrice.ctypes(2.0))
"""
    directory = str(tmp_path / "cache")
    lazy = [project.run(text.replace("{module}", "ufuncs"), backend=False, COMPCACHE_DIR=directory) for _ in range(2)]
    assert lazy == [project.run_in_fork(text.replace("{module}", "plain_ufuncs"))] * 2


def test_a_directory_that_others_can_write_to_is_not_used(project: Project, tmp_path: Path) -> None:
    directory = tmp_path / "open"
    (directory / "modules-v1").mkdir(parents=True)
    directory.chmod(0o777)
    text = """
import warnings, lazy
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    answers = lazy.calls(1.5), lazy.callee(2), lazy.calls(2)
result = answers, [w.category.__name__ for w in caught if "not cached" in str(w.message)]
"""
    assert project.run(text, backend=False, COMPCACHE_DIR=str(directory)) == ((2.25, 6, 3.0), ["CacheWarning"])


def test_attributes_are_those_of_dispatchers(project: Project) -> None:
    texts = ["import {module} as k" + ATTRIBUTES, "import {module} as k\nk.calls(1.5)" + ATTRIBUTES]
    plain = [project.run_in_fork(script("plain", text)) for text in texts]
    assert [lazily(project, script("lazy", text + IMPORTED)) for text in texts] == [(each, False, False) for each in plain]


@pytest.mark.parametrize("count", [65, 200, 300])
def test_functions_of_many_parameters_start_without_numba(project: Project, count: int) -> None:
    names = [f"a{i}" for i in range(count)]
    module = f"many{count}"
    project.write(**{module: f"from numba import njit\n@njit\ndef last({', '.join(names)}):\n    return a0 - {names[-1]}\n"})
    text = (
        f"import sys, compcache.numba\ncompcache.numba.install(lazy=True)\nimport {module} as k\nvalues = list(range({count}))\n"
        f"answers = k.last(*values), k.last(*values[:-1], a{count - 1}=7)\nresult = answers, 'numba.core.compiler' in sys.modules"
    )
    first, later = (project.run(text, backend=False, COMPCACHE_DIR=str(project.cache)) for _ in range(2))
    assert first == ((1 - count, -7), True)
    assert later == ((1 - count, -7), count > 255), "more arguments than `MOST_ARGUMENTS`: Numba decides"


#: Asks for the default cache while others can write to its directory, and after that.
OPENED_LATER = """
import os, warnings
from compcache.numba.lazy.entries import open_cache
os.makedirs(directory)
os.chmod(directory, 0o777)
with warnings.catch_warnings(record=True) as issued:
    warnings.simplefilter("always")
    result = [open_cache() is None, open_cache() is None, len(issued)]
os.chmod(directory, 0o700)
result.append(os.path.basename(open_cache().path))
"""


def test_a_default_cache_that_could_not_be_used_is_used_later(tmp_path: Path) -> None:
    assert run_fresh(tmp_path / "cache", OPENED_LATER, COMPCACHE_DIR=str(tmp_path / "cache")) == [True, True, 1, "cache"]


def test_overloads_that_cannot_be_loaded_into_the_dispatcher_are_compiled_again(tmp_path: Path) -> None:
    """Here, the class of an argument is gone, by whose name the entry refers to it."""
    project = Project(tmp_path)
    project.write(made="""
        from collections import namedtuple
        from compcache.numba import njit
        Pair = namedtuple("Pair", "a b")
        @njit
        def same(x):
            return x
    """)
    text = """
        import made
        pair = made.Pair(1, 2)
        made.same(pair)
        needed_numba = "numba.core" in sys.modules
        del made.Pair
        result = needed_numba, made.same([1.5]), list(made.same.overloads)[0].__class__.__name__, len(made.same.overloads)
    """
    assert lazily(project, text.replace("del made.Pair", "")) == (True, [1.5], "tuple", 2)
    assert lazily(project, text) == (False, [1.5], "tuple", 1)
