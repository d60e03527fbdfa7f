"""A base class for frozen, slotted values without an import. Importing `dataclasses` would take 4-15 ms of a hit."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["Record", "set_field"]

#: Sets a field of a frozen record, for use in constructors.
set_field = object.__setattr__


class Record:
    """A value with the fields that `__slots__` names: frozen, compared and hashed by its fields.

    Subclasses declare `__slots__` and annotate the fields; the constructor takes them in that order or by keyword.
    """

    __slots__: tuple[str, ...] = ()

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.__slots__
        if named:
            values += tuple(named.pop(name) for name in names[len(values) :] if name in named)
        if named or len(values) != len(names):
            raise TypeError(f"{type(self).__name__}() must be called with the fields {', '.join(names)}")
        list(map(set_field, [self] * len(names), names, values))  # in C: an addition creates some twenty records

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: its attribute {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: its attribute {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._fields()
