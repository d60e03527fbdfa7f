"""Native entries for Numba functions that run in processes with neither Numba nor llvmlite.

The function is compiled by Numba, without wrappers; a wrapper of our own makes its arguments of what compcache's entry
points take off Python objects (scalars, pointers with counts) and turns its exceptions into Python's. Memory that the
kernel allocates and frees again comes from `compcache.numba.memory`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from llvmlite import binding, ir

from compcache.cache import Cache
from compcache.errors import CompileError
from compcache.module import Function, ModuleSource
from compcache.numba.exceptions import RAISE, describe_exceptions, raising_text
from compcache.numba.images import (
    CannotLink,
    MissingCallee,
    load_exception_classes,
    resolve_recursion,
    with_recursive_callees,
)
from compcache.numba.memory import MEMORY_RUNTIME

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["export"]

ENTRY = "compcache.numba.entry"
_INTEGERS = {
    f"{'u' if prefix else ''}int{bits}": f"{prefix or 'i'}{bits}"
    for prefix in ("", "u")
    for bits in (8, 16, 32, 64)
}
_SCALARS = {**_INTEGERS, "float32": "f32", "float64": "f64", "bool": "bool", "boolean": "bool"}
_ENVIRONMENT = "_ZN08NumbaEnv"
_LOADED_ENVIRONMENT = re.compile(rf'^  (%\S+) = load ptr, ptr @"?{_ENVIRONMENT}.*$', re.MULTILINE)
_DEFINITION_AND_USE = 2


class _Parameter(NamedTuple):
    """One parameter: its name, its Numba type, and its text in compcache's signature."""

    name: str
    type: Any
    text: str


def export(func: Any, signature: Any, *, cache: Cache | None = None, name: str | None = None) -> str:
    """Store a native entry for one signature of a function.

    Args:
        func: a function, or what `njit` made of one (whose options are used).
        signature: a Numba signature, as text or object, with or without the result: ``"float64(float64[::1], int64)"``.
            Parameters are integers, floats, booleans and C-contiguous arrays of these; the result is a scalar,
            a tuple of scalars or None.
        cache: the cache to store in; None means the one that the backend is installed with, else the default one.
        name: the func_name for `Cache.get_target`; None means the module and the qualified name. What was exported
            under it before is replaced.

    Returns:
        The func_name.

    Raises:
        CompileError: the function cannot be exported; the message says why.
        numba.core.errors.NumbaError: Numba does not compile it.
    """
    function, options, local_types = _describe(func)
    func_name = name or f"{function.__module__}.{function.__qualname__}"
    args, result = _types_of(signature)
    parameters = _parameters(function, func_name, args)
    cres = _compile(function, options, local_types, args, result)
    text = _result_text(func_name, cres.signature.return_type)
    module = _assemble(func_name, cres, parameters)
    shown = f"{text}({', '.join(f'{p.name}: {p.text}' for p in parameters)})"
    source = ModuleSource(
        module, {func_name: Function(shown, symbol=ENTRY, nogil=bool(options.get("nogil")))}, optimize=2,
        identity={"name": func_name, "numba signature": str(cres.signature), "exported by": "compcache.numba"},
    )  # fmt: skip
    chosen = cache if cache is not None else _default_cache()
    _replace(chosen, func_name, chosen.add_module(source))
    return func_name


def _default_cache() -> Cache:
    from compcache import numba as package

    installation = package._installation
    return installation[0].cache if installation is not None else Cache()


def _replace(cache: Cache, func_name: str, module_id: str) -> None:
    """Remove what was exported under this name before: other code under the same name would be another function."""
    for other in cache.realizations(func_name):
        if other.module_id != module_id:
            cache._store.remove_module(bytes.fromhex(other.module_id))


def _refuse(func_name: str, reason: str) -> CompileError:
    return CompileError(f"{func_name} cannot be exported: {reason}")


def _describe(func: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    function = getattr(func, "py_func", func)
    options = {
        k: dict(v) if isinstance(v, dict) else v for k, v in getattr(func, "targetoptions", {}).items()
    }
    if not hasattr(function, "__code__"):
        raise CompileError(f"{func!r} is neither a function nor what njit makes of one")
    return function, options, dict(getattr(func, "locals", {}))


def _types_of(signature: Any) -> tuple[tuple[Any, ...], Any]:
    from numba.core import sigutils

    args, result = sigutils.normalize_signature(signature)
    return tuple(args), result


def _compile(
    function: Any, options: dict[str, Any], local_types: dict[str, Any], args: Any, result: Any
) -> Any:
    from numba.core import compiler
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, {**options, "nopython": True})
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    func_name = f"{function.__module__}.{function.__qualname__}"
    if flags.auto_parallel.enabled:
        raise _refuse(func_name, "it is compiled with parallel=True, whose threads are Numba's")
    if options.get("forceobj"):
        raise _refuse(func_name, "it is compiled in object mode")
    with global_compiler_lock:
        cres = compiler.compile_extra(
            cpu_target.typing_context, cpu_target.target_context, function, args=args, return_type=result,
            flags=flags, locals=local_types,
        )  # fmt: skip
    if cres.objectmode or cres.lifted:
        raise _refuse(func_name, "part of it runs in object mode")
    if cres.library.has_dynamic_globals:
        raise _refuse(
            func_name, "it uses addresses of this process (ctypes functions or large global arrays)"
        )
    return cres


def _parameters(function: Any, func_name: str, args: tuple[Any, ...]) -> list[_Parameter]:
    import inspect

    names = list(inspect.signature(function).parameters)
    if len(names) != len(args):
        raise _refuse(func_name, f"it has {len(names)} parameters, and the signature {len(args)}")
    return [_Parameter(n, t, _parameter_text(func_name, n, t)) for n, t in zip(names, args, strict=True)]


def _parameter_text(func_name: str, name: str, type_: Any) -> str:
    from numba.core import types

    if isinstance(type_, types.Array):
        element = _SCALARS.get(str(type_.dtype))
        if type_.ndim == 0:
            raise _refuse(func_name, f"parameter {name!r} is an array without dimensions")
        if type_.layout == "F" and type_.ndim > 1:
            raise _refuse(func_name, f"parameter {name!r} is an array in Fortran order")
        if element is None:
            raise _refuse(func_name, f"parameter {name!r} is an array of {type_.dtype}")
        return (
            f"{'' if type_.mutable else 'const '}{element}[{', '.join([*[':'] * (type_.ndim - 1), '::1'])}]"
        )
    text = _SCALARS.get(str(type_))
    if text is None:
        raise _refuse(
            func_name,
            f"parameter {name!r} is of type {type_}; scalars and arrays are supported",
        )
    return text


def _result_text(func_name: str, type_: Any) -> str:
    from numba.core import types

    if isinstance(type_, types.Generator):
        raise _refuse(func_name, "it is a generator")
    if type_ == types.none:
        return "void"
    if isinstance(type_, (types.Tuple, types.UniTuple)) and type_.count:
        items = [_SCALARS.get(str(types.unliteral(item))) for item in type_]
        if None not in items:
            return f"tuple[{', '.join(map(str, items))}]"
    text = _SCALARS.get(str(types.unliteral(type_)))
    if text is None:
        raise _refuse(
            func_name, f"its result is of type {type_}; scalars, tuples of scalars and None are supported"
        )
    return text


# ------------------------------------------------------------------------- the module


def _assemble(func_name: str, cres: Any, parameters: list[_Parameter]) -> str:
    """The wrapper, the function, its exceptions and the memory runtime, without what nothing refers to."""
    context = cres.target_context
    with context.push_code_library(context.codegen().create_library(ENTRY)):  # casts of literals ask for one
        module = binding.parse_assembly(_wrapper_text(cres, parameters))
    try:
        compiled = with_recursive_callees(cres.library)
    except MissingCallee as error:
        raise _refuse(func_name, str(error)) from error
    module.link_in(compiled.clone())
    module = _rewritten(module)
    exceptions = describe_exceptions(func_name, str(module))
    described = {known.variable for known in exceptions}
    for variable in module.global_variables:
        if variable.name in described:
            variable.linkage = "external"  # so that what follows can refer to it
    module.link_in(binding.parse_assembly(_with_layout(raising_text(exceptions), module)))
    module.link_in(binding.parse_assembly(_with_layout(MEMORY_RUNTIME, module)))
    _drop_unused(module)
    _check(func_name, module)
    try:
        return load_exception_classes(str(module))
    except CannotLink as error:
        raise _refuse(func_name, str(error)) from error


def _rewritten(module: Any) -> Any:
    """The module without Numba's slots for recursion, and without environments that nothing is read from."""
    text = str(module)
    changed = resolve_recursion(text, {f.name for f in module.functions if not f.is_declaration})
    changed = "\n}\n".join(map(_without_idle_environments, changed.split("\n}\n")))
    return module if changed == text else binding.parse_assembly(changed)


def _without_idle_environments(function: str) -> str:
    """Let a function that only asks whether it has an environment believe that it has one."""

    def load(match: re.Match[str]) -> str:
        uses = re.findall(rf"{re.escape(match[1])}(?![\w.$-])", function)
        compared = f"= icmp eq ptr {match[1]}, null\n" in function
        return (
            f"  {match[1]} = inttoptr i64 1 to ptr"
            if compared and len(uses) == _DEFINITION_AND_USE
            else match[0]
        )

    return _LOADED_ENVIRONMENT.sub(load, function)


def _with_layout(text: str, module: Any) -> str:
    return f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n{text}'


def _wrapper_text(cres: Any, parameters: list[_Parameter]) -> str:
    """A function that takes pointers and counts for arrays, calls the compiled one, and reports its exceptions."""
    from numba.core import types

    context = cres.target_context
    module = context.create_module("compcache.numba.export")
    pointer, count = ir.IntType(8).as_pointer(), ir.IntType(64)
    argument_types: list[Any] = []
    result = types.unliteral(cres.signature.return_type)
    is_tuple = isinstance(result, types.BaseTuple)
    is_void = result == types.none or is_tuple
    if is_tuple:
        argument_types.append(count.as_pointer())
    for parameter in parameters:
        if isinstance(parameter.type, types.Array):
            argument_types += [pointer, *[count] * parameter.type.ndim]
        else:
            argument_types.append(context.get_value_type(parameter.type))
    result_type = ir.VoidType() if is_void else context.get_value_type(result)
    wrapper = ir.Function(module, ir.FunctionType(result_type, argument_types), ENTRY)
    callee_type = context.call_conv.get_function_type(cres.fndesc.restype, cres.fndesc.argtypes)
    callee = ir.Function(module, callee_type, cres.fndesc.llvm_func_name)
    builder = ir.IRBuilder(wrapper.append_basic_block("entry"))
    given = iter(wrapper.args)
    slots = next(given) if is_tuple else None
    values = [_value(context, builder, parameter, given) for parameter in parameters]
    status, out = context.call_conv.call_function(
        builder, callee, cres.fndesc.restype, cres.fndesc.argtypes, values
    )
    with builder.if_then(status.is_error, likely=False):
        raise_type = ir.FunctionType(ir.VoidType(), [ir.IntType(32), pointer])
        info = builder.bitcast(status.excinfoptr, pointer)
        builder.call(ir.Function(module, raise_type, RAISE), [status.code, info])
    if is_tuple:
        _store_items(context, builder, cres.fndesc.restype, out, slots)
    if is_void:
        builder.ret_void()
    else:
        builder.ret(context.cast(builder, out, cres.fndesc.restype, result))
    return str(module)


def _store_items(context: Any, builder: Any, type_: Any, value: Any, slots: Any) -> None:
    """Put the items of a tuple into the slots of the caller; after an error they are not looked at."""
    from numba.core import types

    for number, item_type in enumerate(type_):
        plain = types.unliteral(item_type)
        item = context.cast(builder, builder.extract_value(value, number), item_type, plain)
        stored = context.get_data_type(plain) if plain == types.boolean else item.type
        place = builder.gep(slots, [ir.Constant(ir.IntType(64), number)])
        if item.type != stored:
            item = builder.zext(item, stored)
        builder.store(item, builder.bitcast(place, stored.as_pointer()))


def _value(context: Any, builder: Any, parameter: _Parameter, given: Any) -> Any:
    from numba.core import types
    from numba.np.arrayobj import make_array, populate_array

    first = next(given)
    first.name = re.sub(r"\W", "_", parameter.name)
    if not isinstance(parameter.type, types.Array):
        return first
    shape = [next(given) for _ in range(parameter.type.ndim)]
    array = make_array(parameter.type)(context, builder)
    itemsize = context.get_constant(
        types.intp, context.get_abi_sizeof(context.get_data_type(parameter.type.dtype))
    )
    data = builder.bitcast(first, array.data.type)
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()


def _drop_unused(module: Any) -> None:
    """What only Numba's wrappers would have used is not to be provided for."""
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name != ENTRY:
            value.linkage = "internal"
    machine = binding.Target.from_triple(module.triple).create_target_machine()
    manager = binding.create_new_module_pass_manager()
    manager.add_global_dead_code_eliminate_pass()
    manager.run(
        module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
    )


def _check(func_name: str, module: Any) -> None:
    """Refuse what another process would lack, with the reason."""
    from compcache import natives
    from compcache.irtext import symbol_counts

    counts = symbol_counts(str(module))
    missing = [
        function.name
        for function in module.functions
        if function.is_declaration and not function.name.startswith("llvm.") and counts.get(function.name, 0) > 1
        and not _is_everywhere(natives, function.name)
    ]  # fmt: skip
    for variable in module.global_variables:
        name = variable.name
        if name.startswith(_ENVIRONMENT) and counts.get(name, 0) > 1:
            raise _refuse(func_name, "it works on Python objects, which needs Numba's environment")
        if variable.is_declaration and counts.get(name, 0) > 1 and not name.startswith(("PyExc_", "_Py_")):
            raise _refuse(func_name, f"it refers to the external variable {name!r}")
    if missing:
        raise _refuse(func_name, _why_missing(missing))


def _is_everywhere(natives: Any, name: str) -> bool:
    return bool(natives.is_platform_symbol(name)) or (
        name.startswith(("Py", "_Py")) and bool(natives.in_process(name))
    )


def _why_missing(missing: Iterable[str]) -> str:
    names = sorted(missing)
    shown = ", ".join(names[:8])
    if any(name.startswith("NRT_") for name in names):
        return f"it needs parts of Numba's memory runtime that exported code does not have ({shown})"
    return f"it calls {shown}, which only a process with Numba has"
