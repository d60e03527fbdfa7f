"""Finds objects of which another process would have copies, because code contains their pickles."""

from __future__ import annotations

from types import BuiltinFunctionType, EllipsisType, FunctionType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core.ir import FreeVar
from numba.core.types import Type

from compcache.numba.registered.library import is_found_by_name, is_library_module

if TYPE_CHECKING:
    from numba.core.dispatcher import ObjModeLiftedWith

__all__ = ["copied_variables", "is_equal_in_each_process"]

_IMMUTABLE = (bool, int, float, complex, str, bytes, EllipsisType, NoneType, ModuleType, np.generic, np.dtype, Type)


def copied_variables(block: ObjModeLiftedWith) -> list[str]:
    """Return the names of closure variables of a block in object mode whose values the pickle of the block contains as copies.

    Globals are not pickled. The block looks them up when it runs.
    """
    statements = [statement for part in block.func_ir.blocks.values() for statement in part.body]
    variables = [value for statement in statements if isinstance(value := getattr(statement, "value", None), FreeVar)]
    return [variable.name for variable in variables if not is_equal_in_each_process(variable.value)]


def is_equal_in_each_process(value: Any) -> bool:
    """Return whether a program cannot distinguish an object from what another process unpickles.

    This is true of immutable values, and of classes and functions that a module has under their own names. Numba pickles functions of the
    main program as copies.
    """
    if type(value) in (tuple, frozenset):
        return all(map(is_equal_in_each_process, value))
    if isinstance(value, _IMMUTABLE) and not isinstance(value, np.void):  # a record can be changed
        return is_library_module(type(value).__module__)
    is_copied = isinstance(value, FunctionType) and value.__module__ == "__main__"
    return isinstance(value, (type, FunctionType, BuiltinFunctionType)) and not is_copied and is_found_by_name(value)
