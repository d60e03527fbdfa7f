"""Which CPUs there are, what this host is, and what code that is compiled for one of them requires (imports LLVM)."""
