"""Looks up the code of functions with declared signatures.

Numba compiles such a function when the function is declared, with the present values of globals. Therefore the key is computed and the code
is mapped when the function is declared. If the code is not found, Numba compiles the function.
"""

from __future__ import annotations

from compcache.numba.fingerprints.fixed_code import CodeIdentity
from compcache.numba.fingerprints.history import old_code_reason, record_code
from compcache.numba.lazy import has_numba
from compcache.numba.lazy.entries import RECORD, Record, count_hit, find_fields, key_of, load_entry, open_cache
from compcache.numba.lazy.function import make_lazy_function
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from compcache.numba.lazy.entries import Key, LoadedCode
    from compcache.numba.lazy.state import State

__all__ = ["DeclaredCode", "declare_function", "load_declared_code"]


class DeclaredCode:
    """The code of a function for each of its declared signatures.

    Attributes:
        rows: for each signature and parameter, the ranks of the argument types that the parameter accepts. A rank is 0 if no conversion is
            necessary, otherwise Numba's rank of the conversion (1 promoting, 2 safe, 3 unsafe).
        loaded: the code for each signature.
        details: further data that depends on the decorator.
        entries: for each signature, the name, the lines and, if known, the implementations of the compiled function's entry
            (`Record.entry_fields`). A loop of a ufunc calls this function.
    """

    __slots__ = ("details", "entries", "loaded", "rows")

    def __init__(self, rows: Sequence[Sequence[Mapping[str, int]]], loaded: Sequence[LoadedCode], details: Any, decorator: str) -> None:
        self.rows = rows
        self.loaded = loaded
        self.details = details
        self.entries = details[-1] if decorator in ("guvectorize", "vectorize") else [code.record.entry_fields for code in loaded]

    def select(self, types: Sequence[str]) -> LoadedCode | None:
        """Return the code that Numba would choose for arguments of these types.

        Numba compares the numbers of unsafe, safe and promoting conversions, in this order. The result is None if no signature accepts the
        types, or if Numba's choice is ambiguous.
        """
        counts = [_count_conversions(row, types) for row in self.rows]
        best = min(filter(None, counts), default=None)
        return self.loaded[counts.index(best)] if counts.count(best) == 1 and best is not None else None


def _count_conversions(row: Sequence[Mapping[str, int]], types: Sequence[str]) -> tuple[int, ...] | None:
    """Return the numbers of unsafe, safe and promoting conversions; None if the row rejects the types."""
    ranks = [accepted.get(type_, -1) for accepted, type_ in zip(row, types, strict=False)]
    if len(row) != len(types) or -1 in ranks:
        return None
    return ranks.count(3), ranks.count(2), ranks.count(1)


def declare_function(state: State) -> Any:
    """Return a lazy function with its stored code. If the code is not stored, compile the function with Numba now."""
    function = make_lazy_function(state)
    state.declared = load_declared_code(state)
    if state.declared is None:
        state.make_real(function)
    return function


def load_declared_code(state: State, details_shape: str = "?") -> DeclaredCode | None:
    """Load the stored code of a declaration, and set `state.key`; if the code is found, set `state.compiled` too.

    `details_shape` describes the stored details for `decode_fields`. The result is None if the code is not stored or needs Numba, if Numba
    is imported, or if this process has compiled a function in the code from other values. See `load_entry` for the exceptions.
    """
    try:
        state.key = key_of(state.function, state.key_options, f"{state.decorator} {state.signatures}")
        if has_numba() or old_code_reason(state.key.content.reads, 1):  # Numba compiles the function again for each declaration
            return None
        cache = open_cache()
        fields = find_fields(cache, state.key.name, f"([[{{ui}}]][{RECORD}]{details_shape})") if cache is not None else None
        if fields is None:
            return None
        rows, records, details = fields
        loaded = [load_entry(cache, Record(*record)) for record in records]  # type: ignore[arg-type]
    except NotLazy:
        return None
    if has_numba():
        return None
    usable = [code for code in loaded if code is not None]
    if len(usable) < len(loaded):
        return None
    for _ in usable:
        count_hit()
    record_code(state.key.content.reads, [code.record for code in usable])
    declared = DeclaredCode(rows, usable, details, state.decorator)
    state.compiled = _find_compiled_identities(state, state.key, declared)
    return declared


def _find_compiled_identities(state: State, key: Key, declared: DeclaredCode) -> list[CodeIdentity] | None:
    """Return the identities of the compiled functions; None if Numba inlines the function, in its current version, into its callers."""
    if str(state.options.get("inline", "never")) != "never":
        return None
    registered = tuple(key.content.registered)
    return [CodeIdentity(name.rpartition("-")[2], lines, registered) for name, lines, *_ in declared.entries]
