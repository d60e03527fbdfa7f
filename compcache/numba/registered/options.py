"""Normalizes the options of decorators and registrations, so that Numba objects and stand-ins give equal options."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["compiler_options", "declared_locals", "jitable_options", "overload_options"]

#: The default values of options.
_DEFAULTS: dict[str, Any] = {"boundscheck": None, "nopython": True, "no_cpython_wrapper": True}
_OVERLOAD_DEFAULTS: dict[str, Any] = {"jit_options": {}, "strict": True, "inline": "never", "prefer_literal": False}


def compiler_options(options: Mapping[str, Any], types_of_variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options of a decorator that affect the compiler, without default values.

    `types_of_variables` come from `locals=` and from the compiler, whose additions are ignored. If they are None, the option `locals` is
    used.
    """
    relevant = {name: value for name, value in options.items() if name not in ("cache", "locals")}
    effective = {name: value for name, value in relevant.items() if not _is_default(_DEFAULTS, name, value)}
    declared = declared_locals(types_of_variables if types_of_variables is not None else options.get("locals"))
    if declared:
        from compcache.numba.registered.type_texts import text_of  # most functions declare no types

        effective["locals"] = tuple(sorted((name, text_of(type_) or type_) for name, type_ in declared.items()))
    return {name: tuple(sorted(value)) if isinstance(value, (set, frozenset)) else value for name, value in effective.items()}


def declared_locals(types_of_variables: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the types that a program declares for variables with ``locals=``.

    A compilation adds the versions of these variables (``result.1``) to the same dictionary. They are omitted.
    """
    return {name: type_ for name, type_ in (types_of_variables or {}).items() if "." not in name}


def _is_default(defaults: Mapping[str, Any], name: str, value: Any) -> bool:
    """Return whether an option has its default value, with the same type."""
    return name in defaults and type(value) is type(defaults[name]) and value == defaults[name]


def overload_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `overload` and similar functions, without default values."""
    jit_options = compiler_options(options.get("jit_options", {}))
    inline = options.get("inline", "never")
    effective = {**options, "jit_options": jit_options, "inline": getattr(inline, "_inline", inline)}
    return {name: value for name, value in effective.items() if not _is_default(_OVERLOAD_DEFAULTS, name, value)}


def jitable_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `register_jitable`, in the form of `overload_options`."""
    jit_options = {name: value for name, value in options.items() if name != "inline"}
    return overload_options({"jit_options": jit_options, "inline": options.get("inline", "never")})
