"""LLVM's native target, initialized once per process, and target machines that generate code for it."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from compcache.interrupts import reraise_interrupt
from compcache.llvm import llvm

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["borrow_machine", "data_layout", "default_triple", "initialize", "target_machine", "tuning"]


@functools.cache
def initialize() -> None:
    """Initialize LLVM's native target once. Without the asm parser, inline assembly would abort the process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


@functools.cache
def default_triple() -> str:
    """Return the triple of this process, as LLVM writes it."""
    return str(llvm.get_default_triple())


@functools.cache
def tuning(level: int) -> Any:
    """Return the options of LLVM's pipeline for an optimization level. Callers must not change the returned object."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = level > 1
    options.slp_vectorization = level > 1
    options.loop_unrolling = True
    options.loop_interleaving = level > 1
    return options


def target_machine(cpu: str, features: str, level: int) -> Any:
    """Return a target machine for position-independent code. Level 0 keeps LLVM IR unoptimized, but uses the code generator of level 2."""
    initialize()
    target = llvm.Target.from_triple(default_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=level or 2, reloc="pic", codemodel="default")


@contextlib.contextmanager
def borrow_machine(cpu: str, features: str, level: int) -> Iterator[Any]:
    """Lend a target machine with the arguments of `target_machine` to one user at a time.

    Machines are reused, because creating one takes 0.8 ms: a quarter of the translation of a tiny module. A machine keeps nothing of the
    modules that it has translated.
    """
    idle = _idle_machines(cpu, features, level)
    try:
        machine = idle.pop()
    except IndexError as error:
        reraise_interrupt(error)
        machine = target_machine(cpu, features, level)
    try:
        yield machine
    finally:
        idle.append(machine)


@functools.lru_cache(maxsize=32)
def data_layout(machine: Any) -> str:
    """Return the data layout of a machine, as the text in modules.

    LLVM's layout object caches the layouts of structures by the addresses of their types. A type of a later module may have the same
    address. Therefore only the text is kept.
    """
    return str(machine.target_data)


@functools.lru_cache(maxsize=8)
def _idle_machines(cpu: str, features: str, level: int) -> list[Any]:  # noqa: ARG001 - the key of the cache
    """Return the list of unused machines for these arguments. It grows to the greatest number of concurrent translations."""
    return []
