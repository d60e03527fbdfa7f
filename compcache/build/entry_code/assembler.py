"""The operations that make up an entry point. Each architecture encodes them.

Registers have their numbers of the architecture. An operation changes no register but the one that it names, and, where it calls something,
what a call may change.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Assembler", "Code", "Relocation"]


class Relocation(NamedTuple):
    """A reference of the code to a symbol, with the type of the architecture's relocation."""

    offset: int
    type: int
    symbol: str
    addend: int


class Code(NamedTuple):
    """The code of one function; `frame_rules` are the instructions for unwinding (DWARF 5, 6.4.2) that hold from an offset on."""

    code: bytes
    relocations: tuple[Relocation, ...]
    frame_rules: tuple[tuple[int, bytes], ...]


class Assembler:
    """Code that grows by one operation at a time. An architecture defines every method that raises `NotImplementedError` here."""

    #: Number of the architecture in ELF files, type of sections with frames, alignment of functions.
    elf_machine: int
    unwind_type: int
    #: The relocation for frames' references to code.
    distance: int
    #: The initial instructions of frames, and the number of the return address in them.
    first_rules: bytes
    return_register: int
    #: The registers for integers: the result of a call, its arguments, those preserved across calls, and free ones.
    result: int
    arguments: tuple[int, ...]
    callee: int
    items: int
    frame: int
    scratch: int
    other_scratch: int
    #: How many arguments are passed in registers for floating-point numbers.
    float_arguments: int
    #: The largest frame, in bytes: jumps reach over the code of so many arguments.
    most_frame: int

    def __init__(self) -> None:
        self.code = bytearray()
        self.relocations: list[Relocation] = []
        self.frame_rules: list[tuple[int, bytes]] = []
        self._labels: list[int] = []
        self._jumps: list[tuple[int, int]] = []
        self._frame_at = 0

    # ----------------------------------------------------------------- labels

    def label(self) -> int:
        """Return a label without a place."""
        self._labels.append(-1)
        return len(self._labels) - 1

    def place(self, label: int) -> None:
        """Place a label at the current position."""
        self._labels[label] = len(self.code)

    def finish(self, frame: int) -> Code:
        """Return the code, with a frame of `frame` bytes, a multiple of 16."""
        self._set_frame(frame)
        for at, label in self._jumps:
            self._set_jump(at, self._labels[label])
        return Code(bytes(self.code), tuple(self.relocations), tuple(self.frame_rules))

    def rule(self, *operations: int) -> None:
        """Let these unwinding instructions apply from here on."""
        self.frame_rules.append((len(self.code), bytes(operations)))

    def _jump_here(self, label: int) -> None:
        """Record that the jump before this position leads to a label."""
        self._jumps.append((len(self.code), label))

    def _set_frame(self, size: int) -> None:
        raise NotImplementedError

    def _set_jump(self, at: int, target: int) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------- operations

    def enter(self) -> None:
        """Make the frame; keep the first two arguments in `callee` and `items`."""
        raise NotImplementedError

    def leave(self) -> None:
        """Release the frame and return. Code that follows runs within the frame again."""
        raise NotImplementedError

    def load(self, register: int, base: int, offset: int, *, half: bool = False) -> None:
        """Load eight bytes into a register, or four bytes extended with zeros."""
        raise NotImplementedError

    def store(self, register: int, offset: int) -> None:
        """Store eight bytes in the frame."""
        raise NotImplementedError

    def address(self, register: int, offset: int) -> None:
        """Load the address of a place in the frame."""
        raise NotImplementedError

    def number(self, register: int, value: int) -> None:
        """Load a 64-bit number."""
        raise NotImplementedError

    def move(self, register: int, source: int) -> None:
        """Copy a register."""
        raise NotImplementedError

    def symbol(self, register: int, name: str) -> None:
        """Load the address of a symbol, from the global offset table."""
        raise NotImplementedError

    def call(self, name: str) -> None:
        """Call the function of a symbol."""
        raise NotImplementedError

    def call_register(self, register: int) -> None:
        """Call the function at an address."""
        raise NotImplementedError

    def extend(self, register: int, source: int, size: int, *, signed: bool) -> None:
        """Extend the low one, two or four bytes of a register to all of it."""
        raise NotImplementedError

    def truth(self, register: int, source: int) -> None:
        """Set a register to 1 if the low four bytes of `source` are not zero, otherwise to 0."""
        raise NotImplementedError

    def low_bit(self, register: int) -> None:
        """Clear all bits but the lowest."""
        raise NotImplementedError

    def shift_right(self, register: int, bits: int) -> None:
        """Divide an unsigned number by a power of two."""
        raise NotImplementedError

    def clear_top_bit(self, register: int) -> None:
        """Clear bit 63."""
        raise NotImplementedError

    def load_float(self, number: int, offset: int, size: int) -> None:
        """Load four or eight bytes from the frame into a floating-point register."""
        raise NotImplementedError

    def store_float(self, number: int, offset: int, size: int) -> None:
        """Store a floating-point register in the frame."""
        raise NotImplementedError

    def convert_float(self, *, to: int) -> None:
        """Convert the first floating-point register to four or eight bytes from the other size."""
        raise NotImplementedError

    def float_bits(self, register: int) -> None:
        """Move the bits of the first floating-point register into a register."""
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
