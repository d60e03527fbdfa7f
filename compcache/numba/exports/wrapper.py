"""The wrapper of a kernel: converts scalars and pointers with counts to Numba's arguments, and raises exceptions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from compcache.numba.exports.raising import RAISE

if TYPE_CHECKING:
    from compcache.numba.exports.parameters import Parameter

__all__ = ["ENTRY", "wrapper_text"]

ENTRY = "compcache.numba.entry"


def wrapper_text(cres: Any, parameters: list[Parameter]) -> str:
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
    """Store the items of a tuple in the slots of the caller, which ignores them after an error."""
    from numba.core import types

    for number, item_type in enumerate(type_):
        plain = types.unliteral(item_type)
        item = context.cast(builder, builder.extract_value(value, number), item_type, plain)
        stored = context.get_data_type(plain) if plain == types.boolean else item.type
        place = builder.gep(slots, [ir.Constant(ir.IntType(64), number)])
        if item.type != stored:
            item = builder.zext(item, stored)
        builder.store(item, builder.bitcast(place, stored.as_pointer()))


def _value(context: Any, builder: Any, parameter: Parameter, given: Any) -> Any:
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
