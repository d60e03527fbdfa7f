"""The environment variables that compcache reads, in one table: for ``compcache config`` and for the documents."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["VARIABLES", "Variable"]


class Variable(NamedTuple):
    """One variable: its purpose and its default. Values of secret ones are not shown."""

    name: str
    purpose: str
    default: str
    secret: bool = False


VARIABLES = (
    Variable("COMPCACHE_DIR", "the cache directory", "compcache in the user's cache directory"),
    Variable("COMPCACHE_MAX_SIZE", "the size limit of the cache; 0: no limit", "5G"),
    Variable("COMPCACHE_LOCK_TIMEOUT", "seconds to wait for another process that compiles the same function", "60"),
    Variable("COMPCACHE_LOCKS", "0: work without lock files", "1"),
    Variable("COMPCACHE_STATS", "0: record no statistics", "1"),
    Variable("COMPCACHE_CHECK", "1: hits call build() too, and warn if it returns different code (for CI)", "hits are not checked"),
    Variable("COMPCACHE_MIN_LLVM", "ignore code compiled by an LLVM older than this version, like 22", "code of every LLVM is used"),
    Variable("COMPCACHE_DEBUG", "1: log hits, misses, compilations, waits and refusals on standard error", "no log"),
    Variable("COMPCACHE_LAYERS", "read-only caches below the cache directory, paths separated by colons", "none"),
    Variable("COMPCACHE_LINKER", "the linker for all images: a path, a name on the path, ziglang, or none", "only for what takes one"),
    Variable(
        "COMPCACHE_SIGNING_KEY",
        "the key that signs added modules, or @ and its file; unsigned ones are misses",
        "no signatures",
        secret=True,
    ),
    Variable(
        "COMPCACHE_REMOTE",
        "the URL of a remote store for misses, like s3://bucket/prefix, or @ and its file",
        "no remote store",
        secret=True,
    ),
    Variable("COMPCACHE_REMOTE_MODE", "read, write (upload compiled modules too) or off", "read"),
    Variable("COMPCACHE_TRUSTED_KEYS", "public keys; code that none of them signed is a miss, unless compiled here", "none"),
    Variable("COMPCACHE_PUBLISH_KEY", "the secret key that signs added modules for others, or @ and its file", "none", secret=True),
    Variable("COMPCACHE_TARGETS", "the CPUs that modules are compiled for, like x86-64-v2,x86-64-v3,native", "native"),
    Variable("COMPCACHE_NUMBA", "1: cache functions that Numba compiles with cache=True", "0"),
)
