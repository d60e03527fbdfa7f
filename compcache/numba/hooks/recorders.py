"""Records Numba's compilations.

This module wraps the two entry points of the compiler, the function that numbers functions, and the functions that look up implementations,
which may be the user's.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import MethodType
from typing import TYPE_CHECKING, Any

from numba.core import base, bytecode, codegen, compiler, cpu, dispatcher, serialize, targetconfig
from numba.core.datamodel import manager
from numba.core.errors import NumbaNotImplementedError
from numba.core.registry import cpu_target
from numba.core.types import functions
from numba.core.typing import context, templates
from numba.np import numpy_support
from numba.np.ufunc import dufunc, gufunc, wrappers

from compcache.numba.compilation import libraries, native_code, scopes
from compcache.numba.compilation.former_runs import former_implementation
from compcache.numba.dispatch import Backend
from compcache.numba.dispatch.gufunc_cache import GufuncCache
from compcache.numba.entries.mapped_library import make_entry_point
from compcache.numba.fingerprints.code_digest import plain_name, reported_file
from compcache.numba.fingerprints.fixed_code import early_code
from compcache.numba.fingerprints.implementations import is_overload_or_intrinsic, key_name, source_of_template
from compcache.numba.hooks.replacements import Replacements
from compcache.numba.identity.kept_results import record_unknown_result
from compcache.numba.identity.linked import record_recompiled
from compcache.numba.lazy.garbage import few_collections
from compcache.numba.lazy.raising import ModuleFilePath
from compcache.numba.registered.library import is_library_module
from compcache.numba.registered.options import declared_locals
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["run_before", "start_recording", "stop_recording"]

#: The installed recorders. One set serves the whole process, because functions that keep using the directory need it after `uninstall`.
_recorders = Replacements()


def start_recording(*, from_the_start: bool) -> None:
    """Record compilations from now on. Unless Numba has compiled nothing (`from_the_start`), record the implementations that it has run."""
    if _recorders:
        return
    classes: list[type] = [] if from_the_start else [templates.AbstractTemplate]
    for cls in classes:  # the list grows by the subclasses
        classes += type.__subclasses__(cls)
        function = source_of_template(cls) if vars(cls).get("_impl_cache") else None
        if function is not None:
            record_unknown_result(function)
    for result in [] if from_the_start else cpu_target.target_context.cached_internal_func.values():
        if not is_library_module(result.fndesc.modname):  # a code generator of the program has compiled this, and callers would link it
            unknown = Unidentifiable(early_code(result.library.name))
            libraries.set_dependencies(result.library, libraries.LibraryRecord(problem=unknown))
    _recorders.wrap(compiler, "compile_extra", _make_scope_wrapper(2))
    _recorders.wrap(compiler, "compile_internal", _make_scope_wrapper(3))
    numbering = bytecode.FunctionIdentity.__dict__["from_function"].__func__
    _recorders.replace(bytecode.FunctionIdentity, "from_function", classmethod(_wrap_from_function(numbering)))
    _recorders.wrap(templates.AbstractTemplate, "apply", _wrap_apply)
    _recorders.wrap(templates.CallableTemplate, "apply", _wrap_apply)
    _recorders.wrap(templates._OverloadFunctionTemplate, "generic", _wrap_template)
    _recorders.wrap(templates._IntrinsicTemplate, "generic", _wrap_template)
    _recorders.wrap(templates._OverloadAttributeTemplate, "resolve", _wrap_template)
    _recorders.wrap(templates._OverloadMethodTemplate, "_resolve", _wrap_template)
    _recorders.wrap(templates._OverloadAttributeTemplate, "_resolve", _wrap_template)
    _recorders.wrap(dispatcher.Dispatcher, "recompile", run_before(record_recompiled))
    _recorders.wrap(context.CallStack, "finditer", _wrap_finditer)
    _recorders.wrap(context.BaseContext, "resolve_getattr", run_before(_record_attribute))
    _recorders.wrap(context.BaseContext, "resolve_setattr", run_before(_record_attribute))
    _recorders.wrap(functions.BaseFunction, "get_call_type", run_before(_record_call))
    _recorders.wrap(dufunc.DUFunc, "_compile_for_argtys", run_before(_record_loop))
    _recorders.wrap(gufunc.GUFunc, "_compile_for_argtys", run_before(_record_loop))
    _recorders.wrap(base.OverloadSelector, "find", _wrap_find)
    _recorders.wrap(manager.DataModelManager, "lookup", run_before(_record_type))
    _recorders.wrap(base.BaseContext, "add_dynamic_addr", run_before(_record_address))
    _recorders.wrap(serialize.NumbaPickler, "reducer_override", _wrap_reducer)
    _recorders.wrap(wrappers._GufuncWrapper, "__init__", _accept_backend_as_cache)
    _postpone_code()


def stop_recording() -> None:
    """Generate all postponed machine code, and remove the recorders."""
    native_code.generate_all()
    _recorders.undo()


def _postpone_code() -> None:
    """Replace functions of Numba so that machine code is generated only when it is needed (see `native_code`)."""
    add_module = codegen.JITCPUCodegen._add_module
    finalize = codegen.JITCodeLibrary._finalize_specific

    def generate_code(library: Any) -> None:
        """Generate the machine code of a library with Numba's own functions."""
        add_module(library.codegen, library._final_module)
        finalize(library)

    _recorders.replace(codegen.JITCPUCodegen, "_add_module", lambda _codegen, _module: None)
    _recorders.replace(codegen.JITCodeLibrary, "_finalize_specific", lambda library: native_code.postpone(library, generate_code))
    _recorders.wrap(codegen.JITCodeLibrary, "get_pointer_to_function", _wrap_get_pointer)
    _recorders.wrap(codegen.JITCodeLibrary, "_get_compiled_object", run_before(native_code.generate))
    _recorders.wrap(codegen.JITCPUCodegen, "set_env", _wrap_set_env)
    _recorders.wrap(cpu.CPUContext, "get_executable", _wrap_get_executable)


def run_before(action: Callable[..., None]) -> Callable[[Any], Any]:
    """Return a function that wraps a method so that each call first calls `action` with the same arguments."""

    def wrap(original: Any) -> Any:
        def method(*args: Any, **kwargs: Any) -> Any:
            action(*args, **kwargs)
            return original(*args, **kwargs)

        return method

    return wrap


#: The arguments of `compile_extra` and `compile_internal` from the compiled function on. `compile_internal` has the first five.
_COMPILED_ARGUMENTS = ("func", "args", "return_type", "flags", "locals", "library", "pipeline_class")


def _make_scope_wrapper(position: int) -> Callable[[Any], Any]:
    """Return a wrapper of an entry point of the compiler that runs each compilation in a scope.

    `position` is the position of the compiled function among the arguments. The arguments from there on are `_COMPILED_ARGUMENTS`.
    """

    def wrap(original: Any) -> Any:
        def compile_(*args: Any, **kwargs: Any) -> Any:
            """Compile as before, record what the code depends on, and store the result if it was missing."""
            if not _registered:
                _register_implementations(args[:2])
            arguments = dict(zip(_COMPILED_ARGUMENTS, args[position:], strict=False)) | kwargs
            types_of_locals = sorted((name, str(type_)) for name, type_ in declared_locals(arguments["locals"]).items())
            extra = f"{types_of_locals} {getattr(arguments.get('pipeline_class'), '__name__', '')}"
            function = bytecode.get_function_object(arguments["func"])
            # The name becomes a part of symbols, and the name of an array expression contains an address of this process.
            if plain_name(function.__name__) != function.__name__:
                function.__name__ = function.__qualname__ = plain_name(function.__name__)
            caller = sys._getframe(1).f_locals.get("self")
            dispatcher = caller if getattr(caller, "py_func", None) is function else None
            types_and_flags = arguments["args"], arguments["return_type"], arguments["flags"]
            with scopes.compile_scope(function, dispatcher, *types_and_flags, extra) as scope:
                result = original(*args, **kwargs)
                libraries.collect_dependencies(result.library, scope)
                libraries.record_library(result.fndesc.llvm_func_name, result.library)
            stored = result if scope.miss is None else _store_result(scope.miss, result)
            libraries.add_linked(result.library, scope.overload)
            return stored

        return compile_

    return wrap


#: Contains True once Numba has registered its implementations.
_registered: list[bool] = []


def _register_implementations(contexts: Iterable[Any]) -> None:
    """Make Numba register its implementations in the typing and target contexts, as it does before its first compilation."""
    _registered.append(True)
    with few_collections(lasting=True):
        for context_ in contexts:
            context_.refresh()


def _store_result(miss: scopes.Miss, result: Any) -> Any:
    """Store a compile result for the look-up that missed it. Return the result with the entry point that its compilation omitted."""
    miss.store(result)
    context, placeholder = result.target_context, result.entry_point
    entry_point = context.get_executable(result.library, result.fndesc, result.environment)
    if placeholder in context._defns:
        context.remove_user_function(placeholder)
        context.insert_user_function(entry_point, result.fndesc, [result.library])
    return result._replace(entry_point=entry_point)


def _wrap_get_executable(original: Any) -> Any:
    """Return a wrapper that creates no entry point for a function that is about to be stored."""

    def get_executable(self: Any, library: Any, fndesc: Any, env: Any) -> Any:
        """Return the entry point of compiled code. Until `_store_result` replaces it, code that is stored has the address 0."""
        if scopes.has_miss(getattr(fndesc, "uid", None)):
            library._ensure_finalized()
            return make_entry_point(0, library, fndesc, env)  # `_store_result` creates the real entry point
        return original(self, library, fndesc, env)

    return get_executable


def _wrap_get_pointer(original: Any) -> Any:
    """Return a wrapper that generates a function's machine code when its address is requested, unless a stored image contains it."""

    def get_pointer_to_function(self: Any, name: str) -> Any:
        self._ensure_finalized()
        native_code.announce_request(self, name)
        address = native_code.address_in_image(self, name)
        if address:
            return address
        native_code.generate_for(self, name)
        return original(self, name)

    return get_pointer_to_function


def _wrap_set_env(original: Any) -> Any:
    """Return a wrapper that assigns an environment only if its variable exists."""

    def set_env(self: Any, env_name: str, env: Any) -> None:
        if self._engine.is_symbol_defined(env_name):  # otherwise the code finds the environment by its name later
            original(self, env_name, env)

    return set_env


def _wrap_reducer(original: Any) -> Any:
    """Return a wrapper that pickles the program's classes and intrinsics by name (`scopes.reduce_to_name`)."""

    def reducer_override(self: Any, obj: Any) -> Any:
        reduced = scopes.reduce_to_name(obj)
        return original(self, obj) if reduced is None else reduced

    return reducer_override


def _accept_backend_as_cache(original: Any) -> Any:
    """Return a constructor of gufunc wrappers whose argument `cache` may be a backend, which then stores the wrapper."""

    def __init__(  # noqa: N807 - it replaces this method
        self: Any, py_func: Any, cres: Any, sin: Any, sout: Any, cache: Any, is_parfors: Any
    ) -> None:
        backend = cache if isinstance(cache, Backend) else None
        original(self, py_func, cres, sin, sout, cache if backend is None else False, is_parfors)
        if backend is not None:
            self.cache = GufuncCache(backend, self, py_func, is_requested=False)

    return __init__


def _wrap_from_function(original: Any) -> Any:
    """Return a wrapper that identifies each function by its content, and the function's file by the name of its module."""

    def from_function(cls: Any, pyfunc: Any) -> Any:
        """Return the identity of a function with an ID and a file path that are the same in every process."""
        identity = original(cls, pyfunc)
        identity.unique_id, read = scopes.next_unique_id(identity.func)
        if read is not identity.func:
            identity.func, identity.code = read, read.__code__
        identity.unique_name = f"{identity.func_qualname}${identity.unique_id}"
        namespace = identity.func.__globals__
        if reported_file(identity.code, namespace):
            identity.filename = ModuleFilePath(identity.filename)
            identity.filename.module = str(namespace.get("__name__"))
        return identity

    return functools.wraps(original)(from_function)


def _wrap_finditer(original: Any) -> Any:
    """Return a wrapper that finds recursive calls of functions that are compiled from former values."""

    def finditer(self: Any, py_func: Any) -> Any:
        """Yield the values in a function, and those in the function that was read in its place."""
        yield from original(self, py_func)
        read = scopes.function_read(py_func)
        if read is not py_func:
            yield from original(self, read)

    return finditer


def _record_attribute(typing_context: Any, owner: Any, name: Any, *_: Any) -> None:
    """Record the name of an attribute, and the templates that the compiler tries for it."""
    scopes.record_name(str(name))
    for template in typing_context._get_attribute_templates(owner):
        _record_template(template)


def _record_loop(ufunc: Any, types: Any, return_type: Any = None) -> None:
    """Record that the compiler adds a loop for these types to a ufunc. If a result type is requested, too, the types have no text."""
    texts = [] if return_type is not None else [_dtype_text(type_) for type_ in types]
    scopes.record_loop(ufunc._dispatcher, "".join([f"{text} " for text in texts]) if all(texts) else "")


def _dtype_text(type_: Any) -> str:
    """Return NumPy's text for a type of Numba, or "" if no text identifies the type."""
    try:
        text: str = numpy_support.as_dtype(type_).str
        return text if numpy_support.from_dtype(numpy_support.np.dtype(text)) == type_ else ""
    except NumbaNotImplementedError:
        return ""


def _record_call(called: Any, *_: Any, **__: Any) -> None:
    """Record the name of a callable, and the templates that the compiler tries for the call."""
    scopes.record_name(key_name(called.typing_key))
    for template in called.templates:
        _record_template(template)


def _record_template(template: Any) -> None:
    """Record that the compiler tries a template of the user, unless it is an overload or an intrinsic, which `_wrap_template` records."""
    function, is_recorded = _source_of(template if isinstance(template, type) else type(template))
    if function is not None and not is_recorded:
        scopes.record_run(function)
        scopes.record_accepted(function)


def _source_of(cls: type) -> tuple[Any, bool]:
    """Return the user's function behind a class of templates (None for Numba's), and whether it is an overload or an intrinsic."""
    try:
        return _sources[cls]
    except KeyError:
        source = _sources[cls] = source_of_template(cls), is_overload_or_intrinsic(cls)
        return source


_sources: weakref.WeakKeyDictionary[type, tuple[Any, bool]] = weakref.WeakKeyDictionary()


def _record_type(_models: Any, fetype: Any) -> None:
    """Record the class of a type for which code is generated, if the class is the user's."""
    cls = type(fetype)
    if not is_library_module(cls.__module__):
        scopes.record_type(cls)


def _wrap_find(original: Any) -> Any:
    """Return a wrapper that records that the code depends on the code generator that Numba chooses."""

    def find(self: Any, sig: Any) -> Any:
        return scopes.record_generator(original(self, sig))

    return find


def _record_address(*_: Any, **__: Any) -> None:
    """Record a package's code generator that puts an address of this process into code.

    Numba looks for the variable of the address in the optimized code. A package that puts further addresses into a constant array may not
    use the variable itself. Without this record, the code would be cached with those addresses.
    """
    caller = sys._getframe(2)  # this function is called by the wrapper of `add_dynamic_addr`
    module = caller.f_globals.get("__name__")
    if not is_library_module(module):
        scopes.record_address(f"{module}.{caller.f_code.co_qualname}")


def _record_use(function: Any, template: Any, args: Any, kws: Any) -> Any:
    """Record that the compiler is about to ask a template for the result of an implementation for these arguments.

    Return the copies of functions with which the template must run the implementation, or None, as `scopes.record_use` does.
    """
    key: Any = template.context, tuple(args), tuple(kws.items())
    if hasattr(template, "_overload_func"):  # the results of intrinsics do not depend on the compiler's flags
        key = (*key, targetconfig.ConfigStack.top_or_none())
    return scopes.record_use(function, type(template), key, is_kept=key in template._impl_cache)


def _wrap_apply(original: Any) -> Any:
    """Return a wrapper that makes a template of the user read former values if loaded code contains the overload that is compiled."""

    def apply(self: Any, args: Any, kws: Any) -> Any:
        """Apply as before, but with a copy of the function from which `type_callable` made the template, or of the class's method."""
        if not scopes.reads_former_values():  # Numba applies thousands of templates in a compilation
            return original(self, args, kws)
        function, is_recorded = _source_of(type(self))
        is_class = isinstance(function, type)
        typer = None if is_recorded else getattr(function, "generic", None) if is_class else function
        read = scopes.implementation_read(typer)
        if read is not typer:
            self.generic = MethodType(read, self) if is_class else functools.partial(read, self.context)
        return original(self, args, kws)

    return apply


def _wrap_template(original: Any) -> Any:
    """Return a wrapper that records that the compiler tries an implementation, and whether the implementation accepts the types."""

    def resolve(self: Any, *args: Any, **kwargs: Any) -> Any:
        function, _ = _source_of(type(self))
        is_attribute = not hasattr(self, "generic")
        if function is None or (is_attribute and [*args, *kwargs.values()][-1] != self._attr):
            return original(self, *args, **kwargs)
        if is_attribute:
            scopes.record_tried(function)
        else:
            copies = _record_use(function, self, *args, **kwargs)
            if copies is not None:
                is_overload = hasattr(self, "_overload_func")
                is_compiled = is_overload and self._inline.is_never_inline
                former = former_implementation(function, copies, is_compiled=is_compiled)
                setattr(self, "_overload_func" if is_overload else "_definition_func", former)
        result = original(self, *args, **kwargs)
        if result is not None:
            scopes.record_accepted(function)
        return result

    return resolve
