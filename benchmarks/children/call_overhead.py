"""DIRECTORY NAME REPETITIONS: nanoseconds of a call f64(f64, f64), through a target and through ctypes."""

import ctypes
import math
import sys

from children.timing import report, take_turns
from compcache import Cache

CALLS = 50_000
LOOP = """
def measure(call, count, clock):
    counter = range(count)
    started = clock()
    for _ in counter:
        call(1.5, 2.5)
    return (clock() - started) / count * 1e9
"""


def main(directory: str, name: str, repetitions: int) -> None:
    from time import perf_counter

    namespace: dict[str, object] = {}
    exec(LOOP, namespace)
    measure = namespace["measure"]
    target = Cache(directory).get_target(name)
    native = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(target.address)
    calls = {
        "target": target,
        "ctypes": native,
        "builtin (math.copysign)": math.copysign,
        "lambda a, b: a + b": lambda a, b: a + b,
    }
    if target(1.5, 2.5) != native(1.5, 2.5):
        raise SystemExit("the two sides do not compute the same")
    sides = {label: lambda _, call=call: measure(call, CALLS, perf_counter) for label, call in calls.items()}
    report(take_turns(sides, repetitions))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
