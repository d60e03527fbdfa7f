"""Writes shared objects from LLVM's objects without a linker. Objects with unknown sections, symbols or relocations are rejected."""
