"""POWER, 64-bit and little-endian. There are no tables of CPUs and features, so code runs only on the processor that it was compiled on."""

from __future__ import annotations

from compcache.arch.architecture import Architecture, Relocations

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture("ppc64le", spellings=("powerpc64le",), elf_machine=21, relocations=Relocations((38,), (20, 21), distance=26))
