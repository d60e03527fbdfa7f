"""The code of cached functions as text, from the bitcode that is kept beside the image (imports LLVM)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.build import codegen
from compcache.build.kept_code import LEVELS, read_code

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["assembly", "llvm_ir"]

_END = re.compile(r"^\.Lfunc_end\d+:$")


def llvm_ir(store: Store, module_id: str, symbol: str | None = None) -> str:
    """The optimized LLVM assembly of a function, or of the whole module.

    Raises:
        NoCodeError: the module was stored without it.
        FileNotFoundError, FormatError: the module is not there, or damaged.
    """
    with codegen.new_context() as context:
        module = codegen.parse(read_code(store, module_id).bitcode, context)
        return str(module if symbol is None else module.get_function(symbol)).strip()


def assembly(store: Store, module_id: str, symbol: str | None = None) -> str:
    """The native assembly of a function, or of the whole module; raises what `llvm_ir` raises.

    It is that of the image, where this process has the LLVM that made it.
    """
    code = read_code(store, module_id)
    level = code.level() if code.is_comparable() else None
    text = code.assembly(level or LEVELS[0])
    return text.strip() if symbol is None else _cut(text, symbol)


def _cut(text: str, symbol: str) -> str:
    """One function of an assembly file: from its label to the end that LLVM marks."""
    lines = text.splitlines()
    plain, quoted = f"{symbol}:", f'"{symbol}":'
    start = next((i for i, line in enumerate(lines) if line.split("#")[0].rstrip() in (plain, quoted)), None)
    if start is None:
        return text.strip()
    end = next((i for i in range(start, len(lines)) if _END.match(lines[i])), len(lines))
    return "\n".join(lines[start:end])
