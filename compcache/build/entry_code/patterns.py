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

_WORD, _VIEW = 8, 80
_VIEW_OBJECT, _VIEW_SIZE = 8, 16
_MINUS_ONE = 0xBFF0000000000000  # as a double
_FLOATS = {"float": 4, "double": 8}


def generate_code(entry: EntryPoint, machine: type[Assembler]) -> Code | None:
    """Return the code of an entry point, or None for a calling convention other than C's or a frame above `Assembler.most_frame`."""
    if entry.convention:
        return None
    pattern = _Pattern(entry, machine())
    if pattern.frame > machine.most_frame:
        return None
    return pattern.write()


class _Pattern:
    """Writes one entry point."""

    def __init__(self, entry: EntryPoint, machine: Assembler) -> None:
        self._entry = entry
        self._machine = machine
        self._signature = Signature.parse(entry.signature)
        self._deferred: list[tuple[int, Callable[[], None]]] = []
        self._fail, self._done = machine.new_label(), machine.new_label()
        #: The places of the function's arguments: (size of a floating-point number or 0 for an integer, base register, offset).
        self._passed: list[tuple[int, int, int]] = []
        floats = sum(type_ in _FLOATS for type_ in entry.types)
        in_memory = max(0, floats - machine.float_arguments) + max(0, len(entry.types) - floats - len(machine.arguments))
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
    def frame(self) -> int:
        """The size of the frame, in bytes."""
        return (self._size + 15) // 16 * 16

    def write(self) -> Code:
        """Emit all operations, and return the code."""
        machine = self._machine
        machine.enter()
        if self._views:
            machine.load_number(machine.scratch, 0)
        for view in self._views.values():
            machine.store(machine.scratch, view + _VIEW_OBJECT)
        self._check_arity()
        for index, parameter in enumerate(self._signature.parameters):
            self._convert(index, parameter)
        self._call()
        machine.place(self._done)
        if self._views:
            machine.store(machine.result, self._result)
            for view in self._views.values():
                machine.load_address(machine.arguments[0], view)
                machine.call("PyBuffer_Release")
            machine.load(machine.result, machine.frame, self._result)
        machine.leave()
        for label, write in self._deferred:
            machine.place(label)
            write()
        machine.place(self._fail)
        machine.load_number(machine.result, 0)
        machine.jump(self._done)
        return machine.finish(self.frame)

    def _add_deferred(self, write: Callable[[], None]) -> int:
        """Return the label of code that `write` will write behind the return instruction."""
        label = self._machine.new_label()
        self._deferred.append((label, write))
        return label

    def _call_api(self, offset: int) -> None:
        """Emit a call of the function at an offset in the runtime's table."""
        machine = self._machine
        machine.load(machine.scratch, machine.callee, entry_points.API_AT)
        machine.load(machine.scratch, machine.scratch, offset)
        machine.call_register(machine.scratch)

    def _check_arity(self) -> None:
        """Emit the check of the number of arguments. For another number, or names, the runtime orders the arguments or raises."""
        machine, count = self._machine, len(self._signature.parameters)
        callee, actual, expected, names = machine.arguments[:4]
        convert = machine.new_label()

        def match_arguments() -> None:
            """Emit the call of the runtime, which may raise an exception."""
            machine.move(callee, machine.callee)
            machine.move(actual, expected)  # the register in which the number of arguments was passed
            machine.load_number(expected, count)
            self._call_api(entry_points.FAIL_ARITY)
            machine.jump_if_zero(machine.result, self._fail, half=True)
            machine.jump(convert)

        arity = self._add_deferred(match_arguments)
        machine.clear_top_bit(expected)
        machine.load_number(machine.scratch, count)
        machine.jump_if_different(expected, machine.scratch, arity)
        machine.jump_if_not_zero(names, arity)
        machine.place(convert)

    def _convert(self, index: int, parameter: Parameter) -> None:
        """Emit the conversion of one argument, and record the locations of the function's arguments for it."""
        machine, slot = self._machine, self._slots[index]
        kind, size = parameter.type.kind, parameter.type.size
        float_size = 0
        if parameter.is_buffer:
            self._convert_buffer(index, parameter)
            return
        if kind == OBJECT:
            self._passed.append((0, machine.items, index * _WORD))
            return
        if kind == FLOAT:
            self._convert_float(index, size)
            float_size = size
        elif kind == BOOL:
            self._load_item(machine.arguments[0], index)
            machine.call("PyObject_IsTrue")
            machine.jump_if_negative(machine.result, self._fail)
            machine.set_truth(machine.result, machine.result)
            machine.store(machine.result, slot)
        elif kind in (SIGNED, UNSIGNED) and parameter.type.name != "u64":
            self._convert_integer(index, size, signed=kind == SIGNED)
        else:
            self._convert_by_hook(
                index, {POINTER: entry_points.POINTER_HOOK, CSTR: entry_points.CSTR_HOOK}.get(kind, entry_points.U64_HOOK)
            )
            if kind == POINTER and not self._entry.readonly[index]:
                self._check_writable(index)
        self._passed.append((float_size, machine.frame, slot))

    def _load_item(self, register: int, index: int) -> None:
        """Emit a load of the Python object that was passed as argument `index`."""
        self._machine.load(register, self._machine.items, index * _WORD)

    def _begin_hook(self, index: int) -> None:
        """Emit loads of the first three arguments for a call of the runtime that handles an argument."""
        machine = self._machine
        self._load_item(machine.arguments[2], index)
        machine.load_number(machine.arguments[1], index)
        machine.move(machine.arguments[0], machine.callee)

    def _invalid_argument_label(self, index: int) -> int:
        """Return the label of code that reports an invalid argument."""

        def report_invalid() -> None:
            """Emit the call that raises the exception."""
            self._begin_hook(index)
            self._call_api(entry_points.FAIL_VALUE)
            self._machine.jump(self._fail)

        return self._add_deferred(report_invalid)

    def _error_check_labels(self, index: int) -> tuple[int, int]:
        """Return two labels: of code that checks for an exception, and of the place where this code continues if no exception is set.

        The code continues with the number in `result`. The caller places the second label.
        """
        machine, back = self._machine, self._machine.new_label()
        invalid = self._invalid_argument_label(index)

        def check() -> None:
            """Emit the check. The call changes `result`, so the number is loaded again."""
            machine.call("PyErr_Occurred")
            machine.jump_if_not_zero(machine.result, invalid)
            machine.load(machine.result, machine.frame, self._slots[index])
            machine.jump(back)

        return self._add_deferred(check), back

    def _convert_float(self, index: int, size: int) -> None:
        """Emit the conversion of an argument to a floating-point number of `size` bytes.

        The result -1.0 may be an error. The code then checks whether an exception is set.
        """
        machine, slot = self._machine, self._slots[index]
        check, back = self._error_check_labels(index)
        self._load_item(machine.arguments[0], index)
        machine.call("PyFloat_AsDouble")
        machine.store_float(0, slot, 8)
        machine.copy_float_bits(machine.scratch)
        machine.load_number(machine.other_scratch, _MINUS_ONE)
        machine.jump_if_equal(machine.scratch, machine.other_scratch, check)
        machine.place(back)
        if size < _WORD:
            machine.load_float(0, slot, 8)
            machine.convert_float(to=size)
            machine.store_float(0, slot, size)

    def _convert_integer(self, index: int, size: int, *, signed: bool) -> None:
        """Emit the conversion of an argument to an integer of `size` bytes, which is signed if `signed` is true.

        A number that does not fit fails the call.
        """
        machine = self._machine
        check, back = self._error_check_labels(index)
        self._load_item(machine.arguments[0], index)
        machine.call("PyLong_AsLongLong")
        machine.store(machine.result, self._slots[index])
        machine.jump_if_minus_one(machine.result, check)
        machine.place(back)
        if size < _WORD:
            machine.extend(machine.scratch, machine.result, size, signed=signed)
            machine.jump_if_different(machine.scratch, machine.result, self._invalid_argument_label(index))

    def _convert_by_hook(self, index: int, hook: int) -> None:
        """Emit the conversion of an argument by a function of the runtime, which returns 0 if it has raised an exception."""
        machine = self._machine
        last = machine.arguments[3]
        self._begin_hook(index)
        if index in self._views:
            machine.load_address(last, self._views[index])
            last = machine.arguments[4]
        machine.load_address(last, self._slots[index])
        self._call_api(hook)
        machine.jump_if_zero(machine.result, self._fail, half=True)

    def _check_writable(self, index: int) -> None:
        """Emit a check that fails if a pointer belongs to a read-only buffer. A pointer that is a plain address has no buffer."""
        machine, good = self._machine, self._machine.new_label()
        machine.load(machine.scratch, machine.frame, self._views[index] + _VIEW_OBJECT)
        machine.jump_if_zero(machine.scratch, good)
        machine.load(machine.scratch, machine.frame, self._views[index] + entry_points.VIEW_READONLY, half=True)
        machine.jump_if_not_zero(machine.scratch, self._invalid_argument_label(index))
        machine.place(good)

    def _convert_buffer(self, index: int, parameter: Parameter) -> None:
        """Emit the conversion of an array: get its buffer, check the number of dimensions, and pass the address, then the sizes."""
        machine, view, slot = self._machine, self._views[index], self._slots[index]
        self._begin_hook(index)
        machine.load_address(machine.arguments[3], view)
        machine.load_number(machine.arguments[4], entry_points.buffer_request(parameter.type, writable=not self._entry.readonly[index]))
        self._call_api(entry_points.BUFFER)
        machine.jump_if_zero(machine.result, self._fail, half=True)
        self._passed.append((0, machine.frame, view))
        if not parameter.dimensions:
            machine.load(machine.scratch, machine.frame, view + _VIEW_SIZE)
            machine.shift_right(machine.scratch, parameter.type.size.bit_length() - 1)
            machine.store(machine.scratch, slot)
            self._passed.append((0, machine.frame, slot))
            return
        machine.load(machine.scratch, machine.frame, view + entry_points.VIEW_NDIM, half=True)
        machine.load_number(machine.other_scratch, parameter.dimensions)
        machine.jump_if_different(machine.scratch, machine.other_scratch, self._invalid_argument_label(index))
        machine.load(machine.scratch, machine.frame, view + entry_points.VIEW_SHAPE)
        for extent_offset in range(0, parameter.dimensions * _WORD, _WORD):
            machine.load(machine.other_scratch, machine.scratch, extent_offset)
            machine.store(machine.other_scratch, slot + extent_offset)
            self._passed.append((0, machine.frame, slot + extent_offset))

    def _call(self) -> None:
        """Emit the call of the compiled function, without the GIL if `EntryPoint.nogil` is set, and the conversion of its result."""
        machine, result = self._machine, self._signature.result
        if self._entry.nogil:
            machine.call("PyEval_SaveThread")
            machine.store(machine.result, self._thread)
        self._pass_arguments()
        machine.load(machine.scratch, machine.callee, entry_points.FUNCTION_AT)
        machine.call_register(machine.scratch)
        if result.kind == FLOAT:
            machine.store_float(0, self._result, result.size)
        elif result.kind not in (VOID, TUPLE):
            machine.store(machine.result, self._result)
        if self._entry.nogil:
            machine.load(machine.arguments[0], machine.frame, self._thread)
            machine.call("PyEval_RestoreThread")
        if self._entry.may_raise:  # a function that uses Python's C API
            machine.call("PyErr_Occurred")
            machine.jump_if_not_zero(machine.result, self._fail)
        if result.kind == TUPLE:
            self._return_tuple(result.items())
        else:
            self._make_object(result, self._entry.result, self._result)

    def _pass_arguments(self) -> None:
        """Emit loads of the function's arguments. Arguments in memory come first, because they need a register that is used later."""
        machine = self._machine
        arguments = [(0, -1, self._items)] if self._signature.result.kind == TUPLE else []
        arguments += self._passed
        numbers = [argument for argument in arguments if not argument[0]]
        floats = [argument for argument in arguments if argument[0]]
        in_registers = [*numbers[: len(machine.arguments)], *floats[: machine.float_arguments]]
        stack_offset = 0
        for _, base, offset in [argument for argument in arguments if argument not in in_registers]:
            machine.load(machine.scratch, base, offset)
            machine.store(machine.scratch, stack_offset)
            stack_offset += _WORD
        for number, (size, _, offset) in enumerate(floats[: machine.float_arguments]):
            machine.load_float(number, offset, size)
        for register, (_, base, offset) in zip(machine.arguments, numbers, strict=False):
            if base < 0:
                machine.load_address(register, offset)
            else:
                machine.load(register, base, offset)

    def _return_tuple(self, items: tuple[Type, ...]) -> None:
        """Emit the creation of a tuple of the values that the function has stored."""
        machine = self._machine
        first, second, third = machine.arguments[:3]

        def release() -> None:
            """Emit the release of the incomplete tuple, before the call fails."""
            machine.load(first, machine.frame, self._result)
            machine.call("Py_DecRef")
            machine.jump(self._fail)

        release_label = self._add_deferred(release)
        machine.load_number(first, len(items))
        machine.call("PyTuple_New")
        machine.jump_if_zero(machine.result, self._fail)
        machine.store(machine.result, self._result)
        for number, item in enumerate(items):
            self._make_object(item, "", self._items + number * _WORD)
            machine.jump_if_zero(machine.result, release_label)
            machine.move(third, machine.result)
            machine.load_number(second, number)
            machine.load(first, machine.frame, self._result)
            machine.call("PyTuple_SetItem")
        machine.load(machine.result, machine.frame, self._result)

    def _make_object(self, result: Type, llvm_type: str, slot: int) -> None:
        """Emit the creation of the Python object for a value in the frame."""
        machine = self._machine
        first, kind = machine.arguments[0], result.kind
        if kind == VOID:
            machine.load_symbol(first, "_Py_NoneStruct")
            machine.call("Py_IncRef")
            machine.load_symbol(machine.result, "_Py_NoneStruct")
        elif kind == FLOAT:
            machine.load_float(0, slot, result.size)
            if result.size < _WORD:
                machine.convert_float(to=_WORD)
            machine.call("PyFloat_FromDouble")
        elif kind == OBJECT:
            machine.load(machine.result, machine.frame, slot)
        else:
            machine.load(first, machine.frame, slot)
            self._call_constructor(result, llvm_type)

    def _call_constructor(self, result: Type, llvm_type: str) -> None:
        """Emit the creation of the Python object for the number or pointer in the first argument."""
        machine = self._machine
        first, kind = machine.arguments[0], result.kind
        if kind == CSTR:
            self._call_api(entry_points.FROM_CSTR)
        elif kind == POINTER:
            machine.call("PyLong_FromVoidPtr")
        elif kind == BOOL:
            if llvm_type == "i1":
                machine.keep_low_bit(first)
            else:
                machine.extend(first, first, 1, signed=False)
                machine.set_truth(first, first)
            machine.call("PyBool_FromLong")
        else:
            if result.size < _WORD:
                machine.extend(first, first, result.size, signed=kind == SIGNED)
            machine.call("PyLong_FromLongLong" if kind == SIGNED else "PyLong_FromUnsignedLongLong")
