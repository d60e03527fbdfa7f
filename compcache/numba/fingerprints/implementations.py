"""Finds the user's implementations that only the compiler uses, as they are registered in this process.

They are `@overload` and similar decorators, intrinsics, and functions that generate code (`@lower_builtin` and similar). Numba's version
covers its own implementations.
"""

from __future__ import annotations

import functools
from itertools import accumulate
from types import FunctionType, MethodType
from zlib import crc32

from compcache.numba.registered import copied_from
from compcache.numba.registered.code_reads import cells_of
from compcache.numba.registered.jitclasses import without_addresses
from compcache.numba.registered.library import is_library_module, is_made_by_library, package_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = [
    "GENERATOR", "Implementation", "digest_name", "find_overloads", "generators_of_other_registries", "is_generator_of_intrinsic",
    "is_overload_or_intrinsic", "key_name", "numbered_name", "package_of_implementation", "plain_function", "registry",
    "source_of_template", "stable_name", "user_code_generator", "wrapped_by",
]  # fmt: skip

#: The prefix of the names of functions that generate code.
GENERATOR = "code generator "
_MAX_WRAPPERS = 20


class Implementation:
    """A user's function that runs while code is generated, with the options of its registration.

    Attributes:
        function: the function.
        options: the options.
        is_overload: whether the compiler compiles the function that this function returns.
        creators: the names of the functions that create the callable for which this function is registered, the outermost first.
    """

    __slots__ = ("creators", "function", "is_overload", "options")

    def __init__(self, function: Any, options: tuple[tuple[str, Any], ...], *, is_overload: bool = False, key: str = "") -> None:
        self.function = function
        self.options = options
        self.is_overload = is_overload
        self.creators = tuple(accumulate(key.split(".<locals>.")[:-1], "{}.<locals>.{}".format))


#: The attributes of typing templates that contain the options of `@overload` and `@intrinsic`.
_OPTIONS = ("_jit_options", "_strict", "_inline", "prefer_literal", "metadata")


def _options_of(template: Any) -> tuple[tuple[str, Any], ...]:
    """Return the options of an implementation that change what is compiled."""
    options = {name: getattr(template, name) for name in _OPTIONS if hasattr(template, name)}
    if "_inline" in options:
        options["_inline"] = getattr(options["_inline"], "_inline", options["_inline"])
    return tuple(options.items())


def _registration_option(*keys: Any) -> tuple[tuple[str, Any], ...]:
    """Return the option that lists what an implementation is registered for: callables, names, types, and tuples of types."""
    items = [item for key in keys for item in (key if isinstance(key, tuple) else (key,))]
    texts = [item if isinstance(item, str) else f"{key_name(item)} {without_addresses(str(getattr(item, 'name', '')))}" for item in items]
    return (("registered for", tuple(texts)),)


#: The lists of a registry whose rows begin with a function that generates code.
_KINDS_OF_GENERATORS = ("functions", "getattrs", "setattrs", "casts", "constants")


class _Registry:
    """The user's implementations in Numba's registries.

    Attributes:
        by_key: overloads by the id of the callable.
        by_name: implementations by `name_of`.
        names_by_digest: the names of implementations by the digest of the name by which the compiler looks for them.
        generators: the user's functions behind code generators, by the id of the code generator.
    """

    def __init__(self) -> None:
        self.by_key: dict[int, list[Implementation]] = {}
        self.by_name: dict[str, list[Implementation]] = {}
        self.names_by_digest: dict[int, list[str]] = {}
        self.generators: dict[int, Any] = {}
        self._numbers: dict[str, dict[int, int]] = {}  # of the intrinsics with a stable name, by the id of the function
        self._keys: list[object] = []  # references, so that no id is reused
        self._lists: list[list[Any]] = []  # the lists of Numba's registries
        self._actions: list[Callable[[Any], None]] = []  # the function that adds an item of each list
        self._counts: list[int] = []  # the numbers of items that were read

    def refresh(self) -> None:
        """Read the registrations that were added since the last call."""
        if not self._lists:
            self._find_lists()
        if list(map(len, self._lists)) != self._counts:
            for number, (items, action) in enumerate(zip(self._lists, self._actions, strict=True)):
                for count, item in enumerate(items[self._counts[number] :], self._counts[number] + 1):
                    action(item)
                    self._counts[number] = count
                self._counts[number] = min(self._counts[number], len(items))  # a registration may have been removed

    def name_of(self, function: Any) -> str:
        """Return the name under which an implementation is registered: its stable name, followed by a number for intrinsics that share one.

        Callers name the intrinsic itself, so its namesakes do not count. One factory may make thousands.
        """
        name = stable_name(function)
        number = self._numbers.get(name, {}).get(id(function), 0)
        return f"{name} #{number}" if number else name

    def _find_lists(self) -> None:
        """Find the lists of Numba's registries, and set the function that adds the items of each list."""
        from numba.core.imputils import builtin_registry as lowering_registry
        from numba.core.typing.templates import builtin_registry

        self._actions = [self._add, self._add, self._add_global]
        self._actions += [functools.partial(self._add_generator, kind) for kind in _KINDS_OF_GENERATORS]
        self._counts = [0] * len(self._actions)
        generators = [getattr(lowering_registry, kind) for kind in _KINDS_OF_GENERATORS]
        self._lists = [builtin_registry.functions, builtin_registry.attributes, builtin_registry.globals, *generators]

    def _add_global(self, row: tuple[Any, Any]) -> None:
        """Add the user's classes among the typing templates of a global."""
        for template in getattr(row[1], "templates", ()):
            if isinstance(source_of_template(template), type):
                self._add(template)

    def _add(self, template: Any) -> None:
        """Add the implementation behind a typing template, if it is the user's."""
        function = source_of_template(template)
        if function is None:
            return
        key = getattr(template, "key", None)
        self._keys.append(key)
        is_overload = function is getattr(template, "_overload_func", None)
        options = _options_of(template)
        attribute = getattr(template, "_attr", None)
        if attribute or is_library_module(getattr(key, "__module__", None)):  # code need not name the type or the operator
            options += _registration_option(key)
        requested_name = attribute or key_name(key)
        implementation = Implementation(function, options, is_overload=is_overload, key=requested_name)
        if not attribute:  # the compiler asks for a method by its name, even if no code names the type
            self.by_key.setdefault(id(key), []).append(implementation)
        if function is getattr(template, "_definition_func", None):
            numbers = self._numbers.setdefault(stable_name(function), {})
            numbers.setdefault(id(function), len(numbers))
        else:  # the compiler finds an intrinsic as a value
            self.names_by_digest.setdefault(digest_name(requested_name), []).append(stable_name(function))
        self.by_name.setdefault(self.name_of(function), []).append(implementation)

    def _add_generator(self, kind: str, row: tuple[Any, ...]) -> None:
        """Add the function behind a code generator of this kind, if it is the user's."""
        implementation, key, *_ = row
        function = user_code_generator(implementation)
        if function is None:
            return
        self.generators[id(implementation)] = function
        self._keys.append(implementation)
        name = GENERATOR + stable_name(function)
        self.by_name.setdefault(name, []).append(Implementation(function, _registration_option(*row[1:])))
        requested_name = key_name(key) if kind == "functions" else key if kind in ("getattrs", "setattrs") else None
        if requested_name:  # other generators belong to the types
            self.names_by_digest.setdefault(digest_name(requested_name), []).append(name)


registry = _Registry()


def key_name(key: object) -> str:
    """Return the name by which the compiler looks for implementations of a callable."""
    return f"{getattr(key, '__module__', '')}.{getattr(key, '__qualname__', None) or getattr(key, '__name__', '')}"


def digest_name(name: str) -> int:
    """Return a 32-bit digest of a name. A collision costs at most one compilation."""
    return crc32(name.encode("utf-8", "surrogatepass"))


def source_of_template(template: Any) -> Any:
    """Return the object from which one of the user's typing templates was created: a function, another callable, or the class itself.

    The result is None for Numba's own templates.
    """
    function = getattr(template, "_overload_func", None) or getattr(template, "_definition_func", None)
    if function is None and isinstance(template, type):
        user_class = next((cls for cls in template.__mro__ if not is_library_module(cls.__module__)), None)
        if user_class is not None:  # Numba registers a subclass of the user's class
            return user_class
        function = _typing_function(template)
    return function if _is_users_code(function) else None


def is_overload_or_intrinsic(template: Any) -> bool:
    """Return whether a template belongs to an overload or an intrinsic, whose use is recorded when the compiler asks the template."""
    return hasattr(template, "_overload_func") or hasattr(template, "_definition_func")


def _typing_function(template: Any) -> Any:
    """Return the function from which `type_callable` created a template, or None for other templates."""
    generic = vars(template).get("generic")
    cells = cells_of(generic) if isinstance(generic, FunctionType) else ()
    return next((value for _, value in cells if isinstance(value, FunctionType)), None)


def _is_users_code(function: Any) -> bool:
    """Return whether a callable runs a Python function of the user, which may be in the closure of a library's function."""
    plain = plain_function(function)
    return plain is not None and (not is_made_by_library(plain) or (plain.__closure__ is not None and bool(wrapped_by(plain))))


def package_of_implementation(implementation: Any) -> str:
    """Return the top-level package of an implementation."""
    if isinstance(implementation, type):
        return implementation.__module__.partition(".")[0]
    return package_of(plain_function(implementation))


def plain_function(value: Any) -> Any:
    """Return the Python function that a callable (a method, a partial or cached function, an object) runs; None if it runs none."""
    for _ in range(_MAX_WRAPPERS):
        if isinstance(value, FunctionType):
            return value
        if isinstance(value, MethodType):
            value = value.__func__
        elif isinstance(value, functools.partial):
            value = value.func
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            call = next((vars(cls)["__call__"] for cls in type(value).__mro__ if "__call__" in vars(cls)), None)
            return call if isinstance(call, FunctionType) else None
    return None


def wrapped_by(function: Any) -> list[Any]:
    """Return the user's functions in the closure of a library's function, as `register_jitable` creates it; empty for other objects."""
    if not isinstance(function, FunctionType) or not is_made_by_library(function):
        return []
    return [item for _, item in cells_of(function) if hasattr(item, "__code__") and not is_made_by_library(item)]


def user_code_generator(implementation: Any) -> Any:
    """Return the user's callable behind a code generator in one of Numba's registries, or None if a library defines the code generator."""
    if getattr(implementation, "__qualname__", "").startswith(("_decorate_getattr.", "_decorate_setattr.")):
        implementation = next((item for _, item in cells_of(implementation) if plain_function(item) is not None), None)
    plain = plain_function(implementation)
    return None if plain is None or is_made_by_library(plain) else implementation


def generators_of_other_registries() -> dict[str, list[Implementation]]:
    """Return the user's code generators by name, from registries that packages have created and installed themselves (`install_registry`).

    Code generators of intrinsics are omitted, because the intrinsic identifies them.
    """
    from numba.core.imputils import builtin_registry as lowering_registry
    from numba.core.registry import cpu_target

    others = [other for other in getattr(cpu_target.target_context, "_registries", ()) if other is not lowering_registry]
    generators: dict[str, list[Implementation]] = {}
    for implementation, *keys in [row for other in others for kind in _KINDS_OF_GENERATORS for row in getattr(other, kind)]:
        function = None if keys[0] is implementation else user_code_generator(implementation)
        if function is not None:
            generators.setdefault(GENERATOR + stable_name(function), []).append(Implementation(function, _registration_option(*keys)))
    return generators


def is_generator_of_intrinsic(implementation: Any) -> bool:
    """Return whether a code generator was returned by an intrinsic. Numba registers such a function under itself as key."""
    from numba.core.registry import cpu_target

    return implementation in getattr(cpu_target.target_context, "_defns", ())


def stable_name(implementation: Any) -> str:
    """Return a name of an implementation that is the same in every process."""
    if isinstance(implementation, type):
        return f"{implementation.__module__}.{implementation.__qualname__}"
    function = plain_function(implementation)
    if function is None:
        return f"{type(implementation).__module__}.{type(implementation).__qualname__}"
    name = f"{function.__module__}.{function.__qualname__}"
    if function is not implementation:
        name += f" by {type(implementation).__qualname__}"
    if is_made_by_library(function):
        inner = [item for _, item in cells_of(function) if hasattr(item, "__code__")]
        name += "".join(f" of {item.__module__}.{item.__qualname__}" for item in inner)
    return name


def numbered_name(implementation: Implementation) -> tuple[str, ...]:
    """Return the name of a registered implementation, followed by its number if it is not the first with this name."""
    name = registry.name_of(implementation.function)
    number = registry.by_name[name].index(implementation)
    return (name, str(number)) if number else (name,)


def find_overloads(value: object) -> Iterable[Implementation]:
    """Return the user's overloads of a callable, or of the function that it is a copy of, in the order of registration; empty if none."""
    registry.refresh()
    return registry.by_key.get(id(copied_from(value)), ())
