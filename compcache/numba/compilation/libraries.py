"""Records the dependencies of each code library of this process, and the library that defines each symbol."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from numba.core.codegen import JITCodeLibrary

from compcache.numba.compilation import scopes
from compcache.numba.fingerprints.fixed_code import early_code
from compcache.numba.fingerprints.implementations import stable_name
from compcache.numba.identity.dependencies import Dependency, dependency_of, dependency_of_generator, dependency_of_type, names_created
from compcache.numba.identity.kept_results import Result, record_generators, record_results
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.numba.identity.linked import LinkedOverload, Loop

__all__ = [
    "ENVIRONMENT_PREFIX", "UNRESOLVED", "LibraryRecord", "add_linked", "collect_dependencies", "library_of", "record_library",
    "set_dependencies",
]  # fmt: skip

#: The prefix of the variables that contain environments.
ENVIRONMENT_PREFIX = "_ZN08NumbaEnv"
#: The prefix of Numba's slots for recursive calls. The rest of the name is the symbol of the callee.
UNRESOLVED = ".numba.unresolved$"


class LibraryRecord(NamedTuple):
    """The dependencies of a library's code.

    Attributes:
        dependencies: the implementations that the compiler used.
        names: the digests of the names that the compiler looked up.
        problem: the reason why the dependencies are unknown; None if they are known.
        linked: the overloads in the code.
        results: the results of implementations that Numba keeps.
        loops: the loops that the compiler has added to ufuncs, in order. The key of a caller contains the loops that its ufuncs had before.
    """

    dependencies: frozenset[Dependency] = frozenset()
    names: frozenset[int] = frozenset()
    problem: Unidentifiable | None = None
    linked: frozenset[LinkedOverload] = frozenset()
    results: frozenset[Result] = frozenset()
    loops: tuple[Loop, ...] = ()


#: The dependencies of each library's code.
_records: weakref.WeakKeyDictionary[Any, LibraryRecord] = weakref.WeakKeyDictionary()
#: The name prefixes of libraries that Numba creates for its runtime, or for parts of a function in the function's scope.
_INTERNAL_PREFIXES = ("nrt", "__numba_parfor_gufunc", "parallelgufuncwrapper")
#: The library that defines each symbol, for recursive calls across libraries.
_library_by_symbol: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def record_library(symbol: str, library: Any) -> None:
    """Record the library that defines a symbol."""
    _library_by_symbol[symbol] = library


def library_of(symbol: str) -> Any:
    """Return the library that defines a symbol, or None if this process has no such library."""
    return _library_by_symbol.get(symbol)


def set_dependencies(library: Any, recorded: LibraryRecord) -> None:
    """Set the dependencies of a library's code. The libraries that are linked into this library have their own records."""
    _records[library] = recorded


def add_linked(library: Any, overload: LinkedOverload) -> None:
    """Record that the code of a library, and all code that the library is linked into from now on, contains an overload."""
    recorded = collect_dependencies(library)
    _records[library] = recorded._replace(linked=recorded.linked | {overload})


def collect_dependencies(library: Any, scope: scopes.Scope | None = None) -> LibraryRecord:
    """Return the dependencies of a library's code and of the libraries that are linked into it; record the result for the library.

    If the dependencies of any part are unknown, `problem` gives the reason. `scope` is the scope of the library's compilation, whose
    records are added to the result; None after the compilation.
    """
    earlier = _records.get(library)
    if earlier is not None and scope is None:
        return earlier
    parts = [earlier] if earlier is not None else []
    parts += [_records.get(linked) or _unrecorded_dependencies(linked) for linked in _linking_libraries(library)]
    changed: set[Dependency] = set()
    if scope is None:
        parts.append(_present_dependencies(scopes.tried_outside_scopes.values()))
    else:
        if scope.problem:
            parts.append(LibraryRecord(problem=Unrepeatable(scope.problem)))
        of_scope = _dependencies_in_scope(scope)
        parts.append(of_scope)
        # A callee may depend on content that an implementation got during this compilation. Other processes start with the earlier content.
        changed = scope.changed - of_scope.dependencies
    problems = [part.problem for part in parts if part.problem is not None]
    results = {result for part in parts for result in part.results}
    dependencies = frozenset().union(*[part.dependencies for part in parts])
    created = names_created({name for name, _ in dependencies}, dependencies)
    changed |= {dependency for dependency in dependencies if dependency.name in created}
    _records[library] = LibraryRecord(
        dependencies=dependencies - changed,
        names=frozenset().union(*[part.names for part in parts]),
        problem=max(problems, key=lambda error: isinstance(error, Unrepeatable), default=None),  # the strictest one
        linked=frozenset().union(*[part.linked for part in parts]),
        results=frozenset([result for result in results if result.dependency not in changed]),
        loops=() if scope is None else tuple(scope.loops),
    )
    return _records[library]


def _linking_libraries(library: Any) -> Iterator[Any]:
    """Yield the libraries that are linked into a library, and those of its recursive callees that have a record.

    For a linked library without a record, also yield what is linked into it. Omit Numba's internal libraries without a record.
    """
    for linked in getattr(library, "_linking_libraries", ()):
        if linked not in _records:
            yield from _linking_libraries(linked)
        if linked in _records or not linked.name.startswith(_INTERNAL_PREFIXES):
            yield linked
    variables = library._final_module.global_variables if isinstance(library, JITCodeLibrary) and library._finalized else ()
    callees = [library_of(variable.name.removeprefix(UNRESOLVED)) for variable in variables if variable.name.startswith(UNRESOLVED)]
    yield from [callee for callee in callees if callee in _records]


def _dependencies_in_scope(scope: scopes.Scope) -> LibraryRecord:
    """Return the dependencies that a scope has recorded; only the problem if a dependency cannot be identified.

    The content of an implementation is its content before it ran. See `_results_in_scope` for implementations without an identity.
    """
    try:
        results = frozenset([result for function in scope.tried.values() for result in _results_in_scope(scope, function)])
        record_results([result for result in results if not result.arguments])
        unused = [function for id_, function in scope.tried.items() if id_ not in scope.used]
        dependencies = {dependency_of(function, declined=id(function) not in scope.accepted) for function in unused}
        dependencies |= {result.dependency for result in results}
        dependencies |= _generators_in_scope(scope)
        dependencies |= set(map(dependency_of_type, scope.types))
        return LibraryRecord(frozenset(dependencies), frozenset(scope.names), results=results)
    except Unidentifiable as error:
        return LibraryRecord(problem=Unrepeatable(str(error)))


def _generators_in_scope(scope: scopes.Scope) -> set[Dependency]:
    """Return the dependencies on the code generators that a scope has recorded.

    Raise `Unidentifiable` if one cannot be identified, or if values that it may read have changed during the compilation. It may have read
    any of them, and other processes start with the earlier values.
    """
    rows = [(function, before, dependency_of_generator(function)) for function, before in scope.generators.values()]
    dependencies = {after for _, _, after in rows if after is not None}
    record_generators(dependencies)
    changed = [function for function, before, after in rows if before != after]
    if dependencies:  # typing comes first, so it may have changed values of the generators, too
        known = [(function, scope.first_dependencies.get(id_)) for id_, function in scope.tried.items()]
        changed += [function for function, before in known if before is not None and before != dependency_of(function, declined=True)]
    if changed:
        raise Unidentifiable(f"{stable_name(changed[0])} changes values that it reads: let implementations change no variable")
    return dependencies


def _results_in_scope(scope: scopes.Scope, function: Any) -> Iterator[Result]:
    """Yield the results of an implementation that the compiler used in a scope.

    Raise `Unidentifiable` if the implementation could not be identified when it ran. If it declined the compiler's types, values that it
    reads as members of objects need no identity.
    """
    for arguments, dependency in scope.used.get(id(function), ()):
        if dependency is None or (dependency.is_declined and id(function) in scope.accepted):
            dependency_of(function)  # raises the error of that time, which `dependency_of` stores
            raise Unidentifiable(
                f"{stable_name(function)} read a value that cannot be compared between processes: pass the value as an argument"
            )
        yield Result(dependency, arguments)


def _present_dependencies(functions: Iterable[Any]) -> LibraryRecord:
    """Return the dependencies on implementations, each with its present content; only the problem if one cannot be identified."""
    try:
        return LibraryRecord(frozenset(map(dependency_of, functions)))
    except Unidentifiable as error:
        return LibraryRecord(problem=Unrepeatable(str(error)))


def _unrecorded_dependencies(library: Any) -> LibraryRecord:
    """Return the dependencies of a library that was compiled outside all scopes, or loaded from another cache.

    If loaded code contains a function that is not Numba's own, its dependencies are unknown. Numba's own cache does not compare the values
    that callees read. Compiled code without a record is that of stencils and of loops in object mode, or was compiled before recording
    began. Walks find the functions of the latter (`fixed_code.find_unknown_code`).
    """
    is_loaded = not any(_defined_functions(library._final_module))
    if is_loaded and any(name.startswith("_ZN") and "_ZN5numba" not in name for name in _defined_functions(library._shared_module)):
        return LibraryRecord(problem=Unidentifiable(early_code(library.name)))
    return _present_dependencies(scopes.tried_outside_scopes.values())


def _defined_functions(module: Any) -> Iterator[str]:
    """Yield the names of the functions that a module of LLVM defines. None counts as an empty module."""
    return (function.name for function in (() if module is None else module.functions) if not function.is_declaration)
