"""Exported kernels with parallel loops: threads of this process's own pool, results and divisions those of Numba."""

from __future__ import annotations

import pytest
from numba_exports import COMPARE, COMPARED, EXPORT, KERNELS_HEAD
from numba_helpers import Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]
pytest.importorskip("numba")

KERNELS = (
    KERNELS_HEAD
    + """
    from numba import get_num_threads, get_thread_id, set_num_threads, set_parallel_chunksize

    @kernel(f8[::1], parallel=True)
    def total(a):
        result = 0.0
        for i in prange(len(a)):
            result += a[i]
        return result

    @kernel(f8[:, ::1], parallel=True)
    def whole(a):
        return np.sqrt(a) * 2 + 1, (a * a).sum(), a.max()

    @kernel(f8[:, :, ::1], parallel=True)
    def cube(a):
        return (a * 1.1).sum()

    @kernel(i8, parallel=True)
    def numbers(n):
        made = np.zeros(n, np.int64)
        for i in prange(n):
            made[i] = get_thread_id()
        return made, get_num_threads(), get_thread_id()

    @kernel(i8, i8, parallel=True)
    def with_fewer(n, threads):
        set_num_threads(threads)
        made = np.zeros(n, np.int64)
        for i in prange(n):
            made[i] = get_thread_id()
        return made, get_num_threads()

    @kernel(i8, parallel=True)
    def chunked(n):
        before = set_parallel_chunksize(3)
        made = 0
        for i in prange(n):
            made += i
        return made, set_parallel_chunksize(before)

    @njit(parallel=True)
    def row(a):
        result = 0.0
        for i in prange(len(a)):
            result += a[i]
        return result

    @kernel(f8[:, ::1], nogil=True)
    def rows(a):
        return np.array([row(line) for line in a])

    @kernel(f8[:, ::1], parallel=True)
    def within(a):
        made = np.zeros(len(a))
        for i in prange(len(a)):
            made[i] = row(a[i])
        return made

    @njit
    def checked(x):
        if x < 0:
            raise ValueError("negative", x)
        return x * 2

    @kernel(f8[::1], parallel=True)
    def refusing(a):
        result = 0.0
        for i in prange(len(a)):
            result += checked(a[i])
        return result

    @kernel(f8[::1], parallel=True)
    def refusing_array(a):
        made = np.zeros(len(a))
        for i in prange(len(a)):
            made[i] = checked(a[i])
        return made
"""
)
CASES = """
    import numpy as np
    random = np.random.default_rng(1)
    CASES = {
        "total": [lambda n=n: (np.random.default_rng(n).random(n),) for n in (0, 1, 2, 7, 1001)],
        "whole": [lambda s=s: (np.random.default_rng(1).random(s),) for s in ((1, 1), (2, 100), (100, 2), (7, 5))],
        "cube": [lambda s=s: (np.random.default_rng(1).random(s),) for s in ((1, 9, 2), (20, 3, 50), (2, 2, 2))],
        "numbers": [lambda: (10,)], "with_fewer": [lambda: (9, 2), lambda: (9, 99)], "chunked": [lambda: (100,), lambda: (2,)],
        "rows": [lambda: (np.random.default_rng(1).random((3, 500)),)], "within": [lambda: (np.random.default_rng(1).random((9, 50)),)],
        "refusing": [lambda: (np.ones(9),)], "refusing_array": [lambda: (np.ones(9),)],
    }
"""
FOUR = {"NUMBA_NUM_THREADS": "4"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Kernels, exported once by one process."""
    made = Project(tmp_path_factory.mktemp("parallel"))
    made.write(kernels=KERNELS, compared=COMPARED)
    made.run(EXPORT, backend=False, **FOUR)
    return made


def test_results_are_those_of_numba(project: Project) -> None:
    """To the last bit: loops are divided in the same way, and parts are added in the same order."""
    assert project.run(CASES + COMPARE, backend=False, **FOUR) == []


@pytest.mark.parametrize("index", [0, 5, 9])
def test_an_exception_of_any_thread_is_raised(project: Project, index: int) -> None:
    script = f"""
    import sys, traceback
    from array import array
    from compcache import Cache
    cache = Cache("cache")
    given = array("d", range(10))
    given[{index}] = -2.5
    result = []
    for name in ("refusing", "refusing_array"):
        try:
            cache.get_target("kernels." + name)(given)
        except ValueError as error:
            result.append((error.args, traceback.extract_tb(error.__traceback__)[-1].name))
        given[{index}] = 3
        result.append(sum(memoryview(given)) and float(cache.get_target("kernels.total")(given)) > 0)
        given[{index}] = -2.5
    result.append([name for name in sys.modules if name in ("numba", "llvmlite", "numpy")])
    """
    raised = (("negative", -2.5), "checked")
    assert project.run(script, backend=False, **FOUR) == [raised, True, raised, True, []]


def test_threads_are_as_many_as_the_setting_says(project: Project) -> None:
    script = """
    import os
    from compcache import Cache
    before = len(os.listdir("/proc/self/task"))
    made, count, own = Cache("cache").get_target("kernels.numbers")(9)
    result = made.tolist(), count, own, len(os.listdir("/proc/self/task")) - before
    """
    assert project.run(script, backend=False, NUMBA_NUM_THREADS="3") == ([0, 0, 0, 1, 1, 1, 2, 2, 2], 3, 0, 2)
    assert project.run(script, backend=False, NUMBA_NUM_THREADS="1") == ([0] * 9, 1, 0, 0)


def test_threads_and_children_run_loops(project: Project) -> None:
    """Loops of several threads at the same time, and of a process that was forked from one whose pool runs."""
    script = """
    import os
    from array import array
    from concurrent.futures import ThreadPoolExecutor
    from compcache import Cache
    cache = Cache("cache")
    total, within = cache.get_target("kernels.total"), cache.get_target("kernels.within")
    given, grid = array("d", range(1001)), memoryview(array("d", range(12))).cast("B").cast("d", [3, 4])
    def work(_):
        return all(total(given) == 500500 and within(grid).tolist() == [6, 22, 38] for _ in range(300))
    total(given), within(grid)  # a child of Python's that imports what another thread imported at the fork hangs
    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(work, n) for n in range(6)]
        statuses = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if work(0) else 1)
            statuses.append(os.waitpid(child, 0)[1])
        result = [future.result() for future in futures], statuses
    """
    assert project.run(script, backend=False, **FOUR) == ([True] * 6, [0] * 5)


def test_nothing_leaks(project: Project) -> None:
    script = """
    import resource
    from array import array
    from compcache import Cache
    cache = Cache("cache")
    given, bad = array("d", range(50)), array("d", [1.0, -1.0] * 20)
    grid = memoryview(array("d", range(12))).cast("B").cast("d", [3, 4])
    targets = [(cache.get_target("kernels." + name), argument) for name, argument in
               [("total", given), ("whole", grid), ("numbers", 9), ("within", grid), ("refusing", bad), ("refusing_array", bad)]]
    def repeat(times):
        for _ in range(times):
            for target, argument in targets:
                try:
                    target(argument)
                except ValueError:
                    pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = repeat(200)
    result = repeat(2000) - first
    """
    assert project.run(script, backend=False, **FOUR) < 1000  # KiB
