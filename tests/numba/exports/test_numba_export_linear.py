"""Linear algebra of exported kernels, through the BLAS and LAPACK that SciPy brings: the values that Numba has."""

from __future__ import annotations

import pytest
from numba_helpers import Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]
pytest.importorskip("numba")
pytest.importorskip("scipy")

KERNELS = """
    import numpy as np
    from numba import njit

    @njit
    def real(a, b, n=3, text="x"):
        values, vectors = np.linalg.eigh(a @ a.T)
        q, r = np.linalg.qr(a)
        u, s, vt = np.linalg.svd(a)
        x, residuals, rank, singular = np.linalg.lstsq(a, b)
        return (np.dot(b, b), a @ b, a @ a, np.linalg.inv(a), np.linalg.solve(a, b), np.linalg.det(a), values,
            np.linalg.eigvals(a.astype(np.complex128)), q, r, s, x, rank, np.linalg.norm(b),
            np.linalg.cholesky(a @ a.T + np.eye(a.shape[0])), n, text, a.reshape(-1, 1).reshape(a.shape[0], 1, -1))

    @njit(nogil=True)
    def complexes(a):
        return (np.linalg.svd(a)[1], np.linalg.eigh(a @ np.conj(a).T)[0], np.vdot(a[0], a[1]), np.linalg.lstsq(a, a[0])[0],
            np.linalg.eig(a)[1], np.linalg.qr(a)[1], np.linalg.inv(a), np.linalg.norm(a[0]))
"""
EXPORT = """
    import warnings
    warnings.simplefilter("ignore")
    import kernels
    from compcache import Cache
    from compcache.numba import export
    with Cache("cache") as cache:
        export(kernels.real, "(float64[:, ::1], float64[::1])", cache=cache)
        export(kernels.complexes, "(complex64[:, ::1],)", cache=cache)
    result = None
"""
COMPARE = """
    import warnings
    warnings.simplefilter("ignore")
    import numpy as np
    import kernels
    from compcache import Cache
    cache = Cache("cache")
    random = np.random.default_rng(1)
    result = []
    def compare(name, ours, theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            same = np.array_equal(one, other) and type(one) is type(other)
            if same and isinstance(one, np.ndarray):
                same = (one.dtype, one.strides) == (other.dtype, other.strides)
            if not same:
                result.append(f"{name} {number}: {one} is not {other}")
    for size in (2, 3, 5, 30):
        a, b = random.random((size, size)), random.random(size)
        compare("real", cache.get_target("kernels.real")(a, b), kernels.real(a, b))
        z = (a + 1j * random.random((size, size))).astype(np.complex64)
        compare("complexes", cache.get_target("kernels.complexes")(z), kernels.complexes(z))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Kernels, exported once by one process."""
    made = Project(tmp_path_factory.mktemp("linear"))
    made.write(kernels=KERNELS)
    made.run_in_fork(EXPORT)
    return made


def test_results_are_those_of_numba(project: Project) -> None:
    assert project.run(COMPARE, backend=False) == []


SINGULAR = """
    import sys
    import numpy as np
    {first}
    from compcache import Cache
    try:
        Cache("cache").get_target("kernels.real")(np.zeros((3, 3)), np.ones(3))
    except Exception as error:
        result = type(error).__name__, str(error), "numba" in sys.modules
"""


def test_what_lapack_tells_is_raised(project: Project) -> None:
    found = project.run(SINGULAR.format(first=""), backend=False)
    assert found == ("LinAlgError", "Matrix is singular to machine precision.", False)


def test_without_scipy_the_error_says_so(project: Project) -> None:
    hidden = "sys.modules['scipy.linalg.cython_blas'] = None"
    name, message, _ = project.run(SINGULAR.format(first=hidden), backend=False)
    assert name == "ImportError"
    assert "needs BLAS and LAPACK" in message
