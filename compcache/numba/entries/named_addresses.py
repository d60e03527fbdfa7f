"""Replaces addresses in compiled code, which are valid only in this process, by the names of functions and objects.

Numba keeps an address from ctypes or from a `WrapperAddressProtocol` in a variable whose name contains the address, and does not cache code
with such a variable. Here, these variables become imports, which a load fills with the addresses in its process. The imports refer to
functions that Cython modules export (`CythonFunction`), functions of Numba's threads (`HelperSymbol`), arrays of the program
(`ProgramArray`), and classes of jitclass instances (`JitclassBox`).

A jitted function that is passed to another function has an address too. No code reads this address, because the type of the argument
determines the called function. Therefore such arguments are removed. Code with any other address is not stored.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from compcache import frontend
from compcache.numba.entries.helper_symbols import HelperSymbol
from compcache.numba.entries.recursion import UNRESOLVED
from compcache.numba.registered import jitclasses, program_arrays
from compcache.numba.registered.cython_functions import CythonFunction, function_at

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    Named = CythonFunction | HelperSymbol | program_arrays.ProgramArray | jitclasses.JitclassBox

__all__ = [
    "ADDRESS_PREFIX", "IMPORT_PREFIX", "bind_imports", "create_pass_builder", "find_cython_functions", "find_thread_functions",
    "null_addresses", "parse_address", "parse_imports", "remove_dead_code", "replace_addresses_by_names",
]  # fmt: skip

#: The prefix of Numba's variables that contain addresses. The address follows.
ADDRESS_PREFIX = "numba.dynamic.globals."
#: The prefix of imports. The module, the name and the type of a function, or "", the part and the name of an object, follow.
IMPORT_PREFIX = "compcache.function."
_INITIALIZER = re.compile(rf'^(@"?{re.escape(ADDRESS_PREFIX)}[0-9a-f.]+"? = .*?global ptr) inttoptr \(i64 -?\d+ to ptr\)', re.MULTILINE)
_DEFINITION = re.compile(rf'^@"?({re.escape(ADDRESS_PREFIX)}[0-9a-f.]*[0-9a-f])"? = [^\n]*\n', re.MULTILINE)
_USE = re.compile(rf'@"?({re.escape(ADDRESS_PREFIX)}[0-9a-f.]*[0-9a-f])"?')


def find_cython_functions(names: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return the module, the name and the C type (in Cython's spelling) of each Cython function whose address a variable of Numba contains.

    The result is ordered by the names of the variables. Variables with other addresses are omitted.
    """
    functions = {name: function_at(parse_address(name)) for name in sorted(set(names))}
    return {name: function for name, function in functions.items() if function is not None}


def parse_address(name: str) -> int:
    """Return the address in the name of one of Numba's variables. Ignore the number that linking appends to a name that occurs twice."""
    return int(name.removeprefix(ADDRESS_PREFIX).partition(".")[0], 16)


def find_thread_functions(names: Iterable[str]) -> dict[int, str]:
    """Return the names of functions of Numba's threading layer, by address. Functions that Numba has not loaded are omitted."""
    import ctypes

    layer = sys.modules.get("numba.np.ufunc.parallel")
    functions = {name: getattr(layer, f"_{name}", None) for name in names}
    return {ctypes.cast(function, ctypes.c_void_p).value or 0: name for name, function in functions.items() if function is not None}


#: The functions of Numba's threads that stored code may call. Code that sets the number of threads contains the number, which is in no key.
_CALLABLE_THREAD_FUNCTIONS = ("get_num_threads", "get_parallel_chunksize", "get_thread_id")


def null_addresses(text: str, names: Iterable[str]) -> str:
    """Return LLVM assembly with null in place of the addresses in Numba's variables.

    Loads of the variables with these names are marked as never null, so that LLVM removes Numba's tests for null.
    """
    for name in names:
        text = re.sub(rf'(load ptr, ptr @"?{re.escape(name)}"?, align 8)$', r"\1, !nonnull !{}", text, flags=re.MULTILINE)
    return _INITIALIZER.sub(r"\1 null", text)


def remove_dead_code(text: str, kept: Container[str] | None = None) -> Any:
    """Parse LLVM assembly, and return the module without unreachable code, such as Numba's code for functions without an address.

    Other code may call the functions in `kept`. All other functions that the module defines become internal, and lose the parameters that
    they do not read. If `kept` is None, all functions keep their linkage and their parameters.
    """
    module = binding.parse_assembly(text)
    manager = binding.create_new_module_pass_manager()
    if kept is not None:
        for function in module.functions:
            if not function.is_declaration and function.name not in kept:
                function.linkage = "internal"
        manager.add_dead_arg_elimination_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    manager.run(module, create_pass_builder(module))
    return module


def create_pass_builder(module: Any) -> Any:
    """Return a pass builder for a module's target, at optimization level 1."""
    machine = binding.Target.from_triple(module.triple).create_target_machine()
    return binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))


def replace_addresses_by_names(module: Any, kept: Container[str]) -> str | None:
    """Return the LLVM assembly of a finished module with imports in place of addresses; None if the code uses an address that has no name.

    `kept` are the functions that other code may call.
    """
    text = str(module)
    variables = [match[1] for match in _DEFINITION.finditer(text)]
    rows_by_name = _name_addresses(variables)
    # An address without a name may be in dead code. Numba tests addresses of functions for null, but not those of the program's objects.
    rows = [rows_by_name.get(name) for name in variables]
    if not all(row is not None and not row[0] and row[2] for row in rows):  # the row of an object has no module, but a name
        text = null_addresses(text, rows_by_name)
        text = str(remove_dead_code(text, None if UNRESOLVED in text else kept))
    counts = frontend.symbol_counts(text)
    used_names = [name for name in variables if counts.get(name, 0) > 1]
    if any(name not in rows_by_name for name in used_names):
        return None
    symbols = {name: IMPORT_PREFIX + "/".join(rows_by_name[name]) for name in used_names}
    text = _USE.sub(lambda match: f'@"{symbols[match[1]]}"', _DEFINITION.sub("", text))
    return text + "".join(f'\n@"{symbol}" = external global ptr\n' for symbol in sorted(set(symbols.values())))


def _name_addresses(variables: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return three texts for each variable's address that has a name.

    They are the module, the name and the type of a Cython function; "", the name and "" for a function of Numba's threads; "", the part and
    the name for an object of the program.
    """
    addresses = {name: parse_address(name) for name in variables}
    functions = find_thread_functions(_CALLABLE_THREAD_FUNCTIONS)
    objects = program_arrays.addresses() | jitclasses.addresses()
    rows_by_name = {name: ("", *objects[address]) for name, address in addresses.items() if address in objects}
    rows_by_name |= {name: ("", functions[address], "") for name, address in addresses.items() if address in functions}
    return find_cython_functions(name for name in addresses if name not in rows_by_name) | rows_by_name


def parse_imports(names: Iterable[str]) -> dict[str, Named]:
    """Return the functions and objects to which imports refer, by the import's name. Names of other symbols are ignored."""
    return {name: _parse_name(*name.removeprefix(IMPORT_PREFIX).split("/", 2)) for name in names if name.startswith(IMPORT_PREFIX)}


def _parse_name(module: str, name_or_part: str, detail: str) -> Named:
    """Return the function or object to which the parts of an import's name (`IMPORT_PREFIX`) refer.

    `detail` is the type of a Cython function, the name of an object of the program, or "" for a helper of Numba.
    """
    if module:
        return CythonFunction(module, name_or_part, detail)
    if name_or_part == jitclasses.BOX:
        return jitclasses.JitclassBox(detail)
    return program_arrays.ProgramArray(name_or_part, detail) if detail else HelperSymbol(name_or_part)


def bind_imports(module: Any) -> Any:
    """Replace the imports in a parsed module by variables with the addresses in this process, as Numba creates them; return the module.

    Raise `ImportError` if a function or object does not exist in this process.
    """
    for name, function in parse_imports([variable.name for variable in module.global_variables]).items():
        address, _ = function.find()
        definition = binding.parse_assembly(f'@"{name}" = global ptr inttoptr (i64 {address} to ptr)')
        definition.triple, definition.data_layout = module.triple, module.data_layout
        module.link_in(definition)
        variable = module.get_global_variable(name)
        variable.linkage = "linkonce_any"
        variable.name = f"{ADDRESS_PREFIX}{address:x}"
    return module
