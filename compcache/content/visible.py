"""Finds the externally visible functions of LLVM code: of assembly without LLVM if possible, of bitcode by LLVM."""

from __future__ import annotations

import re

__all__ = ["exported_names", "names_of_weak_functions", "names_without_llvm"]

_UNEXPORTED_WORDS = frozenset(("internal", "private", "hidden", "available_externally"))
_WEAK_LINKAGES = frozenset(("linkonce", "linkonce_odr", "weak", "weak_odr"))
#: The start of a definition: the words before the name, and, if they are on one line, the name and the parenthesis behind it.
_DEFINITION = re.compile(r'^[^\S\n]*define\s([^@\n]*)(?:@("[^"\n]*"|[-$.\w]*)\s*(\(?))?', re.MULTILINE | re.ASCII)


def exported_names(code: str | bytes) -> tuple[str, ...]:
    """Return the names of the externally visible functions in LLVM assembly or bitcode. LLVM is used only if it is necessary.

    Raise `CompileError` if LLVM rejects the code, or `UndefinedSymbolError` if LLVM finds nothing to export.
    """
    names = names_without_llvm(code)
    return names if names is not None else _names_by_llvm(code)


def _names_by_llvm(code: str | bytes) -> tuple[str, ...]:
    """Return the visible functions of a module that LLVM parses. See `codegen.parse` and `choose_exports` for the exceptions."""
    from compcache.build import codegen
    from compcache.build.exports import choose_exports
    from compcache.build.ir_text import read_values, with_symbols
    from compcache.build.pic import aliases, variable_aliases

    with codegen.new_context() as context:
        text = with_symbols(str(codegen.parse(codegen.plain_source(code), context)))
        exports = choose_exports(read_values(text), None, aliases(text), variable_aliases=variable_aliases(text))
        return tuple([export.symbol for export in exports if not export.link_only])


def names_of_weak_functions(text: str) -> frozenset[str]:
    """Return the names of functions in LLVM assembly with weak or linkonce linkage; empty if only LLVM can determine them."""
    return frozenset([name for name, words in _definitions(text) or () if not _WEAK_LINKAGES.isdisjoint(words)])


def names_without_llvm(code: str | bytes) -> tuple[str, ...] | None:
    """Return the names of the externally visible functions in LLVM code, or None if only LLVM can determine them, as in bitcode."""
    definitions = _definitions(code) if isinstance(code, str) else None
    if definitions is None:
        return None
    names = [name for name, words in definitions if _UNEXPORTED_WORDS.isdisjoint(words)]
    return tuple([name.removeprefix("\1") for name in names])  # see `ir_text.with_symbols`


def _definitions(text: str) -> list[tuple[str, list[str]]] | None:
    """Return the name of each function definition with the words before it, or None if only LLVM can determine them."""
    if " alias " in text or " ifunc " in text:
        return None
    definitions = []
    for words, name, parenthesis in _DEFINITION.findall(text):
        plain = name.strip('"')
        if not plain or name.isdigit() or not parenthesis:
            return None
        if "\\" in plain:
            from compcache.build.ir_text import unquote

            plain = unquote(plain)
        definitions.append((plain, words.split()))
    return definitions
