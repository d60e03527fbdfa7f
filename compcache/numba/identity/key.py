"""Computes the key of a compiled overload from the function's fingerprint, the signature, and all other inputs of the compiler."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from numba.core import types

from compcache.numba.fingerprints.fingerprint import fingerprint, walk_value
from compcache.numba.fingerprints.numba_values import is_plain_type
from compcache.numba.fingerprints.owners import function_of, hashed_reference, is_compared_by_identity, owner_of
from compcache.numba.fingerprints.walk import CLASS, FunctionPart
from compcache.numba.identity.settings import config_text, platform_text, versions_text
from compcache.numba.registered.jitclasses import without_addresses
from compcache.numba.registered.library import full_name, is_library_module
from compcache.numba.registered.refusals import Unidentifiable, examines_program

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from weakref import ref

__all__ = ["Identity", "flags_text", "identify", "references_in", "signature_text", "type_name", "type_text"]

_MAX_SHOWN = 400


class Identity(NamedTuple):
    """The identity of an overload.

    Attributes:
        key: the key.
        lines: the digest of the source lines.
        name: the module and the qualified name of the function.
        components: the components of the key by name, and further notes for display.
        parts: the functions and classes from which the key was computed, the function itself first, those of its arguments last.
    """

    key: str
    lines: str
    name: str
    components: dict[str, str]
    parts: tuple[FunctionPart, ...]


def identify(function: Any, *, sig: Any, flags: str, extra: Mapping[str, str], codegen: Any) -> Identity:
    """Return the identity of one overload of a function.

    Args:
        function: the Python function that is compiled.
        sig: the requested signature, or the tuple of its argument types.
        flags: the compiler flags as `flags_text` returns them.
        extra: further named components.
        codegen: Numba's code generator, which knows the platform.

    Raises:
        Unidentifiable: a value that the function reads, or a type in the signature, has no identity by content.
    """
    content = fingerprint(function)
    components = {
        "function": content.content,
        "signature": signature_text(sig),
        "flags": flags,
        "config": config_text(),
        "versions": versions_text(),
        "platform": platform_text(codegen),
        **extra,
    }
    state = blake2b(digest_size=16, person=b"compcache-numba2")
    for name, text in components.items():
        data = text.encode("utf-8", "surrogatepass")
        state.update(f"{name}:{len(data)}:".encode())
        state.update(data)
    name = full_name(function)
    shown_components = {"name": name, **components, **{f"read {where}": value for where, value in content.reads.items()}}
    parts = content.parts
    for item in _distinguishing_objects(getattr(sig, "args", sig)):
        parts += _parts_of(item)
    return Identity(state.hexdigest(), content.lines, name, shown_components, parts)


def _parts_of(item: Any) -> tuple[FunctionPart, ...]:
    """Return the parts of an object from `_distinguishing_objects`: its functions, the methods of a jitclass, or the class itself."""
    if isinstance(item, type):
        return (FunctionPart(item, b"", CLASS),)
    if isinstance(item, types.ClassType):
        return walk_value(item, "an argument").parts
    parts = fingerprint(function_of(item)).parts
    parts[0].owners.insert(0, hashed_reference(owner_of(item)))
    return parts


def references_in(args: Iterable[Any]) -> tuple[ref[Any], ...]:
    """Return weak references to the objects of the program in these types: dispatchers (`owner_of`) and classes.

    A jitclass is represented by the dispatcher of its ``__init__``.
    """
    items = [item.jit_methods["__init__"] if isinstance(item, types.ClassType) else item for item in _distinguishing_objects(args)]
    return tuple([hashed_reference(item if isinstance(item, type) else owner_of(item)) for item in items])


def _distinguishing_objects(parts: Iterable[Any], visited: frozenset[int] = frozenset()) -> Iterator[Any]:
    """Yield the objects of the program that distinguish types of the same name: dispatchers of jitted functions, jitclasses, and classes.

    `parts` are types, and parts of types. `visited` are the ids of the types that contain these parts.
    """
    for item in parts:
        if isinstance(item, type):
            if not is_library_module(item.__module__) and is_compared_by_identity(item):
                yield item
        elif isinstance(item, types.Dispatcher):
            yield item.dispatcher
        elif isinstance(item, (types.ClassType, types.ClassInstanceType)):
            yield getattr(item, "class_type", item)
        elif isinstance(item, types.BaseTuple):  # Numba finds the type of a named tuple by the name of its class
            yield from _distinguishing_objects(item.types, visited)
        elif isinstance(item, (tuple, list)):
            yield from _distinguishing_objects(item, visited)
        elif isinstance(item, types.Type) and id(item) not in visited and not is_plain_type(item):
            compared = item.key
            if compared == item.name:  # Numba compares the text, in which only addresses distinguish objects of the same name
                has_address = without_addresses(item.name) != item.name
                compared = [part for part in vars(item).values() if has_address and not isinstance(part, type)]
            yield from _distinguishing_objects([type(item), compared], visited | {id(item)})


def signature_text(sig: Any) -> str:
    """Return the argument types, and the result type if one was requested, as text.

    If a type's text does not identify the type, a digest of the type's structure follows the text. Raise `Unidentifiable` if a type has no
    identity by content.
    """
    args, result = (sig.args, sig.return_type) if hasattr(sig, "return_type") else (tuple(sig), None)
    return f"({', '.join(map(type_text, args))}) -> {'?' if result is None else type_text(result)}"


@examines_program(Unidentifiable)
def type_text(item: Any) -> str:
    """Return the text that identifies a Numba type. Raise `Unidentifiable` if the type has no identity by content."""
    if is_plain_type(item):
        return str(item)
    return f"{without_addresses(str(item))[:_MAX_SHOWN]} #{walk_value(item, 'an argument').content}"


@examines_program(Unidentifiable)
def type_name(item: Any) -> str:
    """Return Numba's text of a type without the parts that differ between processes. Raise `Unidentifiable` if its `__str__` fails."""
    return without_addresses(str(item))


@examines_program(Unidentifiable)
def flags_text(flags: Any, omitted: Collection[tuple[str, Any]] = ()) -> str:
    """Return every compiler flag with its value, in a fixed order, except those in `omitted`.

    Raise `Unidentifiable` if a value has no identity by content.
    """
    return ", ".join(f"{name}={_flag_text(name, value)}" for name, value in sorted(flags.values().items()) if (name, value) not in omitted)


def _flag_text(name: str, value: Any) -> str:
    """Return the value of a compiler flag as text. Raise `Unidentifiable` if the value has no identity by content."""
    if name == "inline":
        chosen = getattr(value, "_inline", value)
        return chosen if isinstance(chosen, str) else f"cost model {walk_value(chosen, 'the cost model').content}"
    inner = getattr(value, "flags", value)
    if isinstance(inner, (set, frozenset)):
        return str(sorted(inner))
    if hasattr(value, "encode") and not isinstance(value, str):
        return str(value.encode())
    text = repr(inner)
    if " at 0x" in text:
        raise Unidentifiable(
            f"the compiler flag {name} has the value {text}, whose text contains an address, which differs between processes: "
            f"give the class {type(inner).__qualname__} a __repr__ without an address"
        )
    return text
