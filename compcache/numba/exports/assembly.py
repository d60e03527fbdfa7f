"""Assembles the module of an exported kernel from the wrapper, the kernel, its exceptions and the memory runtime."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
from llvmlite import binding
from numba.core import types

from compcache import frontend
from compcache.numba.compilation.libraries import ENVIRONMENT_PREFIX
from compcache.numba.entries.image_source import CannotLink, load_exception_classes
from compcache.numba.entries.named_addresses import ADDRESS_PREFIX, create_pass_builder, null_addresses, remove_dead_code
from compcache.numba.entries.recursion import MissingCallee, link_recursive_callees, resolve_recursion
from compcache.numba.exports.addresses import MATHEMATICS, find_named_functions, use_python_hash_secret
from compcache.numba.exports.memory_runtime import MEMORY_RUNTIME
from compcache.numba.exports.objects import HELPERS, format_objects
from compcache.numba.exports.parameters import export_error
from compcache.numba.exports.plan import Unsupported, encode_plan
from compcache.numba.exports.raising import describe_exceptions, make_raising_assembly
from compcache.numba.exports.wrapper import ENTRY, Shape, Wrapper

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.errors import CompileError
    from compcache.numba.exports.parameters import Parameter, Result

__all__ = ["AssembledKernel", "assemble"]

_LOADED_ENVIRONMENT = re.compile(rf'^  (?P<value>%\S+) = load ptr, ptr @"?{ENVIRONMENT_PREFIX}.*$', re.MULTILINE)
_DEFINITION_AND_USE = 2
#: The functions of Numba's C library for dictionaries, typed lists and sets (prefixes), and for properties of characters.
_CONTAINERS = ("numba_dict_", "numba_list_", "numba_set_")
_CHARACTERS = frozenset(("numba_gettyperecord", "numba_get_PyUnicode_ExtendedCase"))
_DECLARATION = re.compile(r"declare (?P<result>[^@]+)@[^(]+\((?P<parameters>.*)\)")
#: The value of a parameter attribute in parentheses, such as `dereferenceable(8)`.
_ATTRIBUTE_VALUE = re.compile(r"\([^()]*(?:\([^()]*\)[^()]*)*\)")


class AssembledKernel(NamedTuple):
    """An assembled kernel.

    Attributes:
        text: the LLVM assembly.
        releases_gil: whether the wrapper of the kernel releases the GIL, so that the entry point must not.
    """

    text: str
    releases_gil: bool


def assemble(func_name: str, cres: Any, parameters: list[Parameter], result: Result, *, nogil: bool) -> AssembledKernel:
    """Return the assembly of a kernel with its wrapper, its exceptions and the memory runtime.

    `func_name` is the name of the export, for error messages. `nogil` is whether the kernel runs without the GIL. Raise `CompileError` if
    the kernel cannot be exported. The message gives the reason.
    """
    context = cres.target_context
    try:
        compiled = _clear_known_addresses(link_recursive_callees(cres.library._final_module))
        services = _find_used_services(func_name, compiled)
        plan = _encode_plan_if_used(
            func_name, cres, parameters, result, is_needed=bool(services.helpers or services.functions or services.library)
        )
    except (MissingCallee, Unsupported) as error:
        raise export_error(func_name, str(error)) from error
    shape = Shape(
        parameters=parameters, is_object=result.is_object, uses_plan=plan is not None, uses_random=services.has_random,
        uses_threads="numba_parallel_for" in services.helpers, nogil=nogil and plan is not None,
    )  # fmt: skip
    with context.push_code_library(context.codegen().create_library(ENTRY)):  # casts of literals need a library
        module = binding.parse_assembly(Wrapper(cres, shape).build())
    module.link_in(compiled.clone())
    module = _rewrite_module(module)
    _link_exceptions(func_name, module, services)
    _link_assembly(module, MEMORY_RUNTIME)
    _link_assembly(module, MATHEMATICS)
    if plan is not None:
        _link_assembly(module, format_objects(plan, services.helpers, services.functions, services.library, numba.__version__))
    _remove_unused(module)
    _require_portable(func_name, module)
    try:
        return AssembledKernel(_replace_process_ids(load_exception_classes(str(module))), shape.nogil)
    except CannotLink as error:
        raise export_error(func_name, str(error)) from error


class _UsedServices(NamedTuple):
    """The parts of the extension module that compiled code uses.

    Attributes:
        helpers: the names of Numba's C helpers.
        functions: the module, the name and the type of each function of another package, by the variable for the function's address.
        library: the result and the parameters of each function of Numba's C library, by the function's name.
    """

    helpers: list[str]
    functions: dict[str, tuple[str, str, str]]
    library: dict[str, tuple[str, str]]

    @property
    def has_random(self) -> bool:
        """Whether the code uses the state of a random generator."""
        return any(name.endswith("_random_state") for name in self.helpers)


def _clear_known_addresses(compiled: Any) -> Any:
    """Return a module without addresses in Numba's variables, and without the code that handles a null address of a known function.

    The result is the argument itself if it has no variables for addresses.
    """
    addresses = [variable.name for variable in compiled.global_variables if variable.name.startswith(ADDRESS_PREFIX)]
    if not addresses:
        return compiled
    return remove_dead_code(null_addresses(str(compiled), find_named_functions(addresses)))


def _find_used_services(func_name: str, compiled: Any) -> _UsedServices:
    """Return the parts of the extension module that the LLVM module of a kernel uses.

    Raise `CompileError` if an address of this process is not the address of a known function. The message begins with `func_name`.
    """
    used_names = _find_used_symbols(compiled)
    declared = {function.name: function for function in compiled.functions if function.is_declaration and function.name in used_names}
    addresses = [variable.name for variable in compiled.global_variables if variable.name.startswith(ADDRESS_PREFIX)]
    addresses = [name for name in addresses if name in used_names]
    functions = find_named_functions(addresses)
    if len(functions) != len(addresses):
        raise export_error(
            func_name,
            "it uses an address that is valid only in this process, for example of a ctypes function or a large global array; "
            "pass arrays as arguments, and call functions of Cython modules instead of ctypes functions",
        )
    return _UsedServices(
        helpers=[name for name in declared if name in HELPERS],
        functions=functions,
        library={
            name: _parse_declaration(str(function))
            for name, function in declared.items()
            if name.startswith(_CONTAINERS) or name in _CHARACTERS
        },
    )


def _find_used_symbols(module: Any) -> set[str]:
    """Return the symbols to which an LLVM module refers, besides their declarations or definitions."""
    return {symbol for symbol, count in frontend.symbol_counts(str(module)).items() if count > 1}


def _parse_declaration(declaration: str) -> tuple[str, str]:
    """Return the result and the parameters of a function's declaration, without attributes that do not affect calls."""
    match = _DECLARATION.search(declaration)
    assert match is not None, declaration
    parameters = [_strip_attributes(part) for part in match["parameters"].split(",")]
    return _strip_attributes(match["result"]), ", ".join(parameters)


def _strip_attributes(type_: str) -> str:
    """Return a number type, pointer type or `void` of LLVM, without parameter attributes other than `signext` and `zeroext`."""
    words = _ATTRIBUTE_VALUE.sub("", type_).split()
    return " ".join(word for word in words if word in ("signext", "zeroext", "ptr", "void", "double", "float") or word[1:].isdigit())


def _encode_plan_if_used(func_name: str, cres: Any, parameters: list[Parameter], result: Result, *, is_needed: bool) -> bytes | None:
    """Return the encoded plan of a kernel, or None if the kernel has no objects and its code does not call the extension (`is_needed`).

    Raise `Unsupported` if a type has no conversion.
    """
    objects = [(parameter.name, parameter.caller_type) for parameter in parameters if parameter.is_object]
    if not objects and not result.is_object and not is_needed:
        return None
    return encode_plan(func_name, cres.target_context, objects, types.unliteral(result.caller_type) if result.is_object else None)


def _rewrite_module(module: Any) -> Any:
    """Return a module with resolved recursive calls, with Python's hash secret, and without unneeded uses of environments.

    A use is unneeded if the code only compares the environment with null.
    """
    text = str(module)
    defined = {function.name for function in module.functions if not function.is_declaration}
    rewritten = resolve_recursion(use_python_hash_secret(text), defined)
    end_of_function = "\n}\n"
    rewritten = end_of_function.join(map(_replace_unread_environments, rewritten.split(end_of_function)))
    return module if rewritten == text else binding.parse_assembly(rewritten)


def _replace_unread_environments(function: str) -> str:
    """Return the assembly of a function with a non-null constant in place of each environment that it only compares with null."""

    def replace_load(match: re.Match[str]) -> str:
        """Return a constant in place of the load of an environment if the only use of its value is a comparison with null."""
        load, value = match[0], match["value"]
        uses = re.findall(rf"{re.escape(value)}(?![\w.$-])", function)
        is_compared = f"= icmp eq ptr {value}, null\n" in function
        return f"  {value} = inttoptr i64 1 to ptr" if is_compared and len(uses) == _DEFINITION_AND_USE else load

    return _LOADED_ENVIRONMENT.sub(replace_load, function)


_SYMBOL = re.compile(r'[@!](?:"[^"]*"|[\w.$-]+)')  # also matches names in metadata
#: The number of a compiled function in this process, or the address of the object that Numba creates for a parallel loop.
_PROCESS_ID = re.compile(r"B\d+v(?P<number>\d+)(?=B|E|$)|(?<=_gufunc_0x)(?P<address>[0-9a-f]+)")
#: An error message of Numba that contains a symbol.
_MISSING_ENVIRONMENT = re.compile(r'^(@"\.const\.missing Environment: [^"]*" = .*?constant )\[\d+ x i8\] c"[^"]*"', re.MULTILINE)


def _replace_process_ids(text: str) -> str:
    """Return assembly in which symbols contain consecutive numbers in place of numbers and addresses of this process.

    A message that contains such a symbol gets another text. Therefore every process exports the same bytes for a kernel.
    """
    numbers: dict[str, int] = {}

    def replace_id(match: re.Match[str]) -> str:
        """Return the number that replaces a number or an address, in the form that Numba gives to either."""
        number = numbers.setdefault(match[0], len(numbers) + 1)
        if match["address"]:
            return f"{number:0{len(match[0])}x}"
        return f"B{len(str(number)) + 1}v{number}"  # Numba's mangling: B, the length of the text, and the text

    text = _MISSING_ENVIRONMENT.sub(r'\1[20 x i8] c"missing Environment\\00"', text)
    return _SYMBOL.sub(lambda symbol: _PROCESS_ID.sub(replace_id, symbol[0]), text)


def _link_exceptions(func_name: str, module: Any, services: _UsedServices) -> None:
    """Link the function that raises a kernel's exceptions into the kernel's module.

    Raise `CompileError` if an exception class is local to a function, or an argument of an exception cannot be stored.
    """
    exceptions = describe_exceptions(func_name, str(module))
    shared = {exception.variable for exception in exceptions} | services.functions.keys()
    for variable in module.global_variables:
        if variable.name in shared:
            variable.linkage = "external"  # the code that is linked now, or later with the plan, refers to the variable
    _link_assembly(module, make_raising_assembly(exceptions))


def _link_assembly(module: Any, text: str) -> None:
    """Link assembly, with the data layout and the target triple of a module, into the module."""
    layout = f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n'
    module.link_in(binding.parse_assembly(layout + text))


def _remove_unused(module: Any) -> None:
    """Remove the definitions that the wrapper does not use from a module."""
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name != ENTRY:
            value.linkage = "internal"
    manager = binding.create_new_module_pass_manager()
    manager.add_global_dead_code_eliminate_pass()
    manager.run(module, create_pass_builder(module))


def _require_portable(func_name: str, module: Any) -> None:
    """Check that other processes have every function and variable to which a module refers.

    Raise `CompileError` if the module uses a function or variable that other processes do not have, or an environment.
    """
    used_names = _find_used_symbols(module)
    for variable in module.global_variables:
        name = variable.name
        if name not in used_names:
            continue
        if name.startswith(ENVIRONMENT_PREFIX):
            raise export_error(
                func_name, "an operation on Python objects, such as printing an array, needs Numba at run time; remove the operation"
            )
        if variable.is_declaration and not name.startswith(("PyExc_", "_Py_")):
            reason = "it reads data that only this process has; pass the data as arguments (the notes name the symbols)"
            raise _add_symbols_note(export_error(func_name, reason), [name])
    declared = [function.name for function in module.functions if function.is_declaration and function.name in used_names]
    missing = [name for name in declared if not name.startswith("llvm.") and not _is_available_everywhere(name)]
    if missing:
        raise _add_symbols_note(export_error(func_name, _missing_reason(missing)), missing)


def _add_symbols_note(error: CompileError, names: Iterable[str]) -> CompileError:
    """Add a note with the names of symbols to an exception, and return this exception."""
    error.add_note(f"symbols: {', '.join(sorted(names))}")
    return error


def _is_available_everywhere(name: str) -> bool:
    """Return whether every process has the function with this name, because the platform or Python's C API provides it."""
    provider = frontend.provider_of(name)
    return provider == "platform" or (bool(provider) and name.startswith(("Py", "_Py")))


#: The reasons why exported code cannot call native functions, by the prefixes of the functions' names.
_REASONS = (
    (("NRT_", "nrt_"), "it uses a function of Numba's memory runtime that exports do not support; the notes of this exception name it"),
    (("numba_gdb",), "it calls the debugger; remove the call"),
    (("__svml", "_svml"), "it calls Intel's vector library (SVML), which other hosts may lack; set NUMBA_DISABLE_INTEL_SVML=1"),
    (("numba_", "NPY_"), "it calls a function of Numba's runtime that exports do not support; the notes of this exception name it"),
)


def _missing_reason(missing: Iterable[str]) -> str:
    """Return why code that calls these functions, which other processes may not have, cannot be exported."""
    for prefixes, reason in _REASONS:
        if any(name.startswith(prefixes) for name in missing):
            return reason
    return "it calls native functions that other processes may lack (the notes name them); pass their results as arguments"
