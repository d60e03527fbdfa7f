"""The key of a compiled overload: the function's fingerprint, the signature, and everything else that shapes code."""

from __future__ import annotations

import functools
import platform
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprint import Fingerprint, Unidentifiable, fingerprint, type_text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMAT", "Identity", "config_text", "flags_text", "identify"]

#: Changes whenever keys or entries get another meaning.
FORMAT = 1

#: Settings of Numba that change what is printed or where things are, never the code.
_HARMLESS = frozenset((
    "ALWAYS_WARN_UNINIT_VAR", "CACHE_DIR", "CACHE_LOCATOR_CLASSES", "CHROME_TRACE", "COLOR_SCHEME", "DEBUG",
    "DEBUG_ARRAY_OPT_STATS", "DEBUG_CACHE", "DEBUG_FRONTEND", "DEBUG_INLINE_CLOSURE", "DEBUG_PRINT_AFTER",
    "DEBUG_PRINT_BEFORE", "DEBUG_PRINT_WRAP", "DEBUG_TYPEINFER", "DEVELOPER_MODE", "DISABLE_PERFORMANCE_WARNINGS",
    "DISABLE_TYPEINFER_FAIL_CACHE", "DUMP_ASSEMBLY", "DUMP_BYTECODE", "DUMP_CFG", "DUMP_FUNC_OPT", "DUMP_IR", "DUMP_LLVM",
    "DUMP_OPTIMIZED", "DUMP_SSA", "ENABLE_CUDASIM", "FULL_TRACEBACKS", "FUNCTION_CACHE_SIZE", "GDB_BINARY",
    "HIGHLIGHT_DUMPS", "HTML", "ANNOTATE", "NUMBA_DEFAULT_NUM_THREADS", "NUMBA_NUM_THREADS", "PARALLEL_DIAGNOSTICS",
    "SHOW_HELP", "THREADING_LAYER", "THREADING_LAYER_PRIORITY", "TRACE", "USE_LLVMLITE_MEMORY_MANAGER",
    "LLVM_PASS_TIMINGS", "ENABLE_SYS_MONITORING", "JIT_COVERAGE", "DISABLE_JIT", "NRT_STATS", "IS_OSX", "PYVERSION",
))  # fmt: skip


class Identity(NamedTuple):
    """Who an overload is: a key, the digest of where its source lines are, and the key's named components."""

    key: str
    lines: str
    name: str
    components: dict[str, str]


def identify(function: Any, *, sig: Any, flags: str, extra: Mapping[str, str], codegen: Any) -> Identity:
    """The identity of one overload of a function.

    Args:
        function: the Python function that is compiled.
        sig: what the overload was asked for with: a signature, or the tuple of its argument types.
        flags: the compiler flags as `flags_text` writes them.
        extra: further named components.
        codegen: Numba's code generator, which knows the CPU.

    Raises:
        Unidentifiable: something has no identity by content.
    """
    found: Fingerprint = fingerprint(function)
    components = {
        "function": found.content,
        "signature": signature_text(sig),
        "flags": flags,
        "config": config_text(),
        "versions": versions_text(),
        "cpu": cpu_text(codegen),
        **extra,
    }
    state = blake2b(digest_size=16, person=b"compcache-numba2")
    for name, text in components.items():
        data = text.encode("utf-8", "surrogatepass")
        state.update(f"{name}:{len(data)}:".encode())
        state.update(data)
    name = f"{function.__module__}.{function.__qualname__}"
    shown = {"name": name, **components, **{f"read {where}": what for where, what in found.reads.items()}}
    return Identity(state.hexdigest(), found.lines, name, shown)


def signature_text(sig: Any) -> str:
    """Argument types, and the result type where it was asked for; types of functions by their content."""
    args, result = (sig.args, sig.return_type) if hasattr(sig, "return_type") else (tuple(sig), None)
    texts = [_type_text(item) for item in args]
    return f"({', '.join(texts)}) -> {'?' if result is None else _type_text(result)}"


def _type_text(item: Any) -> str:
    dispatcher = getattr(item, "dispatcher", None)
    if dispatcher is not None:
        return f"jitted {fingerprint(dispatcher).content}"
    kind = type(item)
    return (
        f"{type_text(item, 'an argument')}"
        if kind.__module__.startswith("numba.core.types")
        else (f"{kind.__module__}.{kind.__qualname__}:{type_text(item, 'an argument')}")
    )


def flags_text(flags: Any) -> str:
    """Every flag with its value, in a fixed order."""
    return ", ".join(f"{name}={_flag_text(name, value)}" for name, value in sorted(flags.values().items()))


def _flag_text(name: str, value: Any) -> str:
    if name == "inline":
        chosen = getattr(value, "_inline", value)
        return chosen if isinstance(chosen, str) else f"cost model {fingerprint(chosen).content}"
    inner = getattr(value, "flags", value)
    if isinstance(inner, (set, frozenset)):
        return str(sorted(inner))
    if hasattr(value, "encode") and not isinstance(value, str):
        return str(value.encode())
    text = repr(inner)
    if " at 0x" in text:
        raise Unidentifiable(f"the flag {name} is {text}, which has no identity by content")
    return text


_config_memo: tuple[Any, str] = (None, "")


def config_text() -> str:
    """The settings of Numba that may change code, as they are now."""
    global _config_memo  # noqa: PLW0603 - the settings are the process's
    from numba.core import config

    config.reload_config()
    values = {
        name: value for name, value in vars(config).items() if name.isupper() and _is_setting(name, value)
    }
    if _config_memo[0] != values:
        values = dict(values)
        _config_memo = values, ", ".join(f"{name}={value!r}" for name, value in sorted(values.items()))
    return _config_memo[1]


def _is_setting(name: str, value: Any) -> bool:
    if name in _HARMLESS or name.startswith("CUDA") or name.endswith("_CUDA"):
        return False
    return value is None or isinstance(value, (bool, int, float, str, tuple)) or name == "OPT"


@functools.cache
def versions_text() -> str:
    """The versions of everything that takes part in compiling."""
    import llvmlite
    import numba
    import numpy as np
    from llvmlite import binding

    llvm = ".".join(map(str, binding.llvm_version_info))
    python = f"{platform.python_implementation()} {platform.python_version()}{getattr(sys, 'abiflags', '')}"
    return (
        f"compcache.numba {FORMAT}, numba {numba.__version__}, llvmlite {llvmlite.__version__}, LLVM {llvm}, "
        f"numpy {np.__version__}, {python}"
    )


_cpu_memo: dict[int, tuple[Any, str]] = {}


def cpu_text(codegen: Any) -> str:
    """The CPU that the code generator compiles for."""
    from numba.core import config

    known = _cpu_memo.get(id(codegen))
    marker = (codegen, config.CPU_NAME, config.CPU_FEATURES)
    if known is None or known[0] != marker:
        svml = getattr(config, "USING_SVML", None)
        known = _cpu_memo[id(codegen)] = marker, f"{', '.join(map(str, codegen.magic_tuple()))}, svml={svml}"
    return known[1]
