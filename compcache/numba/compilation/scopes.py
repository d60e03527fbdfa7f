"""The functions that are being compiled: symbols that follow from content, and a record of what the compiler asked.

Numba numbers functions in the order in which a process compiles them, and the numbers end up in symbols: two processes
give the same symbol to different code, and the linker drops one of them. Here a symbol carries a digest of all
that shapes the function instead; where there is none, or where the same function is compiled twice, it carries a
random number.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from compcache.numba.compilation.history import note_made
from compcache.numba.fingerprints.errors import Unidentifiable
from compcache.numba.fingerprints.implementations import digest_name
from compcache.numba.fingerprints.walk import fingerprint
from compcache.numba.identity.key import flags_text, signature_text
from compcache.numba.identity.settings import config_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Scope",
    "asked_early",
    "compile_scope",
    "defer",
    "next_unique_id",
    "note",
    "note_generator",
    "record",
    "remember",
]


class Scope:
    """One function being compiled: its symbols' digest, and the user's implementations that were asked for it."""

    __slots__ = ("asked", "function", "generators", "names", "token", "used")

    def __init__(self, function: Any, token: str) -> None:
        self.function = function
        self.token = token
        self.used = 0
        self.asked: dict[int, Any] = {}
        self.names: set[int] = set()
        self.generators: dict[int, Any] = {}


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.deferred: list[Callable[[], None]] = []


_stack = _Stack()


#: Digests that are in symbols of this process already; the same code under one symbol twice would be one too many.
_used: set[str] = set()


#: What was asked while no compilation was known to run: one was under way when the backend was installed.
asked_early: dict[int, Any] = {}


@contextmanager
def compile_scope(function: Any, args: Any, return_type: Any, flags: Any, extra: str) -> Iterator[Scope]:
    """While a function is compiled."""
    scope = Scope(function, _token(function, args, return_type, flags, extra))
    _stack.scopes.append(scope)
    try:
        yield scope
    finally:
        _stack.scopes.pop()
        if _stack.scopes:
            _stack.scopes[-1].names |= scope.names
    if not _stack.scopes:
        while _stack.deferred:
            _stack.deferred.pop()()


def defer(action: Callable[[], None]) -> bool:
    """Do something when the outermost function is compiled; False, and nothing, where none is being compiled."""
    if not _stack.scopes:
        return False
    _stack.deferred.append(action)
    return True


def _token(function: Any, args: Any, return_type: Any, flags: Any, extra: str) -> str:
    try:
        found = fingerprint(function)
        note_made(found.parts[0])
        parts = [
            found.content,
            signature_text(args),
            "" if return_type is None else signature_text((return_type,)),
            flags_text(flags),
            config_text(),
            extra,
        ]
    except Unidentifiable:
        return uuid.uuid4().hex
    token = _digest(*parts)
    if token in _used and _stack.scopes:
        token = _digest(
            token, _stack.scopes[-1].token
        )  # Numba compiles some of its functions anew for each caller
    if token in _used:
        return uuid.uuid4().hex
    _used.add(token)
    return token


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=10, person=b"compcache-numba3").hexdigest()


def remember(token: str) -> None:
    """A digest that loaded code has in its symbols."""
    _used.add(token)


def next_unique_id(function: Any) -> str:
    """What Numba puts into the symbols of a function that it starts to compile."""
    if not _stack.scopes:
        return uuid.uuid4().hex
    scope = _stack.scopes[-1]
    if function is scope.function and not scope.used:
        scope.used = 1
        return scope.token
    scope.used += 1
    return f"{scope.token}x{scope.used}"


def record(function: Any) -> None:
    """The compiler asks one of the user's implementations."""
    if not _stack.scopes:
        asked_early[id(function)] = function
    for scope in _stack.scopes:
        scope.asked[id(function)] = function


def note(name: str) -> None:
    """The compiler asks for implementations of this name."""
    if _stack.scopes:
        _stack.scopes[-1].names.add(digest_name(name))


def note_generator(implementation: Any) -> None:
    """The compiler lets this generate code."""
    if _stack.scopes:
        _stack.scopes[-1].generators[id(implementation)] = implementation
