"""Start-up of programs that use Numba: whole fresh processes, side by side, in turns.

    python benchmarks/numba_start.py [--repetitions 11] [--json FILE]

Compares an empty Python, an exported kernel, `import numba` alone, Numba's own cache, and this package's backend, for
a small function and a large one, when they find it and when they have to compile it; and takes the time of computing the
large function's key. The time of a process is
what the kernel charges it (user and system), and what a clock shows; the ratios are of the former, because on a shared
machine the latter tells of the neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_STEPS = "\n".join(
    f"            t += np.sqrt(abs(x * {n} + a[(i + {n}) % m])) if x > {n} else x / (x + {n})"
    for n in range(1, 90)
)
MODULE = f"""
import numpy as np
from numba import njit

@njit(cache=True)
def small(a):
    total = 0.0
    for x in a:
        total += x * 2
    return total

@njit
def helper(x, y):
    return x * y + 1

@njit(cache=True)
def large(a):
    m = len(a)
    t = 0.0
    order = np.argsort(a)
    b = np.sort(a[order]) + a.mean()
    for i in range(m):
        x = helper(a[i], b[i])
        for j in range(2):
{_STEPS}
    return t
"""
OWN = "import numpy as np, kernels\nkernels.{name}(np.arange(8.0))\n"
BACKEND = "import compcache.numba\ncompcache.numba.install({cache!r})\n" + OWN
EXPORT = """
import compcache.numba, kernels
from compcache import Cache
with Cache({cache!r}) as cache:
    compcache.numba.export(kernels.small, "(float64[::1],)", cache=cache)
"""
EXPORTED = """
from array import array
from compcache import Cache
assert Cache({cache!r}).get_target("kernels.small")(array("d", range(8))) == 56.0
"""
KEY = """
import time, numpy as np, kernels
from numba import typeof
import compcache.numba
backend = compcache.numba.install({cache!r})
disp = kernels.large
sig = (typeof(np.arange(8.0)),)
from compcache.numba.dispatch.function_cache import FunctionCache
times = []
for _ in range(25):
    from compcache.numba.fingerprints import code_digest
    code_digest._codes.clear()
    cache = FunctionCache(backend, disp, disp.py_func)
    start = time.perf_counter()
    cache._identify(sig, disp.targetctx)
    times.append(time.perf_counter() - start)
print(min(times), sorted(times)[12])
"""
#: (side, baseline, goal): the ratio of the medians is to be at most the goal.
GOALS = (
    ("exported kernel", "empty Python", 2.0),
    ("backend, small function", "Numba's cache, small function", 0.7),
    ("backend, large function", "Numba's cache, large function", 0.75),
)
KEY_GOAL = 0.002


class Side:
    """One kind of process, and what its runs took."""

    def __init__(self, label: str, script: str, directory: Path, *, emptied: Path | None = None) -> None:
        self.label = label
        self.script = script
        self.directory = directory
        self.emptied = emptied  # the cache that each run finds empty
        self.charged: list[float] = []
        self.elapsed: list[float] = []

    def run(self, *, count: bool = True) -> str:
        """Start a process, wait for it, and note what it took."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "COMPCACHE_"))}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's process has its bytecode
        if self.emptied is not None:
            shutil.rmtree(self.emptied, ignore_errors=True)
            variables["NUMBA_CACHE_DIR"] = str(self.emptied)
        variables |= {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.directory}",
            "PYTHONPYCACHEPREFIX": str(self.directory / "pyc"),
        }
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", self.script],
            env=variables,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        elapsed = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{self.label} failed")
        if count:
            self.charged.append(usage.ru_utime + usage.ru_stime)
            self.elapsed.append(elapsed)
        return output


def measure(directory: Path, repetitions: int) -> tuple[list[Side], float]:
    """Run everything once to fill the caches, then in turns; the sides, and the seconds of a key."""
    (directory / "kernels.py").write_text(MODULE)
    cache = str(directory / "cache")
    sides = [
        Side("empty Python", "pass", directory),
        Side("exported kernel", EXPORTED.format(cache=cache), directory),
        Side("import numba", "import numba", directory),
        *(
            Side(f"Numba's cache, {name} function", OWN.format(name=name), directory)
            for name in ("small", "large")
        ),
        *(
            Side(f"backend, {name} function", BACKEND.format(cache=cache, name=name), directory)
            for name in ("small", "large")
        ),
    ]
    empty = directory / "empty"
    for name in ("small", "large"):
        backend = BACKEND.format(cache=str(empty), name=name)
        sides += [
            Side(f"Numba's cache, {name} function, empty", OWN.format(name=name), directory, emptied=empty),
            Side(f"backend, {name} function, empty", backend, directory, emptied=empty),
        ]
    Side("export", EXPORT.format(cache=cache), directory).run()
    for _ in range(2):
        for side in sides:
            side.run(count=False)
    for _ in range(repetitions):
        for side in sides:
            side.run()
    key = Side("key", KEY.format(cache=cache), directory).run()
    return sides, float(key.split()[1])


def main() -> None:
    """Measure and print; exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sides, key = measure(Path(directory), options.repetitions)
    print(
        f"{'':39}{'charged, ms':>22}{'elapsed, ms':>22}\n{'':39}{'median':>11}{'minimum':>11}{'median':>11}{'minimum':>11}"
    )
    medians = {}
    for side in sides:
        medians[side.label] = statistics.median(side.charged)
        figures = [f(v) * 1e3 for v in (side.charged, side.elapsed) for f in (statistics.median, min)]
        print(f"{side.label:39}" + "".join(f"{figure:11.0f}" for figure in figures))
    missed = 0
    for subject, baseline, goal in GOALS:
        ratio = medians[subject] / medians[baseline]
        missed += ratio > goal
        print(f"{subject} / {baseline}: {ratio:.2f} (goal {goal}){'' if ratio <= goal else '  MISSED'}")
    missed += key > KEY_GOAL
    print(
        f"key of the large function: {key * 1e3:.2f} ms (goal {KEY_GOAL * 1e3:.0f}){'' if key <= KEY_GOAL else '  MISSED'}"
    )
    if options.json:
        rows = {s.label: {"charged": s.charged, "elapsed": s.elapsed} for s in sides}
        options.json.write_text(json.dumps({"sides": rows, "key": key}, indent=1))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
