"""Target CPUs: their names and features, this host, and the requirements of compiled code. This package imports LLVM."""
