"""Images of compiled code: makes and loads them. Each kind has a folder; ELF files, linkers, symbols and LLVM's thread serve all kinds."""
