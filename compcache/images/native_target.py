"""LLVM's native target, initialized once per process, and target machines that generate code for it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from typing import TYPE_CHECKING, Any

from compcache.interrupts import reraise_interrupt
from compcache.llvm import llvm

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["borrow_machine", "data_layout", "default_triple", "initialize", "note_module", "note_text", "target_machine"]

#: What LLVM may remember in a target machine: flags of the module, the attributes of the first function of a CPU, and the addresses of the
#: objects in ``llvm.used``. X86TargetMachine::getSubtargetImpl and TargetLoweringObjectFileELF::getModuleMetadata are examples.
_LEAVES_STATE = re.compile(r'\n(?:![A-Za-z]|@llvm\.used |attributes #\d+ = \{.*")')
_MOST_FUNCTIONS = 64  # of a module that is printed to find out whether it is plain


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


def target_machine(cpu: str, features: str, level: int) -> Any:
    """Return a target machine for position-independent code. Level 0 keeps LLVM IR unoptimized, but uses the code generator of level 2."""
    initialize()
    target = llvm.Target.from_triple(default_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=level or 2, reloc="pic", codemodel="default")


@contextlib.contextmanager
def borrow_machine(cpu: str, features: str, level: int, text: str) -> Iterator[Any]:
    """Lend a target machine with the arguments of `target_machine` to one user at a time, for the module with the printed form `text`.

    A machine is reused if this module and every module that it translated are plain (`note_text`), because a new machine makes the
    translation of a tiny module 20 % slower. It is not reused after an exception.
    """
    idle = list[Any]() if _LEAVES_STATE.search(text) else _idle_machines(cpu, features, level)
    try:
        machine = idle.pop()
    except IndexError as error:
        reraise_interrupt(error)
        machine = target_machine(cpu, features, level)
    machine.is_reusable = True
    yield machine
    if machine.is_reusable:
        idle.append(machine)


def note_module(module: Any, machine: Any) -> None:
    """Prevent the reuse of a borrowed machine unless the module that it is going to translate is plain (`note_text`) and small.

    Printing a module of many functions takes longer than creating a machine.
    """
    if getattr(machine, "is_reusable", False):
        machine.is_reusable = next(itertools.islice(module.functions, _MOST_FUNCTIONS, None), None) is None
        if machine.is_reusable:
            note_text(str(module), machine)


def note_text(text: str, machine: Any) -> None:
    """Prevent the reuse of a borrowed machine unless the module that it is going to translate is plain. `text` is the printed module.

    A plain module has no named metadata, no attributes with values, and no variable ``llvm.used``. Another module
    may change the code of modules that the same machine translates later, and earlier modules may change its code.
    """
    machine.is_reusable = machine.is_reusable and not _LEAVES_STATE.search(text)


def data_layout(machine: Any) -> str:
    """Return the data layout of a machine, as the text in modules."""
    return str(machine.target_data)


@functools.lru_cache(maxsize=8)
def _idle_machines(cpu: str, features: str, level: int) -> list[Any]:  # noqa: ARG001 - the key of the cache
    """Return the list of unused machines for these arguments. It grows to the greatest number of concurrent translations."""
    return []
