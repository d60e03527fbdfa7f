"""Start-up of programs without importing Numba: whole fresh processes, side by side, in turns; and calls, by types.

    python benchmarks/numba_lazy.py [--repetitions 9] [--json FILE] [--no-packages]

Compares an empty Python, `import numpy`, `import numba`, Numba's own cache, this package's backend and lazy functions, for
kernels of scalars, for kernels of arrays, and for a package of 300 functions of which 20 are called. The time of a process is
what the kernel charges it (user and system); the goals are for the minima. Calls are timed in this process's own time.
NumPy's BLAS starts a thread for each processor, and these look for work for some 100 ms before they sleep. A process that ends before that
is charged for what its threads do while it does something else: programs with NumPy are measured with one thread (`ONE_THREAD`) as well.
Packages of other people follow, as far as they are installed (`tests/numba/numba_packages.py`, $COMPCACHE_TEST_ENVIRONMENTS).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCALARS = """
from {decorators} import njit
SCALE = 3.0

@njit(cache=True)
def scaled(x):
    return x * SCALE

@njit(cache=True)
def clipped(x, low, high):
    if low > high:
        raise ValueError("low is above high")
    return min(max(scaled(x), low), high)

@njit(cache=True)
def steps(n):
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return count
"""
ARRAYS = """
import numpy as np
from {decorators} import njit

@njit(cache=True)
def total(a):
    result = 0.0
    for x in a:
        result += x * 2
    return result

@njit(cache=True)
def axpy(a, x, y):
    for i in range(len(x)):
        y[i] += a * x[i]

@njit(cache=True)
def smoothed(a):
    result = np.empty_like(a)
    for i in range(len(a)):
        result[i] = a[max(i - 2, 0):i + 3].mean()
    return result
"""
_MANY = "\n".join(
    f"@njit(cache=True)\ndef f{n}(a, x):\n    s = x\n    for i in range(len(a)):\n        s += a[i] * {n} + C{n % 7}\n    return s\n"
    for n in range(300)
)
MANY = (
    "import numpy as np\nfrom {decorators} import njit\n" + "".join(f"C{n} = {n}.5\n" for n in range(7)) + _MANY
)
CALLS = {
    "scalars": (SCALARS, "m.clipped(2.5, 0.0, 9.0), m.steps(27), m.scaled(2)"),
    "arrays": (
        "import numpy as np\nx = np.arange(8.0)\ny = x.copy()\n",
        "m.total(x), m.axpy(2.0, x, y), m.smoothed(x)",
    ),
    "300 functions": (
        "import numpy as np\nx = np.arange(8.0)\n",
        "[getattr(m, f'f{n}')(x, 1.0) for n in range(0, 300, 15)]",
    ),
}
SOURCES = {"scalars": SCALARS, "arrays": ARRAYS, "300 functions": MANY}
#: (program, most CPU time of a lazy start, over what): a factor of the baseline, or seconds more than it.
GOALS = (
    ("scalars", "empty Python", 2.5, 0.0),
    ("arrays", "import numpy", 1.0, 0.015),
    ("300 functions", "import numpy", 1.0, 0.060),
)
#: What is added to labels of processes whose BLAS has one thread.
ONE_THREAD = " (one BLAS thread)"
CALL_GOALS = {"one float": 80, "one array": 150}
TIMES = """
import json, time, timeit
def best(f, *args, **keywords):
    f(*args, **keywords)
    names = {"f": f} | {f"a{n}": a for n, a in enumerate(args)} | keywords
    call = "f(" + ", ".join([f"a{n}" for n in range(len(args))] + [f"{k}={k}" for k in keywords]) + ")"
    return min(timeit.repeat(call, globals=names, timer=time.process_time, number=100_000, repeat=9)) * 1e4
import numpy as np, {scalars} as s, {arrays} as a
x = np.arange(8.0)
print(json.dumps({"one float": best(s.scaled, 2.5), "three floats": best(s.clipped, 2.5, 0.0, 9.0),
    "two of them by keyword": best(s.clipped, 2.5, low=0.0, high=9.0),
    "one array": best(a.total, x), "a float and two arrays": best(a.axpy, 0.0, x, x.copy())}))
"""


class Side:
    """One kind of process, and what the kernel charged its runs."""

    def __init__(self, label: str, script: str, directory: Path) -> None:
        self.label = label
        self.script = script
        self.directory = directory
        self.variables = {"OPENBLAS_NUM_THREADS": "1"} if label.endswith(ONE_THREAD) else {}
        self.charged: list[float] = []

    def run(self, *, count: bool = True) -> str:
        """Start a process, wait for it, and note what it took."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "COMPCACHE_"))}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's process has its bytecode
        variables |= {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.directory}",
            "PYTHONPYCACHEPREFIX": str(self.directory / "pyc"),
            "COMPCACHE_DIR": str(self.directory / "cache"),
            **self.variables,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", self.script], env=variables, cwd=self.directory, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{self.label} failed")
        if count:
            self.charged.append(usage.ru_utime + usage.ru_stime)
        return output


def make_sides(directory: Path) -> list[Side]:
    """All kinds of processes, the modules they import written."""
    sides = [Side("empty Python", "pass", directory)]
    sides += [Side(f"import {name}", f"import {name}", directory) for name in ("numpy", "numba")]
    for program, source in SOURCES.items():
        name = program.replace(" ", "_").replace("3", "x")
        for kind, decorators in (("numba", "numba"), ("lazy", "compcache.numba")):
            (directory / f"{name}_{kind}.py").write_text(source.replace("{decorators}", decorators))
        head, calls = CALLS[program]
        head = head if "import" in head and program != "scalars" else ""
        install = "import compcache.numba\ncompcache.numba.install()\n"
        numba = f"import {name}_numba as m\n{head}print({calls})\n"
        lazy = f"import sys, {name}_lazy as m\n{head}print({calls})\n"
        sides += [
            Side(f"{program}: Numba's cache", numba, directory),
            Side(f"{program}: backend", install + numba, directory),
            Side(f"{program}: lazy", lazy, directory),
        ]
    scripts = {side.label: side.script for side in sides}
    with_numpy = ["import numpy", *[f"{program}: lazy" for program, baseline, *_ in GOALS if baseline == "import numpy"]]
    return sides + [Side(label + ONE_THREAD, scripts[label], directory) for label in with_numpy]


def warm(sides: list[Side]) -> None:
    """Fill the caches; all sides of a program say the same, and the lazy ones import no Numba."""
    for _ in range(2):
        for side in sides:
            side.run(count=False)
    said: dict[str, set[str]] = {}
    for side in sides:
        if ":" in side.label:
            check = "assert 'numba' not in sys.modules\n" if ": lazy" in side.label else ""
            said.setdefault(side.label.partition(":")[0], set()).add(
                Side(side.label, side.script + check, side.directory).run(count=False)
            )
    assert all(len(answers) == 1 for answers in said.values()), said


def report(sides: list[Side]) -> int:
    """Print the times of processes; how many goals are missed."""
    print(f"{'CPU time of processes, ms':45}{'minimum':>10}{'median':>10}")
    least = {side.label: min(side.charged) for side in sides}
    for side in sides:
        print(f"{side.label:45}{least[side.label] * 1e3:10.0f}{statistics.median(side.charged) * 1e3:10.0f}")
    missed = 0
    for program, baseline, factor, more in GOALS:
        for threads in ("", ONE_THREAD):
            measured, base = f"{program}: lazy{threads}", f"{baseline}{threads}"
            if measured in least:
                goal = least[base] * factor + more
                met = least[measured] <= goal
                missed += not met
                text = f"{factor} x {base}" + (f" + {more * 1e3:.0f} ms" if more else "")
                print(f"{measured}: {least[measured] * 1e3:.0f} ms (goal {goal * 1e3:.0f}: {text}){'' if met else '  MISSED'}")
    return missed


def report_calls(directory: Path) -> int:
    """Time calls, print them; how many goals are missed."""
    times = {}
    for kind in ("numba", "lazy"):
        script = TIMES.replace("{scalars}", f"scalars_{kind}").replace("{arrays}", f"arrays_{kind}")
        times[kind] = json.loads(Side("calls", script, directory).run(count=False).splitlines()[-1])
    print(f"{'a call, ns':38}{'Numba':>10}{'lazy':>10}")
    for label, plain in times["numba"].items():
        print(f"{label:38}{plain:10.0f}{times['lazy'][label]:10.0f}")
    missed = [label for label, goal in CALL_GOALS.items() if times["lazy"][label] > goal]
    for label in missed:
        print(f"{label}: MISSED (goal {CALL_GOALS[label]} ns)")
    return len(missed)


def report_packages(repetitions: int) -> None:
    """Print how programs of other people's packages start, in seconds."""
    print("\nCPU time of processes, s (python benchmarks/numba_packages.py --starts installs packages that are missing)", flush=True)
    command = [sys.executable, ROOT / "benchmarks" / "numba_packages.py", "--starts", "--installed"]
    subprocess.run([*command, "--repetitions", str(repetitions)], check=True)


def main() -> None:
    """Measure and print; exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-packages", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sides = make_sides(directory)
        warm(sides)
        for _ in range(options.repetitions):
            for side in sides:
                side.run()
        missed = report(sides) + report_calls(directory)
    if options.json:
        options.json.write_text(json.dumps({side.label: side.charged for side in sides}, indent=1))
    if not options.no_packages:
        report_packages(min(options.repetitions, 3))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
