"""Machine code of entry points, put together of patterns, where LLVM would take longer than for the function behind it."""
