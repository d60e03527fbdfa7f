"""Replaces addresses in compiled code, which are valid only in this process, by the names of functions and arrays.

Numba keeps an address from ctypes or from a `WrapperAddressProtocol` in a variable that is named after it, and does not cache code with
such a variable. The variables become imports, which a load fills with the addresses in its process. This works for functions that Cython
modules export (`CythonFunction`), functions of Numba's threads (`HelperSymbol`), and arrays of the program (`ProgramArray`).

A jitted function that is passed on to another function has an address too. No code reads it, because calls of the function follow from its
type. Therefore such arguments are removed. Code with any other address is not stored.
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
    "known_functions",
    "thread_functions_by_address",
    "with_names",
    "without_addresses",
    "without_dead_code",
]

#: The prefixes of Numba's variables, before the address, and of this package's imports, before the function.
PREFIX = "numba.dynamic.globals."
NAMED = "compcache.function."
_INITIALIZER = re.compile(rf'^(@"?{re.escape(PREFIX)}[0-9a-f.]+"? = .*?global ptr) inttoptr \(i64 -?\d+ to ptr\)', re.MULTILINE)
_DEFINITION = re.compile(rf'^@"?{re.escape(PREFIX)}[^\n]*\n', re.MULTILINE)
_USE = re.compile(rf'@"?({re.escape(PREFIX)}[0-9a-f.]*[0-9a-f])"?')


def known_functions(names: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return the functions of Cython modules to which variables of Numba refer.

    Args:
        names: the names of the variables.

    Returns:
        The module, the name and the C type (in Cython's spelling) of each function. Variables with other addresses are omitted.
    """
    functions = {name: function_at(address_in(name)) for name in sorted(set(names))}
    return {name: known for name, known in functions.items() if known is not None}


def address_in(name: str) -> int:
    """Return the address in the name of one of Numba's variables. Linking appends a number to names that occur twice."""
    return int(name.removeprefix(PREFIX).partition(".")[0], 16)


def thread_functions_by_address(names: Iterable[str]) -> dict[int, str]:
    """Return the functions by which Numba reads and sets its number of threads through ctypes, by their addresses.

    Args:
        names: the names of these functions.
    """
    import ctypes

    layer = sys.modules.get("numba.np.ufunc.parallel")
    functions = {name: getattr(layer, f"_{name}", None) for name in names}
    return {ctypes.cast(function, ctypes.c_void_p).value or 0: name for name, function in functions.items() if function is not None}


#: Functions of Numba's threads that stored code may call. Code that sets the number of threads contains that number, which no key contains.
_CALLABLE_THREAD_FUNCTIONS = ("get_num_threads", "get_parallel_chunksize", "get_thread_id")


def without_addresses(text: str, functions: Iterable[str] = ()) -> str:
    """Return the assembly with null in place of all addresses.

    Loads of `functions` are marked as never null. Numba's code tests for null.
    """
    for name in functions:
        text = re.sub(rf'(load ptr, ptr @"?{re.escape(name)}"?, align 8)$', r"\1, !nonnull !{}", text, flags=re.MULTILINE)
    return _INITIALIZER.sub(r"\1 null", text)


def without_dead_code(text: str, kept: Container[str] | None = None) -> Any:
    """Parse LLVM assembly, and return the module without code that cannot run, such as Numba's code for functions without an address.

    If `kept` names the functions that other code may call, all other functions lose the arguments that they do not read.
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
    """Return the assembly of a finished module with names in place of addresses.

    Args:
        module: the LLVM module.
        kept: the functions that other code may call.

    Returns:
        The assembly, or None if it contains an address that has no name.
    """
    variables = [variable.name for variable in module.global_variables if variable.name.startswith(PREFIX)]
    threads = thread_functions_by_address(_CALLABLE_THREAD_FUNCTIONS)
    others = {name: ("", threads[address_in(name)], "") for name in variables if address_in(name) in threads}
    arrays = addresses()
    others |= {name: ("", *arrays[address_in(name)]) for name in variables if address_in(name) in arrays}
    known = {**known_functions(name for name in variables if name not in others), **others}
    text = without_addresses(str(module), known)
    text = str(without_dead_code(text, None if UNRESOLVED in text else kept))
    counts = frontend.symbol_counts(text)
    if any(counts.get(name, 0) > 1 and name not in known for name in variables):
        return None
    symbols = {name: _symbol_of(function) for name, function in known.items() if counts.get(name, 0) > 1}
    text = _USE.sub(lambda use: f'@"{symbols[use[1]]}"', _DEFINITION.sub("", text))
    return text + "".join(f'\n@"{symbol}" = external global ptr\n' for symbol in sorted(set(symbols.values())))


def _symbol_of(function: tuple[str, str, str]) -> str:
    """Return the symbol of the import for a function or array, given by its module, name and type."""
    return NAMED + "/".join(function)


def functions_named(names: Iterable[str]) -> dict[str, CythonFunction | HelperSymbol | ProgramArray]:
    """Return the functions and arrays that imports with these names refer to. Other names are ignored."""
    return {name: _parse_name(*name.removeprefix(NAMED).split("/", 2)) for name in names if name.startswith(NAMED)}


def _parse_name(module: str, name: str, kind: str) -> CythonFunction | HelperSymbol | ProgramArray:
    if module:
        return CythonFunction(module, name, kind)
    return ProgramArray(name, kind) if kind else HelperSymbol(name)


def bind_named(module: Any) -> None:
    """Set the imports in a parsed module to the addresses in this process, as in code that Numba compiles. This changes the module.

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
