"""What a module of LLVM bitcode holds, as LLVM itself says it: the tests' own view, independent of the package."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


def parse(bitcode: bytes) -> Any:
    """The verified module."""
    _initialize()
    module = llvm.parse_bitcode(bitcode)
    module.verify()
    return module


def optimize(module: Any, level: int = 2) -> None:
    """Run LLVM's standard pipeline of that level."""
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=level, reloc="pic", codemodel="default"
    )
    tuning = llvm.create_pipeline_tuning_options(speed_level=level)
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)


def link(modules: Iterable[bytes]) -> bytes:
    """One module out of several, as a linker would make it."""
    first, *others = map(parse, modules)
    for other in others:
        first.link_in(other)
    linked: bytes = first.as_bitcode()
    return linked


def defined(bitcode: bytes) -> list[str]:
    """The names of all functions with a body."""
    return [function.name for function in parse(bitcode).functions if not function.is_declaration]


def exported(bitcode: bytes) -> list[str]:
    """The names of the functions that other modules can see."""
    visible = (llvm.Linkage.external, llvm.Linkage.weak_any, llvm.Linkage.weak_odr)
    functions = parse(bitcode).functions
    return [
        function.name for function in functions if not function.is_declaration and function.linkage in visible
    ]


def undefined(bitcode: bytes) -> list[str]:
    """The names of the functions that the module calls and does not define; no intrinsics."""
    functions = parse(bitcode).functions
    return [f.name for f in functions if f.is_declaration and not f.name.startswith("llvm.")]


def undefined_data(bitcode: bytes) -> list[str]:
    """The names of the global variables that the module uses and does not define."""
    return [variable.name for variable in parse(bitcode).global_variables if variable.is_declaration]


def defined_data(bitcode: bytes) -> list[str]:
    """The names of the global variables that other modules can see."""
    variables = parse(bitcode).global_variables
    return [variable.name for variable in variables if not variable.is_declaration and variable.linkage == llvm.Linkage.external]


def imports_among(modules: Mapping[str, bytes]) -> dict[str, list[str]]:
    """For each of several modules: which of its undefined functions and variables the others define."""
    everything = {name for bitcode in modules.values() for name in (*exported(bitcode), *defined_data(bitcode))}
    return {key: sorted(everything & {*undefined(bitcode), *undefined_data(bitcode)}) for key, bitcode in modules.items()}
