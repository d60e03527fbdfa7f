"""KIND DIRECTORY NAME SYMBOL: microseconds and private KiB of the first load and call, libraries being imported.

KIND says how: `compcache`, `orc` (objects by hand), `ctypes` (NAME is the path of a shared object), `diskcache`.
Opening the cache, creating the linker and mapping the native runtime are part of it: the process is fresh.
"""

import json
import sys
from time import perf_counter

from children.private_memory import private_kib


def getter(kind: str, directory: str, name: str, symbol: str):
    if kind == "compcache":
        import compcache

        return lambda: compcache.Cache(directory).get_target(name)
    if kind == "ctypes":
        import bare_library

        return lambda: bare_library.get(name, symbol)
    import orc_objects
    import stored_objects

    if kind == "orc":
        linkers = []

        def load():
            linkers.append(orc_objects.Linker())
            return orc_objects.get(directory, name, symbol, linkers[0])

        return load
    import diskcache

    assert diskcache
    return lambda: stored_objects.with_diskcache(directory, name, symbol)


def main(kind: str, directory: str, name: str, symbol: str) -> None:
    load = getter(kind, directory, name, symbol)
    private_kib()
    before = private_kib()
    started = perf_counter()
    function = load()
    function(1.0, 2.0)
    elapsed = perf_counter() - started
    print(json.dumps({"us": elapsed * 1e6, "kib": private_kib() - before}))


main(*sys.argv[1:])
