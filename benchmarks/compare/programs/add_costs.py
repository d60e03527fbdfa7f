"""SCRATCH KIND COUNT REPETITIONS: add_module, the hand-written cache's add, and bare code generation, in turns.

add_module writes the image, and once more has it made by each of the linkers on the path. Tiny modules of one
function are also added by the hundred.

Besides the milliseconds: the bytes of the object, of the hand-written cache's file and of the module's file.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from time import perf_counter

import orc_objects
import sources
from children.timing import take_turns

from compcache import Cache, ModuleSource
from compcache.images.linkers.find import LINKER_VARIABLE

_MANY = 100


def add_many(directory: str, number: int) -> float:
    """Milliseconds of one of many tiny modules that are added together."""
    shutil.rmtree(directory, ignore_errors=True)
    given = [ModuleSource(sources.small_module([f"many_{number}_{n}"], seed=n)) for n in range(_MANY)]
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(sources.SMALL))
        started = perf_counter()
        cache.add_modules(given)
        return (perf_counter() - started) / _MANY * 1e3


def main(scratch: str, kind: str, count: int, repetitions: int) -> None:
    if kind == "realistic":
        text = sources.realistic_module(count, seed=count)
    else:
        text = sources.small_module([f"small_{count}_{number}" for number in range(count)])
    machine = orc_objects.target_machine()
    # As front ends write it: without these lines LLVM optimizes less, and the sides would not do the same.
    triple = orc_objects.llvm.get_default_triple()
    complete = f'target datalayout = "{machine.target_data}"\ntarget triple = "{triple}"\n{text}'
    sizes: dict[str, int] = {}

    def add(_: int) -> float:
        directory = f"{scratch}/cache"
        shutil.rmtree(directory, ignore_errors=True)
        with Cache(directory) as cache:
            cache.add_module(ModuleSource(sources.SMALL))  # what the first addition needs is there
            started = perf_counter()
            module = cache.add_module(ModuleSource(complete))
            elapsed = perf_counter() - started
            sizes["module file"] = os.path.getsize(cache._store.module_path(bytes.fromhex(module)))
        return elapsed * 1e3

    def by_hand(_: int) -> float:
        shutil.rmtree(f"{scratch}/orc", ignore_errors=True)
        started = perf_counter()
        orc_objects.store(f"{scratch}/orc", "module", orc_objects.compile_object(text))
        return (perf_counter() - started) * 1e3

    def bare(_: int) -> float:
        started = perf_counter()
        obj = orc_objects.compile_object(text)
        elapsed = perf_counter() - started
        sizes["object"] = len(obj)
        return elapsed * 1e3

    def add_linked_by(name: str) -> Callable[[int], float]:
        def add_so(number: int) -> float:
            os.environ[LINKER_VARIABLE] = name
            try:
                return add(number)
            finally:
                del os.environ[LINKER_VARIABLE]

        return add_so

    sides = {"add_module": add, "ORC objects by hand": by_hand, "code generation alone": bare}
    if (kind, count) == ("tiny", 1):
        sides[f"add_modules of {_MANY} such modules, each"] = lambda number: add_many(f"{scratch}/cache", number)
    for name in ("ld.lld", "mold", "ld"):
        if shutil.which(name):
            sides[f"add_module, linked by {name}"] = add_linked_by(name)
    samples = take_turns(sides, repetitions, 1)
    print(json.dumps({"samples": samples, "bytes": sizes}))


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
