"""Lists the private names of Numba that the backend replaces or uses, with the reason for each.

Numba has no interface for other caches. `missing_names` returns the names that the Numba of this process lacks. If any name is missing,
nothing is replaced.
"""

from __future__ import annotations

import sys
from importlib import import_module
from operator import attrgetter
from typing import NamedTuple

from compcache.interrupts import suppress

__all__ = ["REPLACED", "USED", "PrivateName", "missing_names"]


class PrivateName(NamedTuple):
    """A private name of Numba, ``module:Class.attribute``, and the reason why the backend needs it."""

    name: str
    reason: str


_NEW_CACHE = "creates the cache object of a function that is decorated with cache=True"
_LATER_CACHE = "functions that were decorated before the installation use the cache from their next compilation on"
_TYPING = "the compiler uses one of the user's implementations, so the code depends on it"
_NAMES = "the compiler looks for implementations by a name, which a new implementation may match next time"
_LOOPS = "compiling a caller adds a loop to a ufunc without signatures, and so does loading the caller"
_LATE = "machine code is generated when its address is requested, which never happens for most functions"

#: Names that `hooks` replaces while the backend is installed.
REPLACED = (
    PrivateName("numba.core.dispatcher:Dispatcher.enable_caching", _NEW_CACHE),
    PrivateName("numba.core.dispatcher:Dispatcher.compile", _LATER_CACHE),
    PrivateName("numba.core.ccallback:CFunc.enable_caching", _NEW_CACHE),
    PrivateName("numba.core.ccallback:CFunc.compile", _LATER_CACHE),
    PrivateName("numba.np.ufunc.ufuncbuilder:UFuncDispatcher.enable_caching", _NEW_CACHE),
    PrivateName("numba.np.ufunc.ufuncbuilder:UFuncDispatcher._compile_core", _LATER_CACHE),
    PrivateName("numba.np.ufunc.wrappers:_GufuncWrapper.__init__", "creates the cache object of a gufunc's wrapper"),
    PrivateName("numba.core.compiler:compile_extra", "compiles every function, so the backend can record compilations here"),
    PrivateName("numba.core.compiler:compile_internal", "compiles Numba's internal functions, which are recorded too"),
    PrivateName("numba.core.bytecode:FunctionIdentity.from_function", "assigns numbers to functions, which become part of symbols"),
    PrivateName("numba.core.typing.templates:AbstractTemplate.apply", _TYPING),
    PrivateName("numba.core.typing.templates:CallableTemplate.apply", _TYPING),
    PrivateName("numba.core.typing.templates:_OverloadFunctionTemplate.generic", _TYPING),
    PrivateName("numba.core.typing.templates:_IntrinsicTemplate.generic", _TYPING),
    PrivateName("numba.core.typing.templates:_OverloadAttributeTemplate.resolve", _TYPING),
    PrivateName("numba.core.typing.templates:_OverloadAttributeTemplate._resolve", _TYPING),
    PrivateName("numba.core.typing.templates:_OverloadMethodTemplate._resolve", _TYPING),
    PrivateName("numba.core.dispatcher:Dispatcher.recompile", "compiles a function from present values, whatever loaded code contains"),
    PrivateName("numba.core.typing.context:CallStack.finditer", "finds recursive calls of a function that is compiled from former values"),
    PrivateName("numba.core.typing.context:BaseContext.resolve_getattr", _NAMES),
    PrivateName("numba.core.typing.context:BaseContext.resolve_setattr", _NAMES),
    PrivateName("numba.core.types.functions:BaseFunction.get_call_type", _NAMES),
    PrivateName("numba.np.ufunc.dufunc:DUFunc._compile_for_argtys", _LOOPS),
    PrivateName("numba.np.ufunc.gufunc:GUFunc._compile_for_argtys", _LOOPS),
    PrivateName("numba.core.base:OverloadSelector.find", "chooses the function that generates code, which may be the user's"),
    PrivateName("numba.core.datamodel.manager:DataModelManager.lookup", "code is generated for a type, which may be the user's"),
    PrivateName("numba.core.base:BaseContext.add_dynamic_addr", "a package's code generator puts an address of this process into code"),
    PrivateName("numba.core.codegen:JITCPUCodegen._add_module", _LATE),
    PrivateName("numba.core.codegen:JITCPUCodegen.set_env", "code gets its environment once the code exists"),
    PrivateName("numba.core.codegen:JITCodeLibrary._finalize_specific", _LATE),
    PrivateName("numba.core.codegen:JITCodeLibrary._get_compiled_object", _LATE),
    PrivateName("numba.core.codegen:JITCodeLibrary.get_pointer_to_function", _LATE),
    PrivateName("numba.core.serialize:NumbaPickler.reducer_override", "classes and intrinsics in code are stored by their names"),
    PrivateName("numba.core.cpu:CPUContext.get_executable", "a function that is being stored runs the stored image"),
)
_OPTIONS = "an option of an overload, which is part of its identity"
_TYPE = "what a package registers for a type is part of the identity of code for this type"
_BOX = "code that returns an instance of a jitclass to Python contains the address of this class"
_COMPILED = "the module of compiled code, which is stored"
#: Names that are used without being replaced.
USED = (
    PrivateName("numba.core.caching:_Cache", "the base class of cache objects"),
    PrivateName("numba.core.caching:CompileResultCacheImpl", "packages read this part of Numba's cache objects (numpy-groupies)"),
    PrivateName("numba.core.caching:_cache_log", "prints the messages of NUMBA_DEBUG_CACHE=1"),
    PrivateName("numba.core.caching:FunctionCache", "Numba's own cache object, which stores functions that the backend refuses"),
    PrivateName("numba.core.caching:NullCache", "the cache object of a function for which there is no cache directory"),
    PrivateName("numba.np.ufunc.wrappers:GufWrapperCache", "Numba's own cache object of a gufunc's wrapper"),
    PrivateName("numba.core.dispatcher:Dispatcher._memo", "unpickling a function returns the function of this process if there is one"),
    PrivateName("numba.core.dispatcher:Dispatcher._uuid", "unpickling a function finds the function of this process by this identifier"),
    PrivateName("numba.core.entrypoints:_already_initialized", "whether functions may have been compiled before"),
    PrivateName("numba.core.typing.templates:builtin_registry", "where overloads and intrinsics are registered"),
    PrivateName("numba.core.imputils:builtin_registry", "where functions that generate code are registered"),
    PrivateName("numba.core.typing.context:BaseContext._get_attribute_templates", "the template for an attribute may be the user's"),
    PrivateName("numba.core.typing.context:BaseContext._lookup_global", "a copy with former values has the type of the function"),
    PrivateName("numba.core.dispatcher:ObjModeLiftedWith", "a block in object mode is pickled with its closure variables"),
    PrivateName("numba.core.codegen:RuntimeLinker", "slots for recursive calls of loaded code are filled"),
    PrivateName("numba.core.datamodel:default_manager._handlers", _TYPE),
    PrivateName("numba.core.pythonapi:_boxers", _TYPE),
    PrivateName("numba.core.pythonapi:_unboxers", _TYPE),
    PrivateName("numba.core.pythonapi:_reflectors", _TYPE),
    PrivateName("numba.core.typing.templates:_OverloadFunctionTemplate._get_impl", _OPTIONS),
    PrivateName("numba.core.extending:_Intrinsic", "an intrinsic is identified by its function, and stored as its name in its module"),
    PrivateName("numba.core.codegen:JITCodeLibrary._get_module_for_linking", _COMPILED),
    PrivateName("numba.core.codegen:JITCodeLibrary._finalize_final_module", "functions that only bitcode contains are compiled on request"),
    PrivateName("numba.core.codegen:CodeLibrary", "the base class of libraries that are mapped images"),
    PrivateName("numba.core.compiler:CompileResult._reduce", "object mode and generators are stored as Numba stores them"),
    PrivateName("numba.core.compiler:CompileResult._rebuild", "object mode and generators are loaded as Numba loads them"),
    PrivateName("numba.core.generators:GeneratorDescriptor.from_generator_fndesc", "callers of a loaded generator can be compiled"),
    PrivateName("numba.core.base:BaseContext.insert_generator", "callers of a loaded generator can be compiled"),
    PrivateName("numba.np.ufunc.dufunc:DUFunc.disable_compile", "the code of a ufunc that was declared with signatures is fixed"),
    PrivateName("numba.np.ufunc.ufunc_base:UfuncBase.find_ewise_function", "loading a caller adds only the loops that a ufunc lacks"),
    PrivateName("numba.core.environment:Environment._memo", "environments are found by name"),
    PrivateName("numba.core.environment:lookup_environment", "environments are found by name"),
    PrivateName("numba._dynfunc:make_function", "creates the Python callable for a mapped image"),
    PrivateName("numba.core.runtime:_nrt_python.c_helpers", "the addresses of the functions of Numba's memory runtime"),
    PrivateName("numba.np.ufunc.parallel:_launch_threads", "code that reads its thread number needs the threads"),
    PrivateName("numba.core.typed_passes:_reload_parfors", "parallel code needs the threads, and nothing else, before it is loaded"),
    PrivateName("numba.core.typeinfer:_temporary_dispatcher_map", "a function that is being declared is found here by its own code"),
    PrivateName("numba.core.targetconfig:ConfigStack.top_or_none", "the flags that a ufunc is compiled with"),
    PrivateName("numba.core.config:LOOP_VECTORIZE", "code exported for several CPUs is vectorized later"),
    PrivateName("numba.core.config:reload_config", "settings are read when a function is looked up"),
    PrivateName("numba.core.serialize:dumps", "types and descriptors are pickled as Numba pickles them"),
    PrivateName("numba.core.withcontexts:_ObjModeContextType", "blocks in object mode read globals when they run"),
    PrivateName("numba.core.serialize:_CustomPickled", "objects are pickled by picklers that are older than Numba's registration"),
    PrivateName("numba.core.serialize:_pickle__CustomPickled", "objects are pickled by picklers that are older than Numba's registration"),
    PrivateName("numba.experimental.jitclass.boxing:_specialize_box", _BOX),
    PrivateName("numba.experimental.jitclass.boxing:_cache_specialized_box", _BOX),
    PrivateName("numba.stencils.stencil:StencilFunc", "a stencil is identified by its kernel and options"),
)


def missing_names() -> tuple[PrivateName, ...]:
    """Return the names that the Numba of this process lacks; empty if it has all of them."""
    return tuple([private for private in (*REPLACED, *USED) if not _exists(private.name)])


def _exists(name: str) -> bool:
    """Return whether the Numba of this process has a private name, in a module that can be imported."""
    module, _, path = name.partition(":")
    with suppress(ImportError, AttributeError):
        attrgetter(path)(sys.modules.get(module) or import_module(module))
        return True
    return False
