"""Writes the code of an entry point with the operations of an assembler. `compcache.build.entry_points` has the same code in LLVM assembly.

Code that a successful call skips follows the return instruction. Converted arguments are stored in the frame. The arguments that are passed
in memory begin the frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.build import entry_points
from compcache.signature import BOOL, CSTR, FLOAT, OBJECT, POINTER, SIGNED, TUPLE, UNSIGNED, VOID, Parameter, Signature, Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.build.entry_code.assembler import Assembler, Code
    from compcache.build.entry_points import EntryPoint

__all__ = ["generate_code"]

_WORD, _VIEW = 8, 80  # the sizes of a word and of a `Py_buffer`, in bytes
_VIEW_OBJECT, _VIEW_SIZE = 8, 16
_MINUS_ONE = 0xBFF0000000000000  # as a double
_FLOATS = {"float": 4, "double": 8}


def generate_code(entry: EntryPoint, assembler: type[Assembler]) -> Code | None:
    """Return the code of an entry point, or None for a calling convention other than C's or a frame above `Assembler.frame_limit`."""
    if entry.convention:
        return None
    pattern = _Pattern(entry, assembler())
    return pattern.write() if pattern.frame_size <= assembler.frame_limit else None


class _Pattern:
    """Writes one entry point."""

    def __init__(self, entry: EntryPoint, assembler: Assembler) -> None:
        self._entry = entry
        self._assembler = assembler
        self._signature = Signature.parse(entry.signature)
        self._deferred: list[tuple[int, Callable[[], None]]] = []
        self._fail, self._done = assembler.new_label(), assembler.new_label()
        #: The places of the function's arguments: (size of a floating-point number or 0 for an integer, base register, offset).
        self._passed: list[tuple[int, int, int]] = []
        floats = sum(type_ in _FLOATS for type_ in entry.types)
        in_memory = max(0, floats - assembler.float_arguments) + max(0, len(entry.types) - floats - len(assembler.arguments))
        self._size = in_memory * _WORD
        parameters = self._signature.parameters
        self._views = {
            index: self._reserve(_VIEW)
            for index, parameter in enumerate(parameters)
            if parameter.is_buffer or parameter.type.kind == POINTER
        }
        self._slots = [self._reserve(_WORD * max(1, parameter.dimensions)) for parameter in parameters]
        self._result = self._reserve(_WORD)
        self._thread = self._reserve(_WORD)
        self._items = self._reserve(_WORD * len(self._signature.result.items())) if self._signature.result.kind == TUPLE else 0

    def _reserve(self, size: int) -> int:
        """Reserve `size` bytes of the frame; return their offset."""
        self._size += size
        return self._size - size

    @property
    def frame_size(self) -> int:
        """The size of the frame, in bytes."""
        return (self._size + 15) // 16 * 16

    def write(self) -> Code:
        """Emit all operations, and return the code."""
        assembler = self._assembler
        assembler.enter()
        if self._views:
            assembler.load_number(assembler.scratch, 0)
        for view in self._views.values():
            assembler.store(assembler.scratch, view + _VIEW_OBJECT)
        self._check_arity()
        for index, parameter in enumerate(self._signature.parameters):
            self._convert(index, parameter)
        self._call()
        assembler.place(self._done)
        if self._views:
            assembler.store(assembler.result, self._result)
            for view in self._views.values():
                assembler.load_address(assembler.arguments[0], view)
                assembler.call("PyBuffer_Release")
            assembler.load(assembler.result, assembler.frame, self._result)
        assembler.leave()
        for label, write in self._deferred:
            assembler.place(label)
            write()
        assembler.place(self._fail)
        assembler.load_number(assembler.result, 0)
        assembler.jump(self._done)
        return assembler.finish(self.frame_size)

    def _add_deferred(self, write: Callable[[], None]) -> int:
        """Return the label of code that `write` will write behind the return instruction."""
        label = self._assembler.new_label()
        self._deferred.append((label, write))
        return label

    def _call_api(self, offset: int) -> None:
        """Emit a call of the function at an offset in the runtime's table."""
        assembler = self._assembler
        assembler.load(assembler.scratch, assembler.callee, entry_points.API_AT)
        assembler.load(assembler.scratch, assembler.scratch, offset)
        assembler.call_register(assembler.scratch)

    def _check_arity(self) -> None:
        """Emit the check of the number of arguments. For another number, or names, the runtime orders the arguments or raises."""
        assembler, count = self._assembler, len(self._signature.parameters)
        callee, actual, expected, names = assembler.arguments[:4]
        convert = assembler.new_label()

        def match_arguments() -> None:
            """Emit the call of the runtime, which may raise an exception."""
            assembler.move(callee, assembler.callee)
            assembler.move(actual, expected)  # the register in which the number of arguments was passed
            assembler.load_number(expected, count)
            self._call_api(entry_points.FAIL_ARITY)
            assembler.jump_if_zero(assembler.result, self._fail, half=True)
            assembler.jump(convert)

        arity = self._add_deferred(match_arguments)
        assembler.clear_top_bit(expected)
        assembler.load_number(assembler.scratch, count)
        assembler.jump_if_different(expected, assembler.scratch, arity)
        assembler.jump_if_not_zero(names, arity)
        assembler.place(convert)

    def _convert(self, index: int, parameter: Parameter) -> None:
        """Emit the conversion of one argument, and record the locations of the function's arguments for it."""
        assembler, slot = self._assembler, self._slots[index]
        kind, size = parameter.type.kind, parameter.type.size
        float_size = 0
        if parameter.is_buffer:
            self._convert_buffer(index, parameter)
            return
        if kind == OBJECT:
            self._passed.append((0, assembler.items, index * _WORD))
            return
        if kind == FLOAT:
            self._convert_float(index, size)
            float_size = size
        elif kind == BOOL:
            self._load_item(assembler.arguments[0], index)
            assembler.call("PyObject_IsTrue")
            assembler.jump_if_negative(assembler.result, self._fail)
            assembler.set_truth(assembler.result, assembler.result)
            assembler.store(assembler.result, slot)
        elif kind in (SIGNED, UNSIGNED) and parameter.type.name != "u64":
            self._convert_integer(index, size, signed=kind == SIGNED)
        else:
            self._convert_by_hook(
                index, {POINTER: entry_points.POINTER_HOOK, CSTR: entry_points.CSTR_HOOK}.get(kind, entry_points.U64_HOOK)
            )
            if kind == POINTER and not self._entry.readonly[index]:
                self._check_writable(index)
        self._passed.append((float_size, assembler.frame, slot))

    def _load_item(self, register: int, index: int) -> None:
        """Emit a load of the Python object that was passed as argument `index`."""
        self._assembler.load(register, self._assembler.items, index * _WORD)

    def _begin_hook(self, index: int) -> None:
        """Emit loads of the first three arguments for a call of the runtime that handles an argument."""
        assembler = self._assembler
        self._load_item(assembler.arguments[2], index)
        assembler.load_number(assembler.arguments[1], index)
        assembler.move(assembler.arguments[0], assembler.callee)

    def _invalid_argument_label(self, index: int) -> int:
        """Return the label of code that reports an invalid argument."""

        def report_invalid() -> None:
            """Emit the call that raises the exception."""
            self._begin_hook(index)
            self._call_api(entry_points.FAIL_VALUE)
            self._assembler.jump(self._fail)

        return self._add_deferred(report_invalid)

    def _error_check_labels(self, index: int) -> tuple[int, int]:
        """Return two labels: of code that checks for an exception, and of the place where this code continues if no exception is set.

        The code continues with the number in `result`. The caller places the second label.
        """
        assembler, back = self._assembler, self._assembler.new_label()
        invalid = self._invalid_argument_label(index)

        def check() -> None:
            """Emit the check. The call changes `result`, so the number is loaded again."""
            assembler.call("PyErr_Occurred")
            assembler.jump_if_not_zero(assembler.result, invalid)
            assembler.load(assembler.result, assembler.frame, self._slots[index])
            assembler.jump(back)

        return self._add_deferred(check), back

    def _convert_float(self, index: int, size: int) -> None:
        """Emit the conversion of an argument to a floating-point number of `size` bytes.

        The result -1.0 may be an error. The code then checks whether an exception is set.
        """
        assembler, slot = self._assembler, self._slots[index]
        check, back = self._error_check_labels(index)
        self._load_item(assembler.arguments[0], index)
        assembler.call("PyFloat_AsDouble")
        assembler.store_float(0, slot, 8)
        assembler.copy_float_bits(assembler.scratch)
        assembler.load_number(assembler.other_scratch, _MINUS_ONE)
        assembler.jump_if_equal(assembler.scratch, assembler.other_scratch, check)
        assembler.place(back)
        if size < _WORD:
            assembler.load_float(0, slot, 8)
            assembler.convert_float(to=size)
            assembler.store_float(0, slot, size)

    def _convert_integer(self, index: int, size: int, *, signed: bool) -> None:
        """Emit the conversion of an argument to an integer of `size` bytes, which is signed if `signed` is true.

        The call fails if the number does not fit.
        """
        assembler = self._assembler
        check, back = self._error_check_labels(index)
        self._load_item(assembler.arguments[0], index)
        assembler.call("PyLong_AsLongLong")
        assembler.store(assembler.result, self._slots[index])
        assembler.jump_if_minus_one(assembler.result, check)
        assembler.place(back)
        if size < _WORD:
            assembler.extend(assembler.scratch, assembler.result, size, signed=signed)
            assembler.jump_if_different(assembler.scratch, assembler.result, self._invalid_argument_label(index))

    def _convert_by_hook(self, index: int, hook: int) -> None:
        """Emit the conversion of an argument by a function of the runtime, which returns 0 if it has raised an exception."""
        assembler = self._assembler
        last = assembler.arguments[3]
        self._begin_hook(index)
        if index in self._views:
            assembler.load_address(last, self._views[index])
            last = assembler.arguments[4]
        assembler.load_address(last, self._slots[index])
        self._call_api(hook)
        assembler.jump_if_zero(assembler.result, self._fail, half=True)

    def _check_writable(self, index: int) -> None:
        """Emit a check that fails if a pointer belongs to a read-only buffer. A pointer that is a plain address has no buffer."""
        assembler, good = self._assembler, self._assembler.new_label()
        assembler.load(assembler.scratch, assembler.frame, self._views[index] + _VIEW_OBJECT)
        assembler.jump_if_zero(assembler.scratch, good)
        assembler.load(assembler.scratch, assembler.frame, self._views[index] + entry_points.VIEW_READONLY, half=True)
        assembler.jump_if_not_zero(assembler.scratch, self._invalid_argument_label(index))
        assembler.place(good)

    def _convert_buffer(self, index: int, parameter: Parameter) -> None:
        """Emit the conversion of an array: get its buffer, check the number of dimensions, and pass the address, then the sizes."""
        assembler, view, slot = self._assembler, self._views[index], self._slots[index]
        self._begin_hook(index)
        assembler.load_address(assembler.arguments[3], view)
        assembler.load_number(assembler.arguments[4], entry_points.wanted_buffer(parameter.type, writable=not self._entry.readonly[index]))
        self._call_api(entry_points.BUFFER)
        assembler.jump_if_zero(assembler.result, self._fail, half=True)
        self._passed.append((0, assembler.frame, view))
        if not parameter.dimensions:
            assembler.load(assembler.scratch, assembler.frame, view + _VIEW_SIZE)
            assembler.shift_right(assembler.scratch, parameter.type.size.bit_length() - 1)
            assembler.store(assembler.scratch, slot)
            self._passed.append((0, assembler.frame, slot))
            return
        assembler.load(assembler.scratch, assembler.frame, view + entry_points.VIEW_NDIM, half=True)
        assembler.load_number(assembler.other_scratch, parameter.dimensions)
        assembler.jump_if_different(assembler.scratch, assembler.other_scratch, self._invalid_argument_label(index))
        assembler.load(assembler.scratch, assembler.frame, view + entry_points.VIEW_SHAPE)
        for extent_offset in range(0, parameter.dimensions * _WORD, _WORD):
            assembler.load(assembler.other_scratch, assembler.scratch, extent_offset)
            assembler.store(assembler.other_scratch, slot + extent_offset)
            self._passed.append((0, assembler.frame, slot + extent_offset))

    def _call(self) -> None:
        """Emit the call of the compiled function, without the GIL if `EntryPoint.nogil` is set, and the conversion of its result."""
        assembler, result = self._assembler, self._signature.result
        if self._entry.nogil:
            assembler.call("PyEval_SaveThread")
            assembler.store(assembler.result, self._thread)
        self._pass_arguments()
        assembler.load(assembler.scratch, assembler.callee, entry_points.FUNCTION_AT)
        assembler.call_register(assembler.scratch)
        if result.kind == FLOAT:
            assembler.store_float(0, self._result, result.size)
        elif result.kind not in (VOID, TUPLE):
            assembler.store(assembler.result, self._result)
        if self._entry.nogil:
            assembler.load(assembler.arguments[0], assembler.frame, self._thread)
            assembler.call("PyEval_RestoreThread")
        if self._entry.may_raise:  # a function that uses Python's C API
            assembler.call("PyErr_Occurred")
            assembler.jump_if_not_zero(assembler.result, self._fail)
        if result.kind == TUPLE:
            self._return_tuple(result.items())
        else:
            self._make_object(result, self._entry.result, self._result)

    def _pass_arguments(self) -> None:
        """Emit loads of the function's arguments. Arguments in memory come first, because they need a register that is used later."""
        assembler = self._assembler
        arguments = [(0, -1, self._items)] if self._signature.result.kind == TUPLE else []
        arguments += self._passed
        numbers = [argument for argument in arguments if not argument[0]]
        floats = [argument for argument in arguments if argument[0]]
        in_registers = [*numbers[: len(assembler.arguments)], *floats[: assembler.float_arguments]]
        stack_offset = 0
        for _, base, offset in [argument for argument in arguments if argument not in in_registers]:
            assembler.load(assembler.scratch, base, offset)
            assembler.store(assembler.scratch, stack_offset)
            stack_offset += _WORD
        for number, (size, _, offset) in enumerate(floats[: assembler.float_arguments]):
            assembler.load_float(number, offset, size)
        for register, (_, base, offset) in zip(assembler.arguments, numbers, strict=False):
            if base < 0:
                assembler.load_address(register, offset)
            else:
                assembler.load(register, base, offset)

    def _return_tuple(self, items: tuple[Type, ...]) -> None:
        """Emit the creation of a tuple of the values that the function has stored."""
        assembler = self._assembler
        first, second, third = assembler.arguments[:3]

        def release() -> None:
            """Emit the release of the incomplete tuple, before the call fails."""
            assembler.load(first, assembler.frame, self._result)
            assembler.call("Py_DecRef")
            assembler.jump(self._fail)

        release_label = self._add_deferred(release)
        assembler.load_number(first, len(items))
        assembler.call("PyTuple_New")
        assembler.jump_if_zero(assembler.result, self._fail)
        assembler.store(assembler.result, self._result)
        for number, item in enumerate(items):
            self._make_object(item, "", self._items + number * _WORD)
            assembler.jump_if_zero(assembler.result, release_label)
            assembler.move(third, assembler.result)
            assembler.load_number(second, number)
            assembler.load(first, assembler.frame, self._result)
            assembler.call("PyTuple_SetItem")
        assembler.load(assembler.result, assembler.frame, self._result)

    def _make_object(self, result: Type, llvm_type: str, slot: int) -> None:
        """Emit the creation of the Python object for a value in the frame."""
        assembler = self._assembler
        first, kind = assembler.arguments[0], result.kind
        if kind == VOID:
            assembler.load_symbol(first, "_Py_NoneStruct")
            assembler.call("Py_IncRef")
            assembler.load_symbol(assembler.result, "_Py_NoneStruct")
        elif kind == FLOAT:
            assembler.load_float(0, slot, result.size)
            if result.size < _WORD:
                assembler.convert_float(to=_WORD)
            assembler.call("PyFloat_FromDouble")
        elif kind == OBJECT:
            assembler.load(assembler.result, assembler.frame, slot)
        else:
            assembler.load(first, assembler.frame, slot)
            self._call_constructor(result, llvm_type)

    def _call_constructor(self, result: Type, llvm_type: str) -> None:
        """Emit the creation of the Python object for the number or pointer in the first argument. Of an i1, only the lowest bit counts."""
        assembler = self._assembler
        first, kind = assembler.arguments[0], result.kind
        if kind == CSTR:
            self._call_api(entry_points.FROM_CSTR)
        elif kind == POINTER:
            assembler.call("PyLong_FromVoidPtr")
        elif kind == BOOL:
            if llvm_type == "i1":
                assembler.keep_low_bit(first)
            else:
                assembler.extend(first, first, 1, signed=False)
                assembler.set_truth(first, first)
            assembler.call("PyBool_FromLong")
        else:
            if result.size < _WORD:
                assembler.extend(first, first, result.size, signed=kind == SIGNED)
            assembler.call("PyLong_FromLongLong" if kind == SIGNED else "PyLong_FromUnsignedLongLong")
