"""LoongArch, 64-bit: without a table of CPUs or of features, so that code serves the processor that it was compiled on."""

from __future__ import annotations

from compcache.arch.architecture import Architecture, Relocations

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture("loongarch64", elf_machine=258, relocations=Relocations((2,), (5,), distance=99))
