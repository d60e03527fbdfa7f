"""The code of cached functions as text, from the bitcode stored with the image. This module imports LLVM."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from compcache.build import codegen
from compcache.build.ir_text import read_module
from compcache.build.kept_code import LEVELS, read_code
from compcache.errors import NotCachedError
from compcache.inspect.functions import realizations

if TYPE_CHECKING:
    from compcache.hit.loader import Loader
    from compcache.store import Store

__all__ = ["function_asm", "function_ir"]

_END = re.compile(r"^(?:\.Lfunc_end\d+:|\t\.size\t.*)$")


def function_ir(store: Store, loader: Loader, func_name: str, module_id: str | None, *, whole_module: bool) -> str:
    """Return the optimized LLVM assembly of a function or of its whole module. See `Cache.ir`."""
    chosen_id, symbol = _choose_realization(store, loader, func_name, module_id)
    code = read_code(store, chosen_id)

    def to_text(context: Any) -> str:
        """Return the LLVM assembly of the module, or of one symbol."""
        module = codegen.parse(code.bitcode, context)
        try:
            return str(module if whole_module else module.get_function(symbol)).strip()
        except NameError:  # a variable, an alias or an ifunc: its definition is one line
            return "@" + read_module(str(module))[symbol].head

    return codegen.run(to_text)


def function_asm(store: Store, loader: Loader, func_name: str, module_id: str | None, *, whole_module: bool) -> str:
    """Return the native assembly of a function or of its whole module. See `Cache.asm`.

    If this LLVM compiled the image, the assembly matches the code of the image. The output of another LLVM may differ.
    """
    chosen_id, symbol = _choose_realization(store, loader, func_name, module_id)
    code = read_code(store, chosen_id)
    level = code.level() if code.is_comparable() else None
    text = code.assembly(level or LEVELS[0])
    return text.strip() if whole_module else _extract_function(text, symbol)


def _choose_realization(store: Store, loader: Loader, func_name: str, module_id: str | None) -> tuple[str, str]:
    """Return the module_id and the symbol of a realization of a function.

    `module_id` has the first digits of the realization's module_id; None selects the first that this host can use, or else the first.

    Raise `NotCachedError` if no realization matches, or several realizations match.
    """
    copies = realizations(store, loader, func_name)
    if not copies:
        raise NotCachedError.of(func_name, store.root)
    matching = [copy for copy in copies if copy.module_id.startswith(module_id or "")]
    if module_id is not None and len(matching) != 1:
        module_ids = ", ".join(copy.module_id for copy in copies)
        problem = f"{len(matching)} realizations match" if matching else "no realization matches"
        raise NotCachedError(
            f"{problem} the module_id {module_id!r} of function {func_name!r} in the cache {store.root}: give one of {module_ids}",
            func_name=func_name,
            cache_dir=store.root,
        )
    chosen = next((copy for copy in matching if not copy.problem), matching[0])
    symbol, _, _ = chosen.link_name.rpartition("@")
    return chosen.module_id, symbol


def _extract_function(text: str, symbol: str) -> str:
    """Return the lines of a function or variable in an assembly file, from its label to its end; the whole file if the label is missing."""
    lines = text.splitlines()
    without_comments = [line.partition("#")[0].rstrip() for line in lines]
    label = next((label for label in (f"{symbol}:", f'"{symbol}":') if label in without_comments), None)
    if label is None:
        return text.strip()
    start = without_comments.index(label)
    end = next((number for number in range(start, len(lines)) if _END.match(lines[number])), len(lines))
    return "\n".join(lines[start:end])
