"""Implementations that only the compiler sees: the user's `@overload`s and intrinsics, as registered in this process.

So are functions that generate code (`@lower_builtin` and its kin). Numba's own are covered by its version. A compilation records which of the user's it asked, and under which names it
asked at all; an entry is valid where each of them still has the same content, and no other answers to these names.
"""

from __future__ import annotations

from struct import pack, unpack
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from compcache.numba.fingerprint import fingerprint, is_library_module

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Dependency", "decode_names", "dependency_of", "dependency_of_generator", "digest_name", "encode_names",
    "find_overloads", "is_current", "key_name", "source_function", "who_answers",
]  # fmt: skip


#: Stands before the names of functions that generate code.
_GENERATOR = "code generator "


class Dependency(NamedTuple):
    """An implementation that the compiler asked: where it is registered, and what it was."""

    name: str
    content: str


class _Registry:
    """The user's overload templates, read off Numba's registry as it grows."""

    def __init__(self) -> None:
        self.by_key: dict[int, list[Any]] = {}
        self.by_name: dict[str, list[Any]] = {}
        self.by_asked: dict[int, list[str]] = {}
        self._keys: list[object] = []
        self._seen = {"functions": 0, "attributes": 0}
        self.generators: dict[int, Any] = {}
        self._seen_generators = dict.fromkeys(("functions", "getattrs", "setattrs", "casts", "constants"), 0)

    def refresh(self) -> None:
        from numba.core.imputils import builtin_registry as lowering_registry
        from numba.core.typing.templates import builtin_registry

        for kind, seen in self._seen.items():
            templates = getattr(builtin_registry, kind)
            for template in templates[seen:]:
                self._add(template)
            self._seen[kind] = len(templates)
        for kind, seen in self._seen_generators.items():
            rows = getattr(lowering_registry, kind)
            for implementation, *_ in rows[seen:]:
                self._add_generator(implementation)
            self._seen_generators[kind] = len(rows)

    def _add(self, template: Any) -> None:
        function = source_function(template)
        if function is None:
            return
        key = getattr(template, "key", None)
        self._keys.append(key)
        self.by_key.setdefault(id(key), []).append(function)
        name = _name_of(function)
        self.by_name.setdefault(name, []).append(function)
        asked = getattr(template, "_attr", None) or key_name(key)
        self.by_asked.setdefault(digest_name(asked), []).append(name)

    def _add_generator(self, implementation: Any) -> None:
        function = _users_generator(implementation)
        if function is not None:
            self.generators[id(implementation)] = function
            self._keys.append(implementation)
            self.by_name.setdefault(_GENERATOR + _name_of(function), []).append(function)


_registry = _Registry()


def key_name(key: object) -> str:
    """The name under which the compiler asks for implementations of a callable."""
    return f"{getattr(key, '__module__', '')}.{getattr(key, '__qualname__', None) or getattr(key, '__name__', '')}"


def digest_name(name: str) -> int:
    """A number for a name. Two names of one number cost a compilation at worst."""
    return crc32(name.encode("utf-8", "surrogatepass"))


def encode_names(numbers: Iterable[int]) -> bytes:
    """Digests of names as a sorted array."""
    ordered = sorted(numbers)
    return pack(f"<{len(ordered)}I", *ordered)


def decode_names(data: bytes) -> frozenset[int]:
    """What `encode_names` was given."""
    return frozenset(unpack(f"<{len(data) // 4}I", data))


def who_answers(asked: bytes) -> tuple[str, ...]:
    """The user's implementations that are registered now and answer to names, given as `encode_names` made them."""
    _registry.refresh()
    numbers = _registry.by_asked.keys() & decode_names(asked) if _registry.by_asked else ()
    return tuple(sorted({name for number in numbers for name in _registry.by_asked[number]}))


def source_function(template: Any) -> Any:
    """The user's function behind a typing template; None for Numba's own and for other kinds of templates."""
    function = getattr(template, "_overload_func", None) or getattr(template, "_definition_func", None)
    code = getattr(function, "__code__", None)
    if code is None or (is_library_module(function.__module__) and not _wraps_users_code(function)):
        return None
    return function


def _wraps_users_code(function: Any) -> bool:
    """`register_jitable` overloads a function by a closure of Numba's around the function itself."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return any(hasattr(item, "__code__") and not is_library_module(item.__module__) for item in cells)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading it is the question
    except ValueError:
        return False
    return True


def _users_generator(implementation: Any) -> Any:
    """The user's function that generates code, of what Numba's registry holds; None where it is Numba's own."""
    if getattr(implementation, "__qualname__", "").startswith(("_decorate_getattr.", "_decorate_setattr.")):
        cells = [cell.cell_contents for cell in implementation.__closure__ or () if _is_filled(cell)]
        implementation = next((item for item in cells if hasattr(item, "__code__")), None)
    if not hasattr(implementation, "__code__") or is_library_module(implementation.__module__):
        return None
    return implementation


def _name_of(function: Any) -> str:
    name = f"{function.__module__}.{function.__qualname__}"
    if is_library_module(function.__module__):
        inner = [c.cell_contents for c in function.__closure__ or () if _is_filled(c)]
        name += "".join(f" of {i.__module__}.{i.__qualname__}" for i in inner if hasattr(i, "__code__"))
    return name


def find_overloads(value: object) -> Iterable[Any]:
    """The user's overloads of a callable, in the order of registration."""
    _registry.refresh()
    return _registry.by_key.get(id(value), ())


def dependency_of(function: Any) -> Dependency:
    """What to record of an implementation. Raises `Unidentifiable`."""
    name = _name_of(function)
    _registry.refresh()
    registered = _registry.by_name.get(name) or [function]
    return Dependency(name, fingerprint(*registered).content)


def dependency_of_generator(implementation: Any) -> Dependency | None:
    """What to record of something that generated code; None where that is not the user's."""
    _registry.refresh()
    function = _registry.generators.get(id(implementation))
    if function is None:
        return None
    name = _GENERATOR + _name_of(function)
    return Dependency(name, fingerprint(*_registry.by_name[name], soft=True).content)


def is_current(dependency: Dependency) -> bool:
    """Whether what is registered under that name now has the content that was recorded. Raises `Unidentifiable`."""
    _registry.refresh()
    registered = _registry.by_name.get(dependency.name)
    if registered is None:
        return False
    return fingerprint(*registered, soft=dependency.name.startswith(_GENERATOR)).content == dependency.content
