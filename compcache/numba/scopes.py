"""What happens while Numba compiles: symbols that follow from content, and a record of what the compiler asked.

Numba numbers functions in the order in which a process compiles them, and the numbers end up in symbols: two processes
give the same symbol to different code, and the linker drops one of them. Here a symbol carries a digest of all
that shapes the function instead; where there is none, or where the same function is compiled twice, it carries a
random number.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprint import Unidentifiable, fingerprint
from compcache.numba.identity import config_text, flags_text, signature_text
from compcache.numba.overloads import Dependency, dependency_of, dependency_of_generator, digest_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Recorded",
    "Scope",
    "compile_scope",
    "dependencies_of",
    "library_of",
    "next_unique_id",
    "note",
    "note_generator",
    "record",
    "remember",
    "remember_library",
    "set_dependencies",
    "start_recording",
]


class Recorded(NamedTuple):
    """What code depends on: implementations, and digests of the names that were asked; `problem`: why that is not known."""

    dependencies: frozenset[Dependency] = frozenset()
    names: frozenset[int] = frozenset()
    problem: str | None = None


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


_stack = _Stack()
#: Digests that are in symbols of this process already; the same code under one symbol twice would be one too many.
_used: set[str] = set()
#: What the compiled code of each library depends on, for those that link against it.
_known: weakref.WeakKeyDictionary[Any, Recorded] = weakref.WeakKeyDictionary()
#: What was asked while no compilation was known to run: one was under way when the backend was installed.
_asked_early: dict[int, Any] = {}
#: What Numba makes of a function's parts, within its scope, and its runtime.
_PARTS = ("nrt", "__numba_parfor_gufunc", "parallelgufuncwrapper")


class _History:
    """`is_known`: nothing was compiled while nobody recorded."""

    is_known = True


def start_recording(*, from_the_start: bool) -> None:
    """From now on compilations are recorded; `from_the_start`: there was none before."""
    _History.is_known = _History.is_known and from_the_start


#: The libraries of this process by the symbol of their function, for recursive calls across libraries.
_by_symbol: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def remember_library(symbol: str, library: Any) -> None:
    """Where the function of this symbol is defined."""
    _by_symbol[symbol] = library


def library_of(symbol: str) -> Any:
    """The library that defines a function; None where this process has none (any more)."""
    return _by_symbol.get(symbol)


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


def _token(function: Any, args: Any, return_type: Any, flags: Any, extra: str) -> str:
    try:
        parts = [
            fingerprint(function).content,
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
        _asked_early[id(function)] = function
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


def set_dependencies(library: Any, recorded: Recorded) -> None:
    """What the code in a library depends on."""
    _known[library] = recorded


def dependencies_of(library: Any, scope: Scope | None = None) -> Recorded:
    """What the code in a library depends on, that of the libraries linked into it included."""
    known = _known.get(library)
    if known is not None and scope is None:
        return known
    parts = [known] if known is not None else []
    parts += [
        _known.get(linked) or _of_unrecorded(linked) for linked in getattr(library, "_linking_libraries", ())
    ]
    if scope is None:
        parts.append(_content_of(_asked_early.values()))
    else:
        parts.append(_content_of(scope.asked.values(), scope.names, scope.generators.values()))
    dependencies, names, problems = zip(*parts, strict=True)
    problem = next((problem for problem in problems if problem), None)
    _known[library] = Recorded(frozenset().union(*dependencies), frozenset().union(*names), problem)
    return _known[library]


def _content_of(
    functions: Iterable[Any], names: Iterable[int] = (), generators: Iterable[Any] = ()
) -> Recorded:
    try:
        found = {dependency_of(function) for function in functions}
        found |= {row for row in map(dependency_of_generator, generators) if row is not None}
        return Recorded(frozenset(found), frozenset(names))
    except Unidentifiable as error:
        return Recorded(problem=str(error))


def _of_unrecorded(library: Any) -> Recorded:
    """What code depends on that was compiled outside of all scopes."""
    if library.name.startswith(_PARTS):
        return Recorded()
    if not _History.is_known:
        defined = [f.name for f in library._final_module.functions if not f.is_declaration]
        if not all("_ZN5numba" in name or not name.startswith("_ZN") for name in defined):
            reason = f"it calls {library.name}, which was compiled before compcache.numba was installed"
            return Recorded(problem=reason)
    return _content_of(_asked_early.values())
