"""Computes content names for the functions of a new source: digests of all code that a function reaches. This module uses LLVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.build.codegen import plain_source
from compcache.build.exports import visible_exports
from compcache.build.ir_text import read_values, with_symbols
from compcache.build.large_data.variables import abridged
from compcache.build.pic import aliases
from compcache.build.trial import UNTRUSTED, try_in_child
from compcache.content.assembled_files import assembled_files
from compcache.content.functions import Naming, name_functions, name_together
from compcache.content.names import exported_as
from compcache.content.visible import exported_names, names_without_llvm
from compcache.errors import CompileError
from compcache.translation.requests import code_pieces, print_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.build.source import Function, ModuleSource
    from compcache.content.names import SealedSource

__all__ = ["name_source"]

_SUFFIXES = ("ll", "bc", "o", "a")
#: The maximum length of code that is printed, and of the constants in it, in characters. Longer code has one name for all functions.
_MOST_PRINTED, _MOST_DATA = 1 << 24, 1 << 20


def name_source(sealed: SealedSource) -> Naming:
    """Compute content names for the functions of a source. LLVM parses the code.

    Untrusted code, and long code or data, is not printed. Then all functions get names with the same digest. If only LLVM can find the
    functions in untrusted code, another process parses the code first. Raise `CompileError` if LLVM does not accept the code, if the code
    has no externally visible function, or if it is bitcode with inline assembly that reads files. Raise `UndefinedSymbolError` if code that
    is not printed exports nothing, or `InvalidNameError` if the name of a function is not valid.
    """
    source = sealed.source
    if source.untrusted or _is_long(source.ir):
        if source.untrusted and names_without_llvm(source.ir) is None:  # LLVM has to parse the code, which may end the process
            for code in code_pieces(plain_source(source.ir)):
                try_in_child(code, None, limits=UNTRUSTED)
        return name_together(_choose_exports(source, exported_names(source.ir)), sealed.digest)
    try:
        text = with_symbols(print_code(source.ir))
    except CompileError:
        _require_not_file_name(source.ir)
        raise
    if isinstance(source.ir, bytes) and assembled_files(text):
        raise CompileError(
            "compile(): the bitcode contains inline assembly that reads files (.incbin, .include): "
            "pass the module as LLVM assembly text instead"
        )
    if source.functions is not None:
        return name_functions(source, text, _choose_exports(source, source.functions))
    exports = visible_exports(read_values(text), aliases(text))
    return name_functions(source, text, _choose_exports(source, [export.symbol for export in exports if not export.link_only]))


def _choose_exports(source: ModuleSource, names: Iterable[str]) -> dict[str, Function]:
    """Return the functions to export by name. Raise `CompileError` if there are no functions to export."""
    functions = source.functions if source.functions is not None else dict.fromkeys(names)
    exports = {name: exported_as(value, name) for name, value in functions.items()}
    if not exports:
        raise CompileError("compile(): the code defines no externally visible function: give a function external linkage")
    return exports


def _is_long(code: str | bytes) -> bool:
    """Return whether printing the code would take too long."""
    return len(code) > _MOST_PRINTED or (isinstance(code, str) and len(code) - len(abridged(code)) > _MOST_DATA)


def _require_not_file_name(code: str | bytes) -> None:
    """Raise `CompileError` if the code looks like the name of a file."""
    if isinstance(code, str) and 0 < len(code.splitlines()) <= 1 and code.rpartition(".")[2].strip() in _SUFFIXES:
        raise CompileError(f"compile(): {code!r} looks like the name of a file: pass its content, open({code!r}, 'rb').read()") from None
