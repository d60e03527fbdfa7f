"""Stubs for functions that need more CPU features than the rest of their module, by their own attributes (``target("avx512f")``).

Callers of such a function check the processor first, so code that imports the function is also useful on a processor that cannot run it.
On such a processor, importers are bound to the stub. The stub prints the name of the function and ends the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.build.ir_text import quote
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["stub_symbol", "stubs_text"]

_PREFIX = "compcache.stub."
_MOST_NAMED = 8


def stub_symbol(symbol: str) -> str:
    """Return the symbol of a function's stub."""
    return _PREFIX + symbol


def stubs_text(features: Mapping[str, Collection[str]], names: Mapping[str, str]) -> str:
    """Return the LLVM assembly of the stubs of functions, to be linked into their module; empty if no function needs a stub.

    `features` has the CPU features that may be missing, and `names` the functions' names, by symbol.
    """
    if not features:
        return ""
    lines = ["declare i64 @write(i32, ptr, i64)", "declare void @abort()"]
    for number, (symbol, lacking) in enumerate(features.items()):
        feature_names = join_first(sorted(lacking), _MOST_NAMED)
        text = f"compcache: the call of {names[symbol]} requires CPU features that this processor lacks ({feature_names})\n".encode()
        encoded = "".join(f"\\{byte:02X}" for byte in text)
        lines += [
            f'@compcache.stub.text.{number} = private constant [{len(text)} x i8] c"{encoded}"',
            f"define hidden void @{quote(stub_symbol(symbol))}() cold noreturn {{",
            f"  %written = call i64 @write(i32 2, ptr @compcache.stub.text.{number}, i64 {len(text)})",
            "  call void @abort()",
            "  unreachable",
            "}",
        ]
    return "\n".join([*lines, ""])
