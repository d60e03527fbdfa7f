"""Many processes on one directory: how long hits and additions take, beside what opening and mapping the same files takes.

    python benchmarks/many_processes.py [--seconds 600] [--processes 64] [--adding 8]

Those that hit open the cache, look a function up, call it and let go of all; in turns with that they open and `dlopen` the file of one of
these functions, with nothing around it: the control, under the same load. All start behind a barrier. Prints percentiles in milliseconds by
the clock, and their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SEEDED = 200


def code(name: str) -> str:
    return f"define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, 1\n  ret i64 %y\n}}"


def user(directory: str, number: int, role: str, seconds: float, start: float) -> None:
    """Do one kind of work from `start` on, and print how long each took, in seconds."""
    import _ctypes

    from compcache import Cache, ModuleSource

    draw = random.Random(number)
    files = [str(path) for path in Path(directory, "modules-v1").rglob("*.ccm")]
    taken: dict[str, list[float]] = {"hit": [], "control": [], "addition": []}
    with Cache(directory) as cache:
        cache.get_target("f0")
        if role == "addition":
            cache.add_module(ModuleSource(code(f"warm{number}"), optimize=0))
    time.sleep(max(0.0, start - time.time()))
    count = 0
    while time.time() < start + seconds:
        began = time.perf_counter()
        count += 1
        if role == "addition":
            with Cache(directory) as cache:
                cache.add_module(ModuleSource(code(f"a{number}_{count}"), optimize=0))
            taken["addition"].append(time.perf_counter() - began)
            continue
        with Cache(directory) as cache:
            assert cache.get_target(f"f{draw.randrange(SEEDED)}")(1) == 2
        taken["hit"].append(time.perf_counter() - began)
        began = time.perf_counter()
        with open(draw.choice(files), "rb") as file:
            _ctypes.dlclose(_ctypes.dlopen(f"/proc/self/fd/{file.fileno()}", os.RTLD_NOW))
        taken["control"].append(time.perf_counter() - began)
    print(json.dumps(taken))


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
        taken: dict[str, list[float]] = {"hit": [], "control": [], "addition": []}
        for process in users:
            output, _ = process.communicate()
            assert process.returncode == 0, process.returncode
            for kind, times in json.loads(output).items():
                taken[kind] += times
    print(f"{options.processes} processes, {options.adding} of them adding, {options.seconds:.0f} s; milliseconds")
    print(f"{'':10} {'number':>8} {'p50':>9} {'p90':>9} {'p99':>9} {'p99.9':>9}")
    marks = {kind: [_percentile(times, part) * 1e3 for part in (0.5, 0.9, 0.99, 0.999)] for kind, times in taken.items()}
    for kind, found in marks.items():
        print(f"{kind:10} {len(taken[kind]):8} " + " ".join(f"{value:9.2f}" for value in found))
    ratios = [hit / control for hit, control in zip(marks["hit"], marks["control"], strict=True)]
    print(f"{'ratio':10} {'':8} " + " ".join(f"{value:9.2f}" for value in ratios))


def _percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * part))] if times else float("nan")


if __name__ == "__main__":
    main()
