"""KIND PLACE NAME: milliseconds of processor time of a first load, nanoseconds a round of its loop, and mapped parts of module files.

KIND is `compcache` (PLACE is the directory) or `ctypes` (PLACE is the path of a shared object). NAMES are separated by commas; the first
one is called where it takes a number and a number of rounds.
"""

import json
import sys
from time import perf_counter, process_time

ROUNDS, CALLS = 200_000, 30


def main(kind: str, place: str, names: str, calls: str = "") -> None:
    if kind == "compcache":
        from compcache import Cache

        def load():
            cache = Cache(place)
            return [cache.get_target(name) for name in names.split(",")]
    else:
        import ctypes

        def load():
            function = getattr(ctypes.CDLL(place), names)
            function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_int64]
            return [function]

    started = process_time()
    functions = load()
    taken = process_time() - started
    rounds = [0.0]
    for _ in range(CALLS if calls else 0):
        began = perf_counter()
        functions[0](1.5, ROUNDS)
        rounds.append(perf_counter() - began)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mapped = sum(".ccm" in line for line in maps)
    print(json.dumps({"ms": taken * 1e3, "ns": min(rounds[1:], default=0.0) / ROUNDS * 1e9, "mapped": mapped}))


main(*sys.argv[1:])
