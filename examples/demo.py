"""Run a program twice: it compiles the example kernels into a cache and calls them; a fresh process finds them, without LLVM.

    python examples/demo.py [DIRECTORY]

prints what each step took, side by side. Without a directory the cache is a temporary one. A directory that holds
the kernels already shows the time of a later run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import NamedTuple

_HERE = os.path.dirname(os.path.abspath(__file__))


class Step(NamedTuple):
    """One kernel in one process: seconds until it was callable, seconds of its first call, the outcome."""

    ready: float
    call: float
    outcome: str


class Run(NamedTuple):
    """One process: its steps by kernel, which of the heavy packages it imported, its wall time."""

    steps: dict[str, Step]
    imported: str
    seconds: float


def run(directory: str) -> Run:
    """Start `workload.py` as a process of its own and read what it prints."""
    command = [sys.executable, os.path.join(_HERE, "workload.py"), directory]
    start = perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds = perf_counter() - start
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    steps = {name: Step(float(ready), float(call), outcome) for name, ready, call, outcome in rows[:-1]}
    return Run(steps, rows[-1][1], seconds)


def empty_process() -> float:
    """The wall time of an interpreter that does nothing."""
    start = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return perf_counter() - start


def check(first: Run, second: Run) -> None:
    """What the demo claims.

    Raises:
        SystemExit: it does not hold.
    """
    for name, step in first.steps.items():
        if second.steps[name].outcome != step.outcome:
            raise SystemExit(
                f"{name}: {step.outcome} when compiled, {second.steps[name].outcome} when loaded"
            )
    if "llvmlite" in second.imported.split():
        raise SystemExit(f"the second process imported {second.imported}")


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms" if seconds < 1 else f"{1e3 * seconds:,.0f} ms"


def table(first: Run, second: Run) -> list[tuple[str, ...]]:
    """The rows to print, head and totals included."""
    rows = [("kernel", "first run: compile", "call", "second run: load", "call", "ratio", "result")]
    for name, a in first.steps.items():
        b = second.steps[name]
        times = [milliseconds(value) for value in (a.ready, a.call, b.ready, b.call)]
        rows.append((name, *times, f"{a.ready / b.ready:,.0f}x", a.outcome))
    compiled, loaded = (sum(step.ready for step in part.steps.values()) for part in (first, second))
    rows.append(
        ("together", milliseconds(compiled), "", milliseconds(loaded), "", f"{compiled / loaded:,.0f}x", "")
    )
    return rows


def show(rows: list[tuple[str, ...]]) -> None:
    """A table on a terminal, aligned columns elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        grid = Table(*rows[0])
        for column in grid.columns[1:-1]:
            column.justify = "right"
        for row in rows[1:]:
            grid.add_row(*row, style="bold" if row[0] == "together" else "")
        Console().print(grid)
        return
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(widths[k]) if k in (0, 6) else cell.rjust(widths[k]) for k, cell in enumerate(row)
        ]
        print("  ".join(cells).rstrip())


def demonstrate(directory: str) -> None:
    first = run(directory)
    second = run(directory)
    check(first, second)
    show(table(first, second))
    print()
    print(f"first process, start to end   {milliseconds(first.seconds):>12}   imported {first.imported}")
    print(f"second process, start to end  {milliseconds(second.seconds):>12}   imported {second.imported}")
    print(f"python -c pass                {milliseconds(empty_process()):>12}")
    print("Both processes computed the same results; the second one never imported LLVM.")


def main(arguments: list[str]) -> None:
    if arguments:
        demonstrate(arguments[0])
        return
    with tempfile.TemporaryDirectory(prefix="compcache-demo-") as directory:
        demonstrate(os.path.join(directory, "cache"))


if __name__ == "__main__":
    main(sys.argv[1:])
