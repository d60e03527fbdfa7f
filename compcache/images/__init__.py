"""How compiled code becomes an image and is loaded: a folder for each kind, and what kinds share (ELF files, linkers, the process's
symbols, LLVM's thread).
"""
