"""Finds the externally visible functions of LLVM code, without LLVM if possible."""

from __future__ import annotations

from compcache.errors import FormatError

__all__ = ["exported_names", "names_of_weak_functions", "names_without_llvm", "visible_definitions"]

_UNEXPORTED_WORDS = frozenset(("internal", "private", "hidden", "available_externally"))
_WEAK_LINKAGES = frozenset(("linkonce", "linkonce_odr", "weak", "weak_odr"))
_NAME_CHARACTERS = frozenset("-$._ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")


def exported_names(code: str | bytes) -> tuple[str, ...]:
    """Return the names of the externally visible functions in LLVM assembly or bitcode. LLVM is used only if it is necessary.

    Raise `CompileError` if LLVM rejects the code, or `UndefinedSymbolError` if LLVM finds nothing to export.
    """
    names = names_without_llvm(code)
    return names if names is not None else _names_by_llvm(code)


def _names_in_bitcode(code: bytes) -> tuple[str, ...] | None:
    """Return the visible functions that bitcode defines, or None if only LLVM can determine them."""
    from compcache.formats.bitcode import defined_functions

    try:
        return defined_functions(code)
    except FormatError:
        return None


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


def visible_definitions(text: str) -> tuple[str, ...] | None:
    """Return the names of the visible functions that LLVM assembly defines, or None if only LLVM can determine them."""
    definitions = _definitions(text)
    return None if definitions is None else tuple([name for name, words in definitions if _UNEXPORTED_WORDS.isdisjoint(words)])


def names_of_weak_functions(code: str | bytes) -> frozenset[str]:
    """Return the names of functions with weak or linkonce linkage. The result is empty if only LLVM can determine them."""
    if isinstance(code, str):
        return frozenset([name for name, words in _definitions(code) or () if not _WEAK_LINKAGES.isdisjoint(words)])
    from compcache.formats.bitcode import weak_functions

    try:
        return weak_functions(code)
    except FormatError:
        return frozenset()


def names_without_llvm(code: str | bytes) -> tuple[str, ...] | None:
    """Return the names of the externally visible functions in LLVM code, or None if only LLVM can determine them."""
    names = visible_definitions(code) if isinstance(code, str) else _names_in_bitcode(code)
    return None if names is None else tuple([name.removeprefix("\1") for name in names])  # see `ir_text.with_symbols`


def _definitions(text: str) -> list[tuple[str, list[str]]] | None:
    """Return the name of each function definition with the words before it, or None if only LLVM can determine them."""
    if " alias " in text or " ifunc " in text:
        return None
    names = []
    position = text.find("define")
    while position >= 0:
        sigil = text.find("@", position)
        end_of_word = position + len("define")
        begins_line = not text[text.rfind("\n", 0, position) + 1 : position].strip()
        if begins_line and sigil >= 0 and text[end_of_word : end_of_word + 1].isspace():
            name, end = _read_name(text, sigil + 1)
            if not name or name.isdigit() or not text[end : end + 64].lstrip().startswith("("):  # text with more spaces is left to LLVM
                return None
            names.append((name, text[position:sigil].split()))
        position = text.find("define", end_of_word)
    return names


def _read_name(text: str, start: int) -> tuple[str, int]:
    """Return the global name that begins at `start`, after the ``@``, and the position of its end."""
    if text[start : start + 1] == '"':
        end = text.find('"', start + 1)
        quoted = text[start + 1 : end] if end > 0 else ""
        if "\\" in quoted:
            from compcache.build.ir_text import unquote

            quoted = unquote(quoted)
        return quoted, end + 1
    end = start
    while end < len(text) and text[end] in _NAME_CHARACTERS:
        end += 1
    return text[start:end], end
