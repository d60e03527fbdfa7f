"""Functions with declared signatures.

Numba compiles these when they are declared, with the values of globals at that moment. So their key is computed, and their code is looked
up and mapped, at that time; if it is not found, Numba compiles them.
"""

from __future__ import annotations

from compcache.numba.fingerprints.fixed_code import Compiled
from compcache.numba.fingerprints.history import has_old_code, note_code
from compcache.numba.lazy.awaited import has_numba
from compcache.numba.lazy.entries import RECORD, Record, count_hit, find_fields, key_of, load_entry, open_cache
from compcache.numba.lazy.function import keep, make_lazy_function
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from compcache.numba.lazy.entries import Key, Loaded
    from compcache.numba.lazy.state import State

__all__ = ["Declared", "declare_function", "find_declared"]


class Declared:
    """The code of a function for each of its declared signatures.

    `rows` says for each signature what its parameters accept, and `loaded` has the code. A parameter accepts the type of an argument with a
    rank: 0 without conversion, then Numba's ranks of conversions: promoting, safe, unsafe.
    """

    __slots__ = ("details", "loaded", "rows")

    def __init__(self, rows: Sequence[Sequence[Mapping[str, int]]], loaded: Sequence[Loaded], details: Any) -> None:
        self.rows = rows
        self.loaded = loaded
        self.details = details

    def select(self, types: Sequence[str]) -> Loaded | None:
        """Return the code that Numba would choose for arguments of these types; None if it would choose none, or the choice may vary.

        Numba compares the numbers of unsafe, safe and promoting conversions, in this order.
        """
        ratings = [rating for number, row in enumerate(self.rows) if (rating := _rate(row, types, number)) is not None]
        ratings.sort()
        if not ratings or (len(ratings) > 1 and ratings[0][0] == ratings[1][0]):
            return None
        return self.loaded[ratings[0][1]]


def _rate(row: Sequence[Mapping[str, int]], types: Sequence[str], number: int) -> tuple[tuple[int, ...], int] | None:
    ranks = [accepted.get(given, -1) for accepted, given in zip(row, types, strict=False)]
    if len(row) != len(types) or -1 in ranks:
        return None
    return (ranks.count(3), ranks.count(2), ranks.count(1)), number


def declare_function(state: State) -> Any:
    """Return a lazy function with its stored code, or with Numba's dispatcher, which has compiled it."""
    function = make_lazy_function(state)
    state.declared = find_declared(state)
    if state.declared is None:
        state.make_real(function)
    return function


def find_declared(state: State, details: str = "?") -> Declared | None:
    """Return the stored code of a declaration, and set its key. `details` is the shape of its details (`load_marshalled`)."""
    try:
        state.key = key_of(state.function, state.key_options, f"{state.decorator} {state.signatures}")
        if has_numba() or has_old_code(state.key.content.reads[1:]):  # Numba compiles the function again for each declaration
            return None
        cache = open_cache()
        fields = find_fields(cache, state.key, f"([[{{ui}}]][{RECORD}]{details})") if cache is not None else None
        if fields is None:
            return None
        rows, records, details = fields
        loaded = [load_entry(cache, Record(*record)) for record in records]  # type: ignore[arg-type]
    except NotLazy:
        return None
    if has_numba():
        return None
    present = [code for code in loaded if code is not None]
    if len(present) < len(loaded):
        return None
    for code in present:
        keep(code)
        count_hit()
    note_code(state.key.content.reads)
    found = Declared(rows, present, details)
    state.compiled = _compiled_of(state, state.key, found)
    return found


def _compiled_of(state: State, key: Key, found: Declared) -> list[Compiled] | None:
    """Return what the code was compiled from; None if Numba inlines the current version of the function."""
    if str(state.options.get("inline", "never")) != "never":
        return None
    if state.decorator in ("jit", "njit"):
        bases = [(code.record.entry, code.record.lines) for code in found.loaded]
    else:  # a loop is made from a function
        bases = found.details[-1] if state.decorator != "cfunc" else []
    registered = tuple(key.content.registered)
    return [Compiled(name.rpartition("-")[2], lines, registered) for name, lines in bases]
