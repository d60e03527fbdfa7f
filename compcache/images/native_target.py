"""LLVM's native target, made usable once per process, and machines that translate for it."""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm

__all__ = ["initialize", "target_machine"]


@functools.cache
def initialize() -> None:
    """Make LLVM's native target usable; the asm parser too, for without it inline assembly aborts."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


def target_machine(cpu: str, features: str, level: int) -> Any:
    """A target machine for position-independent code.

    Code that is to be left as given (level 0) is still translated by the good code generator.
    """
    initialize()
    target = llvm.Target.from_triple(llvm.get_default_triple())
    return target.create_target_machine(
        cpu=cpu, features=features, opt=level or 2, reloc="pic", codemodel="default"
    )
