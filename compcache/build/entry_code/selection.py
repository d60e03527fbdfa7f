"""Chooses the entry points that are assembled from patterns, and makes their object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.arch.known import architecture
from compcache.build.entry_code.aarch64 import ArmAssembler
from compcache.build.entry_code.object_file import assemble_object
from compcache.build.entry_code.patterns import generate_code
from compcache.build.entry_code.x86_64 import X86Assembler
from compcache.build.entry_points import symbols_of_entries
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.build.entry_points import EntryPoint

__all__ = ["entry_object"]

_MACHINES = {machine.elf_machine: machine for machine in (X86Assembler, ArmAssembler)}


def entry_object(entries: Sequence[EntryPoint], elf_machine: int | None = None) -> tuple[bytes, tuple[EntryPoint, ...]]:
    """Assemble entry points. Return the object, or b"" if none can be assembled, and the entry points that LLVM must compile.

    LLVM compiles entry points for other calling conventions or with large frames (`Assembler.most_frame`), and all entry points on
    architectures other than x86-64 and AArch64. `elf_machine` is the ELF number of the architecture; None stands for this process.
    """
    machine = _MACHINES.get(architecture(platform_name()).elf_machine if elf_machine is None else elf_machine)
    if machine is None:
        return b"", tuple(entries)
    codes = {pair: generate_code(pair[1], machine) for pair in zip(symbols_of_entries(entries), entries, strict=True)}
    assembled = {symbol: code for (symbol, _), code in codes.items() if code is not None}
    uncovered = tuple([entry for (_, entry), code in codes.items() if code is None])
    return assemble_object(machine, assembled) if assembled else b"", uncovered
