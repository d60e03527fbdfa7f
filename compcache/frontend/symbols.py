"""Facts about symbols: their names in LLVM assembly, and their addresses in this process."""

from __future__ import annotations

__all__ = ["address_of", "quote_name", "unquote_name"]


def quote_name(name: str) -> str:
    """Return a name in the form that follows ``@`` in LLVM assembly, with quotes if necessary.

    Args:
        name: the name of a function or variable.
    """
    from compcache.build.ir_text import quote

    return quote(name)


def unquote_name(written: str) -> str:
    """Return the name that a written form in LLVM assembly denotes. This is the inverse of `quote_name`.

    Args:
        written: the text after ``@``, with or without quotes.
    """
    from compcache.build.ir_text import unquote

    return unquote(written[1:-1]) if written.startswith('"') else written


def address_of(symbol: str) -> int:
    """Return the address of a native symbol in this process; 0 if it is not defined. Neither LLVM nor ctypes is imported.

    Args:
        symbol: the name of the symbol in C.
    """
    from compcache.hit.target import load_runtime

    address: int = load_runtime().find_symbol(symbol.encode(), None)
    return address
