"""What layers cost: `python benchmarks/layers.py`.

The first `get_target` of functions in a process and the whole of a fresh process (import, open, one function, call), out of the directory
itself and out of the last of 1 and of 5 layers, each with its own 40 modules, below a directory with one. Of each the minimum of many runs,
taken in turns.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from compcache import Cache, ModuleSource

MODULES = 40
ROUNDS = 40
_FRESH = (
    "import sys, time\nstarted = time.perf_counter()\nfrom compcache import Cache\nCache({}).get_target({!r})(1)\n"
    "print(time.perf_counter() - started)"
)


def fill(place: Path, prefix: str, modules: int = MODULES) -> None:
    """Modules of one function each."""
    with Cache(place) as cache:
        for number in range(modules):
            text = f"define i64 @{prefix}{number}(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}\n"
            cache.add_module(ModuleSource(text))


def first_targets(place: Path, layers: list[Path], prefix: str) -> float:
    """Microseconds of a first `get_target`, of all functions in turn, in a cache that is open and has given one before."""
    with Cache(place, layers=layers) as cache:
        kept = [cache.get_target(f"{prefix}0")]
        started = perf_counter()
        kept += [cache.get_target(f"{prefix}{number}") for number in range(1, MODULES)]
        return (perf_counter() - started) / (MODULES - 1) * 1e6


def fresh(place: Path, layers: list[Path], name: str) -> float:
    """Milliseconds in a fresh process, from before the import to after the first call."""
    arguments = f"{str(place)!r}, layers={[str(layer) for layer in layers]!r}"
    done = subprocess.run([sys.executable, "-c", _FRESH.format(arguments, name)], capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e3


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as base:
        places = [Path(base, f"layer{number}") for number in range(5)]
        local, empty = Path(base, "local"), Path(base, "own")
        for place, prefix in [*zip(places, "abcde", strict=True), (local, "e")]:
            fill(place, prefix)
        fill(empty, "mine", 1)
        cases = {"directory itself": (local, []), "1 layer": (empty, places[4:]), "5 layers, the last": (empty, places)}
        warm: dict[str, list[float]] = {case: [] for case in cases}
        cold: dict[str, list[float]] = {case: [] for case in cases}
        for _ in range(ROUNDS):
            for case, (place, layers) in cases.items():
                warm[case].append(first_targets(place, layers, "e"))
                cold[case].append(fresh(place, layers, "e7"))
        for case in cases:
            print(f"{case:20} get_target {min(warm[case]):7.1f} us   fresh process {min(cold[case]):6.2f} ms")


if __name__ == "__main__":
    main()
