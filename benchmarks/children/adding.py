"""SCRATCH KIND COUNT REPETITIONS: milliseconds of add_module, against parse + the same optimization + emit_object alone."""

import shutil
import sys
from time import perf_counter

import llvmlite.binding as llvm
import sources

from children.timing import report, take_turns
from compcache import Cache, ModuleSource
from compcache.build import codegen
from compcache.store import Store

LEVEL = 2


def main(scratch: str, kind: str, count: int, repetitions: int) -> None:
    codegen.initialize()
    machine = Store(scratch + "/host").host()
    layout = codegen.target_machine(machine.cpu, machine.features, LEVEL).target_data
    small = sources.small_module([f"small_{number}" for number in range(count)])
    code = sources.realistic_module(count, seed=1) if kind == "realistic" else small
    # As front ends write it: without these lines LLVM optimizes less, and the two sides would not do the same.
    text = f'target datalayout = "{layout}"\ntarget triple = "{llvm.get_default_triple()}"\n{code}'
    sizes: dict[str, int] = {}

    def add(repetition: int) -> float:
        directory = f"{scratch}/add-{repetition}"
        shutil.rmtree(directory, ignore_errors=True)
        with Cache(directory) as cache:
            cache.add_module(ModuleSource(sources.SMALL))  # linker found
            started = perf_counter()
            cache.add_module(ModuleSource(text, optimize=LEVEL))
            elapsed = perf_counter() - started
        shutil.rmtree(directory)
        return elapsed * 1e3

    def bare(_: int) -> float:
        started = perf_counter()
        module = llvm.parse_assembly(text, llvm.create_context())
        target = codegen.target_machine(machine.cpu, machine.features, LEVEL)
        codegen.optimize(module, target, LEVEL)
        obj = target.emit_object(module)
        elapsed = perf_counter() - started
        sizes["object bytes"] = len(obj)
        if "optimized instructions" not in sizes:
            sizes["optimized instructions"] = _instructions(str(module))
        return elapsed * 1e3

    samples = take_turns({"add_module": add, "parse + optimize + emit_object": bare}, repetitions, 1)
    report({"samples": samples, "facts": {"functions": count, **sizes}})


def _instructions(text: str) -> int:
    return sum(1 for line in text.splitlines() if line.startswith("  ") and not line.startswith("  ;"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
