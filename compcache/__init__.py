"""compcache: an on-disk cache of compiled LLVM modules.

`Cache.compile` returns the functions of LLVM code as typed, callable objects, and compiles the code only once. `Cache.get_or_compile`
finds a function by its inputs before its code is generated. Neither method imports LLVM for stored functions. See `docs/design.md`.
"""

import sys

TYPE_CHECKING = False
if not TYPE_CHECKING:
    from compcache.facade import Cache
if TYPE_CHECKING:
    from compcache import batch as batch
    from compcache import clang as clang
    from compcache import errors as errors
    from compcache import globals as globals  # noqa: A004 - the public name
    from compcache import numba as numba
    from compcache.build.source import Function, ModuleSource
    from compcache.cache import Cache
    from compcache.configuration import SettingError
    from compcache.errors import (
        ArgumentBufferError,
        CacheWarning,
        CompcacheError,
        CompileError,
        FormatError,
        FunctionInUseError,
        GlobalValidationError,
        IncompatibleTargetError,
        IntegrityError,
        InvalidNameError,
        KnownFaultError,
        LibraryError,
        LinkerError,
        LinkError,
        MissingPackageError,
        ModulesNotAddedError,
        NotCachedError,
        PickleNotAllowedError,
        ReentrantCompileError,
        ReentrantLoadError,
        ShadowWarning,
        SignatureError,
        SignatureMismatchError,
        StorageError,
        TargetUnloadedError,
        UndefinedSymbolError,
        UnknownVersionError,
        UntrustedDirectoryError,
    )
    from compcache.hit.compiled import CompiledFunctions
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.inspect.descriptions import CacheInfo, FunctionGraph, FunctionReport, LoadedState, Provenance, Realization, Signer
    from compcache.inspect.explain import Explanation, Variant, Verdict
    from compcache.maintain.policy import PrunePolicy
    from compcache.maintain.report_types import (
        CheckReport,
        CheckStep,
        CompactReport,
        Finding,
        LinkedClosure,
        LinkReport,
        PrunedFile,
        PrunedModule,
        PruneReport,
    )
    from compcache.notebook import load_ipython_extension
    from compcache.remote.answer import RemoteAnswer
    from compcache.signature import Signature
    from compcache.usage.summaries import (
        CacheStats,
        ExportedFunction,
        FunctionSummary,
        GroupSummary,
        ModuleSummary,
        RemoteStats,
        StatsPeriod,
    )

__version__ = "1.0.0"

__all__ = [
    "ArgumentBufferError", "Cache", "CacheInfo", "CacheStats", "CacheWarning", "CheckReport", "CheckStep", "CompactReport",
    "CompcacheError", "CompileError", "CompiledFunctions", "Explanation", "ExportedFunction", "Finding", "FormatError", "Function",
    "FunctionGraph", "FunctionInUseError", "FunctionReport", "FunctionSummary", "GlobalValidationError", "GroupSummary", "Identity",
    "IncompatibleTargetError", "IntegrityError", "InvalidNameError", "KnownFaultError", "LibraryError", "LinkError", "LinkReport",
    "LinkedClosure", "LinkerError", "LoadedState", "MissingPackageError", "ModuleSource", "ModuleSummary", "ModulesNotAddedError",
    "NotCachedError", "PickleNotAllowedError", "Provenance", "PrunePolicy", "PruneReport", "PrunedFile", "PrunedModule", "Realization",
    "ReentrantCompileError", "ReentrantLoadError", "RemoteAnswer", "RemoteStats", "SettingError", "ShadowWarning", "Signature",
    "SignatureError", "SignatureMismatchError", "Signer", "StatsPeriod", "StorageError", "TargetUnloadedError", "TypedCallTarget",
    "UndefinedSymbolError", "UnknownVersionError", "UntrustedDirectoryError", "Variant", "Verdict", "load_ipython_extension",
]  # fmt: skip

#: The public names that a hit does not need, by their Python modules. They are imported on first use (PEP 562).
_HOMES = {
    name: home
    for home, names in (
        ("build.source", "Function ModuleSource"),
        ("configuration", "SettingError"),
        ("hit.compiled", "CompiledFunctions"),
        ("hit.target", "TypedCallTarget"),
        ("identity", "Identity"),
        ("inspect.descriptions", "CacheInfo FunctionGraph FunctionReport LoadedState Provenance Realization Signer"),
        ("inspect.explain", "Explanation Variant Verdict"),
        ("maintain.policy", "PrunePolicy"),
        (
            "maintain.report_types",
            "CheckReport CheckStep CompactReport Finding LinkReport LinkedClosure PruneReport PrunedFile PrunedModule",
        ),
        ("notebook", "load_ipython_extension"),
        ("remote.answer", "RemoteAnswer"),
        ("signature", "Signature"),
        ("usage.summaries", "CacheStats ExportedFunction FunctionSummary GroupSummary ModuleSummary RemoteStats StatsPeriod"),
    )
    for name in names.split()
}
_SUBMODULES = frozenset(("batch", "clang", "errors", "globals", "numba"))


if not TYPE_CHECKING:  # with a `__getattr__`, type checkers would believe in every name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _SUBMODULES:
            return import_module(f"compcache.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'compcache' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        value = getattr(import_module(f"compcache.{_HOMES.get(name, 'errors')}"), name)
        setattr(sys.modules[__name__], name, value)  # `globals` is a submodule here
        return value


def __dir__() -> "list[str]":
    return sorted({*__all__, *_SUBMODULES, "__version__"})
