"""What compiled code was made of besides the function: implementations that the compiler asked.

A compilation records which of the user's it asked, and under which names it asked at all; an entry is valid where each
of them still has the same content, and no other answers to these names.
"""

from __future__ import annotations

from struct import pack, unpack
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprints.implementations import GENERATOR, Implementation, name_of, registry
from compcache.numba.fingerprints.walk import fingerprint_of_implementations

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Dependency",
    "decode_names",
    "dependency_of",
    "dependency_of_generator",
    "encode_names",
    "is_current",
    "who_answers",
]


class Dependency(NamedTuple):
    """An implementation that the compiler asked: where it is registered, and what it was."""

    name: str
    content: str


def encode_names(numbers: Iterable[int]) -> bytes:
    """Digests of names as a sorted array."""
    ordered = sorted(numbers)
    return pack(f"<{len(ordered)}I", *ordered)


def decode_names(data: bytes) -> frozenset[int]:
    """What `encode_names` was given."""
    return frozenset(unpack(f"<{len(data) // 4}I", data))


def who_answers(asked: bytes) -> tuple[str, ...]:
    """The user's implementations that are registered now and answer to names, given as `encode_names` made them."""
    registry.refresh()
    numbers = registry.by_asked.keys() & decode_names(asked) if registry.by_asked else ()
    return tuple(sorted({name for number in numbers for name in registry.by_asked[number]}))


def dependency_of(function: Any) -> Dependency:
    """What to record of an implementation. Raises `Unidentifiable`."""
    name = name_of(function)
    registry.refresh()
    registered = registry.by_name.get(name) or [Implementation(function, ())]
    return Dependency(name, fingerprint_of_implementations(registered))


def dependency_of_generator(implementation: Any) -> Dependency | None:
    """What to record of something that generated code; None where that is not the user's."""
    registry.refresh()
    function = registry.generators.get(id(implementation))
    if function is None:
        return None
    name = GENERATOR + name_of(function)
    return Dependency(name, fingerprint_of_implementations(registry.by_name[name]))


def is_current(dependency: Dependency) -> bool:
    """Whether what is registered under that name now has the content that was recorded. Raises `Unidentifiable`."""
    registry.refresh()
    registered = registry.by_name.get(dependency.name)
    if registered is None:
        return False
    return fingerprint_of_implementations(registered) == dependency.content
