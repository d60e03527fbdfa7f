"""What LLVM says of the bitcode that a compiler gave, and changes in it."""

from __future__ import annotations

from typing import Any

from compcache.build import codegen
from compcache.build.exports import choose_exports
from compcache.build.pic import aliases

__all__ = ["exported_functions", "with_text"]


def exported_functions(code: bytes) -> tuple[str, ...]:
    """The functions that can be seen from outside, without inline ones of headers. Raises `CompileError` where LLVM rejects the code."""

    def look(context: Any) -> tuple[str, ...]:
        module = codegen.parse(code, context)
        exports = choose_exports(module, None, aliases(str(module)))
        inline = {function.name for function in module.functions if function.linkage.name.startswith("linkonce")}
        return tuple([export.symbol for export in exports if not export.link_only and export.symbol not in inline])

    return codegen.run(look)


def with_text(code: bytes, text: str) -> bytes:
    """The code with more of it, as assembly: writing bitcode would assemble inline assembly, which may end the process. Raises `CompileError` where LLVM rejects either."""

    def link(context: Any) -> bytes:
        module = codegen.parse(code, context)
        head = f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n'
        module.link_in(codegen.parse(head + text, context))
        return str(module).encode("utf-8", "surrogateescape")

    return codegen.run(link)
