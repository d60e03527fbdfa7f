"""Operations of entry points in AArch64 code.

Encodings: Arm Architecture Reference Manual for A-profile, C6 and C7. Registers for arguments, and registers that a call preserves:
Procedure Call Standard for the Arm 64-bit Architecture, 6.
"""

from __future__ import annotations

from compcache.build.entry_code.assembler import Assembler, Relocation

__all__ = ["ArmAssembler"]

_CALL26, _GOT_PAGE, _GOT_LOW = 283, 311, 312
_CALLEE, _ITEMS, _FRAME_POINTER, _LINK, _SP = 19, 20, 29, 30, 31
_DEF_CFA, _DEF_CFA_OFFSET, _OFFSET = 0x0C, 0x0E, 0x80
_EQUAL, _DIFFERENT = 0, 1
_SAVED_SIZE = 32  # bytes of the registers that are saved
#: For each kind of jump: the mask of the operation, the position of the distance, and its number of bits.
_KINDS = (
    (0x7C000000, 0x14000000, 0, 26), (0xFF000010, 0x54000000, 5, 19),
    (0x7E000000, 0x34000000, 5, 19), (0x7E000000, 0x36000000, 5, 14),
)  # fmt: skip


class ArmAssembler(Assembler):
    """Encodes the operations of `Assembler` for AArch64."""

    elf_machine = 183
    unwind_type = 1
    distance = 261  # R_AARCH64_PREL32
    first_rules = bytes((_DEF_CFA, _SP, 0))
    return_register = _LINK
    result = 0
    arguments = tuple(range(8))
    callee, items, frame, scratch, other_scratch = _CALLEE, _ITEMS, _SP, 9, 10
    float_arguments = 8
    frame_limit = 2032

    def _emit(self, *words: int) -> None:
        """Append instructions."""
        for word in words:
            self.code += word.to_bytes(4, "little")

    def _word_at(self, at: int) -> int:
        """Return the instruction at a position."""
        return int.from_bytes(self.code[at : at + 4], "little")

    def enter(self) -> None:
        self._emit(0xA9BE7BFD)  # stp x29, x30, [sp, #-32]!
        self.add_frame_rule(_DEF_CFA_OFFSET, _SAVED_SIZE, _OFFSET | _FRAME_POINTER, 4, _OFFSET | _LINK, 3)
        self._emit(0x910003FD, 0xA90153F3)  # mov x29, sp; stp x19, x20, [sp, #16]
        self.add_frame_rule(_DEF_CFA, _FRAME_POINTER, _SAVED_SIZE, _OFFSET | _CALLEE, 2, _OFFSET | _ITEMS, 1)
        self._frame_at = len(self.code)
        self._emit(0xD10003FF)  # sub sp, sp
        self.move(_CALLEE, 0)
        self.move(_ITEMS, 1)

    def _set_frame(self, size: int) -> None:
        at = self._frame_at
        self.code[at : at + 4] = (self._word_at(at) | size << 10).to_bytes(4, "little")

    def leave(self) -> None:
        self._emit(0x910003BF, 0xA94153F3, 0xA8C27BFD)  # mov sp, x29; ldp x19, x20, [sp, #16]; ldp x29, x30, [sp], #32
        self.add_frame_rule(_DEF_CFA, _SP, 0)
        self._emit(0xD65F03C0)  # ret
        self.add_frame_rule(_DEF_CFA, _FRAME_POINTER, _SAVED_SIZE)

    def load(self, register: int, base: int, offset: int, *, half: bool = False) -> None:
        opcode, size = (0xB9400000, 4) if half else (0xF9400000, 8)
        self._emit(opcode | offset // size << 10 | base << 5 | register)  # ldr

    def store(self, register: int, offset: int) -> None:
        self._emit(0xF9000000 | offset // 8 << 10 | _SP << 5 | register)  # str

    def load_address(self, register: int, offset: int) -> None:
        self._emit(0x91000000 | offset << 10 | _SP << 5 | register)  # add

    def load_number(self, register: int, value: int) -> None:
        self._emit(0xD2800000 | (value & 0xFFFF) << 5 | register)  # movz
        for part in (1, 2, 3):
            bits = value >> 16 * part & 0xFFFF
            if bits:
                self._emit(0xF2800000 | part << 21 | bits << 5 | register)  # movk

    def move(self, register: int, source: int) -> None:
        self._emit(0xAA0003E0 | source << 16 | register)  # mov

    def load_symbol(self, register: int, name: str) -> None:
        self.relocations.append(Relocation(len(self.code), _GOT_PAGE, name, 0))
        self._emit(0x90000000 | register)  # adrp
        self.relocations.append(Relocation(len(self.code), _GOT_LOW, name, 0))
        self._emit(0xF9400000 | register << 5 | register)  # ldr

    def call(self, name: str) -> None:
        self.relocations.append(Relocation(len(self.code), _CALL26, name, 0))
        self._emit(0x94000000)  # bl

    def call_register(self, register: int) -> None:
        self._emit(0xD63F0000 | register << 5)  # blr

    def extend(self, register: int, source: int, size: int, *, signed: bool) -> None:
        bits = (8 * size - 1) << 10
        self._emit((0x93400000 if signed else 0xD3400000) | bits | source << 5 | register)  # sbfm; ubfm

    def set_truth(self, register: int, source: int) -> None:
        self._emit(0x7100001F | source << 5, 0x1A9F07E0 | register)  # cmp; cset ne

    def keep_low_bit(self, register: int) -> None:
        self._emit(0x92400000 | register << 5 | register)  # and

    def shift_right(self, register: int, bits: int) -> None:
        self._emit(0xD340FC00 | bits << 16 | register << 5 | register)  # lsr

    def clear_top_bit(self, register: int) -> None:
        self._emit(0x9240F800 | register << 5 | register)  # and

    def load_float(self, number: int, offset: int, size: int) -> None:
        self._emit_float_move(0x400000, number, offset, size)

    def store_float(self, number: int, offset: int, size: int) -> None:
        self._emit_float_move(0, number, offset, size)

    def _emit_float_move(self, load: int, number: int, offset: int, size: int) -> None:
        """Emit a load (`load` is its bit) or a store of a floating-point register of `size` bytes."""
        self._emit((0xBD000000 if size == 4 else 0xFD000000) | load | offset // size << 10 | _SP << 5 | number)  # ldr; str  # noqa: PLR2004 - bytes

    def convert_float(self, *, to: int) -> None:
        self._emit(0x1E624000 if to == 4 else 0x1E22C000)  # fcvt  # noqa: PLR2004 - bytes

    def copy_float_bits(self, register: int) -> None:
        self._emit(0x9E660000 | register)  # fmov

    def jump(self, label: int) -> None:
        self._jump_here(label)
        self._emit(0x14000000)  # b

    def _set_jump(self, at: int, target: int) -> None:
        """Set the target of the jump at a position. Raise `ValueError` if the jump's kind cannot span the distance."""
        word = self._word_at(at)
        shift, bits = next((shift, bits) for mask, operation, shift, bits in _KINDS if word & mask == operation)
        distance = (target - at) // 4
        if not -(1 << bits - 1) <= distance < 1 << bits - 1:
            raise ValueError(f"a jump in an AArch64 entry point cannot span {target - at} bytes")
        self.code[at : at + 4] = (word | (distance & (1 << bits) - 1) << shift).to_bytes(4, "little")

    def jump_if_zero(self, register: int, label: int, *, half: bool = False) -> None:
        self._jump_here(label)
        self._emit((0x34000000 if half else 0xB4000000) | register)  # cbz

    def jump_if_not_zero(self, register: int, label: int, *, half: bool = False) -> None:
        self._jump_here(label)
        self._emit((0x35000000 if half else 0xB5000000) | register)  # cbnz

    def jump_if_negative(self, register: int, label: int) -> None:
        self._jump_here(label)
        self._emit(0x37F80000 | register)  # tbnz, bit 31

    def jump_if_minus_one(self, register: int, label: int) -> None:
        self._emit(0xB100041F | register << 5)  # cmn, 1
        self._jump_if(_EQUAL, label)

    def jump_if_equal(self, register: int, other: int, label: int) -> None:
        self._compare(register, other)
        self._jump_if(_EQUAL, label)

    def jump_if_different(self, register: int, other: int, label: int) -> None:
        self._compare(register, other)
        self._jump_if(_DIFFERENT, label)

    def _compare(self, register: int, other: int) -> None:
        """Emit a comparison of two registers, which sets the flags."""
        self._emit(0xEB00001F | other << 16 | register << 5)  # cmp

    def _jump_if(self, condition: int, label: int) -> None:
        """Emit a conditional jump to a label. `condition` is the condition code of b.cond, like `_EQUAL`."""
        self._jump_here(label)
        self._emit(0x54000000 | condition)  # b.cond
