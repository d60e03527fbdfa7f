"""The architectures that this package knows, by name and by their numbers in ELF files."""

from __future__ import annotations

from compcache.arch import aarch64, loongarch64, ppc64le, riscv64, x86_64
from compcache.arch.architecture import Architecture

__all__ = ["KNOWN", "architecture", "architecture_of_elf"]

KNOWN: tuple[Architecture, ...] = tuple([file.ARCHITECTURE for file in (x86_64, aarch64, riscv64, loongarch64, ppc64le)])
_BY_NAME = {name: properties for properties in KNOWN for name in (properties.name, *properties.spellings)}
_BY_ELF = {properties.elf_machine: properties for properties in KNOWN}


def architecture(platform: str) -> Architecture:
    """Return the architecture of a platform (``x86_64-linux-elf``), a triple or a name. Unknown architectures have default properties."""
    name = platform.partition("-")[0]
    return _BY_NAME.get(name) or Architecture(name)


def architecture_of_elf(machine: int) -> Architecture:
    """Return the architecture with an ELF machine number. Unknown architectures have default properties."""
    return _BY_ELF.get(machine) or Architecture(f"ELF machine {machine}")
