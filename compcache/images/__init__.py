"""How compiled code is linked and mapped: ELF objects, system linkers, the process's symbols, ORC where there is no linker."""
