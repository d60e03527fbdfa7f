"""Writes shared objects from LLVM's objects, without a linker, if every section, symbol and relocation is known here."""
