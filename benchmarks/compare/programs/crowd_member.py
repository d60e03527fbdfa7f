"""KIND DIRECTORY SYMBOL NAMES...: one of many processes that load functions at the same moment.

Says `ready` when its imports are done, waits for a line, loads and calls every function, writes its times, and stays
alive with all of them until the next line: meanwhile its memory is counted.
"""

import json
import sys
from time import perf_counter


def main(kind: str, directory: str, symbol: str, names: list[str]) -> None:
    if kind == "compcache":
        import compcache
    else:
        import orc_objects
    print("ready", flush=True)
    sys.stdin.readline()
    latencies, kept = [], []
    began = perf_counter()
    if kind == "compcache":
        get = compcache.Cache(directory).get_target
    else:
        linker = orc_objects.Linker()

        def get(name: str) -> object:
            return orc_objects.get(directory, name, symbol, linker)

    before = began  # the first latency includes opening the cache, or creating the LLJIT
    for name in names:
        function = get(name)
        function(1.0, 2.0)
        kept.append(function)
        now = perf_counter()
        latencies.append(now - before)
        before = now
    print(json.dumps({"began": began, "ended": before, "latencies": latencies}), flush=True)
    sys.stdin.readline()


main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
