"""From a module's source to its object: what LLVM does of the miss path. `compcache.linker` does the rest."""
