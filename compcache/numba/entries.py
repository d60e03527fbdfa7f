"""Stores compiled overloads in a cache directory, and makes Numba's objects of what is found there.

An entry is a module of the cache under a name that people can read and that ends with the overload's key. Its image
holds the machine code where that can live in a shared object; else the object code, as Numba serializes it, is part of
the description. Several entries of one key may coexist (racing processes, other source lines, other implementations of
an overload): the first one that holds in this process is taken.
"""

from __future__ import annotations

import pickle
import re
import sys
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

from numba.core import compiler, serialize
from numba.core.environment import Environment, lookup_environment

from compcache.errors import CompcacheError, CompileError, LinkError, NotCachedError
from compcache.numba import scopes
from compcache.numba.definitions import Description, request
from compcache.numba.libraries import ImageLibrary
from compcache.numba.overloads import decode_names, encode_names, who_answers

if TYPE_CHECKING:
    from compcache.cache import Cache
    from compcache.numba.identity import Identity
    from compcache.numba.overloads import Dependency
    from compcache.target import TypedCallTarget

__all__ = [
    "NotCacheable",
    "find",
    "func_name_of",
    "label_of",
    "load_library",
    "load_result",
    "save_library",
    "save_result",
]

_IMAGE, _OBJECT = 1, 2
_MAX_SHOWN = 400  # characters of a signature in a name
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in what Numba prints of types


class NotCacheable(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when a compiled overload cannot be stored; the message says why."""


def label_of(name: str, signature: Any) -> str:
    """A function with the types of its arguments, as people know it: ``pkg.mod.f(int64, float64)``."""
    shown = ", ".join(map(str, getattr(signature, "args", signature)))
    if len(shown) > _MAX_SHOWN:
        shown = f"{shown[:_MAX_SHOWN]}..."
    return f"{name}({shown})"


def func_name_of(identity: Identity, signature: Any) -> str:
    """The name of an entry, for example ``pkg.mod.f(int64, float64)-3f9c...``.

    It has the form in which `compcache explain` recognizes variants of one function.
    """
    return f"{label_of(identity.name, signature)}-{identity.key}"


# ------------------------------------------------------------------------ finding


def find(cache: Cache, name: str, lines: str) -> tuple[TypedCallTarget, Description] | None:
    """The first entry of this name that holds in this process."""
    request.lines, request.found = lines, None
    try:
        target = cache._load(name)
        found = request.found
    except NotCachedError:
        return None
    except CompcacheError:
        return None  # every candidate was passed over
    finally:
        request.lines, request.found = None, None
    return (target, found) if found is not None else None


def load_result(cache: Cache, identity: Identity, name: str, function: Any, target_context: Any) -> Any:
    """The compile result of an entry; None where there is none that holds."""
    found = find(cache, name, identity.lines)
    if found is None:
        return None
    target, description = found
    kind, token, symbols, payload = pickle.loads(description.pickled)  # noqa: S301 - the cache was opened for it
    if token:
        scopes.remember(token)
    if kind == _OBJECT:
        target_context.refresh()
        cres = compiler.CompileResult._rebuild(target_context, *payload)
    else:
        cres = _result_of_image(target, description, symbols, payload, function, target_context)
    if cres is not None:
        scopes.set_dependencies(cres.library, _recorded(description))
        scopes.remember_library(cres.fndesc.llvm_func_name, cres.library)
    return cres


def _result_of_image(
    target: TypedCallTarget, description: Description, symbols: tuple[str, ...], payload: Any, function: Any,
    target_context: Any,
) -> Any:  # fmt: skip
    library_name, fndesc, env_name, constants, signature, annotation, referenced = payload
    environment = _environment(env_name, constants, function)
    if environment is None:
        return None
    addresses = {symbol: target(number) for number, symbol in enumerate(symbols)}
    others = [_environment_of(*row) for row in referenced]
    environments = {e.env_name: e for e in others} | {env_name: environment}
    library = ImageLibrary(
        target_context.codegen(), library_name, target, addresses, environments, description.bitcode
    )
    entry_point = _make_entry_point(library, fndesc, environment)
    return compiler.CompileResult(
        target_context=target_context, typing_context=target_context.typing_context, library=library,
        environment=environment, entry_point=entry_point, fndesc=fndesc, type_annotation=annotation,
        signature=signature, objectmode=False, lifted=(), typing_error=None, call_helper=None, metadata=None,
        reload_init=[], referenced_envs=others,
    )  # fmt: skip


def _make_entry_point(library: ImageLibrary, fndesc: Any, environment: Any) -> Any:
    """What Python calls. Numba registers one for each overload, also where only compiled code calls that: address 0."""
    from numba import _dynfunc

    address = library.address_in_image(fndesc.llvm_cpython_wrapper_name)
    doc = f"compiled wrapper for {fndesc.qualname!r}"
    name = fndesc.qualname.split(".")[-1]
    return _dynfunc.make_function(fndesc.lookup_module(), name, doc, address, environment, (library,))


def _environment(name: str, constants: list[Any], function: Any) -> Any:
    """The environment of a function: the one that this process has, else a new one over the function's globals."""
    known = lookup_environment(name)
    if known is not None:
        return known if len(known.consts) == len(constants) else None
    environment = Environment(function.__globals__)
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


def _globals_of(module: str | None) -> dict[str, Any]:
    """The globals of an environment. Compiled code reads none of them; object mode, which does, is the user's.

    Hence a module of Numba's own is not imported for it: that would take a tenth of a second for the usual ones.
    """
    if module is None:
        return {}
    if module.startswith("numba.") and module not in sys.modules:
        return {"__name__": module}
    return import_module(module).__dict__


def _environment_of(name: str, module: str | None, constants: list[Any]) -> Any:
    """The environment of a function that was compiled into this one."""
    known = lookup_environment(name)
    if known is not None:
        return known
    environment = Environment(_globals_of(module))
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


# ------------------------------------------------------------------------- saving


def save_result(cache: Cache, identity: Identity, name: str, cres: Any) -> None:
    """Store a compile result.

    Raises:
        NotCacheable: it holds what only this process has.
        CompcacheError: it could not be stored.
    """
    if any(not lifted.can_cache for lifted in cres.lifted or ()):
        raise NotCacheable("it uses lifted code")
    library = cres.library
    if library.has_dynamic_globals:
        raise NotCacheable("it uses dynamic globals (such as ctypes pointers and large global arrays)")
    from compcache.numba import images

    recorded = scopes.dependencies_of(library)
    checked = _checked(identity.lines if _tells_lines(cres) else "", recorded)
    token = _token_of(cres)
    source, payload = _image_of(cres)
    if source is not None:
        bitcode = zlib.compress(library._get_module_for_linking().as_bitcode(), 1)
        pickled = _pickle((_IMAGE, token, source.symbols, payload))
        try:
            _publish(cache, identity, name, cres.signature, source, Description(*checked, pickled, bitcode))
        except (CompileError, LinkError):
            source = None  # what LLVM or the linker do not take as a shared object is kept as an object
    if source is None:
        if images.lacks_callee(library):
            raise NotCacheable("it calls a recursive function that is not part of its object")
        pickled = _pickle((_OBJECT, token, (), _reduce(cres)))
        _publish(cache, identity, name, cres.signature, None, Description(*checked, pickled, b""))


def _checked(
    lines: str, recorded: scopes.Recorded
) -> tuple[str, tuple[Dependency, ...], bytes, tuple[str, ...]]:
    """What is checked when the entry is loaded."""
    if recorded.problem:
        raise NotCacheable(recorded.problem)
    asked = encode_names(recorded.names)
    return lines, tuple(sorted(recorded.dependencies)), asked, who_answers(asked)


def _recorded(description: Description) -> scopes.Recorded:
    return scopes.Recorded(frozenset(description.dependencies), decode_names(description.asked))


def _pickle(value: Any) -> bytes:
    try:
        pickled: bytes = serialize.dumps(value)
    except Exception as error:
        raise NotCacheable(f"Numba's description of it cannot be pickled: {error}") from error
    return pickled


def _shown(signature: Any) -> str:
    """A signature as Numba's users write it."""
    result = "void" if str(signature.return_type) == "none" else signature.return_type
    text = f"{result}({', '.join(map(str, signature.args))})"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _publish(
    cache: Cache, identity: Identity, name: str, signature: Any, source: Any, description: Description
) -> None:
    from compcache.module import Function, ModuleSource
    from compcache.numba import images

    text = source.text if source else images.describe_module()
    globals_ = dict(source.globals) if source else {}
    cache.add_module(ModuleSource(
        text,
        {name: Function("ptr(i64)", symbol=images.ADDRESS, shown=_shown(signature))},
        {**globals_, images.DESCRIPTION: description},
        optimize=0,
        identity=identity.components,
    ))  # fmt: skip


def _token_of(cres: Any) -> str:
    uid = getattr(cres.fndesc, "uid", None)
    return uid if isinstance(uid, str) and "x" not in uid else ""


def _tells_lines(cres: Any) -> bool:
    """Whether running the code can tell where its source stands: exceptions carry it, debug information does."""
    module = cres.library._final_module
    if any(v.name.startswith((".const.picklebuf.", ".const.pickledata.")) for v in module.global_variables):
        return True
    return cres.objectmode or bool(cres.lifted) or "!DICompileUnit(" in str(module)


def _image_of(cres: Any) -> tuple[Any, Any]:
    """The image's source and the description's payload; None where the code cannot live in an image."""
    from compcache.numba import images

    fndesc = cres.fndesc
    try:
        module = images.with_recursive_callees(cres.library)
    except images.MissingCallee as error:
        raise NotCacheable(str(error)) from error
    if cres.objectmode or cres.lifted or cres.reload_init or hasattr(cres.signature.return_type, "gen_func"):
        return None, None
    wanted = (fndesc.llvm_cpython_wrapper_name, fndesc.llvm_cfunc_wrapper_name, fndesc.llvm_func_name)
    try:
        source = images.prepare_image(module, wanted)
    except images.CannotLink:
        return None, None
    own = cres.environment
    referenced = []
    for env_name in source.environments:
        environment = lookup_environment(env_name)
        if environment is None or env_name == own.env_name:
            continue
        module = environment.globals.get("__name__")
        if module is None and not _is_array_expression(env_name):
            raise NotCacheable(f"it uses {env_name}, whose module has no name")
        referenced.append((env_name, module, list(environment.consts)))
    return source, (
        cres.library.name, _clean(fndesc), own.env_name, list(own.consts), cres.signature,
        _ADDRESS.sub("", str(cres.type_annotation)),
        tuple(referenced),
    )  # fmt: skip


def _is_array_expression(env_name: str) -> bool:
    """Numba compiles array expressions as functions of no module; they read no globals when they run."""
    return "__numba_array_expr" in env_name


def _clean(fndesc: Any) -> Any:
    """The descriptor without what cannot be pickled, as Numba itself stores it."""
    fndesc.typemap = fndesc.calltypes = None
    if fndesc.global_dict is None:
        return fndesc
    import copy

    clean = copy.copy(fndesc)
    clean.global_dict = None
    return clean


def _reduce(cres: Any) -> Any:
    if not cres.environment.can_cache():
        raise NotCacheable("its module has no name")
    return cres._reduce()


# ------------------------------------------------------- libraries without a result


def save_library(
    cache: Cache, identity: Identity, name: str, signature: Any, library: Any, recorded: scopes.Recorded
) -> None:
    """Store a code library (the wrapper of a gufunc). Raises as `save_result` does."""
    if library.has_dynamic_globals:
        raise NotCacheable("it uses dynamic globals")
    pickled = serialize.dumps((_OBJECT, "", (), library.serialize_using_object_code()))
    description = Description(*_checked(identity.lines, recorded), pickled, b"")
    _publish(cache, identity, name, signature, None, description)


def load_library(cache: Cache, identity: Identity, name: str, target_context: Any) -> Any:
    """A stored code library; None where there is none that holds."""
    found = find(cache, name, identity.lines)
    if found is None:
        return None
    _, _, _, payload = pickle.loads(found[1].pickled)  # noqa: S301 - the cache was opened for it
    target_context.refresh()
    return target_context.codegen().unserialize_library(payload)
