"""Identifies the overloads that are linked into an entry's code: they are dependencies in the entry's description.

A process without a cache compiles the callees of a function with the function, and links them into other callers later, even if globals
have changed in the meantime. A process that loads the function compiles these callees from the former values (`former`).
"""

from __future__ import annotations

import weakref
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprints.history import named_functions
from compcache.numba.identity.dependencies import Dependency, functions_compiled_for
from compcache.numba.identity.key import type_name
from compcache.numba.lazy.description import LINKED
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.history import Functions
    from compcache.numba.lazy.description import Description

__all__ = ["Linked", "decode_linked", "encode_linked", "forget_linked", "is_linked", "linked_overload", "note_linked", "take_linked"]


class Linked(NamedTuple):
    """An overload that is linked into code.

    Attributes:
        function: a weak reference to the Python function.
        overload: a digest of the names of the argument types, because the content of a type may change; "" if a type has no name.
    """

    function: weakref.ref[Any]
    overload: str


#: The overloads that are linked into loaded code, by the function: their digests. Overloads that were compiled since are omitted, and None
#: stands for a function whose overloads Numba compiles from present values.
_linked: weakref.WeakKeyDictionary[Any, set[str] | None] = weakref.WeakKeyDictionary()


def linked_overload(function: Any, args: Iterable[Any]) -> Linked:
    """Return the overload of a function for these argument types; with the digest "" if a type has no identity by content."""
    try:
        text = f"CPUDispatcher ({', '.join(map(type_name, args))}) -> ?"
    except Unidentifiable:
        return Linked(weakref.ref(function), "")
    return Linked(weakref.ref(function), blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest())


def note_linked(overloads: Iterable[Linked]) -> None:
    """Record overloads that are linked into loaded code."""
    for reference, overload in overloads:
        function = reference()
        digests = None if function is None else _linked.setdefault(function, set())
        if digests is not None:
            digests.add(overload)


def is_linked(overload: Linked) -> bool:
    """Return whether loaded code contains an overload that this process has neither compiled nor loaded since."""
    return overload.overload in (_linked.get(overload.function()) or ())


def take_linked(overload: Linked) -> bool:
    """Return what `is_linked` returns, and forget the overload, because this process compiles it now."""
    digests = _linked.get(overload.function())
    if digests is None or overload.overload not in digests:
        return False
    digests.remove(overload.overload)
    return True


def forget_linked(function: Any) -> None:
    """Record that all overloads of a function are compiled from present values from now on, whatever code is or was loaded."""
    _linked[function] = None


def encode_linked(overloads: Iterable[Linked], used: Iterable[tuple[str, str]], functions: Functions) -> set[Dependency]:
    """Return the dependencies for the overloads in the code of an entry.

    The functions in the code are given in the order of their fingerprint, which is the same without Numba. `used` are the dependencies that
    are implementations. A dependency contains the number of the function among those with the same name. Overloads of other functions,
    which implementations of Numba call, are omitted.
    """
    rows = _functions_by_name(functions, used).items()
    numbers = {function: (name, number) for name, namesakes in rows for number, function in enumerate(dict.fromkeys(namesakes))}
    dependencies = set()
    for function, overload in overloads:
        if overload and function in numbers:
            name, number = numbers[function]
            dependencies.add(Dependency(name, f"{LINKED}{number} {overload} "))
    return dependencies


def decode_linked(description: Description, functions: Functions) -> frozenset[Linked]:
    """Return the overloads in the code of a description. Overloads of functions that are not among the given functions are omitted."""
    linked = [(name, content) for name, content in description.dependencies if content.startswith(LINKED)]
    by_name = _functions_by_name(functions, description.used) if linked else {}
    overloads = set()
    for name, content in linked:
        number, overload, _ = content.removeprefix(LINKED).split(" ")
        namesakes = list(dict.fromkeys(by_name.get(name.partition("(")[0], ())))
        if int(number) < len(namesakes):
            overloads.add(Linked(namesakes[int(number)], overload))
    return frozenset(overloads)


def _functions_by_name(functions: Functions, used: Iterable[tuple[str, str]]) -> dict[str, list[weakref.ref[Any]]]:
    """Return the given functions, and those that are compiled for the implementations used, in order, by their names."""
    by_name: dict[str, list[weakref.ref[Any]]] = {}
    for name, function in [*functions, *named_functions(functions_compiled_for(used))]:
        by_name.setdefault(name, []).append(function)
    return by_name
