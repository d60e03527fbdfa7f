"""Digests the values that functions read, with one handler for each kind of value.

`numba_values` contains the handlers for Numba's kinds. Most keys need neither it nor `state`, so handlers import them. A handler raises
`Unidentifiable` if a value, or a part of it, has no identity by content.
"""

from __future__ import annotations

import builtins
import sys
import types as python_types

from compcache.interrupts import reraise_interrupt
from compcache.numba.fingerprints import COMPILED, NAMED, RUN
from compcache.numba.registered.library import is_found_by_name, is_library_function, is_library_module, is_of_generators
from compcache.numba.registered.marks import original

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.numba.fingerprints.walk import Walk

    Handler = Callable[[Walk, Any, str], None]

__all__ = ["feed_class_and_attributes", "handler_of", "is_defined_by_text"]


def handler_of(value: Any, *, with_numba: bool) -> Handler:
    """Return the handler that digests a value. `with_numba` includes the handlers of objects that are known to Numba."""
    late = _handlers_of_imported_modules()  # the call may add to `_HANDLERS`
    known = _HANDLERS.get(type(value))
    if known is not None:
        return known
    if with_numba:
        from compcache.numba.fingerprints.numba_values import handlers

        late = [*handlers(), *late]
    for test, handler in late:
        if isinstance(value, test):
            return handler
    if with_numba:
        from compcache.numba.fingerprints.implementations import find_overloads

        if find_overloads(value):
            return _feed_overloaded
    if is_library_module(type(value).__module__):
        return _feed_library_object if _is_found_by_name(value) else _feed_reduced
    return _feed_object


# ---------------------------------------------------------------------- functions and classes


def _feed_plain_function(walk: Walk, value: Any, where: str) -> None:
    """Feed a plain function. Running code may read the function. The compiler uses a jitable function, or else only its overloads."""
    is_compiled = walk.feed_overloads(value)
    if is_library_function(value):
        walk.feed_library(value, where)
        walk.feed_token("library function", value.__module__, value.__qualname__)
        if walk.mode == RUN:
            _refer_if_changed(walk, value, where)
    else:
        other_mode = None if walk.mode == RUN else NAMED
        walk.refer_to_function(value, where, COMPILED if is_compiled else other_mode)


def _refer_if_changed(walk: Walk, value: Any, where: str) -> None:
    """Refer to the attributes of a library's function or class if a program may have set some, because running code can read them."""
    from compcache.numba.fingerprints.state import is_changed_by_program

    if is_changed_by_program(value):
        walk.reach().refer_to_owner(walk, value, where)


def _feed_wrapper(walk: Walk, value: Any, where: str) -> None:
    """Feed a `functools.lru_cache` wrapper. Running code gets the cached results, which may stem from earlier values."""
    walk.feed_token("wrapper", type(value).__qualname__)
    walk.feed_value(value.__wrapped__, where)
    if walk.mode != RUN or is_library_function(value.__wrapped__) or walk.feed_back_reference(value):
        return
    from compcache.numba.fingerprints.state import cached_results

    results = cached_results(value)
    if results is None:
        walk.feed_unknown(value, where)
    for key, result in results or ():
        walk.feed_value(key, f"an argument of {where}")
        walk.feed_value(result, f"a result that {where} has cached")


def feed_class_and_attributes(walk: Walk, value: Any, where: str) -> None:
    """Feed what running code can read from an object besides its content: a class that the program defined or changed, and attributes."""
    kind = type(value)
    if kind in _HANDLERS or issubclass(kind, (type, python_types.ModuleType)):
        return  # the handlers of these values feed the data
    from compcache.numba.fingerprints.state import is_changed_by_program, may_have_attributes

    if is_changed_by_program(kind) or not (is_library_module(kind.__module__) or is_of_generators(kind)):
        walk.feed_value(kind, f"the class of {where}")
    if may_have_attributes(value):
        walk.reach().refer_to_owner(walk, value, where)


def _feed_partial(walk: Walk, value: Any, where: str) -> None:
    """Feed a `functools.partial` object."""
    walk.feed_token("partial")
    walk.feed_overloads(value)
    walk.feed_value(value.func, where)
    walk.feed_sequence(value.args, f"an argument of {where}")
    walk.feed_value(value.keywords, f"the arguments of {where}")


def _feed_descriptor(walk: Walk, value: Any, where: str) -> None:
    """Feed a property or another descriptor of a class."""
    walk.feed_token("descriptor", *[cls.__qualname__ for cls in type(value).__mro__])
    for name in _DESCRIPTOR_PARTS:
        walk.feed_value(getattr(value, name, None), where)


_DESCRIPTOR_PARTS = ("__func__", "fget", "fset", "fdel", "func", "__doc__")


def _feed_slot(walk: Walk, value: Any, _where: str) -> None:
    """Feed the descriptor of a slot by the name of the slot."""
    walk.feed_token("slot", value.__name__)


def _feed_method(walk: Walk, value: Any, where: str) -> None:
    """Feed a bound method. A library's method is fed by name, and its object only if code runs."""
    walk.feed_overloads(value)
    function = value.__func__
    if is_library_module(type(value.__self__).__module__) and is_library_module(getattr(function, "__module__", None)):
        walk.feed_library(value, where)
        walk.feed_token("library method", function.__module__, function.__qualname__)  # for example np.random.normal
        if walk.mode == RUN:
            walk.feed_value(value.__self__, f"the object of {where}")
        return
    walk.feed_token("method")
    walk.feed_value(function, where)
    walk.feed_value(value.__self__, f"the object of {where}")


def _feed_library_object(walk: Walk, value: Any, where: str) -> None:
    """Feed an object of a library by name."""
    walk.feed_library(value, where)
    walk.feed_by_name(value, where)
    walk.feed_overloads(value)
    owner = getattr(value, "__self__", None)
    if walk.mode == RUN and owner is not None and not isinstance(owner, (type, python_types.ModuleType)):
        walk.feed_value(owner, f"the object of {where}")  # for example, a method of a particular list


def _feed_overloaded(walk: Walk, value: Any, _where: str) -> None:
    """Feed a callable that the user has overloaded. The compiler uses the implementations instead of the callable."""
    kind = type(value)
    walk.feed_token("overloaded", kind.__module__, kind.__qualname__, getattr(value, "__qualname__", ""))
    walk.feed_overloads(value)


def _feed_class(walk: Walk, value: Any, where: str) -> None:
    """Feed a class by its name. Of a user's class, also feed the fields or members for the compiler, and what running code can read."""
    if not issubclass(type(value), type):  # a stand-in for a class of Numba, as in the `__orig_bases__` of a class of the program
        value = original(value)
    walk.feed_token("class", value.__module__, value.__qualname__)
    walk.feed_overloads(value)
    if is_library_module(value.__module__):
        walk.feed_library(value, where)
        if walk.mode == RUN:
            from compcache.numba.fingerprints.state import registered_with

            registered = registered_with(value)
            if registered:
                walk.feed_token("registered", *registered)
            _refer_if_changed(walk, value, where)
        return
    walk.record_class(value)
    if walk.feed_back_reference(value):
        return
    if hasattr(value, "class_type"):
        walk.feed_value(value.class_type, f"{where} (a jitclass)")
    elif _is_enumeration(value):
        walk.feed_sequence([(name, member.value) for name, member in value.__members__.items()], where)
    elif issubclass(value, tuple) and hasattr(value, "_fields"):
        walk.feed_sequence(value._fields, where)
        _feed_parameters(walk, value.__new__, where)
    if walk.mode == RUN:
        _feed_users_class(walk, value, where)


def _feed_parameters(walk: Walk, function: Any, where: str) -> None:
    """Feed the parameters of a function that creates named tuples. The compiler matches them with the arguments of a call."""
    code = getattr(function, "__code__", None)
    if code is not None:
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        walk.feed_token("parameters", code.co_argcount, code.co_posonlyargcount, code.co_flags & _IS_VARIADIC, *names)
        walk.feed_value(function.__defaults__, where)
        walk.feed_value(function.__kwdefaults__, where)


_IS_VARIADIC = 0x4 | 0x8  # `inspect.CO_VARARGS` and `inspect.CO_VARKEYWORDS`


def _feed_users_class(walk: Walk, value: Any, where: str) -> None:
    """Feed the data of a program's class that running code can read."""
    if value.__name__ != value.__qualname__.rpartition(".")[2]:
        walk.feed_token("name", value.__name__)
    walk.feed_token("bases", *[f"{base.__module__}.{base.__qualname__}" for base in value.__mro__])
    for base in value.__mro__:
        if is_library_module(base.__module__):
            walk.feed_library(base, f"the base {base.__qualname__} of {where}")
    from compcache.numba.fingerprints.state import names_for_metaclass, registered_with

    walk.feed_token("registered", *registered_with(value))
    walk.feed_token("members", *names_for_metaclass(value))
    import copyreg  # most keys do not need it

    if value in copyreg.dispatch_table:
        walk.feed_value(copyreg.dispatch_table[value], f"the function that copies objects of {where}")
    walk.reach().refer_to_owner(walk, value, where)


def _is_enumeration(cls: type) -> bool:
    """Return whether a class is an enumeration. The module `enum` is not imported for the answer."""
    enum = sys.modules.get("enum")
    return enum is not None and issubclass(cls, enum.Enum)


# ---------------------------------------------------------------------- containers and objects


def _feed_sequence(walk: Walk, value: Any, where: str) -> None:
    """Feed the items of a tuple or list."""
    kind = type(value)
    walk.feed_token("items", kind.__name__)
    if walk.feed_back_reference(value):
        return
    if kind not in (tuple, list):
        walk.feed_value(kind, where)
    walk.feed_sequence(value, f"an item of {where}")


def _feed_set(walk: Walk, value: Any, where: str) -> None:
    """Feed the items of a set: in its order if all are numbers, otherwise sorted, because the order differs between processes."""
    walk.feed_token("set", type(value).__name__)
    has_order = all(type(item) in _NUMBERS for item in value)
    items = value if has_order else sorted(value, key=lambda item: (type(item).__name__, repr(item).partition(" at 0x")[0]))
    walk.feed_sequence(items, f"an item of {where}")


_NUMBERS = (bool, int, float, complex)


def _feed_dict(walk: Walk, value: Any, where: str) -> None:
    """Feed the keys and values of a dictionary, without what `exec` has added: builtins, and functions if the code executes text."""
    namespace_builtins = value.get("__builtins__")
    names_builtins = namespace_builtins is builtins or namespace_builtins is vars(builtins)  # `exec` adds this entry to its namespace
    items = [(key, item) for key, item in value.items() if not (names_builtins and key == "__builtins__")]
    if walk.defines_by_text:
        items = [(key, item) for key, item in items if not is_defined_by_text(item, value)]
    walk.feed_token("dict", type(value).__name__, len(items))
    if type(value) in _HANDLERS and walk.feed_back_reference(value):  # the reference to an object of a program's class is fed already
        return
    for key, item in items:
        walk.feed_value(key, f"a key of {where}")
        walk.feed_value(item, f"{where}[{key!r}]")


def is_defined_by_text(value: Any, namespace: Any) -> bool:
    """Return whether a value is a function that `exec` has defined from text in this namespace."""
    return type(value) is python_types.FunctionType and value.__globals__ is namespace and value.__code__.co_filename.startswith("<")


def _feed_range(walk: Walk, value: Any, _where: str) -> None:
    """Feed a range or a slice by its text."""
    walk.feed_token("repr", type(value).__name__, repr(value))


def _feed_enum_member(walk: Walk, value: Any, where: str) -> None:
    walk.feed_value(type(value), where)
    walk.feed_token("member", value.name)


def _feed_module(walk: Walk, value: Any, where: str) -> None:
    """Feed a module of which no attributes are known to be read."""
    walk.feed_module(value, (), where)


def _feed_object(walk: Walk, value: Any, where: str) -> None:
    """Feed an object of a user's class: its class, and the attributes that code can read."""
    kind = type(value)
    if walk.needs_no_content() or (walk.without_numba and walk.mode == COMPILED):
        walk.feed_unknown(value, where)  # the compiler knows such an object only by registrations for its type
        return
    mode = walk.mode
    if mode == COMPILED:  # the compiler may read any of its attributes
        walk.mode = RUN
        walk.reach().record_names((), everything=True)
    _feed_object_content(walk, value, kind, where)
    if mode == COMPILED:
        feed_class_and_attributes(walk, value, where)
    walk.mode = mode


def _feed_object_content(walk: Walk, value: Any, kind: type, where: str) -> None:
    """Feed the content of an object of a user's class, including the data that it inherits from classes written in C."""
    walk.feed_token("object")
    if walk.feed_back_reference(value):
        return
    for base, handler in ((dict, _feed_dict), ((list, tuple), _feed_items), ((set, frozenset), _feed_set)):
        if isinstance(value, base):
            handler(walk, value, where)
    for plain in (str, bytes, int, float, complex):
        if isinstance(value, plain):
            walk.feed_token("value", plain.__repr__(value))
    from compcache.numba.fingerprints.state import has_state_in_c

    if has_state_in_c(kind):
        _feed_pickled(walk, value, where)


def _feed_items(walk: Walk, value: Any, where: str) -> None:
    walk.feed_sequence(value, f"an item of {where}")


def _feed_reduced(walk: Walk, value: Any, where: str) -> None:
    """Feed a library's object in the form in which the library pickles it."""
    if walk.needs_no_content():
        walk.feed_unknown(value, where)
        return
    if is_library_module(type(value).__module__):
        walk.feed_library(type(value), where)
    walk.feed_token("reduced", type(value).__module__, type(value).__qualname__)
    if not walk.feed_back_reference(value):
        _feed_pickled(walk, value, where)


def _feed_pickled(walk: Walk, value: Any, where: str) -> None:
    """Feed the data that pickling finds in an object, even if its class is written in C. An object that cannot be pickled is unknown."""
    import copyreg

    try:
        reduced = copyreg.dispatch_table.get(type(value))  # for example, regular expressions have no `__reduce_ex__` of their own
        parts: Any = reduced(value) if reduced else value.__reduce_ex__(4)
    except Exception as error:  # noqa: BLE001 - any exception means that there is no content to digest
        reraise_interrupt(error)
        walk.feed_unknown(value, where)
        return
    if isinstance(parts, str):
        walk.feed_token("named", getattr(value, "__module__", ""), parts)
        return
    for part in parts:
        walk.feed_value(list(part) if hasattr(type(part), "__next__") else part, where)  # the items of lists and dicts are iterators


def _feed_lock(walk: Walk, value: Any, _where: str) -> None:
    """Feed a lock. Code does not depend on whether the lock is held."""
    walk.feed_token("lock", type(value).__name__)


def _feed_thread_local(walk: Walk, value: Any, where: str) -> None:
    """Feed the content of a `threading.local` in this thread, because this thread runs the code."""
    walk.feed_token("local", type(value).__qualname__)
    if not walk.feed_back_reference(value):
        walk.feed_value(vars(value), where)


def _feed_context_variable(walk: Walk, value: Any, where: str) -> None:
    """Feed a context variable with its present value, or only its name if it has no value."""
    walk.feed_token("context variable", value.name)
    try:
        current = value.get()
    except LookupError as error:
        reraise_interrupt(error)
        return
    walk.feed_value(current, where)


def _feed_reference(walk: Walk, value: Any, where: str) -> None:
    """Feed a weak reference: its class, and the object to which it refers."""
    walk.feed_token("reference", type(value).__qualname__)
    if not walk.feed_back_reference(value):
        walk.feed_value(value(), where)


def _feed_address(walk: Walk, value: Any, where: str) -> None:
    """Feed an object that gives compiled code the address and the type of a function.

    For compiled code, a function of a Cython module is fed by its name and signature. Otherwise the object is fed by content.
    """
    from compcache.numba.registered.cython_functions import function_and_signature_of
    from compcache.numba.registered.type_texts import signature_expression

    function, signature = function_and_signature_of(value) if walk.mode == COMPILED else (None, None)
    if function is None:
        _feed_object(walk, value, where)
        return
    walk.feed_token("function of Cython", *function)
    text = signature_expression(signature)
    if text is None:
        walk.feed_value(signature, f"the signature of {where}")
    else:
        walk.feed_token("signature", text)


def _feed_ctypes_function(walk: Walk, value: Any, where: str) -> None:
    """Feed a ctypes function: for compiled code by the properties from `describe_ctypes_function`, if they are known.

    Otherwise the function is fed as its library pickles it.
    """
    from compcache.numba.registered.cython_functions import describe_ctypes_function

    properties = describe_ctypes_function(value) if walk.mode == COMPILED else None
    if properties is None:
        _feed_reduced(walk, value, where)
    else:
        walk.feed_token("function of Cython, by ctypes", *properties)


def _feed_array(walk: Walk, value: Any, where: str) -> None:
    """Feed an array by content, or by its name if Numba does not copy it into code. An array of Python objects has no content."""
    from compcache.numba.registered.program_arrays import is_copied, register_array

    if value.dtype.hasobject:
        walk.feed_unknown(value, f"{where} (an array of objects)")
        return
    flags = value.flags
    walk.feed_token("array", repr(value.dtype) if value.dtype.names else value.dtype.str, value.shape,
               flags.c_contiguous, flags.f_contiguous, flags.aligned, flags.writeable)  # fmt: skip
    walk.feed_token("data", value.tobytes() if is_copied(value) else register_array(value))
    if type(value) is not sys.modules["numpy"].ndarray:
        walk.feed_value(type(value), f"the class of {where}")  # the class decides the type, and its methods read unnamed attributes
    if walk.mode == RUN:
        walk.feed_token("owns", flags.owndata)
        walk.feed_value(value.dtype, f"the dtype of {where}")


def _feed_scalar(walk: Walk, value: Any, where: str) -> None:
    """Feed a NumPy scalar: its type and bytes. A scalar that contains a Python object has no content."""
    if value.dtype.hasobject:
        walk.feed_unknown(value, where)
    else:
        walk.feed_token("scalar", repr(value.dtype) if value.dtype.names else value.dtype.str, value.tobytes())


def _feed_dtype(walk: Walk, value: Any, where: str) -> None:
    """Feed a NumPy dtype. Only running code reads its metadata. A dtype that contains Python objects has no content."""
    if value.hasobject:
        walk.feed_unknown(value, where)
    else:
        walk.feed_token("dtype", repr(value) if value.names else value.str, value.itemsize, value.isalignedstruct)
        if value.metadata is not None and walk.mode == RUN:
            walk.feed_value(value.metadata, f"the metadata of {where}")


def _feed_ufunc(walk: Walk, value: Any, where: str) -> None:
    """Feed a NumPy ufunc. Running code may use only ufuncs of NumPy itself."""
    if walk.mode == RUN and getattr(sys.modules["numpy"], value.__name__, None) is not value:
        walk.feed_unknown(value, where)  # the ufunc may call a Python function
        return
    walk.feed_token("ufunc", getattr(value, "__name__", ""), *value.types)
    if not is_library_module(getattr(value, "__module__", "numpy")):
        walk.feed_overloads(value)


# ---------------------------------------------------------------------- which handler


_HANDLERS: dict[type, Handler] = {
    python_types.FunctionType: _feed_plain_function,
    python_types.BuiltinFunctionType: _feed_library_object,
    python_types.MethodType: _feed_method,
    python_types.MethodDescriptorType: _feed_library_object,
    python_types.WrapperDescriptorType: _feed_library_object,
    python_types.GetSetDescriptorType: _feed_library_object,
    python_types.MemberDescriptorType: _feed_slot,
    python_types.ModuleType: _feed_module,
    tuple: _feed_sequence,
    list: _feed_sequence,
    set: _feed_set,
    frozenset: _feed_set,
    dict: _feed_dict,
    python_types.MappingProxyType: _feed_dict,
    range: _feed_range,
    slice: _feed_range,
}


def _is_found_by_name(value: Any) -> bool:
    """Return whether a library's module contains an object under the object's own name. A function of Cython needs no check."""
    if not is_library_module(getattr(value, "__module__", None)):
        return False
    return type(value).__name__ == "cython_function_or_method" or is_found_by_name(value)


#: Modules and classes with the handlers of their objects. An object of such a class exists only if the module is imported. The first match
#: is used.
_LATE_CLASSES: tuple[tuple[str, tuple[str, ...], Handler], ...] = (
    ("numpy", ("ufunc",), _feed_ufunc),
    ("numpy", ("ndarray",), _feed_array),
    ("numpy", ("generic",), _feed_scalar),
    ("numpy", ("dtype",), _feed_dtype),
    ("compcache.numba.declarations.registrations", ("WrapperAddressProtocol",), _feed_address),
    ("numba.core.types.function_type", ("WrapperAddressProtocol",), _feed_address),
    ("_ctypes", ("CFuncPtr",), _feed_ctypes_function),
    ("builtins", ("type",), _feed_class),
    ("builtins", ("property", "staticmethod", "classmethod"), _feed_descriptor),
    ("functools", ("cached_property",), _feed_descriptor),
    ("types", ("ModuleType",), _feed_module),
    ("functools", ("partial",), _feed_partial),
    ("functools", ("_lru_cache_wrapper",), _feed_wrapper),
    ("enum", ("Enum",), _feed_enum_member),
    ("builtins", ("tuple", "list"), _feed_sequence),
    ("_thread", ("LockType", "RLock"), _feed_lock),
    ("_thread", ("_local",), _feed_thread_local),
    ("_contextvars", ("ContextVar",), _feed_context_variable),
    ("_weakref", ("ref",), _feed_reference),
)
#: The modules that were imported when `_imported_handlers` was filled.
_imported_modules: list[str] = []
_imported_handlers: list[tuple[Any, Handler]] = []
_MODULES = tuple(dict.fromkeys(("numpy.random", *(module for module, _, _ in _LATE_CLASSES))))


def _handlers_of_imported_modules() -> list[tuple[Any, Handler]]:
    """Return the handlers for classes of imported modules. They are collected again when another such module is imported."""
    imported = [name for name in _MODULES if name in sys.modules]
    if imported != _imported_modules:
        handlers: list[tuple[Any, Handler]] = []
        for module, names, handler in _LATE_CLASSES:
            classes = tuple([getattr(sys.modules[module], name) for name in names if hasattr(sys.modules.get(module), name)])
            if classes:
                handlers.append((classes, handler))
        if "numpy.random" in imported and hasattr(sys.modules["numpy.random"], "seed"):
            _HANDLERS.setdefault(type(sys.modules["numpy.random"].seed), _feed_library_object)  # each version of Cython has its own class
        _imported_handlers[:], _imported_modules[:] = handlers, imported
    return _imported_handlers
