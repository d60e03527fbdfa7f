"""Records from which keys the code of dispatchers was compiled, for dispatchers that compile no more code.

A dispatcher with declared signatures keeps its code. Globals that its function reads may change later, but the code does not. For example,
galois creates hundreds of such dispatchers from a few functions, and sets their globals before each declaration.
"""

from __future__ import annotations

import weakref

from compcache.numba.fingerprints.owners import function_of
from compcache.numba.registered.library import full_name
from compcache.numba.registered.refusals import Unidentifiable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.numba.fingerprints.walk import FunctionPart

__all__ = [
    "CodeIdentity", "early_code", "find_unknown_code", "fixed_code", "record_compiled", "record_running", "record_symbol",
    "unknown_code_reason",
]  # fmt: skip


class CodeIdentity:
    """The identity of one overload's code.

    Attributes:
        key: the key under which the code was compiled or found.
        lines: the digest of its source lines at that time.
        registered: the functions in the code that the compiler knows only because they were registered; empty if none are recorded.
    """

    __slots__ = ("key", "lines", "registered")

    def __init__(self, key: str, lines: str, registered: tuple[Any, ...] = ()) -> None:
        self.key = key
        self.lines = lines
        self.registered = registered


_compiled: weakref.WeakKeyDictionary[Any, dict[Any, CodeIdentity]] = weakref.WeakKeyDictionary()


def record_compiled(dispatcher: Any, args: tuple[Any, ...], compiled: CodeIdentity) -> None:
    """Record the identity of a dispatcher's code for these argument types. Do nothing if the dispatcher is None."""
    if dispatcher is not None:
        _compiled.setdefault(dispatcher, {})[args] = compiled


#: The identities of the functions that this process has compiled, by the token in their symbols; None if there is no identity.
_by_token: dict[str, CodeIdentity | None] = {}
#: The identities of dispatchers that were already compiling when recording began; None if there is no identity.
_running: weakref.WeakKeyDictionary[Any, CodeIdentity | None] = weakref.WeakKeyDictionary()


#: The functions of which this process has code that was not recorded.
_unknown: weakref.WeakSet[Any] = weakref.WeakSet()


def record_symbol(token: str, compiled: CodeIdentity | None) -> None:
    """Record the identity of the function with this token in its symbols, or None if the function has no identity."""
    _by_token[token] = compiled


def record_running(dispatcher: Any, compiled: CodeIdentity | None) -> None:
    """Record the identity of a dispatcher that is compiling now, without the argument types. Other records of the dispatcher have priority.

    `compiled` is None if the dispatcher has no identity.
    """
    _running[dispatcher] = compiled


def find_unknown_code(dispatcher: Any) -> None:
    """Record if a dispatcher has code that was compiled before recording began, or that was loaded from another cache."""
    known = _compiled.get(dispatcher, {})
    if dispatcher not in _running and any(
        _types_of(signature) not in known and _token_of(result) not in _by_token for signature, result in dispatcher.overloads.items()
    ):
        _unknown.add(function_of(dispatcher))


def unknown_code_reason(parts: Iterable[FunctionPart]) -> str:
    """Return `early_code` for the first function of which `find_unknown_code` has found code; "" if there is none."""
    return next((early_code(full_name(part.function)) for part in parts if part.function in _unknown), "")


def early_code(name: str) -> str:
    """Return the reason for not using the cache if it is not known from which values code in this process was compiled."""
    return (
        f"the function calls {name}, which was compiled before compcache.numba was installed, or loaded from the cache of Numba or of "
        "another package: set COMPCACHE_NUMBA=1, so that compcache caches both functions"
    )


def fixed_code(dispatcher: Any, *, is_frozen: bool) -> list[CodeIdentity] | None:
    """Return the identities of all code of a dispatcher, in the order in which overloads are tried.

    The result is None if the dispatcher may compile more code, may be inlined, has no code, or has code with an unknown origin. `is_frozen`
    is whether the dispatcher belongs to a ufunc that creates no more loops. Raise `Unidentifiable` if the code was compiled from values
    without an identity, even if the present values have an identity.
    """
    if not is_frozen and getattr(dispatcher, "_can_compile", True):
        return None
    if str(dispatcher.targetoptions.get("inline", "never")) != "never":
        return None  # Numba would inline the current version of the function
    by_types = _compiled.get(dispatcher, {})
    overloads = []
    for signature, result in dispatcher.overloads.items():
        compiled = by_types.get(_types_of(signature)) or _compiled_without_cache(dispatcher, result)
        if compiled is None:
            return None
        overloads.append(compiled)
    return overloads or None


def _compiled_without_cache(dispatcher: Any, result: Any) -> CodeIdentity | None:
    """Return the identity of code that this process has compiled without a cache, or None if it is not recorded.

    Raise `Unidentifiable` if the code was compiled from values without an identity.
    """
    token = _token_of(result)
    if token in _by_token:
        compiled = _by_token[token]
    elif dispatcher in _running:
        running = _running[dispatcher]
        compiled = running and CodeIdentity(f"{running.key} {result.signature}", running.lines)
    else:
        return None
    if compiled is None:
        name = dispatcher.py_func.__qualname__
        raise Unidentifiable(f"{name} was compiled when it was declared, from values that cannot be compared: pass the values as arguments")
    return compiled


def _types_of(signature: Any) -> tuple[Any, ...]:
    """Return the argument types of an overload. Overloads of ufuncs have signatures, other overloads have tuples of types."""
    return tuple(getattr(signature, "args", signature))


def _token_of(result: Any) -> str | None:
    """Return the token in the symbols of a compile result; None for an object without a descriptor."""
    return getattr(getattr(result, "fndesc", None), "uid", None)
