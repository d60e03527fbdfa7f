"""Random numbers of exported kernels, and functions of SciPy in them: the streams and values that Numba has."""

from __future__ import annotations

import pytest
from numba_helpers import Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]
pytest.importorskip("numba")

KERNELS = """
    import random
    import numpy as np
    from numba import njit

    @njit
    def seed(n):
        np.random.seed(n)
        random.seed(n)

    @njit
    def draw(n):
        return (np.random.random(n), np.random.standard_normal(n), np.random.poisson(25.5, n), np.random.poisson(2.5),
            np.random.exponential(2.0), np.random.randint(0, 1000), random.random(), random.gauss(0.0, 1.0), random.getrandbits(40),
            np.random.binomial(20, 0.3), np.random.gamma(2.0, 1.5), np.random.permutation(n), np.random.choice(np.arange(n)))

    @njit(nogil=True)
    def mean(n):
        total = 0.0
        for _ in range(n):
            total += np.random.random()
        return total / n
"""
EXPORT = """
    import kernels
    from compcache import Cache
    from compcache.numba import export
    with Cache("cache") as cache:
        result = [export(kernels.seed, "(int64,)", cache=cache), export(kernels.draw, "(int64,)", cache=cache),
            export(kernels.mean, "(int64,)", cache=cache)]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Kernels, exported once by one process."""
    made = Project(tmp_path_factory.mktemp("random"))
    made.write(kernels=KERNELS)
    made.run_in_fork(EXPORT)
    return made


FIRST = """
    from compcache import Cache
    cache = Cache("cache")
    seed, draw, mean = [cache.get_target("kernels." + name) for name in ("seed", "draw", "mean")]
    def plain(values):
        return [value.tolist() if hasattr(value, "tolist") else value for value in values]
"""


def test_a_seed_gives_numbas_stream(project: Project) -> None:
    """In a process without Numba, for several seeds and beyond the 624 words of a state."""
    drawing = "\n    result = [(seed(s), [plain(draw(n)) for n in (3, 700, 5)])[1] for s in (0, 1, 42, 2**32 - 1)]"
    ours = project.run(FIRST + "\n    import numpy" + drawing, backend=False)
    theirs = project.run(FIRST + "\n    from kernels import seed, draw" + drawing, backend=False)
    assert ours == theirs


def test_with_numba_the_state_is_one(project: Project) -> None:
    """Who draws next gets the next number, in either order of import."""
    script = """
    import numpy as np
    {first}
    seed(7)
    a = plain(draw(3))
    import kernels
    b = plain(kernels.draw(3))
    c = plain(draw(3))
    kernels.seed(7)
    result = [a, b, c] == [plain(draw(3)), plain(kernels.draw(3)), plain(kernels.draw(3))], mean(10) != mean(10)
    """
    before = script.format(first="import kernels")
    assert project.run(FIRST + before, backend=False) == (True, True)


def test_a_state_goes_over_to_numba_that_is_imported_later(project: Project) -> None:
    script = """
    import numpy as np
    seed(7)
    expected = [plain(draw(3)) for _ in range(2)]
    seed(7)
    found = [plain(draw(3))]
    import numba
    found.append(plain(draw(3)))
    import kernels
    kernels.seed(7)
    result = found == expected, plain(draw(3)) == expected[0], plain(kernels.draw(3)) == expected[1]
    """
    assert project.run(FIRST + script, backend=False) == (True, True, True)


def test_without_a_seed_each_process_thread_and_child_has_its_own_numbers(project: Project) -> None:
    script = """
    import os, threading
    found = [mean(1), mean(1)]
    threads = [threading.Thread(target=lambda: found.append(mean(1))) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, repr(mean(1)).encode())
        os._exit(0)
    found += [float(os.read(reader, 100)), mean(1)]
    result = len(set(found)), all(0 <= x < 1 for x in found), 0.45 < mean(10000) < 0.55
    """
    first, second = [project.run(FIRST + script, backend=False) for _ in range(2)]
    assert first == second == (7, True, True)


def test_functions_of_scipy_are_found_by_name(project: Project) -> None:
    """And named where they are missing."""
    pytest.importorskip("scipy")
    project.write(special="""
    from numba import njit
    from numba.extending import get_cython_function_address
    from numba.types import WrapperAddressProtocol, float64

    class Inverse(WrapperAddressProtocol):
        def __wrapper_address__(self):
            return get_cython_function_address("scipy.special.cython_special", "ndtri")
        def signature(self):
            return float64(float64)
    inverse = Inverse()

    @njit
    def quantile(p, scale):
        return inverse(p) * scale
    """)
    calls = "\n    result = [quantile(n / 1000, 2.0) for n in range(1001)], 'numba' in sys.modules"
    script = """
    import special
    from compcache import Cache
    from compcache.numba import export
    import sys
    export(special.quantile, "(float64, float64)", cache=Cache("cache"))
    quantile = special.quantile
    """
    theirs, _ = project.run(script + calls.replace("], '", "][1:-1], '"), backend=False)
    ours = project.run("""
    import sys
    from compcache import Cache
    quantile = Cache("cache").get_target("special.quantile")
    """ + calls.replace("], '", "][1:-1], '"), backend=False)  # fmt: skip
    assert ours == (theirs, False)
    hidden = """
    import sys
    sys.modules["scipy.special.cython_special"] = None
    from compcache import Cache
    try:
        Cache("cache").get_target("special.quantile")(0.5, 1.0)
    except ImportError as error:
        result = str(error)
    """
    message = project.run(hidden, backend=False)
    assert message.startswith("a compiled function needs ndtri of scipy.special.cython_special with the type 'double (")
