"""CPUs: their names, this host's description, and the requirements of code that is compiled for them (imports LLVM)."""
