"""The operations of entry points. Each architecture encodes them.

Registers have the numbers of the architecture. An operation changes only the register that it names. A call also changes the registers that
the calling convention does not preserve.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Assembler", "Code", "Relocation"]


class Relocation(NamedTuple):
    """A reference of the code to a symbol. `type` is the architecture's relocation type."""

    offset: int
    type: int
    symbol: str
    addend: int


class Code(NamedTuple):
    """The code of one function. `frame_rules` has unwinding instructions (DWARF 5, 6.4.2) with the code offsets from which they hold."""

    code: bytes
    relocations: tuple[Relocation, ...]
    frame_rules: tuple[tuple[int, bytes], ...]


class Assembler:
    """Appends operations to the code of a function. An architecture implements every method that raises `NotImplementedError` here."""

    #: The number of the architecture in ELF files, and the type of sections with frames.
    elf_machine: int
    unwind_type: int
    #: The relocation type for references of frames to code.
    distance: int
    #: The initial instructions of frames, and the number of the return address in them.
    first_rules: bytes
    return_register: int
    #: The integer registers: the result and the arguments of a call, three registers that calls preserve, and two free registers.
    result: int
    arguments: tuple[int, ...]
    callee: int
    items: int
    frame: int
    scratch: int
    other_scratch: int
    #: The number of floating-point arguments that are passed in registers.
    float_arguments: int
    #: The size limit of a frame, in bytes. Jumps can span the code for this number of arguments.
    frame_limit: int

    def __init__(self) -> None:
        self.code = bytearray()
        self.relocations: list[Relocation] = []
        self.frame_rules: list[tuple[int, bytes]] = []
        self._labels: list[int] = []
        self._jumps: list[tuple[int, int]] = []
        self._frame_at = 0

    def new_label(self) -> int:
        """Create a label, and return its number. `place` must place the label."""
        self._labels.append(-1)
        return len(self._labels) - 1

    def place(self, label: int) -> None:
        """Place a label at the current position."""
        self._labels[label] = len(self.code)

    def finish(self, frame: int) -> Code:
        """Resolve the labels, and return the code with a frame of `frame` bytes, a multiple of 16.

        Raise `ValueError` if a jump of the architecture cannot span the distance to its label.
        """
        self._set_frame(frame)
        for position, label in self._jumps:
            self._set_jump(position, self._labels[label])
        return Code(bytes(self.code), tuple(self.relocations), tuple(self.frame_rules))

    def add_frame_rule(self, *encoded: int) -> None:
        """Add unwinding instructions, as encoded bytes (DWARF 5, 6.4.2), that hold from the current position on."""
        self.frame_rules.append((len(self.code), bytes(encoded)))

    def _jump_here(self, label: int) -> None:
        """Record that the jump at the current position targets a label."""
        self._jumps.append((len(self.code), label))

    def _set_frame(self, size: int) -> None:
        """Set the size of the frame in the code of `enter`."""
        raise NotImplementedError

    def _set_jump(self, at: int, target: int) -> None:
        """Set the target of the jump at a position. Raise `ValueError` if the jump cannot span the distance."""
        raise NotImplementedError

    def enter(self) -> None:
        """Create the frame, and keep the first two arguments in `callee` and `items`."""
        raise NotImplementedError

    def leave(self) -> None:
        """Release the frame and return. Code that follows runs within the frame again."""
        raise NotImplementedError

    def load(self, register: int, base: int, offset: int, *, half: bool = False) -> None:
        """Load eight bytes at `base` + `offset` into a register; with `half`, four bytes, extended with zeros."""
        raise NotImplementedError

    def store(self, register: int, offset: int) -> None:
        """Store a register, eight bytes, at an offset in the frame."""
        raise NotImplementedError

    def load_address(self, register: int, offset: int) -> None:
        """Load the address at an offset in the frame."""
        raise NotImplementedError

    def load_number(self, register: int, value: int) -> None:
        """Load an unsigned 64-bit number."""
        raise NotImplementedError

    def move(self, register: int, source: int) -> None:
        """Copy a register."""
        raise NotImplementedError

    def load_symbol(self, register: int, name: str) -> None:
        """Load the address of a symbol, from the global offset table."""
        raise NotImplementedError

    def call(self, name: str) -> None:
        """Call a function by its symbol."""
        raise NotImplementedError

    def call_register(self, register: int) -> None:
        """Call the function whose address is in a register."""
        raise NotImplementedError

    def extend(self, register: int, source: int, size: int, *, signed: bool) -> None:
        """Extend the low `size` bytes (one, two or four) of `source` to eight bytes in a register.

        Copy the sign bit if `signed` is true, otherwise set the other bits to 0.
        """
        raise NotImplementedError

    def set_truth(self, register: int, source: int) -> None:
        """Set a register to 1 if the low four bytes of `source` are not zero, otherwise to 0."""
        raise NotImplementedError

    def keep_low_bit(self, register: int) -> None:
        """Clear all bits of a register except the lowest."""
        raise NotImplementedError

    def shift_right(self, register: int, bits: int) -> None:
        """Shift a register right by a number of bits, and fill it with zeros."""
        raise NotImplementedError

    def clear_top_bit(self, register: int) -> None:
        """Clear bit 63 of a register."""
        raise NotImplementedError

    def load_float(self, number: int, offset: int, size: int) -> None:
        """Load `size` bytes (four or eight) at an offset in the frame into a floating-point register."""
        raise NotImplementedError

    def store_float(self, number: int, offset: int, size: int) -> None:
        """Store a floating-point register of `size` bytes (four or eight) at an offset in the frame."""
        raise NotImplementedError

    def convert_float(self, *, to: int) -> None:
        """Convert the first floating-point register to `to` bytes: from four to eight, or from eight to four."""
        raise NotImplementedError

    def copy_float_bits(self, register: int) -> None:
        """Copy the bits of the first floating-point register to an integer register."""
        raise NotImplementedError

    def jump(self, label: int) -> None:
        """Jump to a label."""
        raise NotImplementedError

    def jump_if_zero(self, register: int, label: int, *, half: bool = False) -> None:
        """Jump to the label if a register, or its low half, is zero."""
        raise NotImplementedError

    def jump_if_not_zero(self, register: int, label: int, *, half: bool = False) -> None:
        """Jump to the label if the register, or its low half, is not zero."""
        raise NotImplementedError

    def jump_if_negative(self, register: int, label: int) -> None:
        """Jump to the label if the low half of the register is negative."""
        raise NotImplementedError

    def jump_if_minus_one(self, register: int, label: int) -> None:
        """Jump to the label if a register is -1."""
        raise NotImplementedError

    def jump_if_equal(self, register: int, other: int, label: int) -> None:
        """Jump to the label if two registers are equal."""
        raise NotImplementedError

    def jump_if_different(self, register: int, other: int, label: int) -> None:
        """Jump to the label if two registers are different."""
        raise NotImplementedError
