"""An object cache as one writes it by hand on llvmlite: object bytes in files keyed by digest, linked by ORC.

Kept as lean as such a cache can be: no checksums, no index, no dependencies, no locks, ctypes for the call.
"""

from __future__ import annotations

import ctypes
import os
from hashlib import blake2b

import llvmlite.binding as llvm

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
F64_F64_F64 = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)


def target_machine(level: int = 2):
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        reloc="pic",
        codemodel="default",
    )


def compile_object(text: str, level: int = 2) -> bytes:
    """Parse, optimize as `level` says, generate code."""
    machine = target_machine(level)
    header = f'target datalayout = "{machine.target_data}"\ntarget triple = "{llvm.get_default_triple()}"\n'
    module = llvm.parse_assembly(header + text, llvm.create_context())
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


class Linker:
    """Links objects into this process. A function that it returns keeps its code."""

    def __init__(self) -> None:
        # As ORC's default: the code generator's level does not matter for objects.
        self._jit = llvm.create_lljit_compiler(target_machine())
        self._number = 0

    def function(self, obj: bytes, symbol: str):
        """The function of this symbol, callable through ctypes."""
        self._number += 1
        builder = llvm.JITLibraryBuilder().add_object_img(obj).export_symbol(symbol).add_current_process()
        tracker = builder.link(self._jit, f"library-{self._number}")
        function = F64_F64_F64(tracker[symbol])
        function.keep = self, tracker  # the code goes with them
        return function


def path_of(directory: str, name: str) -> str:
    """Where the object of a name is."""
    digest = blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{directory}/{digest[:2]}/{digest}.o"


def store(directory: str, name: str, obj: bytes) -> None:
    """Write an object and make it visible by a rename."""
    path = path_of(directory, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.{os.getpid()}", "wb") as file:
        file.write(obj)
    os.replace(f"{path}.{os.getpid()}", path)


def load(directory: str, name: str) -> bytes:
    """The object of a name."""
    with open(path_of(directory, name), "rb") as file:
        return file.read()


def get(directory: str, name: str, symbol: str, linker: Linker | None = None):
    """The function, linked now."""
    return (linker or Linker()).function(load(directory, name), symbol)
