"""DIRECTORY NAME REPETITIONS: nanoseconds of a call f64(f64, f64), through a target and through ctypes."""

from __future__ import annotations

import ctypes
import math
import sys
from functools import partial
from time import perf_counter

from children.timing import report, take_turns
from compcache import Cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 50_000


def _measure(call: Callable[[float, float], float], _turn: int) -> float:
    """The nanoseconds of one call in a plain loop."""
    counter = range(CALLS)
    started = perf_counter()
    for _ in counter:
        call(1.5, 2.5)
    return (perf_counter() - started) / CALLS * 1e9


def main(directory: str, name: str, repetitions: int) -> None:
    target = Cache(directory).get_target(name)
    native = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(target.address)
    calls: dict[str, Callable[[float, float], float]] = {
        "target": target,
        "ctypes": native,
        "builtin (math.copysign)": math.copysign,
        "lambda a, b: a + b": lambda a, b: a + b,
    }
    if target(1.5, 2.5) != native(1.5, 2.5):
        raise SystemExit("the two sides do not compute the same")
    sides = {label: partial(_measure, call) for label, call in calls.items()}
    report(take_turns(sides, repetitions))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
