"""Identities: the inputs of a function's code as named components, which give a stable name and can be compared later."""

from __future__ import annotations

# The module behind `collections.abc`, without importing the package `collections`.
from _collections_abc import Mapping

from compcache.digest import digest, is_content_name
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["Difference", "Identity", "compare", "encodable", "label_of"]

#: The limit in characters up to which a component is stored as text. Longer components are stored as digests, because notes are read whole.
_MAX_STORED = 1 << 16
_DIGEST_HEX = 32
_ABSENT = "(absent)"
_LONG_NUMBER = 2048  # bits; every process can write shorter integers in decimal, whatever its limit
_USUAL_NAN = "7ff8000000000000"
_AROUND = 24  # characters on each side of a difference


class Identity:
    """The inputs of a compiled function, as named components in the caller's order.

    Pass an identity to `ModuleSource(identity=...)`, and use its `func_name`. A change of any component changes the name, and
    `Cache.explain` names the changed component.

    Args:
        label: the function's name in the program. `func_name` begins with it.
        components: everything that decides the function's code, such as the source, options, identities of callees and versions, as a
            mapping or as pairs of name and value. Values are text, bytes, numbers, None, identities, and lists, tuples, sets and
            mappings of these.
        named: more components.

    Raises:
        TypeError: a value does not have the same representation in every process, or contains itself.
        ValueError: two components have the same name.

    Example:
        >>> Identity("dot", source="a*b", options={"fast": True}).func_name.partition("-")[0]
        'dot'
    """

    __slots__ = ("_parts", "label")

    def __init__(self, label: str, components: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None, /, **named: Any) -> None:
        self.label = str(label)
        pairs = list(components.items() if isinstance(components, Mapping) else components or ())
        merged = {**dict(pairs), **named}
        if len(merged) != len(pairs) + len(named):
            names = [name for name, _ in pairs] + list(named)
            repeated = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the identity of {self.label!r} has two components named {repeated!r}: rename one of them")
        self._parts = tuple([(str(name), _encode_component(value, str(name))) for name, value in merged.items()])

    @property
    def func_name(self) -> str:
        """The label, a dash and a digest of all components. It is the same in every process."""
        parts = [self.label.encode("utf-8", "surrogatepass")]
        for name, text in self._parts:
            parts += [name.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")]
        framed = [b"%d:%b" % (len(part), part) for part in parts]
        return f"{self.label}-{digest(framed, size=_DIGEST_HEX // 2, person=b'compcache-ident').hex()}"

    def components(self) -> dict[str, str]:
        """Return the components as canonical texts that UTF-8 can encode, by name. Digests replace texts above 65536 characters."""
        return {_shown_name(name): encodable(_shorten(text)) for name, text in self._parts}

    def extend(self, **named: Any) -> Identity:
        """Return a new identity with more components. Existing components of the same names are replaced in their positions.

        Args:
            named: more components.
        """
        added = Identity(self.label, named)
        extended = Identity(self.label)
        extended._parts = tuple({**dict(self._parts), **dict(added._parts)}.items())
        return extended

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return NotImplemented
        return (self.label, self._parts) == (other.label, other._parts)

    def __hash__(self) -> int:
        return hash((self.label, self._parts))

    def __repr__(self) -> str:
        return f"<Identity {self.func_name} of {', '.join(name for name, _ in self._parts) or 'nothing'}>"


def _encode_component(value: Any, component: str) -> str:
    """Return the canonical text of a component's value. Raise `TypeError` if the value has no such text."""
    try:
        return _canonical_text(value, component)
    except RecursionError:
        message = f"the component {component!r} of an identity is nested more deeply than Python's recursion limit: pass a shallower value"
        raise TypeError(message) from None


def _canonical_text(value: Any, component: str) -> str:  # noqa: PLR0911 - one for each kind of value
    """Return a value as text that is equal for equal values, different for different values, and the same in every process.

    Raises:
        TypeError: the value, or a value in it, has a type that identities do not support. The message names `component`.
    """
    kind = type(value)
    if kind is int:
        # Long integers are hexadecimal: a process may limit decimal digits (`sys.set_int_max_str_digits`).
        return str(value) if value.bit_length() < _LONG_NUMBER else hex(value)
    if value is None or kind is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if kind in (float, complex):
        return _nan_text(value) if "nan" in (text := repr(value)) else text
    if kind is str:
        return _quoted(value)
    if kind in (bytes, bytearray):
        return f"bytes {value.hex()}"
    if kind is Identity:
        return f"identity {value.func_name}"
    if kind in (list, tuple):
        return f"[{', '.join(_canonical_text(item, component) for item in value)}]"
    if kind in (set, frozenset):
        return f"set [{', '.join(sorted(_canonical_text(item, component) for item in value))}]"
    if hasattr(value, "items") and hasattr(value, "keys"):
        pairs = sorted((_canonical_text(key, component), _canonical_text(item, component)) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    raise TypeError(
        f"the component {component!r} of an identity contains an object of type {_shown_type(kind)}, whose text may differ between "
        "processes: use text, bytes, numbers, None, an Identity, or lists, sets and mappings of these"
    )


def _nan_text(value: complex) -> str:
    """Return the text of a NaN, with the bits that `repr` does not show."""
    import struct

    bits = [struct.pack(">d", part).hex() for part in (value.real, value.imag)]
    return repr(value) if bits[0] == _USUAL_NAN and isinstance(value, float) else f"nan {' '.join(bits)}"


def _shown_type(kind: type) -> str:
    """Return the name of a type for messages, with its module."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _quoted(text: str) -> str:
    """Return a text as a JSON string, with non-ASCII characters unchanged."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    import json  # takes milliseconds in a new process

    return json.dumps(text, ensure_ascii=False)


def encodable(text: str) -> str:
    """Return a text with escapes for the characters that UTF-8 cannot encode, such as those of file names in another encoding."""
    return text.encode("utf-8", "backslashreplace").decode()


def _shown_name(name: str) -> str:
    """Return the name of a component as text that UTF-8 can encode. Different names have different texts.

    The backslashes of a name are doubled if its text would contain an escape, or looks as if it did.
    """
    return encodable(name.replace("\\", "\\\\")) if "\\ud" in encodable(name) else name


def _shorten(text: str) -> str:
    """Return a text, or its digest and length if it is too long to be stored."""
    if len(text) <= _MAX_STORED:
        return text
    return f"digest {digest([text.encode('utf-8', 'surrogatepass')]).hex()} of {len(text)} characters"


def label_of(func_name: str) -> str | None:
    """Return the label of a content name; None for other names."""
    return func_name[: -_DIGEST_HEX - 1] if is_content_name(func_name) else None


class Difference(Record):
    """A component that differs between two identities. `wanted` and `stored` are its canonical texts; None if an identity lacks it."""

    __slots__ = ("component", "wanted", "stored")
    component: str
    wanted: str | None
    stored: str | None

    def __str__(self) -> str:
        """Return the difference on one line. Long texts are cut to the surroundings of their first difference."""
        requested, stored = self.wanted, self.stored
        if requested is not None and stored is not None and max(len(requested), len(stored)) > 3 * _AROUND:
            requested, stored = _cut_around_difference(requested, stored)
        return f"{self.component}: {stored or _ABSENT} -> {requested or _ABSENT}"


def _cut_around_difference(before: str, after: str) -> tuple[str, str]:
    """Cut two texts to the surroundings of their first difference, and return both excerpts."""
    shorter = min(len(before), len(after))
    position = next((index for index in range(shorter) if before[index] != after[index]), shorter)
    start = max(position - _AROUND, 0)
    lead = "..." if start else ""

    def cut(text: str) -> str:
        return f"{lead}{text[start : position + _AROUND]}{'...' if len(text) > position + _AROUND else ''}"

    return cut(before), cut(after)


def compare(requested: Mapping[str, str], stored: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return the components that differ. Components of `requested` come first; components that only `stored` has follow."""
    names = dict.fromkeys([*requested, *stored])
    return tuple([
        Difference(name, requested.get(name), stored.get(name)) for name in names if requested.get(name) != stored.get(name)
    ])  # fmt: skip
