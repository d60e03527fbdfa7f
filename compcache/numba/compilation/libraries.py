"""Records the dependencies of each code library of this process, and which library defines each symbol."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.compilation import scopes
from compcache.numba.identity.dependencies import Dependency, dependency_of, dependency_of_generator, dependency_of_type
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Recorded", "dependencies_of", "library_of", "remember_library", "set_dependencies", "start_recording"]


class Recorded(NamedTuple):
    """The dependencies of code: implementations, and digests of looked-up names. `problem` tells why they are not known."""

    dependencies: frozenset[Dependency] = frozenset()
    names: frozenset[int] = frozenset()
    problem: Unidentifiable | None = None


#: The dependencies of each library's code, for libraries that link against it.
_known: weakref.WeakKeyDictionary[Any, Recorded] = weakref.WeakKeyDictionary()


#: Prefixes of the names of libraries that Numba creates for parts of a function, within its scope, and for its runtime.
_PARTS = ("nrt", "__numba_parfor_gufunc", "parallelgufuncwrapper")


class _History:
    """`is_known`: all compilations of this process were recorded."""

    is_known = True


def start_recording(*, from_the_start: bool) -> None:
    """Start to record compilations. `from_the_start`: there were none before."""
    _History.is_known = _History.is_known and from_the_start


#: The libraries of this process by the symbol of their function, for recursive calls across libraries.
_by_symbol: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def remember_library(symbol: str, library: Any) -> None:
    """Record the library that defines the function of this symbol."""
    _by_symbol[symbol] = library


def library_of(symbol: str) -> Any:
    """Return the library that defines a function, or None if this process has none (any more)."""
    return _by_symbol.get(symbol)


def set_dependencies(library: Any, recorded: Recorded) -> None:
    """Set the dependencies of the code in a library."""
    _known[library] = recorded


def dependencies_of(library: Any, scope: scopes.Scope | None = None) -> Recorded:
    """Return the dependencies of the code in a library, including those of the libraries linked into it."""
    known = _known.get(library)
    if known is not None and scope is None:
        return known
    parts = [known] if known is not None else []
    parts += [_known.get(linked) or _of_unrecorded(linked) for linked in getattr(library, "_linking_libraries", ())]
    if scope is None:
        parts.append(_content_now(scopes.asked_early.values()))
    else:
        if scope.address_in:
            parts.append(Recorded(problem=Unrepeatable(f"{scope.address_in} puts an address of this process into its code")))
        parts.append(_content_of(scope))
    dependencies, names, problems = zip(*parts, strict=True)
    problem = max(filter(None, problems), key=lambda found: isinstance(found, Unrepeatable), default=None)
    own = parts[-1].dependencies if scope is not None else frozenset()
    changed = scope.changed - own if scope is not None else ()
    _known[library] = Recorded(frozenset().union(*dependencies) - frozenset(changed), frozenset().union(*names), problem)
    return _known[library]


def _content_of(scope: scopes.Scope) -> Recorded:
    """Return the content of the implementations that the compiler asked, as it was before they ran. What could not be compared then counts
    only if it was used.
    """
    try:
        found = {
            content or dependency_of(function, declined=id(function) not in scope.accepted) for function, content in scope.asked.values()
        }
        found |= {row for row in map(dependency_of_generator, scope.generators.values()) if row is not None}
        found |= set(map(dependency_of_type, scope.types))
        return Recorded(frozenset(found), frozenset(scope.names))
    except Unidentifiable as error:
        return Recorded(problem=Unrepeatable(str(error)))


def _content_now(functions: Iterable[Any]) -> Recorded:
    try:
        return Recorded(frozenset(map(dependency_of, functions)))
    except Unidentifiable as error:
        return Recorded(problem=Unrepeatable(str(error)))


def _of_unrecorded(library: Any) -> Recorded:
    """Return the dependencies of code that was compiled outside all scopes."""
    if library.name.startswith(_PARTS):
        return Recorded()
    if not _History.is_known:
        defined = [f.name for f in library._final_module.functions if not f.is_declaration]
        if not all("_ZN5numba" in name or not name.startswith("_ZN") for name in defined):
            reason = f"it calls {library.name}, which was compiled before compcache.numba was installed"
            return Recorded(problem=Unidentifiable(reason))
    return _content_now(scopes.asked_early.values())
