"""Assembles the module of an exported kernel: wrapper, kernel, exceptions and memory runtime.

Unused definitions are removed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from llvmlite import binding

from compcache import frontend
from compcache.numba.entries.image_source import CannotLink, load_exception_classes
from compcache.numba.entries.named_addresses import ADDRESS_PREFIX, null_addresses, remove_dead_code
from compcache.numba.entries.recursion import MissingCallee, link_recursive_callees, resolve_recursion
from compcache.numba.exports.addresses import MATHEMATICS, find_cython_functions, with_own_hash_secret
from compcache.numba.exports.memory_runtime import MEMORY_RUNTIME
from compcache.numba.exports.objects import HELPERS, objects_text
from compcache.numba.exports.parameters import export_error
from compcache.numba.exports.plan import Unsupported, encode_plan
from compcache.numba.exports.raising import describe_exceptions, raising_text
from compcache.numba.exports.wrapper import ENTRY, Shape, wrapper_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.errors import CompileError
    from compcache.numba.exports.parameters import Parameter, Result

__all__ = ["Assembled", "assemble"]

_ENVIRONMENT = "_ZN08NumbaEnv"


_LOADED_ENVIRONMENT = re.compile(rf'^  (%\S+) = load ptr, ptr @"?{_ENVIRONMENT}.*$', re.MULTILINE)


_DEFINITION_AND_USE = 2


#: Functions of Numba's C library that code calls for dictionaries, typed lists and sets, and for properties of characters.
_CONTAINERS = ("numba_dict_", "numba_list_", "numba_set_")
_CHARACTERS = frozenset(("numba_gettyperecord", "numba_get_PyUnicode_ExtendedCase"))
_DECLARATION = re.compile(r"declare (?P<result>[^@]+)@[^(]+\((?P<parameters>.*)\)")
_ATTRIBUTE_VALUE = re.compile(r"\([^()]*(?:\([^()]*\)[^()]*)*\)")


class Assembled(NamedTuple):
    """The assembly of a kernel, and whether the kernel releases the GIL itself."""

    text: str
    releases_gil: bool


def assemble(func_name: str, cres: Any, parameters: list[Parameter], result: Result, *, nogil: bool) -> Assembled:
    """Return the assembly of a kernel with its wrapper, its exceptions and the memory runtime.

    Raises:
        CompileError: the code refers to a function or to data that other processes lack, or a type has no conversion.
    """
    context = cres.target_context
    try:
        compiled = _with_known_functions(link_recursive_callees(cres.library))
        services = _find_used_services(func_name, compiled)
        plan = _encode_plan_if_used(
            func_name, cres, parameters, result, is_needed=bool(services.helpers or services.functions or services.library)
        )
    except (MissingCallee, Unsupported) as error:
        raise export_error(func_name, str(error)) from error
    shape = Shape(
        parameters, is_object=result.is_object, uses_plan=plan is not None, uses_random=services.has_random,
        uses_threads="numba_parallel_for" in services.helpers, nogil=nogil and plan is not None,
    )  # fmt: skip
    with context.push_code_library(context.codegen().create_library(ENTRY)):  # casts of literals need a library
        module = binding.parse_assembly(wrapper_text(cres, shape))
    module.link_in(compiled.clone())
    module = _rewrite(module)
    exceptions = describe_exceptions(func_name, str(module))
    described = {known.variable for known in exceptions}
    for variable in module.global_variables:
        if variable.name in described or variable.name in services.functions:
            variable.linkage = "external"  # so that code which is linked below can refer to it
    module.link_in(binding.parse_assembly(_with_layout(raising_text(exceptions), module)))
    module.link_in(binding.parse_assembly(_with_layout(MEMORY_RUNTIME, module)))
    module.link_in(binding.parse_assembly(_with_layout(MATHEMATICS, module)))
    if plan is not None:
        from numba import __version__ as numba_version

        provided = objects_text(plan, services.helpers, services.functions, services.library, numba_version)
        module.link_in(binding.parse_assembly(_with_layout(provided, module)))
    _drop_unused(module)
    _require_portable(func_name, module)
    try:
        return Assembled(_without_ids(load_exception_classes(str(module))), shape.nogil)
    except CannotLink as error:
        raise export_error(func_name, str(error)) from error


class _UsedServices(NamedTuple):
    """The parts of the extension module that compiled code uses.

    Attributes:
        helpers: the names of Numba's C helpers.
        functions: functions of other packages, by the variables that hold their addresses.
        library: functions of Numba's C library by name, each with its result and parameters.
    """

    helpers: list[str]
    functions: dict[str, tuple[str, str, str]]
    library: dict[str, tuple[str, str]]

    @property
    def has_random(self) -> bool:
        return any(name.endswith("_random_state") for name in self.helpers)


def _with_known_functions(compiled: Any) -> Any:
    """Return a module whose variables for addresses of known functions have no values.

    The code that Numba generates for a null address is removed.
    """
    addresses = [v.name for v in compiled.global_variables if v.name.startswith(ADDRESS_PREFIX)]
    if not addresses:
        return compiled
    return remove_dead_code(null_addresses(str(compiled), find_cython_functions(addresses)))


def _create_pass_builder(module: Any) -> Any:
    """Return a pass builder for the module's target, at optimization level 1."""
    machine = binding.Target.from_triple(module.triple).create_target_machine()
    return binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))


def _find_used_services(func_name: str, compiled: Any) -> _UsedServices:
    """Return the parts of the extension module that a module uses.

    Raises:
        CompileError: an address of this process is not the address of a known function.
    """
    counts = frontend.symbol_counts(str(compiled))
    helpers = [f.name for f in compiled.functions if f.is_declaration and f.name in HELPERS and counts.get(f.name, 0) > 1]
    addresses = [v.name for v in compiled.global_variables if v.name.startswith(ADDRESS_PREFIX) and counts.get(v.name, 0) > 1]
    functions = find_cython_functions(addresses)
    if len(functions) != len(addresses):
        raise export_error(
            func_name,
            "it uses addresses that are valid only in this process, such as functions of ctypes or large global arrays; "
            "pass arrays as arguments, and call functions of Cython modules instead",
        )
    library = {
        f.name: _parse_declaration(str(f))
        for f in compiled.functions
        if f.is_declaration and _is_library_function(f.name) and counts.get(f.name, 0) > 1
    }
    return _UsedServices(helpers, functions, library)


def _is_library_function(name: str) -> bool:
    """Return whether a symbol is a function of Numba's C library for containers or characters."""
    return name.startswith(_CONTAINERS) or name in _CHARACTERS


def _parse_declaration(declaration: str) -> tuple[str, str]:
    """Return the result and the parameters of a declaration, without attributes that do not affect how it is called."""
    match = _DECLARATION.search(declaration)
    assert match is not None, declaration
    parameters = [_without_attributes(part) for part in match["parameters"].split(",")]
    return _without_attributes(match["result"]), ", ".join(parameters)


def _without_attributes(type_: str) -> str:
    words = _ATTRIBUTE_VALUE.sub("", type_).split()
    return " ".join(word for word in words if word in ("signext", "zeroext", "ptr", "void", "double", "float") or word[1:].isdigit())


def _encode_plan_if_used(func_name: str, cres: Any, parameters: list[Parameter], result: Result, *, is_needed: bool) -> bytes | None:
    """Return the plan of a kernel, or None if the kernel does not use the extension module."""
    from numba.core import types

    given = [(parameter.name, parameter.caller_type) for parameter in parameters if parameter.is_object]
    if not given and not result.is_object and not is_needed:
        return None
    return encode_plan(func_name, cres.target_context, given, types.unliteral(result.caller_type) if result.is_object else None)


def _rewrite(module: Any) -> Any:
    """Return the module with resolved recursive calls, with Python's hash secret, and without environments that are never read."""
    text = str(module)
    changed = resolve_recursion(with_own_hash_secret(text), {f.name for f in module.functions if not f.is_declaration})
    changed = "\n}\n".join(map(_replace_unread_environments, changed.split("\n}\n")))
    return module if changed == text else binding.parse_assembly(changed)


def _replace_unread_environments(function: str) -> str:
    """Replace the environment of a function by a non-null constant if the function only compares it with null."""

    def load(match: re.Match[str]) -> str:
        uses = re.findall(rf"{re.escape(match[1])}(?![\w.$-])", function)
        compared = f"= icmp eq ptr {match[1]}, null\n" in function
        return f"  {match[1]} = inttoptr i64 1 to ptr" if compared and len(uses) == _DEFINITION_AND_USE else match[0]

    return _LOADED_ENVIRONMENT.sub(load, function)


_SYMBOL = re.compile(r'[@!](?:"[^"]*"|[\w.$-]+)')  # it also matches names in metadata
#: The number of a compiled function in this process, or the address of the object that Numba creates for a parallel loop.
_PROCESS_ID = re.compile(r"B\d+v(?P<number>\d+)(?=B|E|$)|(?<=_gufunc_0x)(?P<address>[0-9a-f]+)")


#: An error message of Numba that contains a symbol.
_MISSING_ENVIRONMENT = re.compile(r'^(@"\.const\.missing Environment: [^"]*" = .*?constant )\[\d+ x i8\] c"[^"]*"', re.MULTILINE)


def _without_ids(text: str) -> str:
    """Return assembly without process-specific numbers in its symbols, so that every process exports the same bytes for a kernel."""
    known: dict[str, int] = {}

    def renamed(match: re.Match[str]) -> str:
        number = known.setdefault(match[0], len(known) + 1)
        return f"{number:0{len(match[0])}x}" if match["address"] else f"B{len(str(number)) + 1}v{number}"

    text = _MISSING_ENVIRONMENT.sub(r'\1[20 x i8] c"missing Environment\\00"', text)
    return _SYMBOL.sub(lambda symbol: _PROCESS_ID.sub(renamed, symbol[0]), text)


def _with_layout(text: str, module: Any) -> str:
    return f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n{text}'


def _drop_unused(module: Any) -> None:
    """Remove definitions that the wrapper does not reach. This changes the module."""
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name != ENTRY:
            value.linkage = "internal"
    manager = binding.create_new_module_pass_manager()
    manager.add_global_dead_code_eliminate_pass()
    manager.run(module, _create_pass_builder(module))


def _require_portable(func_name: str, module: Any) -> None:
    """Check that another process has every function and variable to which the module refers.

    Raises:
        CompileError: a function, a variable or an environment belongs to this process.
    """
    counts = frontend.symbol_counts(str(module))
    missing = [
        function.name
        for function in module.functions
        if function.is_declaration and not function.name.startswith("llvm.") and counts.get(function.name, 0) > 1
        and not _is_available_everywhere(function.name)
    ]  # fmt: skip
    for variable in module.global_variables:
        name = variable.name
        if name.startswith(_ENVIRONMENT) and counts.get(name, 0) > 1:
            raise export_error(
                func_name, "it contains an operation on Python objects, such as printing an array, which needs Numba; remove it"
            )
        if variable.is_declaration and counts.get(name, 0) > 1 and not name.startswith(("PyExc_", "_Py_")):
            reason = "it reads data that only this process has; the notes of this exception name the symbols"
            raise _with_symbols(export_error(func_name, reason), [name])
    if missing:
        raise _with_symbols(export_error(func_name, _reason_for_missing(missing)), missing)


def _with_symbols(error: CompileError, names: Iterable[str]) -> CompileError:
    """Add a note with the names of symbols to an exception, and return the exception."""
    error.add_note(f"symbols: {', '.join(sorted(names))}")
    return error


def _is_available_everywhere(name: str) -> bool:
    """Return whether every process has a function: a function of the platform or of Python's C API."""
    provider = frontend.provider_of(name)
    return provider == "platform" or (bool(provider) and name.startswith(("Py", "_Py")))


#: The purposes of native functions that exported code cannot call, by the prefixes of their names.
_PURPOSES = (
    (("NRT_", "nrt_"), "it uses a function of Numba's memory runtime that compcache does not replace"),
    (("numba_gdb",), "it calls the debugger"),
    (("__svml", "_svml"), "it calls Intel's vector library (SVML), which other hosts may lack"),
    (("numba_", "NPY_"), "it calls a function of Numba's runtime that compcache does not replace"),
)


def _reason_for_missing(missing: Iterable[str]) -> str:
    """Return why code that calls these missing functions cannot be exported."""
    for beginnings, purpose in _PURPOSES:
        if any(name.startswith(beginnings) for name in missing):
            return purpose
    return "it calls native functions that other processes may lack; the notes of this exception name them"
