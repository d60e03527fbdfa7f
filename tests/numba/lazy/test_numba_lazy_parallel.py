"""Parallel code without Numba: on the threads that Numba would start, which it finds when it is imported later."""

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
    from {decorators} import njit, prange, vectorize, guvectorize

    @njit
    def checked(x):
        if x > 50:
            raise ValueError("big", x)
        return x

    @njit(parallel=True)
    def total(a):
        s = 0.0
        for i in prange(a.shape[0]):
            s += checked(a[i])
        return s

    @njit(parallel=True, fastmath=True)
    def combined(a, n=2):
        c = a * n + np.sqrt(a)
        return c, c.sum(), np.argmin(c)

    @njit
    def caller(a):
        return total(a) + 1

    @vectorize(["f8(f8, f8)", "i8(i8, i8)"], target="parallel", identity=0)
    def add(x, y):
        "Adds."
        return x + y * 3

    @guvectorize(["void(f8[:], f8[:])", "(f4[:], f4[:])"], "(n)->(n)", target="parallel", nopython=True)
    def running(a, out):
        s = 0.0
        for i in range(a.shape[0]):
            s += a[i]
            out[i] = s

    @guvectorize(["(f8[:], f8[:])"], "(n)->()", target="parallel")
    def first(a, out):
        if a[0] > 2:
            raise ValueError("too big")
        out[0] = a[0]
"""
CALLS = """
import sys
import numpy as np
def outcome(call):
    try:
        result = call()
    except Exception as error:
        return type(error).__name__, repr(error.args)[:60]
    return type(result).__name__, repr(result), str(getattr(result, "dtype", ""))
a = np.arange(12.0)
b = a.reshape(4, 3)
calls = [
    lambda: p.total(a), lambda: p.combined(a), lambda: p.combined(np.arange(4), 3), lambda: p.combined(a=a[::2], n=1), lambda: p.caller(a),
    lambda: p.add(a, 1), lambda: p.add(2, 3), lambda: p.add.reduce(b, axis=0), lambda: (p.add.types, p.add.identity, p.add.__doc__),
    lambda: p.add(np.float32(1), 2), lambda: p.running(b), lambda: p.running(b.astype("f4")), lambda: p.running(b, axis=0),
    lambda: (p.running.signature, repr(p.running), p.running.types, type(p.running) is np.ufunc, isinstance(p.add, np.ufunc)),
    lambda: p.first(b[:1]),
]
first = [outcome(call) for call in calls], "numba.core" in sys.modules
"""
#: What is asked of Numba afterwards, and errors, whose pieces are raised in whatever thread they happen.
LATER = {
    "threads": "numba.threading_layer(), numba.get_num_threads(), numba.get_thread_id()",
    "fewer threads": "numba.set_num_threads(1), p.total(a), numba.get_num_threads(), p.combined(a)[1], str(p.total.signatures)",
    "callers": "numba.njit(parallel=True)(lambda a: p.total(a) + p.combined(a)[1])(a), p.caller(a)",
    "use in a function": "outcome(lambda: numba.njit(lambda a: p.add(a, a))(2.0))[0]",
    "errors": "outcome(lambda: p.first(b)), outcome(lambda: p.add(1j, 2)), outcome(lambda: p.running(1.0))",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same functions of Numba and of this package, which one process has compiled."""
    made = Project(tmp_path_factory.mktemp("parallel"))
    made.write(plain=KERNELS.replace("{decorators}", "numba"), lazy=KERNELS.replace("{decorators}", "compcache.numba"))
    run(made, "lazy", "result = None")
    return made


def run(project: Project, module: str, later: str, **environment: str) -> Any:
    script = f"import warnings\nwarnings.simplefilter('ignore')\nimport {module} as p\n{CALLS}\n{later}"
    return project.run(script, backend=False, COMPCACHE_DIR=str(project.cache), NUMBA_NUM_THREADS="2", **environment)


@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_parallel_code_starts_without_numba(project: Project, layer: str) -> None:
    expected = run(project, "plain", "result = first[0]", NUMBA_THREADING_LAYER=layer)
    assert run(project, "lazy", "result = first", NUMBA_THREADING_LAYER=layer) == (expected, False)


@pytest.mark.parametrize("case", LATER)
def test_numba_goes_on_with_the_same_threads(project: Project, case: str) -> None:
    later = f"import numba\nresult = first[0], repr(({LATER[case]}))"
    with_hook = "import compcache.numba\ncompcache.numba.install(lazy=True)\n"
    given = f"import warnings\nwarnings.simplefilter('ignore')\n{with_hook}import plain as p\n{CALLS}\n{later}"
    expected = run(project, "plain", later)
    for _ in range(2):
        assert project.run(given, backend=False, COMPCACHE_DIR=str(project.directory / "hook"), NUMBA_NUM_THREADS="2") == expected


SETTING = """
import sys, threading
import numba, numpy as np
import plain as p
a = np.arange(12.0)
def outcome(call):
    try:
        return repr(call())
    except Exception as error:
        return type(error).__name__, str(error)
def count(): return numba.get_num_threads()
found = [count(), outcome(lambda: numba.set_num_threads(1)), count(), p.total(a)]
thread = threading.Thread(target=lambda: found.append((count(), outcome(lambda: numba.set_num_threads(2)), count())))
thread.start(); thread.join()
result = "numba.core" in sys.modules
found += [count(), p.total(a)]
found += [outcome(lambda: numba.set_num_threads(value)) for value in (0, -1, 3, True, np.int64(1), 1.0, "1", None)]
found += [outcome(lambda: numba.get_num_threads(1)), count(), numba.njit(lambda: numba.get_num_threads())(), numba.threading_layer()]
result = found, result
"""


@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_the_number_of_threads_is_asked_and_set_without_numba(project: Project, layer: str) -> None:
    hook = "import compcache.numba\ncompcache.numba.install(lazy=True)\n"
    settings: dict[str, Any] = {"backend": False, "NUMBA_NUM_THREADS": "2", "NUMBA_THREADING_LAYER": layer}
    expected, _ = project.run(SETTING, **settings)
    directory = str(project.directory / f"threads-{layer}")
    runs = [project.run(hook + SETTING, COMPCACHE_DIR=directory, **settings) for _ in range(3)]
    assert [found for found, _ in runs] == [expected] * 3
    assert not runs[-1][1]


@pytest.mark.parametrize("variables", [{"NUMBA_THREADING_LAYER": "other"}, {"NUMBA_THREADING_LAYER_PRIORITY": "omp"}])
def test_choices_that_are_not_plain_are_numbas(project: Project, variables: dict[str, str]) -> None:
    script = "import numpy\ntry:\n  from lazy import total\n  total(numpy.ones(3))\nexcept ValueError as error:\n  result = str(error)[:20]"
    found = project.run(script.replace("from lazy", "from plain"), backend=False, **variables)
    assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache), **variables) == found


def test_packages_that_say_cache_false_take_part_where_numba_is_meant(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels="""
        import numba, numpy as np
        from numba import from_dtype, typeof
        kind = from_dtype(np.dtype("f8"))
        assert kind is typeof(np.float64(1)) is typeof(np.zeros((2, 3), order="F")).dtype

        @numba.njit(cache=False)
        def f(x):
            return x + 1

        h = numba.njit(f.py_func, fastmath=True, parallel=False)

        @numba.guvectorize([(kind[:], kind[:])], "(n)->(n)", cache=False, target="parallel", fastmath=False)
        def g(a, out):
            for i in range(a.shape[0]):
                out[i] = a[i] * 2
    """)
    script = "import compcache.numba\ncompcache.numba.install(lazy=True)\nimport kernels\nimport numpy as np\n"
    script += "result = kernels.f(2), kernels.h(2.5), kernels.g(np.arange(3.0)).tolist(), 'numba.core' in sys.modules"
    for has_numba in (True, False):
        assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == (3, 3.5, [0.0, 2.0, 4.0], has_numba)
