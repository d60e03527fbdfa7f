"""From a module's source to the sections of its file, step by step, by LLVM."""
