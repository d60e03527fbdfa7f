"""How compiled code is linked and mapped: ELF objects, system linkers, the process's symbols, ORC where no linker is installed."""
