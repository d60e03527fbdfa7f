"""Images of compiled code, made and loaded: a folder for each kind, and what all kinds share (ELF files, linkers, the process's symbols,
LLVM's thread).
"""
