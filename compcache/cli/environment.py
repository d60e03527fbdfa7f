"""The environment variables that compcache reads, in one table: for ``compcache config`` and for the documents."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["VARIABLES", "Variable"]


class Variable(NamedTuple):
    """One variable: what it sets, and what holds without it. Values of secret ones are not shown."""

    name: str
    purpose: str
    default: str
    secret: bool = False


VARIABLES = (
    Variable("COMPCACHE_DIR", "the cache directory", "compcache in the user's cache directory"),
    Variable("COMPCACHE_MAX_SIZE", "the size that additions keep the directory below; 0: no limit", "5G"),
    Variable("COMPCACHE_LOCK_TIMEOUT", "seconds to wait for another process that compiles the same function", "60"),
    Variable("COMPCACHE_LOCKS", "0: work without lock files", "1"),
    Variable("COMPCACHE_STATS", "0: count nothing", "1"),
    Variable("COMPCACHE_CHECK", "1: hits call build() too, and warn where it returns other code (for CI)", "hits compare nothing"),
    Variable("COMPCACHE_MIN_LLVM", "pass over code that an older LLVM has compiled, like 22", "code of every LLVM is used"),
    Variable("COMPCACHE_DEBUG", "1: tell hits, misses, compilations, waits and refusals on standard error", "nothing is told"),
    Variable("COMPCACHE_LINKER", "the linker: a path, a name on the path, ziglang, or none", "the one that starts fastest"),
    Variable("COMPCACHE_SIGNING_KEY", "key that signs what is added; anything unsigned is a miss", "no signatures", secret=True),
    Variable("COMPCACHE_TARGETS", "the CPUs that modules are compiled for, like x86-64-v2,x86-64-v3,native", "native"),
    Variable("COMPCACHE_NUMBA", "1: cache what Numba compiles with cache=True", "0"),
)
