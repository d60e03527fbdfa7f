"""Test suites of packages that use Numba: where each comes from, and which slice of it is run."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

from numba_packages import ENVIRONMENTS, PACKAGE_ROOT, Package, python_of

_SECONDS = 1500
_RUNNER = Path(__file__).absolute().parent / "numba_suite_runner.py"


class Suite(NamedTuple):
    """What is installed, and the arguments that pytest gets.

    `tests` are paths in the installed package (`from_source`: in its source distribution). `unstable` are tests that differ
    between two runs of plain Numba, or test that something is compiled, with the reason.
    """

    name: str  # the environment's, and after a space that of a part
    requirement: str
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    from_source: bool = False
    unstable: dict[str, str] = {}  # noqa: RUF012 - never changed
    long: bool = False

    @property
    def package(self) -> str:
        """What the environment and the source tree are named after."""
        return self.name.split()[0]


#: Numba's own tests: a name, the module, and which of its tests.
NUMBAS_OWN = (
    ("recursion", "test_recursion", ""),
    ("generators", "test_generators", ""),
    ("dispatcher", "test_dispatcher", ""),
    ("extending", "test_extending", ""),
    ("jitclasses", "test_jitclasses", ""),
    ("dictobject", "test_dictobject", "TestDictTypeCasting or (TestTypedDict and not InitialValues) or TestDictWithJitclass"),
    ("typedlist", "test_typedlist", "TestNoneType or TestAllocation or TestExtend or TestGetItemIndexType"),
    ("ufuncs", "npyufunc/test_dufunc", "TestDUFunc and not Base and not At and not Reduce"),
    ("gufuncs", "npyufunc/test_gufunc", ""),
    ("parfors", "test_parfors", "TestPrangeBasic and (prange01 or prange02 or prange03 or prange04 or prange05)"),
    ("stencils", "test_stencils", "TestStencil and not TestStencilBase"),
    ("array methods", "test_array_methods", "TestArrayComparisons or where or clip or repeat or cumsum or argmax"),
)
NOT_AS_COMPILED = {
    "numba/tests/test_extending.py::TestOverloadMethodCaching::test_caching_overload_method": "it wants an empty cache of Numba's",
    "numba/tests/test_dispatcher.py::TestDispatcherMethods::test_get_annotation_info": "Numba's own cache keeps no annotations either",
}
SUITES = [
    Suite("quantecon", "quantecon pytest", (
        "quantecon/markov/tests/test_gth_solve.py", "quantecon/optimize/tests/test_linprog_simplex.py", "quantecon/random/tests",
    )),
    Suite("numba_stats", "numba_stats scipy pytest", ("tests/test_norm.py", "tests/test_scalar.py", "tests/test_expon.py"),
          from_source=True),
    Suite("numbagg", "numbagg pandas pytest hypothesis bottleneck tabulate", (
        "numbagg/test/test_matrix_functions.py", "numbagg/test/test_moving_exp.py"
    ),
          from_source=True),
    Suite("interpolation", "interpolation packaging pytest", (
        "interpolation/splines/tests", "interpolation/multilinear/tests", "interpolation/tests",
    )),
    Suite("rocket-fft", "rocket-fft scipy pytest", ("tests/test_extras.py", "tests/parity/test_numpy_fft.py"), from_source=True),
    Suite("pynndescent", "pynndescent pytest", ("pynndescent/tests/test_distances.py", "pynndescent/tests/test_rank.py"),
          from_source=True),
    Suite("umap-learn", "umap-learn pytest", ("umap/tests/test_umap_metrics.py",), from_source=True),
    Suite("stumpy", "stumpy pytest pandas", ("tests/test_stamp.py", "tests/test_aamp.py"), from_source=True),
    Suite("resampy", "resampy pytest", ("tests/test_core.py",), from_source=True),
    Suite("librosa", "librosa pytest", ("tests/test_sequence.py",), from_source=True),
    Suite("galois", "galois pytest", ("tests/fields/test_squares.py", "tests/test_fibonacci_lfsr.py", "tests/test_berlekamp_massey.py"),
          from_source=True),
    Suite("sparse", "sparse scipy pytest", (
        "sparse/numba_backend/tests/test_compressed_convert.py", "sparse/numba_backend/tests/test_coo_numba.py"
    )),
    Suite("pyts", "pyts pytest", ("pyts/metrics/tests", "pyts/image/tests", "pyts/approximation/tests")),
    Suite("tslearn", "tslearn pytest", ("tests/test_metrics.py",), from_source=True),
    Suite("datashader", "datashader pytest", ("datashader/tests/test_glyphs.py", "datashader/tests/test_raster.py")),
    Suite("awkward", "awkward pytest", (
        "tests/test_0397_arrays_as_constants_in_numba.py", "tests/test_1240_v2_implementation_of_numba_1.py",
        "tests/test_1677_array_builder_in_numba.py", "tests/test_4250_numba_native_strings.py",
    ), from_source=True, unstable=dict.fromkeys(
        (f"tests/test_0397_arrays_as_constants_in_numba.py::{name}" for name in ("test_refcount", "test_Array")),
        "it counts references that compiling leaves behind",
    )),
    # What takes minutes, for `python tests/numba/numba_suites.py NAME...`.
    Suite("numba_stats whole", "numba_stats scipy pytest", ("tests",), from_source=True, long=True),
    Suite("quantecon games", "quantecon pytest", ("quantecon/game_theory",), long=True),
    Suite("quantecon others", "quantecon pytest", ("quantecon/markov", "quantecon/optimize", "quantecon/random"), long=True),
    Suite("sparse whole", "sparse scipy pytest", ("sparse/numba_backend/tests",), ("--continue-on-collection-errors",), long=True),
    Suite("pynndescent graphs", "pynndescent pytest", tuple(
        f"pynndescent/tests/test_{name}.py" for name in ("hub_trees", "search_graph", "hub_search_tree")
    ), from_source=True, long=True),
    Suite("umap-learn graphs", "umap-learn pytest", tuple(
        f"umap/tests/test_{name}.py" for name in ("umap_ops", "umap_validation_params", "spectral")
    ), from_source=True, long=True),
    Suite("tslearn others", "tslearn pytest", tuple(f"tests/test_{name}.py" for name in (
        "barycenters", "clustering", "neighbors", "preprocessing", "svm", "piecewise", "matrixprofile", "early_classification",
        "variablelength", "utils",
    )), from_source=True, long=True),
    Suite("librosa others", "librosa pytest", tuple(f"tests/test_{name}.py" for name in (
        "dtw", "util", "intervals", "notation", "segment", "convert", "filters", "beat", "onset",
    )), from_source=True, long=True),
    Suite("pyts others", "pyts pytest", tuple(f"pyts/{name}" for name in (
        "decomposition", "preprocessing", "bag_of_words", "transformation", "classification", "utils", "multivariate", "tests",
    )), long=True),
    Suite("datashader pandas", "datashader pytest", (
        "datashader/tests/test_pandas.py", "datashader/tests/test_transfer_functions.py"
    ), long=True),
    Suite("datashader others", "datashader pytest", tuple(f"datashader/tests/test_{name}.py" for name in (
        "quadmesh", "antialias", "layout", "bundling", "polygons", "datatypes", "xarray", "composite", "pipeline", "reductions", "utils",
        "macros",
    )), ("--continue-on-collection-errors",), long=True),
    Suite("numba array methods whole", "numba pytest", ("numba/tests/test_array_methods.py",), long=True),
    *[Suite(f"numba {name}", "numba pytest", (f"numba/tests/{path}.py",), ("-k", chosen) if chosen else (), unstable=NOT_AS_COMPILED)
      for name, path, chosen in NUMBAS_OWN],
]  # fmt: skip


class SuiteRun(NamedTuple):
    """The outcomes by test, what the backend counted, the processor time, whether Numba was imported, and what this process stored."""

    outcomes: dict[str, str]
    counts: tuple[int, int, dict[str, str]] | None
    seconds: float
    imports_numba: bool = True
    stored: tuple[str, ...] = ()


def tests_of(suite: Suite) -> Path:
    """The directory that the paths of a suite start at.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or its source cannot be had.
        FileNotFoundError: what was installed or downloaded has no tests.
    """
    root = _root_of(suite)
    missing = [path for path in suite.tests if not (root / path).exists()]
    if missing:
        raise FileNotFoundError(f"{suite.name}: no {missing[0]} in {root}; a source tree of that version can be put there")
    return root


def _root_of(suite: Suite) -> Path:
    python = python_of(Package(suite.package, suite.requirement, ""), suite="-suite")
    if not suite.from_source:
        command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    source = ENVIRONMENTS / f"{suite.package}-source"
    if not source.exists():
        partial = ENVIRONMENTS / f"{suite.package}-download"
        download = f"{python} -m pip download --quiet --no-deps --no-binary :all: --dest {partial} {suite.requirement.split()[0]}"
        subprocess.run(download.split(), check=True, capture_output=True)
        [archive] = partial.iterdir()
        with tarfile.open(archive) as tar:
            tar.extractall(partial / "content", filter="data")
        [content] = (partial / "content").iterdir()
        content.rename(source)
    return source


def run_suite(suite: Suite, directory: Path, *, forced: bool, lazy: bool = False) -> SuiteRun:
    """Run a suite, plain or with caching forced in this directory's cache, or (`lazy`) as a start without Numba."""
    root = tests_of(suite)
    python = python_of(Package(suite.package, suite.requirement, ""), suite="-suite")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_", "PYTHON"))}
    work = directory / "work"
    work.mkdir(exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [python, _RUNNER, "lazy" if lazy else "forced" if forced else "plain",
         f"--rootdir={root}", "--override-ini=addopts=", *suite.options,
         *[str(root / path) for path in suite.tests]],
        capture_output=True, text=True, timeout=_SECONDS, check=False, cwd=work,
        env=inherited | {
            "COMPCACHE_DIR": str(directory / "compcache"), "NUMBA_CACHE_DIR": str(directory / "numba"), "NUMBA_NUM_THREADS": "2",
            "PYTHONPATH": str(PACKAGE_ROOT), "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "agg",
            "SUBPROC_TEST": "1",  # else Numba's tests of parallel loops are skipped
        },
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    if not last.startswith("["):
        raise AssertionError(f"{suite.name}: exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")
    outcomes, counts, imports_numba, stored = json.loads(last)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return SuiteRun(outcomes, tuple(counts) if counts else None, seconds, imports_numba, tuple(stored))


def differences(plain: SuiteRun, other: SuiteRun, suite: Suite) -> dict[str, tuple[str, str]]:
    """The tests whose outcomes differ, with both."""
    names = sorted(plain.outcomes.keys() | other.outcomes.keys())
    pairs = {name: (plain.outcomes.get(name, "missing"), other.outcomes.get(name, "missing")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name not in suite.unstable}


def main(names: list[str]) -> None:
    """Print a row of the table for each suite; after ``--lazy``, of plain Numba and starts without Numba, cold and warm."""
    import tempfile

    lazy = names[:1] == ["--lazy"]
    names = names[lazy:]

    print("| package | tests | passed plain / cold / warm | misses cold | hits, misses warm | not cached | seconds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for suite in SUITES:
        if names and suite.name not in names:
            continue
        try:
            tests_of(suite)
        except subprocess.CalledProcessError as error:
            print(f"| {suite.name} | cannot be installed | {str(error.stderr)[-300:]!r} |", flush=True)
            continue
        except FileNotFoundError as error:
            print(f"| {suite.name} | {error} |", flush=True)
            continue
        with tempfile.TemporaryDirectory() as directory:
            try:
                runs = [run_suite(suite, Path(directory), forced=other, lazy=lazy and other) for other in (False, True, True)]
            except (AssertionError, subprocess.TimeoutExpired) as error:
                print(f"| {suite.name} | {error} |", flush=True)
                continue
        plain, cold, warm = runs
        passed = [sum(outcome == "passed" for outcome in run.outcomes.values()) for run in runs]
        assert cold.counts is not None
        assert warm.counts is not None
        seconds = " / ".join(f"{run.seconds:.1f}" for run in runs)
        print(
            f"| {suite.name} | {len(plain.outcomes)} | {' / '.join(map(str, passed))} | {cold.counts[1]} "
            f"| {warm.counts[0]}, {warm.counts[1]} | {len(warm.counts[2])} | {seconds} | "
            f"{'imports Numba' if warm.imports_numba else 'without Numba'} |",
            flush=True,
        )  # fmt: skip
        for title, other in (("cold", cold), ("warm", warm)):
            for name, pair in differences(plain, other, suite).items():
                print(f"    {title}: {name}: {pair}", flush=True)
        for label in warm.stored:
            print(f"    stored by the second process: {label[:110]}", flush=True)
        for label, reason in warm.counts[2].items():
            print(f"    refused: {label[:110]}: {reason[:200]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
