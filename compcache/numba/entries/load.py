"""Finds stored overloads in a cache directory, and converts them to Numba's objects.

Several entries may have the same key, because processes raced, or because source lines or implementations of an overload differ. The first
entry that is valid in this process is used.
"""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from numba.core import compiler, types
from numba.core.environment import Environment, lookup_environment
from numba.core.generators import GeneratorDescriptor

from compcache import frontend
from compcache.interrupts import suppress
from compcache.numba.compilation import libraries, native_code, scopes
from compcache.numba.entries.mapped_library import MappedLibrary, StoredLibrary, keep_mapped, make_entry_point, set_environments
from compcache.numba.identity.dependencies import Dependency, decode_names, is_current, matching_names
from compcache.numba.identity.kept_results import are_results_valid, decode_results, record_results_in
from compcache.numba.identity.linked import LinkedOverload, add_loops, decode_linked, linked_overload
from compcache.numba.identity.settings import requested_cpu
from compcache.numba.lazy.c_helpers import helper_address
from compcache.numba.lazy.description import DESCRIPTION, KIND_OBJECT, Description, Request
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compcache import Cache, TypedCallTarget
    from compcache.numba.fingerprints.history import Functions
    from compcache.numba.identity.key import Identity

__all__ = ["find_entry", "known_rejection", "load_library", "load_result", "run_image"]


#: Why this process cannot use entries that it has found, by their names and conditions.
_rejected: dict[tuple[Any, ...], str] = {}


def known_rejection(name: str, conditions: Sequence[Any]) -> str:
    """Return why this process cannot use an entry that it has found with this name and conditions; "" if it has found none."""
    return _rejected.get((name, *conditions), "")


def find_entry(
    cache: Cache, name: str, lines: str, implementations: str = "", *, is_new: bool = False,
    is_wanted: Callable[[Description], bool] = lambda _: True,
) -> tuple[TypedCallTarget, Description] | None:  # fmt: skip
    """Return the call target and the description of the first entry with a name that is valid in this process; None if there is none.

    `lines` is the digest of the source lines. Entries with the digest `implementations` (`Description.implementations`) are valid without a
    comparison of implementations; "" for none. `is_new` is whether this process has just stored the entry. `is_wanted` decides by a
    description, before its implementations are compared, whether the entry is of use to the caller. See `frontend.find` for exceptions.
    """

    def outdated_reason(description: Description) -> str:
        """Return why the caller cannot use an entry; "" if it can."""
        reason = _outdated_reason(description, is_new=is_new) if is_wanted(description) else "the caller has no use for the entry"
        if reason and not is_new:
            _rejected[name, description.cpu, description.lines, description.dependencies, description.asked, description.answered] = reason
        return reason

    request = Request(lines, requested_cpu(), implementations=implementations, outdated_reason=outdated_reason)
    target = frontend.find(cache, name, request.accepts, kind=DESCRIPTION, is_new=is_new)
    return (target, request.found) if target is not None and request.found is not None else None


def _outdated_reason(description: Description, *, is_new: bool) -> str:
    """Return why the compiler would use other implementations now; "" if it would use the implementations of the description.

    An entry that this process has just stored (`is_new`) must be valid in processes that start with the present values.
    """
    results = decode_results(description)
    for dependency in [Dependency(*row) for row in description.used]:
        try:
            arguments = [result.arguments for result in results if result.dependency == dependency]
            if not (is_current(dependency) if is_new else are_results_valid(dependency, arguments)):
                return f"the implementation {dependency.name} has changed since the code was compiled"
        except Unidentifiable as error:
            return f"the implementation {dependency.name} cannot be compared: {error}"
    added = set(matching_names(description.asked, description.used)) - set(description.answered)
    return f"the implementation {min(added)}, which the compiler may use, was registered since the code was compiled" if added else ""


def load_result(
    cache: Cache, entry_fields: Sequence[str], adapt_args: Callable[[tuple[Any, ...]], tuple[Any, ...]], owner: Any,
    target_context: Any, functions: Functions,
) -> Any:  # fmt: skip
    """Return the compile result of an entry, record its library and dependencies, and add the loops of ufuncs that the entry lists.

    The result is None if no entry is valid, or if the existing environment of the function has another number of constants. `entry_fields`
    has the name of the entry, the digest of the source lines and, if known, the implementations, as in `Request`. `adapt_args` returns the
    argument types in this process for those in the entry. `owner` is the dispatcher or callback, and `functions` are the functions in the
    code.
    Unpickling an entry, and importing the modules that it names, may raise any exception.
    """
    function = getattr(owner, "_compiler", owner).py_func
    entry = find_entry(cache, *entry_fields)
    if entry is None:
        return None
    target, description = entry
    record_results_in(description)
    kind, token, symbols, payload = pickle.loads(description.pickled)  # noqa: S301 - the cache was opened for it
    if token:
        scopes.record_token(token)
    if kind == KIND_OBJECT:
        for symbol in symbols:
            helper_address(symbol)  # starts Numba's threads; without them the code would call address 0
        target_context.refresh()
        generator_symbol, reduced = payload
        cres = compiler.CompileResult._rebuild(target_context, *reduced)
        if generator_symbol:
            cres = _restore_generator(cres, generator_symbol, function)
    else:
        cres = _create_compile_result(target, description, symbols, payload, function, target_context)
    if cres is not None:
        libraries.record_library(cres.fndesc.llvm_func_name, cres.library)
        cres = _replace_argument_types(cres, adapt_args(tuple(cres.signature.args)))
        own_overload = linked_overload(function, owner, cres.signature.args)
        libraries.set_dependencies(cres.library, _decode_dependencies(description, functions, own_overload))
        add_loops(description, functions)
    return cres


def _replace_argument_types(cres: Any, args: tuple[Any, ...]) -> Any:
    """Return a compile result with the requested argument types, and replace the types in its descriptor.

    Another number of types changes nothing. Numba may treat types with equal content as different. For example, the type of an omitted
    argument whose default value cannot be hashed equals only itself.
    """
    if tuple(cres.signature.args) == args or len(cres.signature.args) != len(args):
        return cres
    cres.fndesc.argtypes = args
    return cres._replace(signature=cres.signature.replace(args=args))


def _create_compile_result(
    target: TypedCallTarget, description: Description, symbols: tuple[str, ...], payload: Any, function: Any,
    target_context: Any,
) -> Any:  # fmt: skip
    """Return the compile result for a mapped image, or None if the environment of this process has another number of constants."""
    library_name, fndesc, env_name, constants, signature, annotation, referenced, *lifted = payload
    environment = _find_environment(env_name, constants, function)
    if environment is None:
        return None
    addresses = {symbol: target(number) for number, symbol in enumerate(symbols)}
    referenced_environments = [_find_referenced_environment(*row) for row in referenced]
    environments = {referred.env_name: referred for referred in referenced_environments} | {env_name: environment}
    library = MappedLibrary(target_context.codegen(), library_name, target, addresses, environments, description.bitcode)
    # Numba registers an entry point for each overload. If only compiled code calls the overload, the address is 0.
    address = library.address_in_image(fndesc.llvm_cpython_wrapper_name)
    entry_point = make_entry_point(address, library, fndesc, environment)
    return compiler.CompileResult(
        target_context=target_context, typing_context=target_context.typing_context, library=library,
        environment=environment, entry_point=entry_point, fndesc=fndesc, type_annotation=annotation,
        signature=signature, objectmode=False, lifted=lifted[0] if lifted else (), typing_error=None, call_helper=None, metadata=None,
        reload_init=[], referenced_envs=referenced_environments,
    )  # fmt: skip


def _find_environment(name: str, constants: list[Any], function: Any) -> Any:
    """Return the existing environment with this name, or a new environment with the function's globals.

    The result is None if the existing environment has another number of constants.
    """
    existing = lookup_environment(name)
    if existing is not None:
        return existing if len(existing.consts) == len(constants) else None
    return _register_environment(name, function.__globals__, constants)


def _find_referenced_environment(name: str, module: str | None, constants: list[Any]) -> Any:
    """Return the existing or a new environment of a function that was inlined into another function, or linked with it.

    A new environment has the globals of the module; no globals if `module` is None.
    """
    existing = lookup_environment(name)
    return existing if existing is not None else _register_environment(name, _environment_globals(module), constants)


def _register_environment(name: str, globals_: dict[str, Any], constants: list[Any]) -> Any:
    """Create an environment, and register it under its name."""
    environment = Environment(globals_)
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


def _environment_globals(module: str | None) -> dict[str, Any]:
    """Return the globals of an environment: those of a module, which is imported if necessary; empty if `module` is None.

    They contain only the name of a module that does not exist, as for functions that `exec` has created, and of a module of Numba that is
    not imported, because that would take a tenth of a second. Only user code in object mode reads the globals.
    """
    if module is None:
        return {}
    if not module.startswith("numba.") or module in sys.modules:
        with suppress(ImportError):
            return import_module(module).__dict__
    return {"__name__": module}


def _decode_dependencies(description: Description, functions: Functions, own_overload: LinkedOverload) -> libraries.LibraryRecord:
    """Return the dependencies in an entry's description, with the overload of the entry itself."""
    rows = frozenset([Dependency(*row) for row in description.used])
    linked = decode_linked(description, functions) | {own_overload}
    return libraries.LibraryRecord(rows, decode_names(description.asked), None, linked, frozenset(decode_results(description)))


def run_image(cache: Cache, name: str, description: Description, symbols: tuple[str, ...], library: Any) -> None:
    """Make this process run the stored code of a library, which it has just stored, so that no machine code is generated for the library.

    Do nothing if the entry has no usable image. `symbols` are the symbols of the image, by number.
    """
    request = Request("", only=description)
    target = frontend.find(cache, name, request.accepts, kind=DESCRIPTION, is_new=True)
    if target is None or request.found is None:
        return
    addresses = {symbol: target(number) for number, symbol in enumerate(symbols)}
    environments = {symbol: lookup_environment(symbol) for symbol in symbols}
    set_environments(addresses, environments)
    keep_mapped(target)
    native_code.attach_image(library, addresses)


def load_library(cache: Cache, identity: Identity, name: str, target_context: Any) -> Any:
    """Return a stored code library, or None if no entry is valid. See `load_result` for exceptions."""
    entry = find_entry(cache, name, identity.lines)
    if entry is None:
        return None
    target, description = entry
    record_results_in(description)
    kind, _, symbols, payload = pickle.loads(description.pickled)  # noqa: S301 - the cache was opened for it
    target_context.refresh()
    codegen = target_context.codegen()
    if kind == KIND_OBJECT:
        return codegen.unserialize_library(payload)
    library_name, rows = payload
    addresses = {symbol: target(number) for number, symbol in enumerate(symbols)}
    environments = {env_name: _find_referenced_environment(env_name, module, constants) for env_name, module, constants in rows}
    library = MappedLibrary(codegen, library_name, target, addresses, environments, description.bitcode)
    library.stored = StoredLibrary(name, identity.lines, description, symbols, {env_name: constants for env_name, _, constants in rows})
    return library


def _restore_generator(cres: Any, symbol: str, function: Any) -> Any:
    """Register the generator of a loaded compile result, so that callers can be compiled. Return the result with the new generator type.

    Numba keeps what callers need in the context in which the generator was compiled. Numba's own cache does not restore this data, so the
    compilation of a caller fails with a `KeyError`. Numba distinguishes generator types by their functions. Therefore the type is created
    again for the function of this process. The new type also replaces the result type in the descriptor of `cres`. `symbol` implements
    `next`.
    """
    context, stored = cres.target_context, cres.signature.return_type
    kind = types.Generator(function, stored.yield_type, stored.arg_types, stored.state_types, stored.has_finalizer)
    cres.fndesc.restype = kind
    descriptor = GeneratorDescriptor.from_generator_fndesc(None, cres.fndesc, kind, context.mangler)
    descriptor.mangled_name = symbol
    context.insert_generator(kind, descriptor, [cres.library])
    return cres._replace(signature=cres.signature.replace(return_type=kind))
