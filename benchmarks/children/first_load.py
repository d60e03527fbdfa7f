"""DIRECTORY REPETITIONS WARM NAMES...: first get_target of small modules against ctypes.CDLL and dlsym of their images."""

import _ctypes
import ctypes
import sys
from time import perf_counter

from children.timing import report, take_turns
from compcache import Cache

SYMBOL = "compcache_module"


def main(directory: str, repetitions: int, warm: str, names: list[str]) -> None:
    cache = Cache(directory)
    keep = cache.get_target(warm)  # the runtime is mapped, the index is open
    keep(1.0, 2.0)
    paths = {}
    for name in names:
        target = cache.get_target(name)
        paths[name] = cache._store.module_path(bytes.fromhex(target.module_id))
        del target

    def load(repetition: int) -> float:
        name = names[repetition % len(names)]
        started = perf_counter()
        target = cache.get_target(name)
        elapsed = perf_counter() - started
        del target
        return elapsed * 1e6

    def bare(repetition: int) -> float:
        path = paths[names[repetition % len(names)]]
        started = perf_counter()
        library = ctypes.CDLL(path)
        ctypes.c_char.in_dll(library, SYMBOL)
        elapsed = perf_counter() - started
        _ctypes.dlclose(library._handle)
        return elapsed * 1e6

    def raw(repetition: int) -> float:
        path = paths[names[repetition % len(names)]]
        started = perf_counter()
        handle = _ctypes.dlopen(path, 2)
        _ctypes.dlsym(handle, SYMBOL)
        elapsed = perf_counter() - started
        _ctypes.dlclose(handle)
        return elapsed * 1e6

    _check_unmapping(cache, names[0], paths[names[0]])
    report(
        take_turns({"get_target": load, "ctypes.CDLL + symbol": bare, "dlopen + dlsym": raw}, repetitions, 20)
    )


def _check_unmapping(cache: Cache, name: str, path: str) -> None:
    """Both sides map and unmap, or the comparison means nothing."""

    def mapped() -> bool:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return any(path in line for line in maps)

    target = cache.get_target(name)
    if not mapped():
        raise SystemExit("the image of a target is not mapped under the module's path")
    del target
    if mapped():
        raise SystemExit("the image is still mapped after its target is gone")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
