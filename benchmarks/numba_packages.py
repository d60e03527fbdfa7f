"""How packages of other people start: with Numba's own cache, and with compcache's.

    python benchmarks/numba_packages.py [--repetitions 3] [--lazy | --starts] [--installed] [PACKAGE...]

Prints a table of processor time in seconds, of whole processes: nothing cached yet, and everything cached (medians; the least with
``--lazy``, which compares with ``python -m compcache.numba run``, and with ``--starts``, which has all of them).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "numba"))

from numba_packages import ENVIRONMENTS, PACKAGES, Package, python_of, run


def measure(package: Package, repetitions: int) -> str:
    """One row of the table."""
    try:
        python_of(package)
    except subprocess.CalledProcessError:
        return f"| {package.name} | cannot be installed | | | | | |"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run(package, directory, backend=False)  # the package's own bytecode is compiled
        shutil.rmtree(directory / "numba", ignore_errors=True)
        cold = [run(package, directory, backend=side).seconds for side in (False, True)]
        rounds = [[run(package, directory, backend=side) for side in (False, True)] for _ in range(repetitions)]
        plain, ours = (statistics.median(pair[side].seconds for pair in rounds) for side in (0, 1))
        counts = rounds[-1][1].counts or (0, 0, {})
    return (
        f"| {package.name} | {cold[0]:.2f} | {cold[1]:.2f} | {plain:.2f} | {ours:.2f} "
        f"| {counts[0]} | {len(counts[2])} |"
    )


def measure_lazy(package: Package, repetitions: int) -> str:
    """One row of the table of programs that are started by ``python -m compcache.numba run``."""
    try:
        python_of(package)
    except subprocess.CalledProcessError:
        return f"| {package.name} | cannot be installed | | | | |"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plain, lazy = (
            [run(package, directory, backend=False, lazy=side) for _ in range(1 + repetitions)] for side in (False, True)
        )
    if len({one.answer for one in plain + lazy}) > 1:
        return f"| {package.name} | the answers differ | | | | |"
    warm = [min(one.seconds for one in side[1:]) for side in (plain, lazy)]
    numba = "yes" if lazy[-1].imports_numba else "no"
    return f"| {package.name} | {plain[0].seconds:.2f} | {lazy[0].seconds:.2f} | {warm[0]:.2f} | {warm[1]:.2f} | {numba} |"


STARTS = (
    "| package | Numba's, cold | Numba's, warm | backend, cold | backend, warm | `run`, cold | `run`, warm | imports Numba |\n"
    + "|---" * 8 + "|"
)  # fmt: skip


def measure_starts(package: Package, repetitions: int) -> str:
    """One row of the table of all kinds of starts (`STARTS`): the first process, and the least of those after it."""
    kinds = ({"backend": False}, {"backend": True}, {"backend": False, "lazy": True})
    answers, cells, said = set(), [], ""
    for options in kinds:
        with tempfile.TemporaryDirectory() as name:
            runs = [run(package, Path(name), **options) for _ in range(1 + repetitions)]
        answers |= {one.answer for one in runs}
        cells += [runs[0].seconds, min(one.seconds for one in runs[1:])]
        said = "yes" if runs[-1].imports_numba else "no"
    if len(answers) > 1:
        return f"| {package.name} | the answers differ | | | | | | |"
    return f"| {package.name} | {' | '.join(f'{cell:.2f}' for cell in cells)} | {said} |"


def main() -> None:
    """Measure the packages that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--starts", action="store_true")
    parser.add_argument("--installed", action="store_true", help="only packages that have an environment already")
    arguments = parser.parse_args()
    if arguments.starts:
        print(STARTS)
    elif arguments.lazy:
        print("| package | cold, Numba's | cold, `run` | warm, Numba's | warm, `run` | imports Numba |\n|---|---|---|---|---|---|")
    else:
        print("| package | cold, Numba's | cold, compcache | warm, Numba's | warm, compcache | hits | not cached |")
        print("|---|---|---|---|---|---|---|")
    row = measure_starts if arguments.starts else measure_lazy if arguments.lazy else measure
    for package in PACKAGES:
        is_missing = arguments.installed and not (ENVIRONMENTS / package.name / ".installed").exists()
        if (not arguments.packages or package.name in arguments.packages) and not is_missing:
            print(row(package, arguments.repetitions), flush=True)


if __name__ == "__main__":
    main()
