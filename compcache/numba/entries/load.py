"""Finds stored overloads in a cache directory, and converts them to Numba's objects.

Several entries may have the same key: racing processes, other source lines, or other implementations of an overload. The first entry that
is valid in this process is used.
"""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from numba.core import compiler
from numba.core.environment import Environment, lookup_environment

from compcache import frontend
from compcache.numba.compilation import libraries, native_code, scopes
from compcache.numba.entries.generators import restore_generator
from compcache.numba.entries.helper_symbols import helper_address
from compcache.numba.entries.mapped_library import MappedLibrary, Stored, keep_mapped, make_entry_point, set_environments
from compcache.numba.identity.dependencies import Dependency, decode_names, is_current, matching_names
from compcache.numba.identity.settings import requested_cpu
from compcache.numba.lazy.description import DESCRIPTION, KIND_OBJECT, Description, Request
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from compcache import Cache, TypedCallTarget
    from compcache.numba.identity.key import Identity

__all__ = ["find", "load_library", "load_result", "run_image", "with_types"]


def find(
    cache: Cache, name: str, lines: str, implementations: str = "", *, is_new: bool = False
) -> tuple[TypedCallTarget, Description] | None:
    """Return the first entry with a name that is valid in this process.

    Args:
        cache: the cache.
        name: the name of the entry.
        lines: the digest of the source lines.
        implementations: if not "", only an entry with these implementations is valid (`Description.implementations`).
        is_new: whether this process has just stored the entry.

    Returns:
        The target of its image, and its description; None if no entry is valid.
    """
    request = Request(lines, requested_cpu(), implementations=implementations, outdated=_why_outdated)
    target = frontend.find(cache, name, request.accepts, kind=DESCRIPTION, is_new=is_new)
    return (target, request.found) if target is not None and request.found is not None else None


def _why_outdated(description: Description) -> str:
    """Return why the compiler would use other implementations now, or "" if it would use the same implementations."""
    for dependency in [Dependency(*row) for row in description.dependencies]:
        try:
            if not is_current(dependency):
                return f"the implementation {dependency.name} has changed since the code was compiled"
        except Unidentifiable as error:
            return f"the implementation {dependency.name} cannot be compared: {error}"
    added = set(matching_names(description.asked)) - set(description.answered)
    return f"the implementation {min(added)}, which the compiler may use, was registered since the code was compiled" if added else ""


def load_result(
    cache: Cache, name: str, lines: str, args: tuple[Any, ...], function: Any, target_context: Any, implementations: str = ""
) -> Any:
    """Return the compile result of an entry.

    Args:
        cache: the cache.
        name: the name of the entry.
        lines: the digest of the source lines, as in `Request`.
        args: the types of the arguments.
        function: the Python function.
        target_context: Numba's target context.
        implementations: as in `Request`.

    Returns:
        The compile result, or None if no entry is valid.
    """
    entry = find(cache, name, lines, implementations)
    if entry is None:
        return None
    target, description = entry
    kind, token, symbols, payload = pickle.loads(description.pickled)  # noqa: S301 - the cache was opened for it
    if token:
        scopes.record_token(token)
    if kind == KIND_OBJECT:
        for symbol in symbols:
            helper_address(symbol)  # this starts the threads; without them the code would call address 0
        target_context.refresh()
        generator_symbol, reduced = payload
        cres = compiler.CompileResult._rebuild(target_context, *reduced)
        if generator_symbol:
            cres = restore_generator(cres, generator_symbol, function)
    else:
        cres = _create_compile_result(target, description, symbols, payload, function, target_context)
    if cres is not None:
        libraries.set_dependencies(cres.library, _decode_dependencies(description))
        libraries.remember_library(cres.fndesc.llvm_func_name, cres.library)
        cres = with_types(cres, args)
    return cres


def with_types(cres: Any, args: tuple[Any, ...]) -> Any:
    """Return a compile result with the requested types, because Numba may treat types with equal content as different.

    For example, the type of an omitted argument equals only itself if the default cannot be hashed.
    """
    if tuple(cres.signature.args) == args or len(cres.signature.args) != len(args):
        return cres
    cres.fndesc.argtypes = args
    return cres._replace(signature=cres.signature.replace(args=args))


def _create_compile_result(
    target: TypedCallTarget, description: Description, symbols: tuple[str, ...], payload: Any, function: Any,
    target_context: Any,
) -> Any:  # fmt: skip
    """Return the compile result for a mapped image, or None if this process has an environment with other constants."""
    library_name, fndesc, env_name, constants, signature, annotation, referenced, *lifted = payload
    environment = _find_environment(env_name, constants, function)
    if environment is None:
        return None
    addresses = {symbol: target(number) for number, symbol in enumerate(symbols)}
    others = [_make_environment(*row) for row in referenced]
    environments = {e.env_name: e for e in others} | {env_name: environment}
    library = MappedLibrary(target_context.codegen(), library_name, target, addresses, environments, description.bitcode)
    # Numba registers an entry point for each overload, even if only compiled code calls it. Its address is 0 then.
    address = library.address_in_image(fndesc.llvm_cpython_wrapper_name)
    entry_point = make_entry_point(address, library, fndesc, environment)
    return compiler.CompileResult(
        target_context=target_context, typing_context=target_context.typing_context, library=library,
        environment=environment, entry_point=entry_point, fndesc=fndesc, type_annotation=annotation,
        signature=signature, objectmode=False, lifted=lifted[0] if lifted else (), typing_error=None, call_helper=None, metadata=None,
        reload_init=[], referenced_envs=others,
    )  # fmt: skip


def _find_environment(name: str, constants: list[Any], function: Any) -> Any:
    """Return the environment of a function: the existing one, or a new one with the function's globals; None if the constants differ."""
    known = lookup_environment(name)
    if known is not None:
        return known if len(known.consts) == len(constants) else None
    environment = Environment(function.__globals__)
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


def _globals_of(module: str | None) -> dict[str, Any]:
    """Return the globals of an environment. Compiled code does not read them. Object mode reads them, but only in user code.

    Therefore Numba's own modules are not imported here. That would take a tenth of a second for the usual modules.
    """
    if module is None:
        return {}
    if module.startswith("numba.") and module not in sys.modules:
        return {"__name__": module}
    return import_module(module).__dict__


def _make_environment(name: str, module: str | None, constants: list[Any]) -> Any:
    """Return the environment of a function that was inlined into another function or linked with it: the existing one, or a new one."""
    known = lookup_environment(name)
    if known is not None:
        return known
    environment = Environment(_globals_of(module))
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


def _decode_dependencies(description: Description) -> libraries.Recorded:
    """Return the dependencies in the description of an entry."""
    rows = [Dependency(*row) for row in description.dependencies]
    return libraries.Recorded(frozenset(rows), decode_names(description.asked))


def run_image(cache: Cache, name: str, description: Description, symbols: tuple[str, ...], library: Any) -> None:
    """Make this process run the stored code of a library that was just stored, so that no code is generated for it."""
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
    """Return a stored code library, or None if no entry is valid."""
    entry = find(cache, name, identity.lines)
    if entry is None:
        return None
    target, description = entry
    kind, _, symbols, payload = pickle.loads(description.pickled)  # noqa: S301 - the cache was opened for it
    target_context.refresh()
    codegen = target_context.codegen()
    if kind == KIND_OBJECT:
        return codegen.unserialize_library(payload)
    library_name, rows = payload
    addresses = {symbol: target(number) for number, symbol in enumerate(symbols)}
    environments = {row[0]: _make_environment(*row) for row in rows}
    library = MappedLibrary(codegen, library_name, target, addresses, environments, description.bitcode)
    library.stored = Stored(name, identity.lines, description, symbols, {env_name: constants for env_name, _, constants in rows})
    return library
