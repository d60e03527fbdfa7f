"""Identifies the overloads that are linked into an entry's code: they are dependencies in the entry's description.

A process without a cache compiles the callees of a function with the function, and links them into other callers later, even if globals
have changed in the meantime. A process that loads the function does the same with the entries of these callees.
"""

from __future__ import annotations

import weakref
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprints.history import named_functions
from compcache.numba.identity.dependencies import Dependency, functions_compiled_for
from compcache.numba.identity.key import signature_text
from compcache.numba.lazy.description import LINKED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.history import Functions
    from compcache.numba.lazy.description import Description

__all__ = ["Linked", "decode_linked", "encode_linked", "find_linked", "linked_overload", "note_linked"]


class Linked(NamedTuple):
    """An overload that is linked into code.

    Attributes:
        function: a weak reference to the Python function.
        overload: a digest of the class of its dispatcher or callback, and of the argument types.
        name: the name of the entry with the overload's own code.
        lines: the digest of the source lines in that entry.
    """

    function: weakref.ref[Any]
    overload: str
    name: str
    lines: str


#: The first entry of each overload that is linked into loaded code, by the function and `Linked.overload`.
_linked: weakref.WeakKeyDictionary[Any, dict[str, Linked]] = weakref.WeakKeyDictionary()


def linked_overload(owner: Any, function: Any, args: Iterable[Any], name: str = "", lines: str = "") -> Linked:
    """Return the overload of a function for these argument types, and its entry. The owner is the function's dispatcher or callback.

    Raise `Unidentifiable` if a type has no identity by content.
    """
    text = f"{type(owner).__name__} {signature_text(tuple(args))}"
    return Linked(weakref.ref(function), blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest(), name, lines)


def note_linked(overloads: Iterable[Linked]) -> None:
    """Record overloads that are linked into loaded code. Only the first entry of an overload is kept."""
    for linked in overloads:
        function = linked.function()
        if function is not None:
            _linked.setdefault(function, {}).setdefault(linked.overload, linked)


def find_linked(overload: Linked) -> Linked | None:
    """Return an overload with its recorded entry, or None if no loaded code contains the overload."""
    return _linked.get(overload.function(), {}).get(overload.overload)


def encode_linked(overloads: Iterable[Linked], used: Iterable[tuple[str, str]], functions: Functions, entry: str) -> set[Dependency]:
    """Return the dependencies for the overloads in the code of an entry, without the entry itself.

    The functions in the code are given in the order of their fingerprint, which is the same without Numba. `used` are the dependencies that
    are implementations. A dependency contains the number of the function among those with the same name. Overloads of other functions,
    which implementations of Numba call, are omitted.
    """
    rows = set()
    for linked in overloads:
        namesakes = _namesakes(functions, used, linked.name)
        if linked.name != entry and linked.function in namesakes:
            rows.add(Dependency(linked.name, f"{LINKED}{namesakes.index(linked.function)} {linked.overload} {linked.lines}"))
    return rows


def decode_linked(description: Description, functions: Functions) -> frozenset[Linked]:
    """Return the overloads in the code of a description. Overloads of functions that are not among the given functions are omitted."""
    found = set()
    for name, content in description.dependencies:
        if content.startswith(LINKED):
            number, overload, lines = content.removeprefix(LINKED).split(" ")
            found.update(
                [Linked(function, overload, name, lines) for function in _namesakes(functions, description.used, name)[int(number) :][:1]]
            )
    return frozenset(found)


def _namesakes(functions: Functions, used: Iterable[tuple[str, str]], entry: str) -> list[weakref.ref[Any]]:
    """Return references to the functions to which an entry of this name can belong: given ones, then those of the implementations used."""
    functions = [*functions, *named_functions(functions_compiled_for(used))]
    return list(dict.fromkeys([function for name, function in functions if name == entry.partition("(")[0]]))
