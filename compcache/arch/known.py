"""The architectures that this package knows, and which one a name or a file is of."""

from __future__ import annotations

from compcache.arch import aarch64, loongarch64, ppc64le, riscv64, x86_64
from compcache.arch.architecture import Architecture

__all__ = ["KNOWN", "architecture", "architecture_of_elf"]

KNOWN: tuple[Architecture, ...] = tuple([file.ARCHITECTURE for file in (x86_64, aarch64, riscv64, loongarch64, ppc64le)])
_BY_NAME = {name: known for known in KNOWN for name in (known.name, *known.spellings)}
_BY_ELF = {known.elf_machine: known for known in KNOWN}


def architecture(platform: str) -> Architecture:
    """Return the architecture of a platform, of a triple (``x86_64-linux-elf``), or with this name; one without properties if it is not
    known.
    """
    name = platform.partition("-")[0]
    return _BY_NAME.get(name) or Architecture(name)


def architecture_of_elf(machine: int) -> Architecture:
    """Return the architecture of this number in ELF files; one without properties where it is not known."""
    return _BY_ELF.get(machine) or Architecture(f"ELF machine {machine}")
