"""Writing a shared object of what LLVM emits, without a linker: for objects of which every section, symbol and relocation is known here."""
