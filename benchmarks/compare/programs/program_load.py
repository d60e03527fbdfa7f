"""KIND PLACE NAME: milliseconds, those of processor time, and private KiB of the first load of a function of a program, nothing called.

How much of the memory was written to comes last.

KIND is `compcache` (PLACE is the directory) or `ctypes` (PLACE is the path of a shared object, with the libraries that it names).
"""

import json
import sys
from time import perf_counter, process_time

from children.private_memory import private_parts


def main(kind: str, place: str, name: str) -> None:
    if kind == "compcache":
        import compcache

        def load():
            return compcache.Cache(place).get_target(name)
    else:
        import ctypes

        def load():
            return getattr(ctypes.CDLL(place), name)

    private_parts()
    before = private_parts()
    started, worked = perf_counter(), process_time()
    function = load()
    elapsed, processor = perf_counter() - started, process_time() - worked
    assert function
    private, written = [after - earlier for after, earlier in zip(private_parts(), before, strict=True)]
    print(json.dumps({"ms": elapsed * 1e3, "cpu": processor * 1e3, "kib": private, "written": written}))


main(*sys.argv[1:])
