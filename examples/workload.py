"""What the demo does with each kernel: the arguments of one call, and how its outcome is written down.

`python workload.py DIR` prints a line per kernel: name, seconds until there was a callable, seconds of the first call, outcome.
`demo.py` runs it twice: the same program compiles the first time, and loads without importing LLVM the second time.
"""

from __future__ import annotations

import array
import sys
from time import perf_counter

import sources

from compcache import Cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache import TypedCallTarget

_TEXT = b"It was a bright cold day in April, and the clocks were striking thirteen. " * 2_000
_BODIES = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 39.478),
    (4.841, -1.160, -0.104, 0.606, 2.812, -0.025, 0.0377),
    (8.343, 4.125, -0.404, -1.011, 1.826, 0.008, 0.0113),
)


def _bodies() -> array.array[float]:
    return array.array("d", [field for body in _BODIES for field in body])


#: The arguments of the call that is measured.
ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "dot": lambda: (array.array("d", range(100_000)), array.array("d", range(100_000))),
    "norm": lambda: (array.array("d", [3.0, 4.0, 12.0]),),
    "crc32": lambda: (_TEXT,),
    "histogram": lambda: (_TEXT, array.array("Q", bytes(8 * 256))),
    "sieve": lambda: (bytearray(1_000_000),),
    "levenshtein": lambda: ("the quick brown fox jumps", "the lazy dog sleeps"),
    "mandelbrot": lambda: (bytearray(240 * 180), 240, 200),
    "nbody": lambda: (_bodies(), 0.001, 20_000),
}
#: Which argument a kernel writes to; its sum is a part of the outcome.
WRITTEN = {"histogram": 1, "sieve": 0, "mandelbrot": 0, "nbody": 0}


def get(cache: Cache, name: str) -> TypedCallTarget:
    """A kernel: out of the cache, or compiled now."""
    return cache.get_or_compile(sources.identity(name), lambda: sources.source(name))


def _report(cache: Cache, name: str, held: list[TypedCallTarget]) -> None:
    arguments = ARGUMENTS[name]()
    start = perf_counter()
    target = get(cache, name)
    ready = perf_counter()
    outcome = target(*arguments)
    end = perf_counter()
    held.append(target)
    shown = f"{outcome!r}, {sum(arguments[WRITTEN[name]])!r}" if name in WRITTEN else repr(outcome)
    print(f"{name}\t{ready - start:.9f}\t{end - ready:.9f}\t{shown}")


def main(directory: str) -> None:
    held: list[TypedCallTarget] = []
    with Cache(directory) as cache:
        if not cache.has(sources.identity(next(iter(ARGUMENTS))).func_name):
            import compcache.linker  # noqa: F401 - so that no kernel's time includes the import of LLVM
        for name in ARGUMENTS:
            _report(cache, name, held)
    llvm = sorted(name for name in ("llvmlite", "llvmlite.binding", "filelock", "numpy") if name in sys.modules)
    print(f"imported\t{' '.join(llvm) or '-'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
