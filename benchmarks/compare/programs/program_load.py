"""KIND PLACE NAME [EARLIER]: what the first load of a function of a program takes, nothing called.

Milliseconds, those of processor time, those with the import of compcache or ctypes, private KiB, and how much of them was written to.

KIND is `compcache` (PLACE is the directory) or `ctypes` (PLACE is the path of a shared object, with the libraries that it names). With
EARLIER, another place, the process has loaded `kernel` of it before: then ctypes is not alone in having its native part in memory.
"""

import json
import sys
from time import perf_counter, process_time

from children.private_memory import private_parts


def main(kind: str, place: str, name: str, *earlier: str) -> None:
    began = process_time()
    if kind == "compcache":
        import compcache

        def load(place, name):
            return compcache.Cache(place).get_target(name)
    else:
        import ctypes

        def load(place, name):
            return getattr(ctypes.CDLL(place), name)

    imported = process_time() - began
    kept = [load(path, "kernel") for path in earlier]
    private_parts()
    before = private_parts()
    started, worked = perf_counter(), process_time()
    function = load(place, name)
    elapsed, processor = perf_counter() - started, process_time() - worked
    assert all([function, *kept])
    private, written = [after - earlier for after, earlier in zip(private_parts(), before, strict=True)]
    times = {"ms": elapsed * 1e3, "cpu": processor * 1e3, "imported": (imported + processor) * 1e3}
    print(json.dumps({**times, "kib": private, "written": written}))


main(*sys.argv[1:])
