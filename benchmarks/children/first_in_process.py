"""DIRECTORY NAME: the microseconds of the first get_target in this process, the package being imported."""

import sys
from time import perf_counter

from compcache import Cache

if __name__ == "__main__":
    cache = Cache(sys.argv[1])
    started = perf_counter()
    target = cache.get_target(sys.argv[2])
    elapsed = perf_counter() - started
    target(1.0, 2.0)
    print((elapsed) * 1e6)
