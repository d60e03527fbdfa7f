"""TESTS NAME DOWNLOADS OUT CACHE REPETITIONS: one of the peers' programs, compared with a shared object.

It is added in turns with code generation. TESTS is the directory of the tests, whose `peer.programs` says how the program is built and what
it is called with. The cache that is left in CACHE is the one that the comparison used.
"""

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path

import llvmlite.binding as llvm
import orc_objects
import sources
from children.timing import take_turns

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


def processor_seconds() -> float:
    """Of this process and of the linkers that it has run."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def add(given: list[ModuleSource], directory: str) -> float:
    """Processor seconds of adding all modules to a cache that has another one."""
    shutil.rmtree(directory, ignore_errors=True)
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(sources.SMALL))
        started = processor_seconds()
        cache.add_modules(given)
        return processor_seconds() - started


def generate(given: list[ModuleSource]) -> float:
    """Processor seconds of parsing, optimizing and emitting the same modules."""
    started = processor_seconds()
    for source in given:
        machine = orc_objects.target_machine(source.optimize)
        is_bitcode = source.ir.startswith((b"BC", b"\xde\xc0\x17\x0b"))
        context = llvm.create_context()
        module = llvm.parse_bitcode(source.ir, context) if is_bitcode else llvm.parse_assembly(source.ir.decode(), context)
        for function in module.functions if source.functions else ():
            if not function.is_declaration and function.name not in source.functions:
                function.linkage = "internal"  # so that the inliner sees what it sees of the module that is added
        builder = llvm.create_pass_builder(machine, pipeline(source.optimize))
        builder.getModulePassManager().run(module, builder)
        machine.emit_object(module)
    return processor_seconds() - started


def pipeline(level: int):
    """The options by which compcache optimizes, and clang too."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = level > 1
    options.loop_unrolling = True
    return options


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
