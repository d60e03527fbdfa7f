"""What linking saves code that is cached apart: calls of small functions, chains of modules, many functions of many modules.

    python benchmarks/closures.py [--chain 2000] [--functions 200] [--repeat 9]

Sides take turns in one run; a side is a fresh process, or a new `Cache` object in one. Least of several runs, and ratios of these.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from compcache import Cache, ModuleSource

HELPERS = 5
_FRESH = """\
import time
from compcache import Cache
cache = Cache({path!r})
started, worked = time.perf_counter(), time.process_time()
targets = [cache.get_target(name) for name in {names!r}]
taken = time.perf_counter() - started, time.process_time() - worked
mappings = sum(".ccm" in line for line in open("/proc/self/maps"))
rounds = []
for _ in range({rounds}):
    started = time.perf_counter()
    targets[0]({arguments})
    rounds.append(time.perf_counter() - started)
print((*taken, mappings, min(rounds, default=0.0)))
"""


def fresh(path: Path, names: list[str], arguments: str, rounds: int = 0) -> tuple[float, ...]:
    """Seconds and processor seconds of loading these functions in a fresh process, mapped parts of module files, and the least of calls."""
    script = _FRESH.format(path=str(path), names=names, arguments=arguments, rounds=rounds)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found: tuple[float, ...] = ast.literal_eval(done.stdout)
    return found


def helper(number: int) -> str:
    lines = f"  %a = fmul double %x, {number + 1}.5\n  %b = fadd double %a, 1.0\n  ret double %b\n"
    return f"define double @h{number}(double %x) {{\n{lines}}}\n"


def kernel(*, declared: bool) -> str:
    """A loop that calls the helpers one after another."""
    lines = [f"declare double @h{number}(double)" for number in range(HELPERS)] if declared else []
    calls = [f"  %r{number + 1} = call double @h{number}(double %r{number})" for number in range(HELPERS)]
    return "\n".join([
        *lines, "define double @kernel(double %x, i64 %n) {", "entry:", "  br label %loop", "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %j, %loop ]", "  %s = phi double [ 0.0, %entry ], [ %t, %loop ]",
        "  %f = sitofp i64 %i to double", "  %r0 = fadd double %f, %x", *calls, f"  %t = fadd double %s, %r{HELPERS}",
        "  %j = add i64 %i, 1", "  %c = icmp slt i64 %j, %n", "  br i1 %c, label %loop, label %out",
        "out:", "  ret double %t", "}", "",
    ])  # fmt: skip


def link(number: int, last: int) -> str:
    """One module of a chain."""
    if number == last:
        return f"define i64 @f{number}(i64 %x) {{\n  %r = add i64 %x, {number}\n  ret i64 %r\n}}\n"
    following = f"  %y = xor i64 %x, {number}\n  %r = call i64 @f{number + 1}(i64 %y)\n  %s = add i64 %r, 1\n  ret i64 %s\n"
    return f"declare i64 @f{number + 1}(i64)\ndefine i64 @f{number}(i64 %x) {{\n{following}}}\n"


def single(number: int) -> str:
    return f"define i64 @g{number}(i64 %x) {{\n  %r = add i64 %x, {number}\n  ret i64 %r\n}}\n"


def compare(what: str, sides: dict[str, tuple[Path, list[str], str, int]], repeat: int, field: int) -> None:
    """Print the least figure of each side, and its ratio to the last."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    for _ in range(repeat):
        for name, side in sides.items():
            found[name].append(fresh(*side))
    least = {name: min(row[field] for row in rows) for name, rows in found.items()}
    base = list(least.values())[-1]
    for name, seconds in least.items():
        rows = found[name]
        mappings = int(rows[0][2])
        worked = min(row[1] for row in rows)
        more = f"cpu of the load {worked * 1e3:8.3f} ms, {mappings} mappings"
        print(f"{what:<28} {name:<12} {seconds * 1e3:9.3f} ms {seconds / base:7.2f}x   {more}", flush=True)


def add(path: Path, codes: list[str], **options: Any) -> Path:
    with Cache(path) as cache:
        for start in range(0, len(codes), 500):
            cache.add_modules([ModuleSource(code, **options) for code in codes[start : start + 500]])
    return path


def measure(directory: Path, chain: int, functions: int, repeat: int) -> None:
    whole = add(directory / "whole", ["".join([*map(helper, range(HELPERS)), kernel(declared=False)])])
    apart = add(directory / "apart", [*map(helper, range(HELPERS)), kernel(declared=True)])
    linked = add(directory / "linked", [*map(helper, range(HELPERS)), kernel(declared=True)])
    with Cache(linked) as cache:
        cache.link(["kernel"])
    sides = {"apart": apart, "linked": linked, "one module": whole}
    calls = {name: (path, ["kernel"], "1.5, 200_000", 30) for name, path in sides.items()}
    compare("200,000 rounds of 5 helpers", calls, repeat, 3)
    codes = [link(number, chain - 1) for number in reversed(range(chain))]
    sides = {"apart": add(directory / "chain", codes), "linked": add(directory / "linked-chain", codes)}
    with Cache(sides["linked"]) as cache:
        cache.link(["f0"])
    compare(f"chain of {chain} modules", {name: (path, ["f0"], "1", 0) for name, path in sides.items()}, repeat, 0)
    names = [f"g{number}" for number in range(functions)]
    codes = [single(number) for number in range(functions)]
    sides = {"linked": add(directory / "linked-set", codes), "apart": add(directory / "set", codes)}
    with Cache(sides["linked"]) as cache:
        cache.link(names, into="set")
    time.sleep(4)  # look-ups list an index that has changed in the last seconds
    compare(f"{functions} functions", {name: (path, names, "1", 0) for name, path in sides.items()}, repeat, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chain", type=int, default=2000)
    parser.add_argument("--functions", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measure(Path(directory), options.chain, options.functions, options.repeat)


if __name__ == "__main__":
    main()
