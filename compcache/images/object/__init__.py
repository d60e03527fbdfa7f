"""Relocatable objects: what LLVM emits, and its ORC loads; where no linker is installed or the platform is not ELF."""
