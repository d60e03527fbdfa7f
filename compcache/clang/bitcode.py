"""Reads and changes the bitcode of a compiler that is built on LLVM."""

from __future__ import annotations

from typing import Any, NamedTuple

from compcache.build import codegen
from compcache.build.exports import visible_exports
from compcache.build.ir_text import read_values, target_text
from compcache.build.pic import aliases
from compcache.images.embedded_bitcode import BITCODE_MAGIC

__all__ = ["Symbols", "disassemble", "link_assembly", "read_symbols"]


class Symbols(NamedTuple):
    """The symbols of a module.

    `exported` are the externally visible functions, without inline functions. `declared` and `defined` are the names of all functions and
    variables that the module declares and defines.
    """

    exported: tuple[str, ...]
    declared: tuple[str, ...]
    defined: tuple[str, ...]


def disassemble(code: bytes) -> str:
    """Return bitcode as LLVM assembly. Raise `CompileError` if LLVM rejects the code."""
    return codegen.run(lambda context: str(codegen.parse(code, context)))


def read_symbols(code: bytes) -> Symbols:
    """Return the symbols of a module in bitcode or LLVM assembly. Raise `CompileError` if LLVM rejects the code."""

    def read(context: Any) -> Symbols:
        """Return the exported, declared and defined symbols. Inline functions are not exports: each module has its own copy."""
        module = codegen.parse(code, context)
        text = str(module)
        given = read_values(text)
        exports, values = visible_exports(given, aliases(text)), [*given.functions, *given.variables]
        inline = {function.name for function in given.functions if function.linkage.startswith("linkonce")}
        return Symbols(
            tuple([export.symbol for export in exports if not export.link_only and export.symbol not in inline]),
            tuple([value.name for value in values if value.is_declaration]),
            tuple([value.name for value in values if not value.is_declaration]),
        )

    return codegen.run(read)


def link_assembly(code: bytes, text: str) -> bytes:
    """Link the definitions of a second module into a module, and return the result as LLVM assembly.

    The result is not bitcode. Writing bitcode would assemble inline assembly, and an error in inline assembly may end the process. `code`
    is in bitcode or LLVM assembly, and `text` in LLVM assembly. Raise `CompileError` if LLVM rejects one of the modules.
    """

    def link(context: Any) -> bytes:
        """Return the linked module as LLVM assembly."""
        module = codegen.parse(code if code.startswith(BITCODE_MAGIC) else code.decode("utf-8", "surrogateescape"), context)
        module.link_in(codegen.parse(target_text(module) + text, context))
        return str(module).encode("utf-8", "surrogateescape")

    return codegen.run(link)
