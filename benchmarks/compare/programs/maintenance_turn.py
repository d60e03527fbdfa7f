"""DIRECTORY MODULES: seconds of each kind of maintenance of a cache, in a fresh process. The cache is pruned at the end."""

import json
import os
import sys
from time import perf_counter

from maintenance import merge_all

from compcache import Cache
from compcache.maintain.policy import PrunePolicy


def main(directory: str, modules: int) -> None:
    taken = {}

    def timed(name, action):
        started = perf_counter()
        action()
        taken[name] = perf_counter() - started

    with Cache(directory) as cache:
        timed("check, without checksums", lambda: cache.check(checksums=False))
        timed("check", cache.check)
        timed("prune, nothing to do", lambda: cache.prune(PrunePolicy(max_modules=2 * modules)))
        timed("stats", cache.stats)
    with Cache(directory) as cache:
        segments = len(os.listdir(f"{directory}/index-v1"))
        timed("merge the whole index", lambda: merge_all(cache._store.index))
        timed("prune to 90 %", lambda: cache.prune(PrunePolicy(max_modules=modules * 9 // 10)))
    print(json.dumps({"seconds": taken, "segments": segments}))


main(sys.argv[1], int(sys.argv[2]))
