"""Machine code of entry points, assembled from patterns, because LLVM would take longer than for the function itself."""
