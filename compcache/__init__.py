"""compcache: an on-disk cache of compiled LLVM modules.

`Cache.get_target` hands back a compiled function as a typed, callable object without importing LLVM;
`Cache.get_or_compile` compiles it first where it is not there. See `docs/design.md`.
"""

from __future__ import annotations

import sys

from compcache.cache import Cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.errors import (
        ArgumentBufferError,
        CacheWarning,
        CompcacheError,
        CompileError,
        FormatError,
        GlobalValidationError,
        IncompatibleTargetError,
        IntegrityError,
        InvalidNameError,
        LinkerError,
        LinkError,
        NotCachedError,
        PickleNotAllowedError,
        ReentrantCompileError,
        SignatureError,
        SignatureMismatchError,
        StorageError,
        TargetUnloadedError,
        UndefinedSymbolError,
        UnknownVersionError,
        UntrustedDirectoryError,
    )
    from compcache.explain import Explanation, Variant, Verdict
    from compcache.findings import (
        CacheStats,
        CheckReport,
        CheckStep,
        Finding,
        PrunedFile,
        PrunedModule,
        PruneReport,
    )
    from compcache.identity import Identity
    from compcache.module import Function, ModuleSource
    from compcache.prune import PrunePolicy
    from compcache.reports import LoadedState, Realization
    from compcache.signature import Signature
    from compcache.target import TypedCallTarget

__version__ = "0.1.0"

__all__ = [
    "ArgumentBufferError",
    "Cache",
    "CacheStats",
    "CacheWarning",
    "CheckReport",
    "CheckStep",
    "CompcacheError",
    "CompileError",
    "Explanation",
    "Finding",
    "FormatError",
    "Function",
    "GlobalValidationError",
    "Identity",
    "IncompatibleTargetError",
    "IntegrityError",
    "InvalidNameError",
    "LinkError",
    "LinkerError",
    "LoadedState",
    "ModuleSource",
    "NotCachedError",
    "PickleNotAllowedError",
    "PrunePolicy",
    "PruneReport",
    "PrunedFile",
    "PrunedModule",
    "Realization",
    "ReentrantCompileError",
    "Signature",
    "SignatureError",
    "SignatureMismatchError",
    "StorageError",
    "TargetUnloadedError",
    "TypedCallTarget",
    "UndefinedSymbolError",
    "UnknownVersionError",
    "UntrustedDirectoryError",
    "Variant",
    "Verdict",
]

#: Where the public names live that a hit does not need; they are imported when they are asked for (PEP 562).
_HOMES = {
    "CacheStats": "findings",
    "CheckReport": "findings",
    "CheckStep": "findings",
    "Explanation": "explain",
    "Finding": "findings",
    "Function": "module",
    "Identity": "identity",
    "LoadedState": "reports",
    "ModuleSource": "module",
    "PrunePolicy": "prune",
    "PruneReport": "findings",
    "PrunedFile": "findings",
    "PrunedModule": "findings",
    "Realization": "reports",
    "Signature": "signature",
    "TypedCallTarget": "target",
    "Variant": "explain",
    "Verdict": "explain",
}
_SUBMODULES = frozenset(("batch", "errors", "globals", "numba"))


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"compcache.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'compcache' has no attribute {name!r}")
    value: object = getattr(import_module(f"compcache.{_HOMES.get(name, 'errors')}"), name)
    setattr(sys.modules[__name__], name, value)  # `globals` is a submodule here
    return value
