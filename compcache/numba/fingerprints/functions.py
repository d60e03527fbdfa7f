"""Feeds functions to a walk: their code, and the values that the code, the defaults and the closure cells refer to.

All functions that feed or record raise `Unidentifiable` if a value has no identity by content.
"""

from __future__ import annotations

import sys
import types as python_types
from importlib import import_module
from opcode import opmap

from compcache.digest import blake2b
from compcache.numba.fingerprints import COMPILED, RUN
from compcache.numba.fingerprints.code_digest import code_and_nested, digest_and_reads, plain_name, reported_file
from compcache.numba.fingerprints.stand_ins import is_declared_as, is_module_of_generators, reads_object_mode
from compcache.numba.fingerprints.values import is_defined_by_text
from compcache.numba.registered.code_reads import MISSING, cells_of, functions_to_compile, is_part_of_hash, resolve
from compcache.numba.registered.library import (
    full_name,
    is_generator_module,
    is_library_function,
    is_library_module,
    is_made_by_library,
    package_of,
)
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.numba.fingerprints.walk import Walk
    from compcache.numba.registered.code_reads import Reads

    #: The names of a chain of attributes, its value, and the number of names that lead to the value.
    Chain = tuple[tuple[str, ...], Any, int]

__all__ = ["feed_function", "find_registrations"]

_MATCH_CLASS = opmap["MATCH_CLASS"]
#: Names of Numba's settings, or of objects that contain them.
_SETTINGS = frozenset(("NUMBA_NUM_THREADS", "config"))
#: Numba's decorators of functions that only compiled code calls.
_COMPILING = frozenset(("jit", "njit", "register_jitable"))
_SHOWN = frozenset((bool, int, str, bytes, type(Ellipsis), float, complex))
_MAX_SHOWN = 100


def feed_function(walk: Walk, function: Any, where: str) -> None:
    """Feed one function in the present mode of the walk: its code, defaults and closure cells, and for running code its attributes.

    A reviewed function of a library has created some functions that run. Their names stand for their code.
    `where` describes the first value that refers to the function; it is "" for the fingerprinted function.

    Raise `Unidentifiable` if a value that the function reads has no identity by content.
    """
    code, name = function.__code__, full_name(function)
    walk.feed_token("def", walk.mode, function.__module__, plain_name(function.__qualname__))
    if walk.mode == RUN and function.__name__ != code.co_name:
        walk.feed_token("name", function.__name__)
    if walk.mode == RUN and _is_made_by_reviewed_function(function):  # only the values of its closure belong to the program
        walk.feed_token("closure of a library", function.__globals__["__name__"], code.co_qualname)
    else:
        _feed_code(walk, code, function.__globals__, name)
    for number, value in enumerate(function.__defaults__ or ()):
        walk.feed_token("default")
        _feed_read_value(walk, value, f"the default {number + 1} of {name}")
    for key, value in sorted((function.__kwdefaults__ or {}).items()):
        walk.feed_token("kw", key)
        _feed_read_value(walk, value, f"the default of {key!r} of {name}")
    _feed_cells(walk, function, name)
    if walk.mode == RUN and (function.__dict__ or _has_annotations(function) or function.__doc__ not in (None, *code.co_consts)):
        walk.reach().refer_to_owner(walk, function, name)
    if where:
        walk.reads.setdefault(where, name)


def _has_annotations(function: python_types.FunctionType) -> bool:
    """Return whether a function has annotations, without evaluating them. On Python 3.14, assigned annotations do not count."""
    if sys.version_info >= (3, 14):
        return getattr(function, "__annotate__", None) is not None
    return bool(function.__annotations__)


def _is_made_by_reviewed_function(function: Any) -> bool:
    """Return whether a reviewed function of a library has created a function, such as the `__repr__` of a data class."""
    if not is_made_by_library(function):
        return False
    from compcache.numba.registered.reviewed import REVIEWED_MODULES  # most starts do not need it

    exceptions = REVIEWED_MODULES.get(function.__globals__.get("__name__"))
    return exceptions is not None and function.__code__.co_qualname.partition(".")[0] not in exceptions.split()


def _feed_cells(walk: Walk, function: Any, name: str) -> None:
    """Feed the closure cells of a function, except `DIFFERING_VALUES`. A function in a cell of running library code counts as compiled."""
    attributes = _all_attributes(function.__code__)
    compiles = walk.mode == RUN and is_made_by_library(function)  # such as Numba's closure around a user's function
    for variable, value in cells_of(function):
        where = f"the variable {variable!r} that {name} closes over"
        walk.feed_token("empty cell" if value is MISSING else "cell", variable)
        if value is MISSING or _differs_between_processes(function, variable):
            continue
        if compiles and isinstance(value, python_types.FunctionType):
            walk.refer_to_function(value, where, COMPILED)
        else:
            _feed_read_value(walk, value, where, attributes)


def _differs_between_processes(function: Any, variable: str) -> bool:
    """Return whether `DIFFERING_VALUES` lists a closure variable of a library's function. No result depends on its value."""
    if not is_made_by_library(function):
        return False
    from compcache.numba.registered.reviewed import DIFFERING_VALUES

    return f"{function.__globals__.get('__name__')}.{variable}" in DIFFERING_VALUES


def _all_attributes(code: python_types.CodeType) -> tuple[str, ...]:
    """Return the names of all attributes that a code object and its nested code objects read."""
    return tuple(dict.fromkeys([name for part in code_and_nested(code) for name in digest_and_reads(part)[1].attributes]))


def _feed_code(walk: Walk, code: python_types.CodeType, namespace: dict[str, Any], name: str) -> None:
    """Feed a code object, its nested code objects, and the values that they read. `namespace` are the globals, `name` the function."""
    digest, reads = digest_and_reads(code)
    walk.feed_token("code", digest)
    if walk.mode != RUN and code is walk.compiled.__code__:
        walk.reads[f"the code of {name}"] = digest.hex()
    walk.files.update(f"{reported_file(code, namespace)}:".encode("utf-8", "surrogatepass"))
    walk.lines.update(f"{code.co_firstlineno}:".encode())
    walk.lines.update(code.co_linetable)
    chains = _chains_of(walk, code, namespace)
    if reads_object_mode(chains):
        walk.function_has_object_mode = walk.has_object_mode = True
    if walk.mode == RUN:
        _record_reads_of_run(walk, code, reads, [value for _, value, _ in chains])
    for chain, value, followed in chains:
        if not (walk.mode == RUN and is_part_of_hash(code, value)):
            _feed_chain(walk, chain, value, followed, reads.attributes, name)
    if walk.mode == RUN and reads.imports:
        _feed_imports(walk, code, namespace, name)
    _feed_nested_code(walk, code, namespace, name)


def _feed_nested_code(walk: Walk, code: python_types.CodeType, namespace: dict[str, Any], name: str) -> None:
    """Feed the nested code objects. A function that an overload returns counts as compiled, unless it contains object mode."""

    def compiles(chain: tuple[str, ...]) -> bool:
        """Return whether a chain leads to a decorator that passes a function to the compiler."""
        value, followed = _resolve_chain(walk, chain, namespace) if chain else (None, 0)
        if followed < len(chain):
            return is_module_of_generators(value) and followed == len(chain) - 1 and chain[-1] in _COMPILING
        return type(value) is python_types.FunctionType and value.__name__ in _COMPILING and is_library_function(value)

    compiled = functions_to_compile(code, compiles) if walk.is_overload and code is walk.compiled.__code__ else ()
    for nested in [constant for constant in code.co_consts if isinstance(constant, python_types.CodeType)]:
        if nested not in compiled or reads_object_mode(_chains_of(walk, nested, namespace)):
            _feed_code(walk, nested, namespace, name)
            continue
        walk.reach().record_names(_all_attributes(nested), everything=False)  # the variables of nested code may refer to modules
        mode, walk.mode = walk.mode, COMPILED
        _feed_code(walk, nested, namespace, name)
        walk.mode = mode


def _record_reads_of_run(walk: Walk, code: python_types.CodeType, reads: Reads, values: list[Any]) -> None:
    """Record the attributes that running code reads by names, and whether it computes names, executes text, or matches classes."""
    from compcache.numba.fingerprints.outside import reads_by_name, reads_globals_by_text
    from compcache.numba.registered.package_files import digest_of_package

    if any(map(reads_globals_by_text, values)) and digest_of_package(package_of(walk.compiled)) is not None:
        walk.defines_by_text = True
    names, reads_all = reads_by_name(code, reads, may_lead_anywhere=walk.overlook_values)
    walk.reach().record_names(names, everything=reads_all)
    if _MATCH_CLASS in code.co_code[::2]:  # the opcodes: each instruction has two bytes
        walk.reach().matches_classes = True
        tuples = [constant for constant in code.co_consts if isinstance(constant, tuple)]
        keywords = [item for constant in tuples for item in constant if isinstance(item, str)]  # for example, `case Point(x=1)`
        walk.reach().record_names(keywords, everything=False)


def _feed_imports(walk: Walk, code: python_types.CodeType, namespace: dict[str, Any], name: str) -> None:
    """Feed the attributes that code reads from modules that it imports.

    If the code uses a module in another way, all attributes that the code names count as read from the module. With Numba, modules are
    imported if necessary.
    """
    from compcache.numba.registered.code_reads import imported_reads

    for module, chains in imported_reads(code):
        walk.feed_token("import", module)
        any_attribute = [(attribute,) for attribute in code.co_names]
        if walk.without_numba and _feed_known_import(walk, module, any_attribute if chains is None else chains, name):
            continue
        if chains is None or not is_library_module(module):
            walk.reach().refer_to_import(walk, module, namespace, name)
            continue
        imported = import_module(module)
        for chain in chains:
            if chain[0] not in vars(imported):
                walk.reach().refer_to_import(walk, f"{module}.{chain[0]}", {}, name)
            value, followed = resolve(chain, vars(imported))
            _feed_chain(walk, chain, value, followed, (), name)


def _feed_known_import(walk: Walk, module: str, chains: Iterable[tuple[str, ...]], name: str) -> bool:
    """Feed what the program has assigned to an imported module of a library that generates code. Return False for any other module.

    `chains` are the attributes that the code reads from the module. The version of the library covers everything else in the module.

    Raise `NotLazy` if any other module is not imported, because the walk imports nothing. See also `_feed_assigned_value`.
    """
    if is_generator_module(module):
        for chain in (*chains, ()):  # () is the module itself
            _feed_assigned_value(walk, module, chain, f"the compile-time import of {module} in {name}")
        return True
    if module not in sys.modules:
        raise NotLazy(f"{name} runs at compile time, and imports {module or 'its package'}: import this module in the program first")
    return False


def _chains_of(walk: Walk, code: python_types.CodeType, namespace: dict[str, Any]) -> list[Chain]:
    """Return the chains of attributes that code reads, each with its value and the number of names that lead to the value."""
    return [(chain, *_resolve_chain(walk, chain, namespace)) for chain in digest_and_reads(code)[1].chains]


def _resolve_chain(walk: Walk, chain: tuple[str, ...], namespace: dict[str, Any]) -> tuple[Any, int]:
    """Return the value of a chain, or `MISSING` if it does not exist, and the number of names that lead to it.

    A function with signatures is compiled before its own name is assigned. Therefore this name has no value without Numba. With Numba, the
    name refers to the function that is being declared.
    """
    if walk.without_numba:
        value, followed = resolve(chain, namespace, is_module_of_generators)
        return (MISSING, 1) if followed == 1 and is_declared_as(value, walk.compiled) else (value, followed)
    value, followed = resolve(chain, namespace)
    if value is MISSING and followed == 1 and walk.mode == COMPILED:
        from numba.core import typeinfer

        itself = typeinfer._temporary_dispatcher_map.get(chain[0])
        if itself is not None and itself.py_func is walk.compiled:
            return itself, followed
    return value, followed


def _feed_chain(walk: Walk, chain: tuple[str, ...], value: Any, followed: int, attributes: tuple[str, ...], name: str) -> None:
    """Feed the value of an attribute chain that code reads.

    `followed` names lead to the value. `attributes` are the names that the code reads from any object. `name` describes the function.
    """
    if walk.defines_by_text and followed == 1 and (value is MISSING or is_defined_by_text(value, walk.compiled.__globals__)):
        walk.feed_token("defined by text", chain[0])  # this code defines the name, perhaps earlier for other types
        return
    if value is MISSING:
        walk.feed_token("undefined", *chain[:followed])
        return
    shown = ".".join(chain[:followed])
    walk.feed_token("global", shown)
    where = f"the global {shown!r} of {name}"
    if followed < len(chain) and walk.without_numba and is_module_of_generators(value):  # the version determines its parts
        walk.feed_token("of a generator of code", value.__name__, *chain[followed:])
        _feed_assigned_value(walk, value.__name__, chain[followed:], where)
    elif walk.mode == RUN:
        _feed_chain_of_run(walk, value, chain[followed - 1], where, attributes)
    else:
        _feed_read_value(walk, value, where, attributes)


def _feed_assigned_value(walk: Walk, module: str, names: tuple[str, ...], where: str) -> None:
    """Feed the value that the program has assigned to a part of Numba, if there is one.

    Raises:
        NotLazy: the part is a setting, or running code reads the part and its result differs between processes or hosts.
        Unidentifiable: the value has no identity by content.
    """
    from compcache.numba.registered.purity import reads_external_state

    name = ".".join((module, *names))
    if not _SETTINGS.isdisjoint(name.split(".")):
        raise NotLazy(f"{where} refers to Numba's setting {name}, which may differ between processes: pass the value as an argument")
    if walk.mode == RUN and reads_external_state(name):
        raise NotLazy(f"{where} refers to {name}, whose result differs between processes: pass the result as an argument")
    from compcache.numba.fingerprints.state import set_on_part

    assigned = set_on_part(module, names)
    if assigned is not MISSING:
        walk.feed_value(assigned, where)


def _feed_chain_of_run(walk: Walk, value: Any, name: str, where: str, attributes: Iterable[str]) -> None:
    """Feed the value of an attribute chain that running code reads. `name` is the last name that leads to the value."""
    from compcache.numba.fingerprints.outside import is_reader
    from compcache.numba.registered.purity import is_external_state

    if _feed_names_by_text(walk, value) or is_reader(value, name):
        walk.feed_by_name(value, where)
        return
    if is_external_state(value):
        walk.feed_library(value, where)
    walk.feed_module_or_value(value, where, attributes)


def _feed_names_by_text(walk: Walk, value: Any) -> bool:
    """Feed the values that code can read if it computes names: the files of its package, and the plain globals of the function.

    Return False, without feeding anything, if the value is not `eval` or similar, or if the function belongs to no package with files.
    """
    from compcache.numba.fingerprints.outside import reads_globals_by_text
    from compcache.numba.registered.package_files import digest_of_package

    files = digest_of_package(package_of(walk.compiled)) if reads_globals_by_text(value) else None
    if files is None:
        return False
    walk.feed_token("by text", files)
    for name, item in sorted(walk.compiled.__globals__.items()):
        if type(item) in _SHOWN and not name.startswith("__"):
            walk.feed_token(name, type(item).__name__, repr(item))
    return True


def _feed_read_value(walk: Walk, value: Any, where: str, attributes: Iterable[str] = ()) -> None:
    """Feed a value that a function reads. For a compiled function, store a digest of the value, by which `explain` shows changes."""
    if walk.mode == RUN:
        walk.feed_module_or_value(value, where, attributes)
        return
    digest = walk.digest_of_value(value, where, attributes)
    walk.feed_token("read", digest)
    walk.reads[where] = _shown(value) if value is None or type(value) in _SHOWN else digest.hex()


def _shown(value: object) -> str:
    """Return a plain value as text for display. A long text is replaced by its beginning and its digest."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... {blake2b(text.encode(), digest_size=8).hexdigest()}"


def find_registrations(function: Any) -> tuple[list[tuple[Any, dict[str, Any]]], list[dict[str, Any]]]:
    """Return the registrations for a plain function of the program.

    This package's own table is used if it contains the function, otherwise Numba's registry.

    Returns:
        The overloads with their options; and the options of each `register_jitable`, by which compiled code may call the function.
    """
    from compcache.numba.registered import copied_from, registered_for
    from compcache.numba.registered.options import jitable_options, overload_options

    registrations = registered_for(function)
    if registrations is not None:
        overloads_here = [(implementation, overload_options(options)) for implementation, options in registrations.overloads]
        return overloads_here, [jitable_options(options) for options in registrations.options_of_jitable]
    overloads: list[tuple[Any, dict[str, Any]]] = []
    jitables: list[dict[str, Any]] = []
    if type(function) is python_types.FunctionType and _is_numba_imported() and not is_made_by_library(function):
        from compcache.numba.fingerprints.implementations import find_overloads, wrapped_by

        for implementation in find_overloads(function):
            options = dict(implementation.options)
            named_options = {name.lstrip("_"): value for name, value in options.items() if name != "metadata" or value}
            if copied_from(function) in wrapped_by(implementation.function):
                jitables.append(overload_options({**named_options, "strict": True}))
            else:
                overloads.append((implementation.function, overload_options(named_options)))
    return overloads, jitables


def _is_numba_imported() -> bool:
    """Return whether Numba's registries exist, and no stand-in replaces them."""
    modules = ("numba.core.typing.templates", "numba.core.imputils")
    return all(hasattr(sys.modules.get(module), "builtin_registry") for module in modules)
