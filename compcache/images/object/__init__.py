"""Relocatable objects: LLVM emits them, and its ORC loads them, without a linker or on platforms without ELF."""
