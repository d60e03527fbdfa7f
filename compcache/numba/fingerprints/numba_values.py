"""Digests Numba objects that functions read: jitted functions, types, stencils, signatures.

A Numba object feeds the same tokens as its stand-in feeds without Numba, so that all processes compute the same digest. A handler raises
`Unidentifiable` if a value, or a part of it, has no identity by content.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from compcache.numba.fingerprints import RUN
from compcache.numba.fingerprints.code_digest import replaced_defaults_reason
from compcache.numba.fingerprints.fixed_code import find_unknown_code, fixed_code
from compcache.numba.fingerprints.owners import function_of, owner_of, record_ufunc
from compcache.numba.fingerprints.state import copy_function, state_of
from compcache.numba.registered.jitclasses import register_jitclass
from compcache.numba.registered.library import is_generator_module, is_library_function, is_library_module, name_of_class
from compcache.numba.registered.marks import is_marked
from compcache.numba.registered.options import compiler_options, declared_locals
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable
from compcache.numba.registered.type_texts import SCALARS

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.numba.fingerprints.walk import Walk

    Handler = Callable[[Walk, Any, str], None]

__all__ = ["HANDLERS_OF_STAND_INS", "frozen_kernel", "handlers", "is_plain_type", "name_of_pipeline"]


@functools.cache
def handlers() -> list[tuple[Any, Handler]]:
    """Return pairs of classes and the handler of their objects. The first pair that matches an object is used."""
    from llvmlite import ir
    from numba.core import types
    from numba.core.ccallback import CFunc
    from numba.core.dispatcher import Dispatcher, LiftedCode
    from numba.core.extending import _Intrinsic
    from numba.core.typing.templates import Signature
    from numba.np.ufunc.dufunc import DUFunc
    from numba.np.ufunc.gufunc import GUFunc
    from numba.np.ufunc.ufuncbuilder import UFuncDispatcher
    from numba.stencils.stencil import StencilFunc

    return [
        (LiftedCode, lambda walk, value, where: walk.feed_unknown(value, where)),
        ((Dispatcher, UFuncDispatcher), _feed_jitted),
        (types.ExternalFunction, _feed_external),
        (types.Type, _feed_type),
        (DUFunc, _feed_dufunc),
        (GUFunc, _feed_gufunc),
        (CFunc, _feed_cfunc),
        (_Intrinsic, _feed_intrinsic),
        (StencilFunc, _feed_stencil),
        (Signature, _feed_signature),
        # Their text is complete. Attributes contain cached results.
        ((ir.Type, ir.Constant), lambda walk, value, _: walk.feed_token("llvm", type(value).__qualname__, value)),
    ]


def _feed_jitted(walk: Walk, value: Any, where: str, *, is_frozen: bool = False) -> None:
    """Feed a dispatcher: the identities of its code if it compiles no more code; otherwise the function and the options.

    Without Numba, feed only the name of a library's function. `is_frozen` is whether the dispatcher belongs to a ufunc that compiles no
    more loops.

    Raise `Unidentifiable` also if the program has replaced default values of the function since its declaration.
    """
    function = function_of(value)
    if walk.without_numba and is_library_function(function):
        walk.feed_token("jitted by a library", function.__module__, function.__qualname__)
        return
    real = _real_dispatcher(value) if type(value) is not value.__class__ else value  # a lazy function has its dispatcher's `__class__`
    if real is not None:
        find_unknown_code(real)
    fixed = fixed_code(real, is_frozen=is_frozen) if real is not None else None
    if fixed is not None or (walk.without_numba and (is_frozen or not getattr(value, "_can_compile", True))):
        walk.feed_declared(fixed, function)
        return
    # Numba has no public name for the signature that it read at the declaration, and whose default values it keeps.
    signature = getattr(getattr(real or value, "_compiler", None), "pysig", None)
    parameters = signature.parameters.values() if signature is not None else ()
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}
    if signature is not None and (reason := replaced_defaults_reason(function, defaults)):
        raise Unidentifiable(reason)
    if walk.without_numba:
        name_of_pipeline(real or value)
        walk.feed_jitted(function, compiler_options(value.targetoptions, value.locals), where, owner=owner_of(real or value))
    else:
        _feed_compiling(walk, value, where)


def _feed_compiling(walk: Walk, value: Any, where: str) -> None:
    """Feed a dispatcher that compiles its function for the types of calls, in the form that keys of entries have had since 1.0.0."""
    function = function_of(value)
    walk.feed_token("jitted", value.__class__.__name__)  # not `type(value)`, which differs for a lazy function
    if is_library_function(function):
        walk.feed_token("library function", function.__module__, function.__qualname__)
        return
    _feed_options(walk, value, where)
    mode, walk.mode = walk.mode, RUN  # the code of the pipeline runs during compilation
    name = name_of_pipeline(value)
    walk.mode = mode
    if name is not None:
        walk.feed_token("pipeline", *name)
    walk.refer_to_compiled(function, where, owner_of(value))
    is_itself = function is walk.compiled  # the function may be in declaration; its signatures matter only to other functions
    if not getattr(value, "_can_compile", True) and not is_itself:
        walk.feed_sequence(getattr(value, "nopython_signatures", ()), f"the signatures of {where}")


def name_of_pipeline(owner: Any) -> tuple[str, str] | None:
    """Return the module and the name of the compiler pipeline of a dispatcher, or None for an object without a pipeline of its own.

    Raise `Unidentifiable` if the pipeline is not Numba's, because its code has no identity.
    """
    pipeline: Any = getattr(getattr(owner, "_compiler", None), "pipeline_class", None)
    if pipeline is None:
        return None
    module, name = pipeline.__module__, pipeline.__qualname__
    if not is_generator_module(module):
        raise Unidentifiable(f"the compiler pipeline {module}.{name} is not Numba's, and cannot be compared: use a pipeline of Numba")
    return module, name


def _real_dispatcher(value: Any) -> Any:
    """Create Numba's dispatcher of a lazy function if necessary, and return it; None during its creation, and for any other object."""
    if not is_marked(type(value), "_compcache_real"):
        return None
    _ = value.targetoptions  # the access creates the dispatcher
    return type(value)._compcache_real(value)


def _feed_options(walk: Walk, compiler: Any, where: str) -> None:
    """Feed the options of a dispatcher or callback, and the declared types of its variables."""
    for key, option in sorted(compiler.targetoptions.items()):
        walk.feed_token("option", key)
        value = getattr(option, "flags", option)  # fast-math flags have a wrapper
        walk.feed_value(list(value) if isinstance(value, tuple) else value, f"option {key!r} of {where}")
    for name, kind in sorted(declared_locals(compiler.locals).items()):
        walk.feed_token("local", name)
        walk.feed_value(kind, f"the type of {name!r} in {where}")


def _feed_intrinsic(walk: Walk, value: Any, where: str) -> None:
    """Feed an intrinsic. Numba's version covers its own intrinsics."""
    prefers = getattr(value, "_prefer_literal", False)
    if not walk.without_numba:
        walk.feed_token("intrinsic", value._name, prefers)
    if is_library_function(value._defn):
        walk.feed_token("library" if not walk.without_numba else "intrinsic of a library", value._defn.__module__, value._defn.__qualname__)
    else:
        walk.refer_to_dependency("intrinsic", value._defn, {"prefer_literal": True} if prefers else {}, where)


def _feed_dufunc(walk: Walk, value: Any, where: str) -> None:
    """Feed a ufunc of Numba: its loops in the order in which they are tried, and the function from which further loops are compiled."""
    if not walk.without_numba:
        walk.feed_token("dufunc" if value._frozen else "dufunc with loops in entries", value.identity, value._frozen)
        walk.feed_sequence(value._dispatcher.overloads, f"the loops of {where}")
    _feed_ufunc(walk, value, "", value.identity, value._dispatcher, where)


def _feed_gufunc(walk: Walk, value: Any, where: str) -> None:
    """Feed a gufunc: its signature, identity and loops."""
    builder = value.gufunc_builder
    if not walk.without_numba:
        walk.feed_token("gufunc" if value._frozen else "gufunc with loops in entries", value.signature, value.identity)
    _feed_ufunc(walk, value, builder.signature, builder.identity, builder.nb_func, where)


def _feed_ufunc(walk: Walk, value: Any, layout: str, identity: Any, dispatcher: Any, where: str) -> None:
    """Feed the dispatcher of a ufunc. `layout` is the signature of a gufunc, or "" for a plain ufunc.

    Without Numba, raise `NotLazy` for a ufunc that may create more loops.
    """
    if walk.without_numba:
        walk.feed_token("ufunc of Numba", layout, repr(identity))
        if not value._frozen:
            walk.feed_declared(None, dispatcher.py_func)
    record_ufunc(dispatcher, value)
    _feed_jitted(walk, dispatcher, where, is_frozen=value._frozen)


def _feed_cfunc(walk: Walk, value: Any, where: str) -> None:
    """Feed a callback. Running code could read its address, which differs between processes."""
    if walk.mode == RUN:
        walk.feed_unknown(value, where)
        return
    walk.feed_token("cfunc")
    walk.feed_value(value._sig, where)
    _feed_options(walk, value._compiler, where)
    walk.refer_to_compiled(value._pyfunc, where)


def _feed_stencil(walk: Walk, value: Any, _where: str) -> None:
    walk.feed_stencil(frozen_kernel(value.kernel_ir), value.mode, dict(value.options))


#: The handlers of functions for which there are stand-ins.
HANDLERS_OF_STAND_INS = frozenset((_feed_jitted, _feed_intrinsic, _feed_dufunc, _feed_gufunc, _feed_stencil))


def frozen_kernel(kernel_ir: Any) -> Any:
    """Return the function of a stencil with the values of globals and variables that Numba read when the stencil was declared."""
    from numba.core import ir

    function = kernel_ir.func_id.func
    values = [assignment.value for block in kernel_ir.blocks.values() for assignment in block.find_insts(ir.Assign)]
    names = {value.name: value.value for value in values if isinstance(value, ir.Global)}
    frees = {value.name: value.value for value in values if isinstance(value, ir.FreeVar)}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return copy_function(function, names, [type(cell)(frees[name]) if name in frees else cell for name, cell in cells])


def _feed_external(walk: Walk, value: Any, where: str) -> None:
    walk.feed_token("external", value.symbol)
    walk.feed_value(value.sig, where)


def _feed_signature(walk: Walk, value: Any, where: str) -> None:
    walk.feed_token("signature")
    walk.feed_sequence([value.return_type, value.recvr, *value.args], where)


#: Further classes of Numba types, in addition to `SCALARS`, whose text identifies the type.
_IDENTIFIED_BY_TEXT = frozenset((
    "IntegerLiteral", "BooleanLiteral", "StringLiteral", "Bytes", "NPDatetime", "NPTimedelta", "Opaque", "VoidType", "SliceType",
))  # fmt: skip


def is_plain_type(value: Any) -> bool:
    """Return whether the text of a type identifies it, as for numbers and arrays of numbers."""
    kind = type(value)
    if not kind.__module__.startswith("numba.core.types"):
        return False
    if kind.__name__ == "Array":
        return is_plain_type(value.dtype)
    if kind.__name__ in ("UniTuple", "Tuple"):
        return all(map(is_plain_type, value.types))
    return kind.__name__ in SCALARS or kind.__name__ in _IDENTIFIED_BY_TEXT


def _feed_type(walk: Walk, value: Any, where: str) -> None:
    """Feed a type: by its text if it is plain, otherwise by its structure. The text of a namedtuple's type, for example, lacks fields."""
    kind = type(value)
    walk.feed_token("type", kind.__module__, kind.__qualname__)
    if is_plain_type(value):
        walk.feed_token("text", value)
        return
    if walk.feed_back_reference(value):
        return
    if not is_library_module(kind.__module__):
        walk.record_class(kind)
        _feed_extension_type(walk, value, where)
    _feed_structure(walk, value, where)


def _feed_structure(walk: Walk, value: Any, where: str) -> None:
    """Feed all data by which Numba's own code distinguishes types. Raise `Unrepeatable` for a deferred type."""
    kind = type(value)
    dispatcher = getattr(value, "dispatcher", None)
    if dispatcher is not None:
        walk.feed_value(dispatcher, where)
        return
    if kind.__name__ in ("ClassType", "ClassInstanceType"):
        _feed_jitclass(walk, value, where)
        return
    if kind.__name__ == "DeferredType":
        raise Unrepeatable(f"{where} has a deferred type, which Numba completes while it compiles: declare the fields without it")
    if hasattr(value, "typing_key"):
        walk.feed_value(value.typing_key, where)
        return
    if kind.__name__ == "Omitted" or hasattr(value, "literal_value"):
        # The key of a value that cannot be hashed is its address.
        _feed_component(walk, value.value if kind.__name__ == "Omitted" else value.literal_value, where)
        return
    key = value.key
    if key == value.name:
        walk.feed_token("text", _text(value, where))
    else:
        _feed_component(walk, key, where)
    for name, part in sorted(vars(value).items()):
        if name != "name" and _is_structure(part):
            walk.feed_token("component", name)
            _feed_component(walk, part, where)


def _feed_extension_type(walk: Walk, value: Any, where: str) -> None:
    """Feed the data that a user's code can read from its type during compilation, even if the name of the type contains them."""
    for name, part in sorted(state_of(value).items()):
        is_derived = any(isinstance(vars(base).get(name), functools.cached_property) for base in type(value).__mro__)
        if name != "name" and not _is_structure(part) and not is_derived:
            walk.feed_token("attribute", name)
            walk.feed_value(part, f"{where}, {name!r}")


def _feed_component(walk: Walk, part: Any, where: str) -> None:
    """Feed a part of a type. Raise `Unidentifiable` for a class that its module does not contain, because types are pickled by name."""
    for item in part if isinstance(part, (tuple, list)) else [part]:
        if isinstance(item, type) and not is_library_module(item.__module__):
            name = name_of_class(item)
            if name is None:
                raise Unidentifiable(
                    f"{where} has a type with the class {item.__module__}.{item.__qualname__}, "
                    "which its module does not define under any name: assign the class to a variable of the module"
                )
            if name != item.__qualname__:
                walk.feed_token("found as", name)
    walk.feed_value(part, where)


def _is_structure(part: Any) -> bool:
    """Return whether a part of a Numba type is a Numba type or a class, or contains one."""
    from numba.core import types

    if isinstance(part, (tuple, list)):
        return any(map(_is_structure, part))
    if isinstance(part, dict):
        return any(map(_is_structure, part.values()))
    return isinstance(part, (types.Type, type))


def _feed_jitclass(walk: Walk, value: Any, where: str) -> None:
    """Feed the fields and the methods of a jitclass, and the number in its name."""
    kind = getattr(value, "class_type", value)
    walk.feed_token("jitclass", kind.class_name)
    number = register_jitclass(kind).rpartition("-")[2]
    if number != "0":  # otherwise the token is missing from keys since 1.0.0
        walk.feed_token("number", number)
    if kind is not value and walk.feed_back_reference(kind):
        return
    walk.feed_value(dict(kind.struct), f"the fields of {where}")
    for table in (kind.jit_methods, kind.jit_props, kind.jit_static_methods):
        walk.feed_value(dict(table), f"the methods of {where}")


def _text(value: Any, where: str) -> str:
    """Return the text of a type. Raise `Unidentifiable` if the text contains an address."""
    text = str(value)
    if " at 0x" in text or "object at " in text:
        raise Unidentifiable(
            f"{where} has the type {text}, whose name contains an address, which differs between processes: "
            "give the type a name without an address"
        )
    return text
