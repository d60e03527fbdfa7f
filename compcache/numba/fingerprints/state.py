"""Reads the state of objects and functions."""

from __future__ import annotations

import sys
import types as python_types

from compcache.numba.registered.code_reads import MISSING
from compcache.numba.registered.library import is_library_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["annotates", "state_of"]


def state_of(value: Any) -> dict[str, Any]:
    """Return the instance attributes of an object, including those in slots."""
    state = {}
    for cls in reversed(type(value).__mro__):
        for name, descriptor in vars(cls).items():
            if isinstance(descriptor, python_types.MemberDescriptorType) and not is_library_module(cls.__module__):
                found = getattr(value, name, MISSING)
                if found is not MISSING:
                    state[name] = found
    return {**state, **getattr(value, "__dict__", {})}


def annotates(function: python_types.FunctionType) -> bool:
    """Return whether a function has annotations, without evaluating them."""
    return getattr(function, "__annotate__", None) is not None if sys.version_info >= (3, 14) else bool(function.__annotations__)
