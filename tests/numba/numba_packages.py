"""Packages of other people that use Numba's cache, a small program for each, and environments to run them in."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

PACKAGE_ROOT = Path(__file__).absolute().parents[2]
ENVIRONMENTS = Path(os.environ.get("COMPCACHE_TEST_ENVIRONMENTS", PACKAGE_ROOT / ".venv-peer-packages"))


class Package(NamedTuple):
    """What is installed, and a program that leaves what it computed in `answer`."""

    name: str
    requirement: str
    program: str


PACKAGES = [
    Package("numba_stats", "numba_stats", """
        from numba_stats import norm, truncexpon
        x = np.linspace(-3, 3, 100)
        answer = norm.pdf(x, 0.0, 1.0).sum(), norm.cdf(x, 0.5, 2.0).sum(), truncexpon.pdf(x, -1.0, 2.0, 0.0, 1.0).sum()
        """),
    Package("galois", "galois", """
        import galois
        field = galois.GF(3**5)
        x = field(list(range(1, 100)))
        answer = (x * x + x ** 3).tolist(), galois.prev_prime(10_000), galois.Poly([1, 0, 2], field=field)(x).tolist()
        """),
    Package("quantecon", "quantecon", """
        import quantecon
        chain = quantecon.MarkovChain(np.array([[0.4, 0.6], [0.2, 0.8]]))
        answer = (
            chain.stationary_distributions.tolist(), chain.simulate(50, init=0, random_state=1).tolist(),
            quantecon.tauchen(5, 0.9, 0.1).P.tolist(), quantecon.gini_coefficient(np.arange(1.0, 20.0)),
            quantecon.optimize.linprog_simplex(np.array([1.0, 2.0]), A_ub=np.ones((1, 2)), b_ub=np.array([3.0])).x.tolist(),
        )
        """),
    Package("pynndescent", "pynndescent", """
        import pynndescent
        data = np.random.RandomState(1).normal(size=(200, 5)).astype(np.float32)
        index = pynndescent.NNDescent(data, n_neighbors=5, random_state=1, n_jobs=1)
        answer = index.neighbor_graph[0][:20].tolist(), index.query(data[:5], k=3)[0].tolist()
        """),
    Package("sparse", "sparse scipy", """
        import sparse
        x = sparse.random((20, 30), density=0.2, random_state=1)
        answer = (x @ x.T).todense().sum(), x.sum(axis=0).todense().tolist(), (x * 2).T.tocsr().sum()
        """),
    Package("numbagg", "numbagg", """
        import numbagg
        a = np.arange(24.0).reshape(4, 6)
        a[1, 2] = np.nan
        answer = (
            numbagg.nanmean(a, axis=1).tolist(), numbagg.move_mean(a, window=3, min_count=1).tolist(),
            numbagg.ffill(a, axis=1).tolist(),
        )
        """),
    Package("interpolation", "interpolation packaging", """
        from interpolation import interp
        from interpolation.splines import UCGrid, eval_linear
        grid = UCGrid((0.0, 1.0, 5), (0.0, 2.0, 4))
        values = np.arange(20.0).reshape(5, 4)
        answer = (
            interp(np.linspace(0, 1, 5), np.arange(5.0), np.array([0.1, 0.52])).tolist(),
            eval_linear(grid, values, np.array([[0.3, 0.4], [0.9, 1.5]])).tolist(),
        )
        """),
    Package("stumpy", "stumpy", """
        import stumpy
        series = np.sin(np.arange(200.0)) + np.arange(200.0) % 7
        answer = stumpy.stump(series, m=20)[:10].tolist(), stumpy.mass(series[:20], series)[:5].round(9).tolist()
        """),
    Package("resampy", "resampy", """
        import resampy
        answer = resampy.resample(np.sin(np.arange(1000.0)), 22050, 16000)[:20].tolist()
        """),
    Package("rocket-fft", "rocket-fft", """
        import numba
        @numba.njit(cache=True)
        def transform(x):
            return np.fft.fft(x)
        answer = np.round(np.abs(transform(np.arange(16.0) + 0j)), 9).tolist()
        """),
    Package("librosa", "librosa", """
        import librosa
        y = np.sin(np.arange(8192.0) / 20).astype(np.float32)
        answer = (
            librosa.zero_crossings(y).sum().item(), librosa.util.peak_pick(np.abs(y), pre_max=3, post_max=3, pre_avg=3,
            post_avg=5, delta=0.1, wait=5).tolist(), librosa.sequence.dtw(y[None, :50], y[None, 3:60])[0][-1, -1].item(),
        )
        """),
    Package("umap-learn", "umap-learn", """
        import umap
        data = np.random.RandomState(1).normal(size=(60, 4))
        embedding = umap.UMAP(n_neighbors=5, n_epochs=20, random_state=1, n_jobs=1).fit_transform(data)
        answer = np.round(embedding, 3).tolist()
        """),
    Package("pyts", "pyts", """
        from pyts.image import GramianAngularField, MarkovTransitionField
        from pyts.metrics import dtw
        x = np.sin(np.arange(120.0)).reshape(4, 30)
        answer = (
            dtw(x[0], x[1]), GramianAngularField(image_size=6).fit_transform(x).sum().round(9).item(),
            MarkovTransitionField(image_size=6, n_bins=3).fit_transform(x).sum().round(9).item(),
        )
        """),
    Package("tslearn", "tslearn", """
        from tslearn.metrics import cdist_dtw, dtw, soft_dtw
        x = np.sin(np.arange(60.0)).reshape(3, 20)
        answer = dtw(x[0], x[1]), cdist_dtw(x).round(9).tolist(), round(float(soft_dtw(x[0], x[1], gamma=0.1)), 9)
        """),
    Package("datashader", "datashader", """
        import datashader, pandas
        frame = pandas.DataFrame({"x": np.arange(200.0), "y": np.sin(np.arange(200.0)), "z": np.arange(200.0) % 5})
        canvas = datashader.Canvas(plot_width=20, plot_height=10)
        answer = (
            canvas.points(frame, "x", "y", datashader.mean("z")).fillna(-1).values.tolist(),
            canvas.line(frame, "x", "y", datashader.count()).values.tolist(),
        )
        """),
    Package("vector", "vector", """
        import numba, vector
        @numba.njit(cache=True)
        def mass(a, b):
            return (a + b).mass + a.deltaR(b)
        @numba.njit(cache=True)
        def total(px, py):
            result = 0.0
            for i in range(len(px)):
                v = vector.obj(x=px[i], y=py[i])
                result += v.rho * v.phi
            return result
        a, b = vector.obj(pt=1.0, phi=0.5, eta=0.1, mass=2.0), vector.obj(pt=3.0, phi=-0.5, eta=1.1, mass=1.0)
        answer = mass(a, b), total(np.arange(1.0, 5), np.arange(2.0, 6))
        """),
    Package("awkward", "awkward", """
        import awkward, numba
        @numba.njit(cache=True)
        def total(arrays):
            result = 0.0
            for row in arrays:
                for item in row:
                    result += item
            return result
        answer = total(awkward.Array([[1.0, 2.0], [], [3.5]]))
        """),
]  # fmt: skip

_FIRST = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
"""
_LAST = """
from compcache.numba.lazy import installed_backend
backend = installed_backend()
counts = [backend.hits, backend.misses, backend.refused] if backend is not None else None
print()
print(json.dumps([repr(answer), counts, "numba._dispatcher" in sys.modules]))
"""


class Run(NamedTuple):
    """What a program said, the hits, misses and refusals if the backend was installed, its processor time, whether it has Numba."""

    answer: str
    counts: tuple[int, int, dict[str, str]] | None
    seconds: float
    imports_numba: bool = True


def python_of(package: Package, suite: str = "") -> Path:
    """The interpreter of the package's environment, which is made now where there is none; `suite` tells it from others.

    Raises:
        subprocess.CalledProcessError: the package cannot be installed.
    """
    directory = ENVIRONMENTS / f"{package.name}{suite}"
    python = directory / "bin" / "python"
    if not (directory / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        install = f"{python} -m pip install --quiet --disable-pip-version-check".split()
        subprocess.run([*install, *package.requirement.split(), f"{PACKAGE_ROOT}[numba,linker]"], check=True, capture_output=True)
        (directory / ".installed").touch()
    return python


def run(package: Package, directory: Path, *, backend: bool, lazy: bool = False, **environment: str) -> Run:
    """Run the program of a package, with Numba's own cache or with compcache's in this directory.

    `lazy`: by the command that starts programs without Numba.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_", "PYTHON"))}
    script = directory / "program.py"  # Numba's own cache needs a file
    script.write_text(_FIRST + textwrap.dedent(package.program) + _LAST)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [python_of(package), *(["-m", "compcache.numba", "run"] if lazy else []), script], capture_output=True, text=True,
        check=False,
        cwd=directory, env=inherited | {
            "COMPCACHE_NUMBA": str(int(backend)), "COMPCACHE_DIR": str(directory / "compcache"),
            "NUMBA_CACHE_DIR": str(directory / "numba"), "NUMBA_NUM_THREADS": "2", "PYTHONPATH": str(PACKAGE_ROOT),
        } | environment,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise AssertionError(f"{package.name}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    import json

    answer, counts, imports_numba = json.loads(done.stdout.splitlines()[-1])
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(answer, tuple(counts) if counts else None, seconds, imports_numba)
