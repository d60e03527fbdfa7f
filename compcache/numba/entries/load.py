"""Finds stored overloads in a cache directory, and converts them to Numba's objects.

Several entries of one key may coexist (racing processes, other source lines, other implementations of an overload): the
first one that is valid in this process is used.
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
from compcache.numba.identity.settings import chosen_cpu
from compcache.numba.lazy.description import DESCRIPTION, KIND_OBJECT, Description, Request
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from compcache import Cache, TypedCallTarget
    from compcache.numba.identity.key import Identity

__all__ = ["find", "load_library", "load_result", "run_image", "with_types"]


def find(
    cache: Cache, name: str, lines: str, implementations: str = "", *, is_new: bool = False
) -> tuple[TypedCallTarget, Description] | None:
    """Return the first entry of this name that is valid in this process; one with these implementations
    (`Description.implementations`) is.
    """
    request = Request(lines, chosen_cpu(), implementations=implementations, outdated=_why_outdated)
    target = frontend.find(cache, name, request.accepts, kind=DESCRIPTION, is_new=is_new)
    return (target, request.found) if target is not None and request.found is not None else None


def _why_outdated(description: Description) -> str:
    """Return why the compiler would use other implementations now; "" if it would use the same."""
    for dependency in [Dependency(*row) for row in description.dependencies]:
        try:
            if not is_current(dependency):
                return f"the implementation {dependency.name}, which the compiler used, has changed"
        except Unidentifiable as error:
            return f"the implementation {dependency.name} cannot be compared: {error}"
    new = set(matching_names(description.asked)) - set(description.answered)
    return f"the implementation {min(new)} is new, and the compiler would have used it" if new else ""


def load_result(
    cache: Cache, name: str, lines: str, args: tuple[Any, ...], function: Any, target_context: Any, implementations: str = ""
) -> Any:
    """Return the compile result of an entry for these types of arguments; None if there is no valid one.

    `lines` and `implementations` are those of a `Request`.
    """
    found = find(cache, name, lines, implementations)
    if found is None:
        return None
    target, description = found
    kind, token, symbols, payload = pickle.loads(description.pickled)  # noqa: S301 - the cache was opened for it
    if token:
        scopes.remember(token)
    if kind == KIND_OBJECT:
        for symbol in symbols:
            helper_address(symbol)  # starts the threads, without which the code would call address 0
        target_context.refresh()
        generator_symbol, reduced = payload
        cres = compiler.CompileResult._rebuild(target_context, *reduced)
        if generator_symbol:
            cres = restore_generator(cres, generator_symbol, function)
    else:
        cres = _result_of_image(target, description, symbols, payload, function, target_context)
    if cres is not None:
        libraries.set_dependencies(cres.library, _recorded(description))
        libraries.remember_library(cres.fndesc.llvm_func_name, cres.library)
        cres = with_types(cres, args)
    return cres


def with_types(cres: Any, args: tuple[Any, ...]) -> Any:
    """Return a compile result with the requested types themselves, because Numba may consider types of equal content different.

    For example, the type of an omitted argument is equal only to itself if the default cannot be hashed.
    """
    if tuple(cres.signature.args) == args or len(cres.signature.args) != len(args):
        return cres
    cres.fndesc.argtypes = args
    return cres._replace(signature=cres.signature.replace(args=args))


def _result_of_image(
    target: TypedCallTarget, description: Description, symbols: tuple[str, ...], payload: Any, function: Any,
    target_context: Any,
) -> Any:  # fmt: skip
    library_name, fndesc, env_name, constants, signature, annotation, referenced, *lifted = payload
    environment = _environment(env_name, constants, function)
    if environment is None:
        return None
    addresses = {symbol: target(number) for number, symbol in enumerate(symbols)}
    others = [_environment_of(*row) for row in referenced]
    environments = {e.env_name: e for e in others} | {env_name: environment}
    library = MappedLibrary(target_context.codegen(), library_name, target, addresses, environments, description.bitcode)
    # Numba registers one for each overload, also where only compiled code calls that: address 0.
    address = library.address_in_image(fndesc.llvm_cpython_wrapper_name)
    entry_point = make_entry_point(address, library, fndesc, environment)
    return compiler.CompileResult(
        target_context=target_context, typing_context=target_context.typing_context, library=library,
        environment=environment, entry_point=entry_point, fndesc=fndesc, type_annotation=annotation,
        signature=signature, objectmode=False, lifted=lifted[0] if lifted else (), typing_error=None, call_helper=None, metadata=None,
        reload_init=[], referenced_envs=others,
    )  # fmt: skip


def _environment(name: str, constants: list[Any], function: Any) -> Any:
    """Return the environment of a function: the one in this process, else a new one with the function's globals."""
    known = lookup_environment(name)
    if known is not None:
        return known if len(known.consts) == len(constants) else None
    environment = Environment(function.__globals__)
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


def _globals_of(module: str | None) -> dict[str, Any]:
    """Return the globals of an environment. Compiled code does not read them; object mode does, in user code only.

    So Numba's own modules are not imported for them: that would take a tenth of a second for the usual ones.
    """
    if module is None:
        return {}
    if module.startswith("numba.") and module not in sys.modules:
        return {"__name__": module}
    return import_module(module).__dict__


def _environment_of(name: str, module: str | None, constants: list[Any]) -> Any:
    """Return the environment of a function that was inlined or linked into this one."""
    known = lookup_environment(name)
    if known is not None:
        return known
    environment = Environment(_globals_of(module))
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


def _recorded(description: Description) -> libraries.Recorded:
    rows = [Dependency(*row) for row in description.dependencies]
    return libraries.Recorded(frozenset(rows), decode_names(description.asked))


def run_image(cache: Cache, name: str, description: Description, symbols: tuple[str, ...], library: Any) -> None:
    """Let this process run the code of a library that was just stored, so that no code is generated for it."""
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
    """Return a stored code library; None if no valid one exists."""
    found = find(cache, name, identity.lines)
    if found is None:
        return None
    target, description = found
    kind, _, symbols, payload = pickle.loads(description.pickled)  # noqa: S301 - the cache was opened for it
    target_context.refresh()
    codegen = target_context.codegen()
    if kind == KIND_OBJECT:
        return codegen.unserialize_library(payload)
    library_name, rows = payload
    addresses = {symbol: target(number) for number, symbol in enumerate(symbols)}
    environments = {row[0]: _environment_of(*row) for row in rows}
    library = MappedLibrary(codegen, library_name, target, addresses, environments, description.bitcode)
    library.stored = Stored(name, identity.lines, description, symbols, {env_name: constants for env_name, _, constants in rows})
    return library
