"""Many processes on one directory: how long hits and additions take, beside what opening and mapping the same files takes.

    python benchmarks/many_processes.py [--seconds 600] [--processes 64] [--adding 8]

Those that hit open the cache, look a function up, call it and let go of all. In random order with that they do two other things under the
same load. The control opens and `dlopen`s the file of one of these functions, with nothing around it. The computation is a loop in Python
that takes the processor time of a hit, which shows what the scheduler alone makes of such a time. All start behind a barrier. Prints
percentiles in milliseconds by the clock and of processor time, and ratios by the clock. For the slowest hundredth of each kind it prints
the mean processor time, and how often a process gave the processor up (to wait for a lock or the disk) or lost it to another process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDED = 200
KINDS = "hit", "control", "computation", "addition"
#: Seconds by the clock, seconds of processor time, and how often the process gave the processor up and lost it.
Taken = tuple[float, float, int, int]


def code(name: str) -> str:
    return f"define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, 1\n  ret i64 %y\n}}"


def user(directory: str, number: int, role: str, seconds: float, start: float) -> None:
    """Do one kind of work from `start` on, and print how long each took, in seconds."""
    import _ctypes

    from compcache import Cache, ModuleSource

    draw = random.Random(number)
    files = [str(path) for path in Path(directory, "modules-v1").rglob("*.ccm")]
    taken: dict[str, list[Taken]] = {kind: [] for kind in KINDS}
    with Cache(directory) as cache:
        cache.get_target("f0")
        if role == "addition":
            cache.add_module(ModuleSource(code(f"warm{number}"), optimize=0))
    time.sleep(max(0.0, start - time.time()))
    count = 0
    while time.time() < start + seconds:
        count += 1
        if role == "addition":
            with timed(taken["addition"]), Cache(directory) as cache:
                cache.add_module(ModuleSource(code(f"a{number}_{count}"), optimize=0))
            continue
        for kind in draw.sample(KINDS[:3], 3):
            with timed(taken[kind]):
                if kind == "hit":
                    with Cache(directory) as cache:
                        assert cache.get_target(f"f{draw.randrange(SEEDED)}")(1) == 2
                elif kind == "control":
                    with open(draw.choice(files), "rb") as file:
                        _ctypes.dlclose(_ctypes.dlopen(f"/proc/self/fd/{file.fileno()}", os.RTLD_NOW))
                else:
                    end = time.process_time() + (median(used for _, used, _, _ in taken["hit"][:9]) if taken["hit"] else 0.0)
                    while time.process_time() < end:
                        pass
    print(json.dumps(taken))


@contextmanager
def timed(taken: list[Taken]) -> Iterator[None]:
    """Add what the block takes: seconds by the clock, of processor time, and how often the processor was given up and lost."""
    before, began, used = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), time.process_time()
    yield
    elapsed, used = time.perf_counter() - began, time.process_time() - used
    after = resource.getrusage(resource.RUSAGE_SELF)
    taken.append((elapsed, used, after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--adding", type=int, default=8)
    parser.add_argument("--prepare", type=float, default=30, help="seconds for all processes to start")
    parser.add_argument("--user", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.user:
        directory, number, role, seconds, start = options.user
        user(directory, int(number), role, float(seconds), float(start))
        return
    from compcache import Cache, ModuleSource

    with tempfile.TemporaryDirectory(prefix="compcache-") as directory:
        with Cache(directory) as cache:
            cache.add_modules(ModuleSource(code(f"f{number}"), optimize=0) for number in range(SEEDED))
        start = time.time() + options.prepare
        users = []
        for number in range(options.processes):
            role = "addition" if number < options.adding else "hit"
            command = [sys.executable, __file__, "--user", directory, str(number), role, str(options.seconds), str(start)]
            users.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        taken: dict[str, list[Taken]] = {kind: [] for kind in KINDS}
        for process in users:
            output, _ = process.communicate()
            assert process.returncode == 0, process.returncode
            for kind, times in json.loads(output).items():
                taken[kind] += times
    print(f"{options.processes} processes, {options.adding} of them adding, {options.seconds:.0f} s; milliseconds")
    print(f"{'':20} {'number':>8} {'p50':>9} {'p90':>9} {'p99':>9} {'p99.9':>9}   slowest 1 %: CPU, given up, lost")
    marks: dict[tuple[str, int], list[float]] = {}
    for kind, found in taken.items():
        slowest = sorted(found, reverse=True)[: max(len(found) // 100, 1)]
        means = [sum(column) / max(len(slowest), 1) for column in list(zip(*slowest, strict=True))[1:]] or [float("nan")] * 3
        for column, what in enumerate(("", " (CPU)")):
            marks[kind, column] = [_percentile([one[column] for one in found], part) * 1e3 for part in (0.5, 0.9, 0.99, 0.999)]
            end = f"   {means[0] * 1e3:9.2f} {means[1]:6.2f} {means[2]:6.2f}" if not column else ""
            print(f"{kind + what:20} {len(found):8} " + " ".join(f"{value:9.2f}" for value in marks[kind, column]) + end)
    for other in ("control", "computation"):
        ratios = [hit / control for hit, control in zip(marks["hit", 0], marks[other, 0], strict=True)]
        print(f"{'hit / ' + other:20} {'':8} " + " ".join(f"{value:9.2f}" for value in ratios))


def _percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * part))] if times else float("nan")


if __name__ == "__main__":
    main()
