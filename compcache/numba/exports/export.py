"""Exports Numba functions as native entries, which run in processes with neither Numba nor llvmlite.

Numba compiles the function, here called the kernel, without Numba's wrappers. compcache's own wrapper converts the values that entry points
extract from Python objects (scalars, pointers with counts) to Numba's arguments, and raises the exceptions of the kernel. `memory_runtime`
allocates and frees the memory of the kernel.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numba
from numba import njit
from numba.core import compiler, config, sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import LiftedLoop
from numba.core.registry import cpu_target

from compcache import Function, ModuleSource, frontend
from compcache.errors import CompileError, ShadowWarning
from compcache.interrupts import reraise_interrupt
from compcache.numba.compilation.error_text import describe_error
from compcache.numba.compilation.plain_containers import created_type, has_containers, make_list_adapter, replace_containers
from compcache.numba.exports.assembly import assemble
from compcache.numba.exports.parameters import (
    add_default_types,
    describe_parameters,
    describe_result,
    export_error,
    has_variable_arguments,
    make_argument_names,
    normalize_argument_types,
)
from compcache.numba.exports.wrapper import ENTRY
from compcache.numba.identity.settings import requested_cpu, requested_cpu_and_features
from compcache.numba.registered.options import declared_locals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.cache import Cache

__all__ = ["export"]


def export(func: Any, signature: Any, *, cache: Cache, name: str | None = None, targets: Iterable[str] | str | None = None) -> str:
    """Store a native entry for one signature of a function, as `compcache.numba.export` does, and return its func_name.

    Raise `CompileError` if the function cannot be exported, or Numba cannot compile it. See `add_realizations` for other exceptions.
    """
    function, options, local_types = _unpack_function(func)
    func_name = name or f"{function.__module__}.{function.__qualname__}"
    nogil = bool(options.get("nogil"))
    args, result = sigutils.normalize_signature(signature)
    args = normalize_argument_types(function, tuple(args))
    if has_variable_arguments(function):
        function = _make_fixed_arguments_function(function, make_argument_names(function, func_name, len(args)), options, local_types)
        options, local_types = {}, {}  # the inner function has the options and the declared types
    all_types = add_default_types(function, func_name, args)
    cpu, features = requested_cpu_and_features() if requested_cpu() else (None, None)
    portable = cpu is None and frontend.targets_of(targets) is not None
    # Numba recognizes a recursive call by this state of the dispatcher.
    with getattr(func, "_compiling_counter", nullcontext()), _without_vectorizer() if portable else nullcontext():
        cres = _compile_kernel(func_name, function, options, local_types, all_types, result)
        returned = describe_result(func_name, cres.signature.return_type)
        if any(map(has_containers, (*args, returned.caller_type))):
            cres = _compile_with_lists(func_name, function, options, local_types, args, returned.caller_type)
    parameters = describe_parameters(function, args, returned.caller_type)
    assembled = assemble(func_name, cres, parameters, returned, nogil=nogil)
    signature_text = f"{returned.text}({', '.join(f'{parameter.name}: {parameter.text}' for parameter in parameters)})"
    source = ModuleSource(
        assembled.text, {func_name: Function(signature_text, symbol=ENTRY, nogil=nogil and not assembled.releases_gil)}, optimize=2,
        cpu=cpu, features=features, targets=targets if cpu is None else None,
        makers={"numba": numba.__version__},
        identity={"name": func_name, "numba signature": str(cres.signature), "exported by": "compcache.numba"},
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShadowWarning)  # the previous export is removed below
        module_ids = frontend.add_realizations(cache, source)
    for realization in cache.realizations(func_name):
        if realization.module_id not in module_ids:
            cache.remove_module(realization.module_id)
    return func_name


@contextmanager
def _without_vectorizer() -> Iterator[None]:
    """Turn off Numba's vectorizers. LLVM later vectorizes the code for the CPU of each target."""
    codegen = cpu_target.target_context.codegen()
    with global_compiler_lock:
        saved = config.LOOP_VECTORIZE, config.SLP_VECTORIZE, codegen._loopvect
        config.LOOP_VECTORIZE, config.SLP_VECTORIZE, codegen._loopvect = 0, 0, False
        try:
            yield
        finally:
            config.LOOP_VECTORIZE, config.SLP_VECTORIZE, codegen._loopvect = saved


def _unpack_function(func: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a dispatcher's Python function, options and declared types of variables. A Python function has neither options nor types.

    Raise `CompileError` if the object is neither a Python function nor a dispatcher.
    """
    function = getattr(func, "py_func", func)
    options = {key: dict(value) if isinstance(value, dict) else value for key, value in getattr(func, "targetoptions", {}).items()}
    if not hasattr(function, "__code__"):
        raise CompileError(f"the object {func!r} cannot be exported: pass a Python function, or a function decorated with njit")
    return function, options, declared_locals(getattr(func, "locals", None))


def _compile_with_lists(func_name: str, function: Any, options: dict[str, Any], local_types: dict[str, Any], args: Any, result: Any) -> Any:
    """Compile a function with lists in place of Numba's containers among its arguments and its result, and return the compile result.

    Raise `CompileError` if a type has no conversion, or Numba cannot compile the function.
    """
    kernel = _jit_kernel(function, options, local_types, created_type(result)(*map(created_type, args)))
    try:
        adapter = make_list_adapter(kernel, args, types.unliteral(created_type(result)))
    except NotImplementedError as error:
        raise export_error(func_name, str(error)) from error
    return _compile_kernel(func_name, adapter, {}, {}, tuple(map(replace_containers, args)), None)


def _make_fixed_arguments_function(function: Any, names: list[str], options: dict[str, Any], local_types: dict[str, Any]) -> Any:
    """Return a Python function with these parameters that calls the compiled form of a function with ``*args``."""
    kernel = "kernel"
    while kernel in names:
        kernel += "_"
    scope = {kernel: _jit_kernel(function, options, local_types)}
    return eval(f"lambda {', '.join(names)}: {kernel}({', '.join(names)})", scope)  # noqa: S307 - names of parameters


def _jit_kernel(function: Any, options: dict[str, Any], local_types: dict[str, Any], *signature: Any) -> Any:
    """Return a jitted function without Python and C wrappers, which only compiled code can call."""
    njit_options = {name: value for name, value in options.items() if name not in ("nopython", "forceobj")}
    return njit(*signature, locals=local_types, **njit_options | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True})(function)


def _compile_kernel(func_name: str, function: Any, options: dict[str, Any], local_types: dict[str, Any], args: Any, result: Any) -> Any:
    """Compile a function for these argument types, without wrappers, and return Numba's compile result.

    Raise `CompileError` if Numba cannot compile the function, or compiles it in object mode.
    """
    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, {**options, "nopython": True})
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    if options.get("forceobj"):
        raise export_error(func_name, "the option forceobj=True compiles the function in object mode; remove this option")
    try:
        with global_compiler_lock:
            cres = compiler.compile_extra(
                cpu_target.typing_context, cpu_target.target_context, function, args=args, return_type=result,
                flags=flags, locals=local_types,
            )  # fmt: skip
    except Exception as error:  # from Numba, or from functions that it calls
        reraise_interrupt(error)
        types = ", ".join(map(str, args))
        raise export_error(func_name, f"Numba cannot compile it for ({types}): {describe_error(error)}") from error
    if cres.objectmode or any(isinstance(part, LiftedLoop) for part in cres.lifted):
        raise export_error(func_name, "Numba compiles it in object mode; use nopython mode")
    return cres
