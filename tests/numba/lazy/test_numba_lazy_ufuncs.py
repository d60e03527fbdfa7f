"""Ufuncs and callbacks without Numba: made of stored loops, with the loops, casts and errors that Numba's have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

KERNELS = """
    import numpy as np
    from {decorators} import vectorize, guvectorize, cfunc, njit

    FACTOR = 3

    @vectorize(["f8(f8, f8)", "i8(i8, i8)"], identity=0)
    def add(x, y):
        "Adds."
        if x == 100:
            raise ValueError("hundred", y)
        return x + y * FACTOR

    @vectorize
    def doubled(x):
        return x * 2

    @vectorize(nopython=True)
    def narrowed(x, y):
        return np.float32(x + y)

    @guvectorize(["void(f8[:], f8[:], f8[:])", "void(i8[:], i8[:], i8[:])"], "(n),(n)->()")
    def dot(a, b, result):
        result[0] = 0
        for i in range(a.shape[0]):
            result[0] += a[i] * b[i]

    @guvectorize(["void(f8[:], f8, f8[:])"], "(n),()->(n)", target="cpu")
    def shifted(a, by, result):
        for i in range(a.shape[0]):
            result[i] = a[i] + by

    @guvectorize("(n),()->(n)")
    def dynamic(a, by, result):
        for i in range(a.shape[0]):
            result[i] = a[i] * by

    @cfunc("f8(f8, i4)")
    def callback(x, n):
        return x * n + FACTOR

    @njit
    def uses(a):
        return add(a, a).sum()

    @njit
    def calls(x):
        return callback(x, 2)
"""
CALLS = """
import inspect, sys
import numpy as np
def outcome(call):
    try:
        result = call()
    except Exception as error:
        return type(error).__name__, repr(error.args)[:60]
    return type(result).__name__, repr(result), str(getattr(result, "dtype", ""))
a = np.arange(4.0)
calls = [
    lambda: p.add(a, a), lambda: p.add(1, 2), lambda: p.add(1, 2.5), lambda: p.add(np.arange(3), 2), lambda: p.add(True, False),
    lambda: p.add(100.0, 7.0), lambda: p.add(a, a, a.copy()), lambda: p.add(a, a, where=a > 1, out=np.zeros(4)),
    lambda: p.add.reduce(a), lambda: p.add.accumulate(np.arange(3)), lambda: p.add.outer(a[:2], a[:2]), lambda: p.add.types,
    lambda: (p.add.nin, p.add.nout, p.add.identity, p.add.ntypes, p.add.__name__, p.add.__doc__), lambda: p.add(a[:, None], a),
    lambda: p.add(np.arange(3, dtype=np.float32), np.int8(2)), lambda: p.add([1, 2], [3.5, 4]), lambda: p.add(np.zeros(0), 1.0),
    lambda: p.doubled(np.float32(2.5)), lambda: p.doubled(2.5), lambda: p.doubled(3), lambda: p.doubled(a), lambda: p.doubled(True),
    lambda: p.doubled(np.arange(3)), lambda: p.narrowed(a, 1), lambda: p.narrowed(1.5, 2.5),
    lambda: p.dot(a, a), lambda: p.dot(np.ones((2, 4)), a), lambda: p.dot(np.arange(3), np.arange(3)), lambda: p.shifted(a, 2),
    lambda: p.shifted(np.ones((2, 2)), np.array([1.0, 5.0])), lambda: p.dot.signature, lambda: p.uses(a),
    lambda: p.dynamic(a, 2.0, a.copy()), lambda: p.dynamic(np.ones((2, 3)), np.array([1.0, 2.0]), out=np.zeros((2, 3))),
    lambda: p.callback.ctypes(2.5, 2), lambda: p.callback(2, 3), lambda: p.callback.address > 0, lambda: p.callback.__name__,
    lambda: p.callback.ctypes.argtypes, lambda: repr(p.callback), lambda: (lambda given: (p.add.at(given, [0, 0], 2.0), given))(a.copy()),
    lambda: len(p.add), lambda: len(p.dot), lambda: p.callback < 1, lambda: p.uses + 1,
    lambda: str(inspect.signature(p.dot)), lambda: str(inspect.signature(p.add)), lambda: p.dot.__nothing__,
    lambda: np.asarray(p.add).shape,
]
result = [outcome(call) for call in calls], "numba.core" in sys.modules
"""
#: Calls that only Numba can answer, after some that ran without it.
NUMBA_DECIDES = {
    "no loop": "outcome(lambda: p.add(1j, 2))",
    "a new loop": "outcome(lambda: p.doubled(a)), outcome(lambda: p.doubled(1j)), outcome(lambda: p.doubled(3)), p.doubled.types",
    "types of guvectorize": "outcome(lambda: p.dynamic(a, 2.0, a * 0)), outcome(lambda: p.dynamic(a, 2, a * 0)), p.dynamic.types",
    "no loop for `at`": "outcome(lambda: p.add.at(a, [0], 1j)), outcome(lambda: p.add.at([1.0], [0], 1))",
    "no indices for `at`": "outcome(lambda: p.add.at(a)), outcome(lambda: p.add.at(a, indices=[0], b=1.0)), a",
    "no arguments": "outcome(p.add), outcome(p.doubled)",
    "a shape that does not match": "outcome(lambda: p.dot(a, a[:3]))",
    "use in a function": "outcome(lambda: __import__('numba').njit(lambda a: p.add(a, 1))(a)), outcome(lambda: p.add(a, 1))",
    "a callback that compiled code calls": "outcome(lambda: p.calls(2.5)), outcome(lambda: p.calls(1))",
    "pickling": "outcome(lambda: __import__('pickle').loads(__import__('pickle').dumps(p.add))(1, 2))",
    "the classes": "type(__import__('numba').vectorize(['f8(f8)'])(lambda x: x)) is p.add.__class__, p.add.__class__.__name__",
    "another kind of array": "outcome(lambda: p.add(np.ma.masked_array(a, a > 1), a))",
    "a changed global": (
        "setattr(p, 'FACTOR', 50), outcome(lambda: p.add(1, 2)), str(p.add), outcome(lambda: p.add(1, 2)), p.callback.ctypes(1, 1)"
    ),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same ufuncs of Numba and of this package, which one process has compiled."""
    made = Project(tmp_path_factory.mktemp("ufuncs"))
    made.write(plain=KERNELS.replace("{decorators}", "numba"), lazy=KERNELS.replace("{decorators}", "compcache.numba"))
    return made


def run(project: Project, module: str, calls: str) -> Any:
    return project.run(f"import {module} as p\n{calls}", backend=False, COMPCACHE_DIR=str(project.cache))


def test_ufuncs_and_callbacks_are_numbas_and_start_without_it(project: Project) -> None:
    calls = CALLS.replace("lambda: p.add([1, 2], [3.5, 4]), ", "")
    expected = run(project, "plain", calls)[0]
    assert run(project, "lazy", calls) == (expected, True)
    assert run(project, "lazy", calls) == (expected, False)


@pytest.mark.parametrize("case", NUMBA_DECIDES)
def test_what_is_not_stored_is_numbas(project: Project, case: str) -> None:
    first = CALLS.partition("calls = [")[0] + "first = [p.add(2, 3), p.doubled(2), p.dot(a, a).tolist()]\n"
    calls = first + f"result = repr((first, {NUMBA_DECIDES[case]}))"
    assert run(project, "lazy", calls) == run(project, "plain", calls)


def test_an_edit_counts(tmp_path: Path) -> None:
    project = Project(tmp_path)
    source = """
        from compcache.numba import vectorize, guvectorize, cfunc
        FACTOR = {factor}
        @vectorize(["f8(f8)"])
        def f(x):
            return x * FACTOR
        @vectorize
        def g(x):
            return x * FACTOR
        @guvectorize(["void(f8[:], f8[:])"], "(n)->(n)")
        def h(x, y):
            y[:] = x * FACTOR
        @cfunc("f8(f8)")
        def c(x):
            return x * FACTOR
    """
    script = "import sys, p, numpy as np\nresult = [float(p.f(2)), float(p.g(2.0)), p.h(np.ones(1)).tolist(), p.c.ctypes(2)]"
    script += "\nresult.append('numba.core' in sys.modules)"
    for factor, is_imported in ((3, True), (3, False), (4, True), (3, False)):
        project.write(p=source.replace("{factor}", str(factor)))
        expected = [2.0 * factor, 2.0 * factor, [float(factor)], 2.0 * factor, is_imported]
        assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == expected


def test_threads_add_each_loop_once(project: Project) -> None:
    """All of them call at once what has no loop yet; a fork and its exit follow."""
    text = """
import sys, threading, os
import numpy as np
import {module} as p
barrier, answers = threading.Barrier(8), []
def work():
    barrier.wait()
    for _ in range(20):
        answers.append(repr((p.doubled(2.5), p.narrowed(1.5, 2.5), p.dot(np.ones(3), np.ones(3)), p.add(1, 2))))
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
child = os.fork()
if child == 0:
    sys.exit(0 if p.doubled(2.5) == 5.0 and p.add(2, 2) == 8 else 3)
status = os.waitpid(child, 0)[1]
result = set(answers), len(answers), status, 'numba.core' in sys.modules, p.doubled.types
"""
    first = text.replace("{module}", "lazy").replace("Barrier(8)", "Barrier(1)").replace("range(8)", "range(1)")
    project.run(first, backend=False, COMPCACHE_DIR=str(project.cache))
    answers, count, status, is_imported, types = run(project, "lazy", text.replace("{module}", "lazy"))
    expected = {"(np.float64(5.0), np.float32(4.0), np.float64(3.0), np.float64(7.0))"}
    assert (answers, count, status, is_imported, types) == (expected, 160, 0, False, ["d->d"])


def test_the_look_up_of_a_loop_may_import_a_module_that_calls_a_ufunc(project: Project) -> None:
    """A walk reads an attribute that its module computes. No lock is held meanwhile."""
    project.write(
        p="""
    from compcache.numba import guvectorize
    import lazy_settings

    @guvectorize("(n)->(n)")
    def scaled(x, result):
        for i in range(x.shape[0]):
            result[i] = x[i] * lazy_settings.FACTOR
    """,
        lazy_settings="""
    def __getattr__(name):
        if name != "FACTOR":
            raise AttributeError(name)
        import imported_late
        return imported_late.FACTOR
    """,
        imported_late="""
    from compcache.numba import vectorize

    @vectorize(["f8(f8)"])
    def tripled(x):
        return x * 3

    FACTOR = float(tripled(1.0))
    """,
    )
    script = "import sys, p, numpy as np\nresult = p.scaled(np.ones(2), np.zeros(2)).tolist(), 'numba.core' in sys.modules"
    for is_imported in (True, False):
        assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == ([3.0, 3.0], is_imported)


def test_the_wrapper_of_an_added_loop_is_compiled_once(project: Project) -> None:
    """The loop that later processes call without Numba is the wrapper that this process calls."""
    project.write(p="""
    from compcache.numba import guvectorize

    @guvectorize("(n)->(n)")
    def doubled(x, result):
        for i in range(x.shape[0]):
            result[i] = x[i] * 2
    """)
    script = """
import p
import numpy as np
p.doubled(np.ones(2), np.zeros(2))  # imports Numba
from numba.np.ufunc.wrappers import _GufuncWrapper
build, built = _GufuncWrapper._build_wrapper, []
_GufuncWrapper._build_wrapper = lambda *args: built.append(args) or build(*args)
result = p.doubled(np.ones(2, int), np.zeros(2, int)).tolist(), len(built)
"""
    assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == ([2, 2], 1)
    script = "import sys, p, numpy as np\nresult = p.doubled(np.ones(2, int), np.zeros(2, int)).tolist(), 'numba.core' in sys.modules"
    assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == ([2, 2], False)


DYNAMIC = """
    import numpy as np
    from {decorators} import guvectorize

    def make(name):
        def kernel(a, by, result):
            for i in range(a.shape[0]):
                result[i] = a[i] / 2 + by
        kernel.__name__ = name
        return guvectorize("(n),()->(n)")(kernel)

    up, down, mixed = make("up"), make("down"), make("mixed")
"""
DYNAMIC_CALLS = """
import sys, itertools
import numpy as np, {module} as p
names = ["int8", "int64", "uint16", "float32", "float64", "complex128", "bool"]

def outcome(ufunc, a, by, result):
    out = np.zeros(4, result)
    try:
        answer = ufunc(np.arange(4).astype(a), np.dtype(by).type(1), out)
    except Exception as error:
        return type(error).__name__
    return str(answer.dtype), answer.tolist(), answer is out

answers = [outcome(p.up, name, name, name) for name in names]
answers += [outcome(p.down, name, name, name) for name in reversed(names)]
rows = itertools.product(("int8", "float32", "int64"), ("float64", "int64"), ("float64", "int8", "float32"))
answers += [outcome(p.mixed, *row) for row in rows]
imported = "numba" in sys.modules
"""


def test_loops_of_gufuncs_are_those_that_numba_would_compile(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(plain=DYNAMIC.replace("{decorators}", "numba"), lazy=DYNAMIC.replace("{decorators}", "compcache.numba"))

    def run(module: str, last: str) -> Any:
        return project.run(DYNAMIC_CALLS.replace("{module}", module) + last, backend=False, COMPCACHE_DIR=str(project.cache))

    types = "\nresult = answers, [p.up.types, p.down.types, p.mixed.types]"
    plain = run("plain", types)
    assert run("lazy", types) == plain
    assert run("lazy", "\nresult = answers, imported") == (plain[0], False)
    assert run("lazy", types) == plain


SHARED = """
    from {decorators} import guvectorize, njit

    @njit(cache=True)
    def inner(x):
        return x * 2

    @guvectorize(["void(f8[:], f8, f8[:])"], "(n),()->(n)", cache=True)
    def shifted(a, by, result):
        for i in range(a.shape[0]):
            if a[i] == 100:
                raise ValueError("hundred")
            result[i] = inner(a[i]) + by

    @njit(cache=True)
    def first(x):
        return second(x) + inner(x)

    @njit(cache=True)
    def second(x):
        return x + 1
"""
ASK_SHARED = """
import program, numpy as np
try:
    program.shifted(np.array([100.0]), 1.0)
    error = None
except ValueError as raised:
    error = str(raised)
IMPORT
result = program.shifted(np.arange(3.0), 1.0).tolist(), error, program.first(2), 'numba.core' in sys.modules
"""


def test_one_image_has_the_loop_for_starts_with_numba_and_without(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program=SHARED.format(decorators="compcache.numba"))
    said = [
        project.run(ASK_SHARED.replace("IMPORT", then), backend=False, COMPCACHE_DIR=str(project.cache))
        for then in (
            "", "", "program.shifted.types\nimport numba.core; program.shifted.signature", "import numba.core; program.first.signatures"
        )
    ]
    assert [answer[:3] for answer in said] == [([1.0, 3.0, 5.0], "hundred", 7)] * 4
    assert [answer[3] for answer in said] == [True, False, True, True]
    script = "import compcache\nresult = sorted(f.func_name for f in compcache.Cache(DIRECTORY).functions())"
    names = project.run(script.replace("DIRECTORY", repr(str(project.cache))), backend=False)
    assert len([name for name in names if name.startswith("gufunc wrapper of")]) == 1
    assert not [name for name in names if " loop of " in name], "the loop is the wrapper"


def test_loops_of_ufuncs_are_built_once_and_run_from_their_images(tmp_path: Path) -> None:
    """One loop has declared signatures, the other one is compiled by a call."""
    project = Project(tmp_path)
    project.write(program="""
        from compcache.numba import vectorize

        @vectorize(["f8(f8, f8)", "i8(i8, i8)"])
        def add(x, y):
            return x + y

        @vectorize
        def doubled(x):
            return x * 2
    """)
    script = """
    import sys
    import numpy as np
    built = []
    def record(frame, event, argument):
        if event == "call" and frame.f_code.co_name == "build_ufunc_wrapper":
            built.append(frame.f_locals["fname"])
    sys.setprofile(record)
    import program
    results = [program.add(2.0, 3.0), program.add(2, 3), program.doubled(np.arange(3.0)).tolist()]
    sys.setprofile(None)
    results = [*map(float, results[:2]), results[2]], len(built)
    if "numba" in sys.modules:
        from numba.core.registry import cpu_target
        engine = cpu_target.target_context.codegen()._engine
        results += (any(engine.is_symbol_defined(f"__ufunc__.{name}") for name in built),)
    result = results
    """
    answer = [5.0, 5.0, [0.0, 2.0, 4.0]]
    assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == (answer, 3, False)
    assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == (answer, 0), "the loops are stored"


def test_listings_show_loops_and_wrappers_with_their_functions(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program=KERNELS.format(decorators="compcache.numba"))
    run = "import program, numpy as np\nx, y = np.arange(3.0), np.empty(3)\nprogram.dynamic(x, 2.0, y)\n"
    run += "result = float(program.doubled(x).sum() + y.sum())"
    for _ in range(3):  # the first one with Numba
        assert project.run(run, backend=False, COMPCACHE_DIR=str(project.cache)) == 12.0
    script = """
    import compcache
    from compcache.identity import label_of
    cache = compcache.Cache(DIRECTORY)
    listed = cache.functions(lambda name: name.startswith(("program.doubled", "program.dynamic")), folded=True)
    rows = [(label_of(row.func_name).split("(")[0], row.parts > 0, row.entries > 0, 2 <= row.uses <= 3) for row in listed]
    result = rows, len(cache.functions())
    """
    rows, functions = project.run(script.replace("DIRECTORY", repr(str(project.cache))), backend=False)
    assert rows == [("program.doubled", True, True, True), ("program.dynamic", True, True, True)], "one use for each process at most"
    assert functions > len(rows)


def test_the_records_of_what_is_compiled_at_once_are_one_file(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program=SHARED.format(decorators="compcache.numba"))
    # Entries that wait for a second are written before the next entry: on a slow machine, there would be several files.
    run = "import compcache.miss.entries\ncompcache.miss.entries._MAX_AGE = float('inf')\nimport program\nresult = program.first(2)"
    assert project.run(run, backend=False, COMPCACHE_DIR=str(project.cache)) == 7
    script = """
    import compcache
    from compcache.publish.packs import entries_of, packs_in
    store = compcache.Cache(DIRECTORY, allow_pickle=True)._store
    result = [
        sorted(entry.name.split("(")[0] for entry in entries_of(store, pack) if entry.kind == "pickle:numba start")
        for pack in packs_in(store.index.segments)
    ]
    """
    packs = project.run(script.replace("DIRECTORY", repr(str(project.cache))), backend=False)
    assert any({"program.first", "program.inner", "program.second"} <= set(pack) for pack in packs), packs
