"""Compiles a module's source to its object: the part of the miss path that LLVM does. `compcache.linker` does the rest."""
