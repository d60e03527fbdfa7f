"""Lists the settings of Numba that are not part of keys, by their names in `numba.config`.

The names of environment variables have the prefix ``NUMBA_``.
"""

from __future__ import annotations

__all__ = ["chooses_cpu", "is_harmless", "is_in_keys"]

#: These settings change output or locations but never the code, or they choose the CPU, which entries record themselves.
_HARMLESS_SETTINGS = frozenset((
    "ALWAYS_WARN_UNINIT_VAR", "ANNOTATE", "CACHE_DIR", "CACHE_LOCATOR_CLASSES", "CHROME_TRACE", "COLOR_SCHEME", "CPU_FEATURES",
    "CPU_NAME", "DEBUG", "DEBUG_ARRAY_OPT_STATS", "DEBUG_CACHE", "DEBUG_FRONTEND", "DEBUG_INLINE_CLOSURE", "DEBUG_PRINT_AFTER",
    "DEBUG_PRINT_BEFORE", "DEBUG_PRINT_WRAP", "DEBUG_TYPEINFER", "DISABLE_JIT", "DISABLE_PERFORMANCE_WARNINGS",
    "DISABLE_TYPEINFER_FAIL_CACHE", "DUMP_ASSEMBLY", "DUMP_BYTECODE", "DUMP_CFG", "DUMP_FUNC_OPT", "DUMP_IR", "DUMP_LLVM",
    "DUMP_OPTIMIZED", "DUMP_SSA", "ENABLE_AVX", "ENABLE_CUDASIM", "ENABLE_SYS_MONITORING", "FUNCTION_CACHE_SIZE", "GDB_BINARY",
    "HIGHLIGHT_DUMPS", "HTML", "IS_OSX", "JIT_COVERAGE", "LLVM_PASS_TIMINGS", "NRT_STATS", "NUMBA_DEFAULT_NUM_THREADS",
    "NUMBA_NUM_THREADS", "PARALLEL_DIAGNOSTICS", "PYVERSION", "SHOW_HELP", "THREADING_LAYER", "THREADING_LAYER_PRIORITY", "TRACE",
    "USE_LLVMLITE_MEMORY_MANAGER", "WARNINGS",
))  # fmt: skip
#: Settings that change code only if they are true: checked indices print a message. DEVELOPER_MODE is the default of FULL_TRACEBACKS.
_HARMLESS_IF_FALSE = frozenset(("DEVELOPER_MODE", "FULL_TRACEBACKS"))
_PREFIX = "NUMBA_"
#: The variable that selects a profiler with which Numba registers its code.
_PROFILER = "VS_PROFILER"


def is_harmless(name: str, value: object = True) -> bool:
    """Return whether a setting, given by its name, does not change the code of functions for a CPU if it has the value."""
    return name in _HARMLESS_SETTINGS or name.startswith("CUDA") or name.endswith("_CUDA") or (name in _HARMLESS_IF_FALSE and not value)


def is_in_keys(name: str) -> bool:
    """Return whether an environment variable, given by its name, is part of keys."""
    return name == _PROFILER or (name.startswith(_PREFIX) and not is_harmless(name) and not is_harmless(name[len(_PREFIX) :]))


def chooses_cpu(name: str) -> bool:
    """Return whether an environment variable, given by its name, chooses the CPU for which Numba compiles."""
    return name.startswith("NUMBA_CPU_") or name == "NUMBA_ENABLE_AVX"
