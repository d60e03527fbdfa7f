"""What adding a program is held against: the same modules compiled by LLVM alone, and linked."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
import orc_objects
import sources

from compcache import Cache, ModuleSource


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
        compiled(source)
    return processor_seconds() - started


def compile_and_link(given: list[ModuleSource]) -> float:
    """Processor seconds of the same, and of the linker's work on the objects."""
    with tempfile.TemporaryDirectory() as directory:
        started = processor_seconds()
        paths = [Path(directory, f"{number}.o") for number in range(len(given))]
        for path, source in zip(paths, given, strict=True):
            path.write_bytes(compiled(source))
        subprocess.run(["clang", "-shared", "-Wl,-Bsymbolic", "-o", f"{directory}/all.so", *paths], check=True)
        return processor_seconds() - started


def compiled(source: ModuleSource) -> bytes:
    """The object of a module."""
    machine = orc_objects.target_machine(source.optimize)
    is_bitcode = source.ir.startswith((b"BC", b"\xde\xc0\x17\x0b"))
    context = llvm.create_context()
    module = llvm.parse_bitcode(source.ir, context) if is_bitcode else llvm.parse_assembly(source.ir.decode(), context)
    for function in module.functions if source.functions else ():
        if not function.is_declaration and function.name not in source.functions:
            function.linkage = "internal"  # so that the inliner sees what it sees of the module that is added
    builder = llvm.create_pass_builder(machine, pipeline(source.optimize))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def pipeline(level: int) -> llvm.PipelineTuningOptions:
    """The options by which compcache optimizes, and clang too."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = level > 1
    options.loop_unrolling = True
    return options
