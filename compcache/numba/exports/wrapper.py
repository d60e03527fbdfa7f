"""Builds the wrapper of a kernel, which compcache's entry points call.

The wrapper converts scalars and contiguous buffers to Numba's arguments, and raises the kernel's exceptions. The extension module
`_objects` converts Python objects before and after the kernel runs, according to the plan. `objects.py` defines the calls of the module.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from llvmlite import ir
from numba.core import types
from numba.np.arrayobj import make_array, populate_array

from compcache.numba.exports import objects
from compcache.numba.exports.raising import RAISE

if TYPE_CHECKING:
    from compcache.numba.exports.parameters import Parameter

__all__ = ["ENTRY", "Shape", "Wrapper"]

ENTRY = "compcache.numba.entry"
_POINTER, _COUNT = ir.IntType(8).as_pointer(), ir.IntType(64)


class Shape(NamedTuple):
    """How a kernel is called: its parameters, and the services of the extension module that it uses.

    Attributes:
        parameters: the parameters.
        is_object: whether the extension module creates the result.
        uses_plan: whether the code calls the extension module.
        uses_random: whether the kernel uses random numbers.
        uses_threads: whether the kernel has parallel loops.
        nogil: whether the wrapper releases the GIL around the kernel.
    """

    parameters: list[Parameter]
    is_object: bool
    uses_plan: bool
    uses_random: bool
    uses_threads: bool
    nogil: bool


class Wrapper:
    """Builds the wrapper of one kernel.

    Args:
        cres: Numba's compile result of the kernel.
        shape: how the kernel is called.
    """

    def __init__(self, cres: Any, shape: Shape) -> None:
        self._cres, self._shape = cres, shape
        self._context = cres.target_context
        self._module = self._context.create_module("compcache.numba.export")
        self._result = types.unliteral(cres.signature.return_type)
        self._is_tuple = isinstance(self._result, types.BaseTuple) and not shape.is_object
        self._is_void = self._is_tuple or (self._result == types.none and not shape.is_object)  # a tuple is stored through a pointer
        self._function = ir.Function(self._module, self._function_type(), ENTRY)
        self._builder = ir.IRBuilder(self._function.append_basic_block("entry"))

    def _function_type(self) -> Any:
        """Return the LLVM type of the wrapper."""
        arguments: list[Any] = [_COUNT.as_pointer()] if self._is_tuple else []
        for parameter in self._shape.parameters:
            if parameter.is_object:
                arguments.append(_POINTER)
            elif isinstance(parameter.type, types.Array):
                arguments += [_POINTER, *[_COUNT] * parameter.type.ndim]
            else:
                arguments.append(self._context.get_value_type(parameter.type))
        if self._is_void:
            return ir.FunctionType(ir.VoidType(), arguments)
        result = _POINTER if self._shape.is_object else self._context.get_value_type(self._result)
        return ir.FunctionType(result, arguments)

    def _declare(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """Return the declaration of a function, which is added to the module if it is missing."""
        existing = self._module.globals.get(name)
        return existing or ir.Function(self._module, ir.FunctionType(result, arguments), name)

    def build(self) -> str:
        """Emit the wrapper, and return the assembly of its module. The symbol of the wrapper is `ENTRY`."""
        builder = self._builder
        arguments = iter(self._function.args)
        slots = next(arguments) if self._is_tuple else None
        plan = self._emit_plan() if self._shape.uses_plan else None
        objects_at, variables_at, values = self._emit_arguments(plan, arguments)
        if self._shape.uses_random:
            builder.call(self._declare(objects.RANDOM_SYMBOL, ir.VoidType(), []), [])
        thread = builder.call(self._declare("PyEval_SaveThread", _POINTER, []), []) if self._shape.nogil else None
        status, out = self._emit_call(values)
        if thread is not None:
            builder.call(self._declare("PyEval_RestoreThread", ir.VoidType(), [_POINTER]), [thread])
        boxed = self._emit_boxing(plan, status, out) if self._shape.is_object else None
        with builder.if_then(status.is_error, likely=False):
            raising = self._declare(RAISE, ir.VoidType(), [ir.IntType(32), _POINTER])
            builder.call(raising, [status.code, builder.bitcast(status.excinfoptr, _POINTER)])
        if self._shape.uses_threads:
            self._emit_thread_error(boxed)
        if variables_at is not None:
            leave = self._declare(objects.LEAVE_SYMBOL, ir.VoidType(), [_POINTER] * 3)
            builder.call(leave, [plan, objects_at, variables_at])
        self._emit_return(out, slots, boxed)
        return str(self._module)

    def _emit_thread_error(self, boxed: Any) -> None:
        """Emit code that raises the exception of a parallel loop, if a loop has raised one, and then releases the result."""
        builder = self._builder
        raised = builder.call(self._declare(objects.PARALLEL_SYMBOL, ir.IntType(32), []), [])
        if boxed is not None:
            with builder.if_then(builder.icmp_unsigned("!=", raised, ir.Constant(ir.IntType(32), 0)), likely=False):
                builder.call(self._declare("Py_DecRef", ir.VoidType(), [_POINTER]), [builder.load(boxed)])
                builder.store(ir.Constant(_POINTER, None), boxed)

    def _emit_return(self, out: Any, slots: Any, boxed: Any) -> None:
        """Emit the return of the result. The items of a tuple are stored in `slots`."""
        builder = self._builder
        if self._is_tuple:
            _emit_item_stores(self._context, builder, self._cres.fndesc.restype, out, slots)
        if self._is_void:
            builder.ret_void()
        elif boxed is not None:
            builder.ret(builder.load(boxed))
        else:
            builder.ret(self._context.cast(builder, out, self._cres.fndesc.restype, self._result))

    def _emit_error_return(self) -> None:
        """Emit a return from the wrapper for callers that test for a set exception."""
        if self._is_void:
            self._builder.ret_void()
        else:
            self._builder.ret(ir.Constant(self._function.function_type.return_type, None))

    def _emit_plan(self) -> Any:
        """Emit the preparation of the plan, and return the plan's address. If the preparation fails, the wrapper returns."""
        builder = self._builder
        plan = builder.call(self._declare(objects.PLAN_SYMBOL, _POINTER, []), [])
        with builder.if_then(builder.icmp_unsigned("==", plan, ir.Constant(_POINTER, None)), likely=False):
            self._emit_error_return()
        return plan

    def _emit_call(self, values: list[Any]) -> Any:
        """Emit the call of the kernel, and return its status and its result."""
        fndesc, call_conv = self._cres.fndesc, self._context.call_conv
        callee_type = call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
        callee = ir.Function(self._module, callee_type, fndesc.llvm_func_name)
        return call_conv.call_function(self._builder, callee, fndesc.restype, fndesc.argtypes, values)

    def _emit_arguments(self, plan: Any, arguments: Any) -> tuple[Any, Any, list[Any]]:
        """Emit the conversion of the arguments. This exhausts `arguments`, an iterator over the wrapper's arguments.

        If the conversion of an object fails, the wrapper returns. `plan` is the address of the plan; None if the code does not use the
        extension module. Return the array of objects, the array of variables for their values, and Numba's arguments. The arrays are None
        if no parameter is an object.
        """
        builder, context = self._builder, self._context
        passed: list[Any] = []
        converted: list[tuple[Any, Any]] = []
        for parameter in self._shape.parameters:
            if parameter.is_object:
                variable = builder.alloca(_variable_type(context, parameter.type))
                variable.align = _ALIGNMENT
                converted.append((next(arguments), variable))
                passed.append((parameter.type, variable))
            else:
                passed.append(_emit_value(context, builder, parameter, arguments))
        objects_at = variables_at = None
        if converted:
            objects_at = self._emit_array([item for item, _ in converted])
            variables_at = self._emit_array([builder.bitcast(variable, _POINTER) for _, variable in converted])
            enter = self._declare(objects.ENTER_SYMBOL, ir.IntType(32), [_POINTER] * 3)
            entered = builder.call(enter, [plan, objects_at, variables_at])
            with builder.if_then(builder.icmp_unsigned("==", entered, ir.Constant(ir.IntType(32), 0)), likely=False):
                self._emit_error_return()
        values = [_emit_load(context, builder, *value) if isinstance(value, tuple) else value for value in passed]
        omitted = len(self._cres.fndesc.argtypes) - len(values)  # the kernel contains these values as constants
        return objects_at, variables_at, [*values, *[None] * omitted]

    def _emit_array(self, pointers: list[Any]) -> Any:
        """Emit an array of pointers on the stack, and return its address."""
        builder = self._builder
        array = builder.alloca(_POINTER, size=len(pointers))
        for number, pointer in enumerate(pointers):
            builder.store(pointer, builder.gep(array, [ir.Constant(ir.IntType(32), number)]))
        return builder.bitcast(array, _POINTER)

    def _emit_boxing(self, plan: Any, status: Any, out: Any) -> Any:
        """Emit the creation of the result object, and return the address of its variable, which is null after an error of the kernel."""
        builder, context = self._builder, self._context
        boxed = builder.alloca(_POINTER)
        builder.store(ir.Constant(_POINTER, None), boxed)
        with builder.if_then(status.is_ok):
            variable = builder.alloca(context.get_data_type(self._result))
            variable.align = _ALIGNMENT
            context.pack_value(builder, self._result, self._emit_result_value(status, out), variable)
            box = self._declare(objects.BOX_SYMBOL, _POINTER, [_POINTER] * 2)
            builder.store(builder.call(box, [plan, builder.bitcast(variable, _POINTER)]), boxed)
        return boxed

    def _emit_result_value(self, status: Any, out: Any) -> Any:
        """Emit the conversion of the kernel's result to the result type, and return the value."""
        builder, context = self._builder, self._context
        restype = self._cres.fndesc.restype
        if not isinstance(restype, types.Optional):
            return context.cast(builder, out, restype, self._result)
        # In Numba's calling convention, the status contains whether the value is None.
        variable = builder.alloca(context.get_value_type(restype))
        builder.store(context.make_optional_none(builder, restype.type), variable)
        with builder.if_then(builder.not_(status.is_none)):
            builder.store(context.make_optional_value(builder, restype.type, out), variable)
        return builder.load(variable)


#: The alignment of variables, in bytes. It is that of malloc, which suffices for all types of C.
_ALIGNMENT = 16


def _variable_type(context: Any, type_: Any) -> Any:
    """Return the type of the variable in which the extension module stores the value of a parameter.

    For a record, the variable contains the address of the record, and the object that owns the record.
    """
    return ir.ArrayType(_POINTER, 2) if isinstance(type_, types.Record) else context.get_data_type(type_)


def _emit_load(context: Any, builder: Any, type_: Any, variable: Any) -> Any:
    """Emit a load of a parameter's variable, and return Numba's value."""
    if not isinstance(type_, types.Record):
        return context.unpack_value(builder, type_, variable)
    return builder.bitcast(builder.extract_value(builder.load(variable), 0), context.get_value_type(type_))


def _emit_item_stores(context: Any, builder: Any, type_: Any, value: Any, slots: Any) -> None:
    """Emit stores of a tuple's items into the caller's slots. The caller ignores the items after an error."""
    for number, item_type in enumerate(type_):
        plain = types.unliteral(item_type)
        item = context.cast(builder, builder.extract_value(value, number), item_type, plain)
        stored = context.get_data_type(plain) if plain == types.boolean else item.type
        slot = builder.gep(slots, [ir.Constant(ir.IntType(64), number)])
        if item.type != stored:
            item = builder.zext(item, stored)
        builder.store(item, builder.bitcast(slot, stored.as_pointer()))


def _emit_value(context: Any, builder: Any, parameter: Parameter, arguments: Any) -> Any:
    """Emit the conversion of a scalar or a contiguous buffer, and return Numba's value. This advances the iterator `arguments`."""
    first = next(arguments)
    first.name = re.sub(r"\W", "_", parameter.name)
    if not isinstance(parameter.type, types.Array):
        return first
    shape = [next(arguments) for _ in range(parameter.type.ndim)]
    array = make_array(parameter.type)(context, builder)
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(parameter.type.dtype)))
    data = builder.bitcast(first, array.data.type)
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()
