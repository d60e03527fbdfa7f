"""What it brings to have code for several CPUs, and what it costs: `python benchmarks/targets.py` (x86-64 with AVX2 at least).

* run times of five loops compiled for x86-64-v2, x86-64-v3 and this host, on 16 KiB of data (all in the first cache);
* `get_target` where the only realization is for another CPU (retargeting) against adding the module from its source;
* a first `get_target` in a process where a function has 1, 3 and 10 realizations.

Of each the minimum of many runs: other programs only add to it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from array import array
from time import perf_counter

from compcache import Cache, ModuleSource

TARGETS = ("x86-64-v2", "x86-64-v3", "native")
COUNT = 2048
ROUNDS = 300

_LOOP = """\
define double @{name}(ptr noalias %a, i64 %na, ptr noalias %b, i64 %nb) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = phi double [0.0, %entry], [%t, %loop]
  %pa = getelementptr double, ptr %a, i64 %i
  %pb = getelementptr double, ptr %b, i64 %i
  %x = load double, ptr %pa
  %y = load double, ptr %pb
{body}
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %na
  br i1 %done, label %out, label %loop
out:
  ret double %t
}}
"""
_DOUBLE = {
    "dot": "  %m = fmul fast double %x, %y\n  %t = fadd fast double %s, %m",
    "distance": "  %d = fsub fast double %x, %y\n  %m = fmul fast double %d, %d\n  %t = fadd fast double %s, %m",
    "horner": "  %h1 = fmul fast double %x, %y\n  %h2 = fadd fast double %h1, 3.0\n  %h3 = fmul fast double %h2, %x\n"
    "  %h4 = fadd fast double %h3, 2.0\n  %h5 = fmul fast double %h4, %x\n  %t = fadd fast double %s, %h5",
    "scale": "  %m = fmul fast double %y, 1.5\n  store double %m, ptr %pa\n  %t = fadd fast double %s, 1.0",
    "clip": "  %c = fcmp fast ogt double %x, %y\n  %z = select i1 %c, double %y, double %x\n  %t = fadd fast double %s, %z",
}


def kernel(name: str) -> str:
    """The assembly of one of the loops."""
    return _LOOP.format(name=name, body=_DOUBLE[name])


def best(run: object, rounds: int = ROUNDS) -> float:
    """The least time of a call, in microseconds."""
    times = []
    for _ in range(rounds):
        started = perf_counter()
        run()  # type: ignore[operator]
        times.append(perf_counter() - started)
    return min(times) * 1e6


def run_times(directory: str) -> None:
    """Each loop for each target."""
    a, b = array("d", [1.0 + i % 7 for i in range(COUNT)]), array("d", [2.0 + i % 5 for i in range(COUNT)])
    print(f"{'us a call':10}" + "".join(f"{target:>12}" for target in TARGETS))
    for name in _DOUBLE:
        row = []
        for target in TARGETS:
            with Cache(f"{directory}/{name}-{target}") as cache:
                cache.add_module(ModuleSource(kernel(name), {name: "f64(f64[:], f64[:])"}, targets=[target]))
                loaded = cache.get_target(name)
                row.append(best(lambda target=loaded: target(a, b)))
        print(f"{name:10}" + "".join(f"{time:12.2f}" for time in row))


def retargeting(directory: str) -> None:
    """Retargeting against adding from source, both with LLVM loaded."""
    for functions in (1, 50):
        code = "".join(kernel("dot").replace("@dot", f"@dot{n}") for n in range(functions))
        signatures = {f"dot{n}": "f64(f64[:], f64[:])" for n in range(functions)}
        added, retargeted = [], []
        for number in range(5):
            with Cache(f"{directory}/r{functions}-{number}") as cache:
                cache.add_module(ModuleSource(code, signatures, cpu="x86-64-v2", features="+amx-avx512"))
                retargeted.append(best(lambda cache=cache: cache.get_target("dot0"), 1))
            with Cache(f"{directory}/a{functions}-{number}") as cache:
                source = ModuleSource(code, signatures)
                added.append(best(lambda cache=cache, source=source: (cache.add_module(source), cache.get_target("dot0")), 1))
        print(f"{functions:3} functions: add {min(added) / 1e3:8.1f} ms   retarget {min(retargeted) / 1e3:8.1f} ms")


_FIRST = """
import sys
from time import perf_counter
from compcache import Cache
started = perf_counter()
target = Cache(sys.argv[1]).get_target("dot")
print(perf_counter() - started)
"""


def choice(directory: str) -> None:
    """A first `get_target` among several realizations, in fresh processes that take turns."""
    others = ["x86-64", "x86-64-v2", "x86-64-v3", "nehalem", "sandybridge", "haswell", "skylake", "znver1", "znver2"]
    paths = {}
    for count in (1, 3, 10):
        paths[count] = f"{directory}/choice-{count}"
        with Cache(paths[count]) as cache:
            targets = [*others[: count - 1], "native"]
            cache.add_module(ModuleSource(kernel("dot"), {"dot": "f64(f64[:], f64[:])"}, targets=targets))
    times: dict[int, list[float]] = {count: [] for count in paths}
    for _ in range(60):
        for count, path in paths.items():
            done = subprocess.run([sys.executable, "-c", _FIRST, path], capture_output=True, text=True, check=True)
            times[count].append(float(done.stdout) * 1e6)
    for count, found in times.items():
        print(f"{count:3} realizations: {min(found):8.0f} us, {min(found) / min(times[1]):.2f}x of one")


def main() -> None:
    """All three."""
    with tempfile.TemporaryDirectory() as directory:
        run_times(directory)
        retargeting(directory)
        choice(directory)


if __name__ == "__main__":
    main()
