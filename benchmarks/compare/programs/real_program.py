"""TESTS NAME DOWNLOADS OUT CACHE REPETITIONS: one of the peers' programs, compared with a shared object.

It is added in turns with code generation. TESTS is the directory of the tests, whose `peer.programs` says how the program is built and what
it is called with. The cache that is left in CACHE is the one that the comparison used.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import sources
from children.timing import take_turns
from code_generation import add, generate

from compcache import Cache, ModuleSource


def main(tests: str, name: str, downloads: str, out: str, directory: str, repetitions: str) -> None:
    sys.path.append(tests)
    from peer.programs import PROGRAMS, Places, UnavailableError

    program = PROGRAMS[name]
    try:
        built = program.build(Places(Path(downloads), Path(out), debug=False))
    except UnavailableError as error:
        print(json.dumps({"unavailable": str(error)}))
        return
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(sources.SMALL))  # a linker is chosen, LLVM has started
    sides = {"code generation": lambda _: generate(built.sources), "add": lambda _: add(built.sources, directory)}
    samples = take_turns(sides, int(repetitions), 0)
    print(json.dumps({
        "title": program.title,
        "modules": len(built.sources),
        "samples": samples,
        "correct": compare(program, directory, built.ordinary),
        "ordinary": str(built.ordinary),
        "bytes": {"ordinary": os.path.getsize(built.ordinary), "modules": stored_bytes(directory)},
    }))  # fmt: skip


def compare(program, directory: str, ordinary) -> dict[str, list[int]]:
    """For each function: on how many inputs it gives what it gives in the shared object, and how many there are."""
    library = ctypes.CDLL(str(ordinary))
    found = {}
    with Cache(directory) as cache:
        for function in program.functions:
            target, reference = cache.get_target(function.name), function.reference(library)
            equal = [function.call(target, data) == function.call(reference, data) for data in function.inputs(library)]
            found[function.name] = [sum(equal), len(equal)]
    return found


def stored_bytes(directory: str) -> int:
    """Of the module files."""
    with Cache(directory) as cache:
        return sum(module.size for module in cache.modules())


main(*sys.argv[1:])
