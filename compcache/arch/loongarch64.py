"""LoongArch, 64-bit. There are no tables of CPUs and features, so code runs only on the processor that it was compiled on."""

from __future__ import annotations

from compcache.arch.architecture import Architecture, Relocations

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture("loongarch64", elf_machine=258, relocations=Relocations((2,), (5,), distance=99))
