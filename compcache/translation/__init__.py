"""Compiles a module's source to its object, with LLVM. `compcache.linker` links the object."""
