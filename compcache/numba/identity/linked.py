"""Identifies what the compiler compiles together with an entry's code: overloads that are linked into it, and loops of ufuncs.

They are dependencies in the entry's description. A process without a cache compiles the callees of a function with the function, and links
them into other callers later, even if globals have changed in the meantime. A process that loads the function compiles these callees from
the former values (`former`). A process without a cache also adds a loop to each ufunc without signatures that the function calls. A process
that loads the function adds these loops then.
"""

from __future__ import annotations

import weakref
from ast import literal_eval
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from numba.np.numpy_support import from_dtype
from numpy import dtype

from compcache.numba.fingerprints.history import named_functions
from compcache.numba.fingerprints.owners import owner_of, ufunc_of
from compcache.numba.identity.dependencies import Dependency, functions_compiled_for
from compcache.numba.identity.key import references_in, type_name
from compcache.numba.lazy.description import LINKED, LOOP
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache.numba.fingerprints.history import Functions
    from compcache.numba.lazy.description import Description

__all__ = [
    "LinkedOverload", "Loop", "add_loops", "decode_linked", "encode_linked", "encode_loops", "is_linked", "linked_overload",
    "record_linked", "record_recompiled", "take_linked",
]  # fmt: skip


class LinkedOverload(NamedTuple):
    """An overload that is linked into code.

    Attributes:
        function: a weak reference to the Python function.
        owner: a weak reference to the function's dispatcher, as `owner_of` returns it, or to the function if no dispatcher compiles it.
        overload: a digest of the names of the argument types, because the content of a type may change; "" if a type has no name.
        given: weak references to the dispatchers and classes of the program in the argument types, because the names of types that the
            program makes anew are equal.
    """

    function: weakref.ref[Any]
    owner: weakref.ref[Any]
    overload: str
    given: tuple[weakref.ref[Any], ...] = ()


class Loop(NamedTuple):
    """A loop that the compiler has added to a ufunc without signatures.

    Attributes:
        dispatcher: a weak reference to the dispatcher of the ufunc.
        types: NumPy's texts for the types of the operands, each followed by a space.
    """

    dispatcher: weakref.ref[Any]
    types: str


#: The overloads that are linked into loaded code, by the dispatcher or function (`LinkedOverload.owner`): the digest and `given` of each.
#: Overloads that were compiled since are omitted, and None stands for a dispatcher whose overloads Numba compiles from present values.
_linked: weakref.WeakKeyDictionary[Any, set[tuple[str, tuple[weakref.ref[Any], ...]]] | None] = weakref.WeakKeyDictionary()


def linked_overload(function: Any, dispatcher: Any, args: Iterable[Any]) -> LinkedOverload:
    """Return the overload of a function for these argument types; with the digest "" if a type has no name.

    `dispatcher` is a dispatcher, or the object that compiles for it; None if the compiler itself compiles the function.
    """
    owner = weakref.ref(function if dispatcher is None else owner_of(dispatcher))
    args = tuple(args)
    try:
        text = f"CPUDispatcher ({', '.join(map(type_name, args))}) -> ?"
    except Unidentifiable:
        return LinkedOverload(weakref.ref(function), owner, "")
    overload = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return LinkedOverload(weakref.ref(function), owner, overload, references_in(args))


def record_linked(overloads: Iterable[LinkedOverload]) -> None:
    """Record overloads that are linked into loaded code."""
    for overload in overloads:
        owner = overload.owner()
        known = None if owner is None else _linked.setdefault(owner, set())
        if known is not None:
            known.add(overload[2:])


def is_linked(overload: LinkedOverload) -> bool:
    """Return whether loaded code contains an overload that this process has neither compiled nor loaded since."""
    return not _forms(overload).isdisjoint(_linked.get(overload.owner()) or ())


def take_linked(overload: LinkedOverload) -> bool:
    """Return what `is_linked` returns, and forget the overload, because this process compiles it now."""
    was_linked = is_linked(overload)
    (_linked.get(overload.owner()) or set()).difference_update(_forms(overload))
    return was_linked


def _forms(overload: LinkedOverload) -> set[tuple[str, tuple[weakref.ref[Any], ...]]]:
    """Return the rows that stand for an overload in `_linked`: its own, and that of version 1.0, which lacks `given`."""
    return {overload[2:], (overload.overload, ())}


def record_recompiled(dispatcher: Any) -> None:
    """Record that Numba compiles all overloads of a dispatcher from present values from now on, even if loaded code contains some."""
    _linked[owner_of(dispatcher)] = None


def encode_linked(overloads: Iterable[LinkedOverload], used: Iterable[tuple[str, str]], functions: Functions) -> set[Dependency]:
    """Return the dependencies for the overloads in the code of an entry.

    `functions` are the functions and classes in the code, in the order of their fingerprint, which is the same without Numba. `used` are
    the dependencies that are implementations. A dependency contains the number of the dispatcher among the dispatchers of functions with
    the same name, and the names and numbers of the dispatchers and classes in the argument types. Overloads of other functions, which
    implementations of Numba call, are omitted.
    """
    numbers = _number_owners(functions, used)
    dependencies = set()
    for function, owner, overload, given in overloads:
        name, number = numbers.get(owner) or numbers.get(function) or ("", 0)
        places = [numbers.get(item) for item in given]
        if overload and name:  # without places, the row stands for all objects of the same names
            dependencies.add(Dependency(name, f"{LINKED}{number} {overload} {'' if None in places else places or ''}"))
    return dependencies


def decode_linked(description: Description, functions: Functions) -> frozenset[LinkedOverload]:
    """Return the overloads in the code of a description. Omit an overload if `functions` lack its function, or an object in its types."""
    linked = []
    for function, owner, rest in _decode_rows(description, LINKED, functions):
        overload, _, text = rest.partition(" ")
        places = literal_eval(text) if text else ()
        owners = {place: dispatcher for dispatcher, place in _number_owners(functions, description.used).items()} if places else {}
        if all(place in owners for place in places):
            linked.append(LinkedOverload(function, owner, overload, tuple([owners[place] for place in places])))
    return frozenset(linked)


def encode_loops(loops: Sequence[Loop], used: Iterable[tuple[str, str]], functions: Functions) -> set[Dependency] | None:
    """Return the dependencies for the loops that were added to ufuncs while the code of an entry was compiled, in this order.

    See `encode_linked` for the arguments. The result is None if the functions do not read one of the ufuncs.
    """
    numbers = _number_owners(functions, used)
    if any(loop.dispatcher not in numbers for loop in loops):
        return None
    rows = [(*numbers[dispatcher], types) for dispatcher, types in loops]
    return {Dependency(name, f"{LOOP}{number} {position:04} {types}") for position, (name, number, types) in enumerate(rows)}


def add_loops(description: Description, functions: Functions) -> None:
    """Add the loops in a description to the ufuncs that lack them, in the order in which the compiler added the loops."""
    for _, owner, rest in sorted(_decode_rows(description, LOOP, functions), key=lambda row: row[2]):
        ufunc = ufunc_of(owner())
        types = tuple([from_dtype(dtype(text)) for text in rest.split()[1:]])  # without the position
        if ufunc is not None and ufunc.find_ewise_function(types) == (None, None):
            ufunc._compile_for_argtys(types)


def _decode_rows(description: Description, prefix: str, functions: Functions) -> list[tuple[weakref.ref[Any], weakref.ref[Any], str]]:
    """Return the dependencies with a prefix, for known functions: the function, its dispatcher, and the text after the number."""
    rows = [(name.partition("(")[0], content) for name, content in description.dependencies if content.startswith(prefix)]
    by_name = _owners_by_name(functions, description.used) if rows else {}
    decoded = []
    for name, content in rows:
        number, _, rest = content.removeprefix(prefix).partition(" ")
        namesakes = list(by_name.get(name, {}).items())
        if int(number) < len(namesakes):
            owner, function = namesakes[int(number)]
            decoded.append((function, owner, rest))
    return decoded


def _number_owners(functions: Functions, used: Iterable[tuple[str, str]]) -> dict[weakref.ref[Any], tuple[str, int]]:
    """Return, by dispatcher, the name of its function and its number among the dispatchers of functions with this name."""
    rows = _owners_by_name(functions, used).items()
    return {owner: (name, number) for name, owners in rows for number, owner in enumerate(owners)}


def _owners_by_name(functions: Functions, used: Iterable[tuple[str, str]]) -> dict[str, dict[weakref.ref[Any], weakref.ref[Any]]]:
    """Return the dispatchers of the given functions, and of those that are compiled for the implementations used, in order, by name.

    The values contain the function of each dispatcher. A function stands for its dispatcher only if no dispatcher of the function is known.
    """
    by_function: dict[tuple[str, weakref.ref[Any]], dict[weakref.ref[Any], None]] = {}
    for name, function, owner in [*functions, *named_functions(functions_compiled_for(used))]:
        by_function.setdefault((name, function), {})[owner] = None
    by_name: dict[str, dict[weakref.ref[Any], weakref.ref[Any]]] = {}
    for (name, function), owners in by_function.items():
        known = [owner for owner in owners if owner != function] or [function]
        by_name.setdefault(name, {}).update(dict.fromkeys(known, function))
    return by_name
