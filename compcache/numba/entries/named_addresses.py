"""Replaces addresses of this process in compiled code by the names of the functions there.

Numba keeps an address that it took from ctypes or from a `WrapperAddressProtocol` in a variable named after it, and caches no code that
has one. Functions that Cython modules offer have names in every process: their variables become imports, which a load fills with
the address there (`CythonFunction`); so do functions of Numba's threads (`HelperSymbol`) and the program's arrays (`ProgramArray`).
A jitted function that is handed on to another one has an address, which nothing reads, since calls of it follow from its type: such
arguments are removed. Code that holds any other address is not stored.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from compcache import frontend
from compcache.numba.entries.helper_symbols import HelperSymbol
from compcache.numba.entries.recursion import UNRESOLVED
from compcache.numba.registered.cython_functions import CythonFunction, function_at
from compcache.numba.registered.program_arrays import ProgramArray, addresses

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

__all__ = [
    "NAMED",
    "PREFIX",
    "address_in",
    "bind_named",
    "functions_named",
    "functions_of_threads",
    "known_functions",
    "with_names",
    "without_addresses",
    "without_dead_code",
]

#: What precedes the address in the names of Numba's variables, and the function in ours.
PREFIX = "numba.dynamic.globals."
NAMED = "compcache.function."
_INITIALIZER = re.compile(rf'^(@"?{re.escape(PREFIX)}[0-9a-f.]+"? = .*?global ptr) inttoptr \(i64 -?\d+ to ptr\)', re.MULTILINE)
_DEFINITION = re.compile(rf'^@"?{re.escape(PREFIX)}[^\n]*\n', re.MULTILINE)
_USE = re.compile(rf'@"?({re.escape(PREFIX)}[0-9a-f.]*[0-9a-f])"?')


def known_functions(names: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return the module, name and C type (in Cython's spelling) of those of Numba's variables whose addresses Cython modules export."""
    found = {name: function_at(address_in(name)) for name in sorted(set(names))}
    return {name: known for name, known in found.items() if known is not None}


def address_in(name: str) -> int:
    """Return the address after which one of Numba's variables is named. Linking adds a number to names that occur twice."""
    return int(name.removeprefix(PREFIX).partition(".")[0], 16)


def functions_of_threads(names: Iterable[str]) -> dict[int, str]:
    """Return the functions by which Numba reads and sets its number of threads through ctypes, by address."""
    import ctypes

    layer = sys.modules.get("numba.np.ufunc.parallel")
    found = {name: getattr(layer, f"_{name}", None) for name in names}
    return {ctypes.cast(function, ctypes.c_void_p).value or 0: name for name, function in found.items() if function is not None}


#: Functions of Numba's threads that code may ask. Code that sets their number has the number of them in it, which is no part of keys.
_ASKED = ("get_num_threads", "get_parallel_chunksize", "get_thread_id")


def without_addresses(text: str, functions: Iterable[str] = ()) -> str:
    """Return the assembly without variables that hold nothing. Addresses of known functions are never null, which Numba's code tests."""
    for name in functions:
        text = re.sub(rf'(load ptr, ptr @"?{re.escape(name)}"?, align 8)$', r"\1, !nonnull !{}", text, flags=re.MULTILINE)
    return _INITIALIZER.sub(r"\1 null", text)


def without_dead_code(text: str, kept: Container[str] | None = None) -> Any:
    """Return the assembly without code that cannot run, for example Numba's code for functions without an address.

    Where `kept` names the functions that others may call, the rest lose arguments that they do not read.
    """
    module = binding.parse_assembly(text)
    machine = binding.Target.from_triple(module.triple).create_target_machine()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
    manager = binding.create_new_module_pass_manager()
    if kept is not None:
        for function in module.functions:
            if not function.is_declaration and function.name not in kept:
                function.linkage = "internal"
        manager.add_dead_arg_elimination_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    manager.run(module, builder)
    return module


def with_names(module: Any, kept: Container[str]) -> str | None:
    """Return the assembly of a finished module with names in place of addresses; None if it contains any other address.

    `kept` are the functions that others may call.
    """
    variables = [variable.name for variable in module.global_variables if variable.name.startswith(PREFIX)]
    threads = functions_of_threads(_ASKED)
    of_numba = {name: ("", threads[address_in(name)], "") for name in variables if address_in(name) in threads}
    arrays = addresses()
    of_numba |= {name: ("", *arrays[address_in(name)]) for name in variables if address_in(name) in arrays}
    known = {**known_functions(name for name in variables if name not in of_numba), **of_numba}
    text = without_addresses(str(module), known)
    text = str(without_dead_code(text, None if UNRESOLVED in text else kept))
    counts = frontend.symbol_counts(text)
    if any(counts.get(name, 0) > 1 and name not in known for name in variables):
        return None
    symbols = {name: _symbol_of(function) for name, function in known.items() if counts.get(name, 0) > 1}
    text = _USE.sub(lambda use: f'@"{symbols[use[1]]}"', _DEFINITION.sub("", text))
    return text + "".join(f'\n@"{symbol}" = external global ptr\n' for symbol in sorted(set(symbols.values())))


def _symbol_of(function: tuple[str, str, str]) -> str:
    return NAMED + "/".join(function)


def functions_named(names: Iterable[str]) -> dict[str, CythonFunction | HelperSymbol | ProgramArray]:
    """Return the functions and arrays among these names that are imported."""
    return {name: _named(*name.removeprefix(NAMED).split("/", 2)) for name in names if name.startswith(NAMED)}


def _named(module: str, name: str, kind: str) -> CythonFunction | HelperSymbol | ProgramArray:
    if module:
        return CythonFunction(module, name, kind)
    return ProgramArray(name, kind) if kind else HelperSymbol(name)


def bind_named(module: Any) -> None:
    """Set the imports in a parsed module to the addresses of this process, as in code that Numba compiles.

    Raises:
        ImportError: a function does not exist.
    """
    for name, function in functions_named([variable.name for variable in module.global_variables]).items():
        address = function.address()
        definition = binding.parse_assembly(f'@"{name}" = global ptr inttoptr (i64 {address} to ptr)')
        definition.triple, definition.data_layout = module.triple, module.data_layout
        module.link_in(definition)
        variable = module.get_global_variable(name)
        variable.linkage = "linkonce_any"
        variable.name = f"{PREFIX}{address:x}"
