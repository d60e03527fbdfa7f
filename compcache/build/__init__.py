"""Turns a module's source into the sections of its file, step by step, with LLVM."""
