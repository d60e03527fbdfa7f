"""Digests functions by content: all values that the compiler, or code that the compiler runs, can read from them.

This file names the modes of a walk: what the compiler does with the function that is walked.
"""

from __future__ import annotations

__all__ = ["COMPILED", "NAMED", "REPLACED", "RUN", "STATE"]

#: The compiler compiles the function.
COMPILED = "compiled"
#: The function runs while code is generated, as overloads, intrinsics and their callees do. Everything that it can reach counts (`reach`).
RUN = "run"
#: The compiler replaces the function, or the program runs it later. Only its name counts.
NAMED = "named"
#: The attribute of a Numba object that contains the lazy object that it has replaced.
REPLACED = "_compcache_replaced"
#: The attribute of a lazy function, and of Numba's dispatcher in its place, that contains the state.
STATE = "_compcache_state"
