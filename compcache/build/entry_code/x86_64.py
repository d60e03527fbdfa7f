"""Operations of entry points in x86-64 code, for the calling convention of System V.

Encodings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. Registers for arguments, and registers that a call
preserves: System V ABI, AMD64 supplement, 3.2.
"""

from __future__ import annotations

from compcache.build.entry_code.assembler import Assembler, Relocation

__all__ = ["X86Assembler"]

_GOTPCRELX, _REX_GOTPCRELX = 41, 42
_AX, _CX, _DX, _BX, _SP, _BP, _SI, _DI, _R8, _R9, _R10, _R11, _R12 = range(13)
_WIDE = 0x48  # REX.W
_ZERO, _NOT_ZERO, _NEGATIVE = 0x84, 0x85, 0x88
_DEF_CFA, _DEF_CFA_REGISTER, _DEF_CFA_OFFSET, _OFFSET = 0x0C, 0x0D, 0x0E, 0x80
_SP_RULE, _BP_RULE, _BX_RULE, _R12_RULE, _RA_RULE = 7, 6, 3, 12, 16  # DWARF's numbers of registers
_BYTE = range(-0x80, 0x80)
_BY_NONE, _BY_BYTE, _BY_FOUR = 0, 0x40, 0x80  # the size of an offset in an instruction


class X86Assembler(Assembler):
    """Encodes the operations of `Assembler` for x86-64."""

    elf_machine = 62
    unwind_type = 0x70000001
    distance = 2  # R_X86_64_PC32
    first_rules = bytes((_DEF_CFA, _SP_RULE, 8, _OFFSET | _RA_RULE, 1))
    return_register = _RA_RULE
    result = _AX
    arguments = (_DI, _SI, _DX, _CX, _R8, _R9)
    callee, items, frame, scratch, other_scratch = _BX, _R12, _SP, _R10, _R11
    float_arguments = 8
    frame_limit = 2032

    def _emit(self, *values: int) -> None:
        """Append bytes."""
        self.code += bytes(values)

    def _emit_number32(self, value: int) -> None:
        """Append the low 32 bits of a number."""
        self.code += (value & 0xFFFFFFFF).to_bytes(4, "little")

    def _emit_prefix(self, bits: int) -> None:
        """Emit the REX prefix if one of its bits is needed."""
        if bits:
            self._emit(0x40 | bits)

    def _emit_registers(self, opcode: tuple[int, ...], register: int, other: int, *, wide: bool = True) -> None:
        """Emit an instruction with two registers, of 64 bits if `wide` is true, otherwise of 32 bits.

        `other` is the operand that may also be memory.
        """
        self._emit_prefix(wide << 3 | register >> 3 << 2 | other >> 3)
        self._emit(*opcode, 0xC0 | (register & 7) << 3 | other & 7)

    def _emit_memory(self, opcode: tuple[int, ...], register: int, base: int, offset: int, *, wide: bool = True) -> None:
        """Emit an instruction with a register and the memory at `base + offset`. `wide` selects 64-bit operands."""
        form = _BY_BYTE if offset in _BYTE else _BY_FOUR
        form = _BY_NONE if offset == 0 and base & 7 != _BP else form
        self._emit_prefix(wide << 3 | register >> 3 << 2 | base >> 3)
        self._emit(*opcode, form | (register & 7) << 3 | base & 7)
        if base & 7 == _SP:
            self._emit(0x24)  # the SIB byte of a base register alone
        if form == _BY_BYTE:
            self._emit(offset & 0xFF)
        elif form == _BY_FOUR:
            self._emit_number32(offset)

    def enter(self) -> None:
        self._emit(0x55)  # push rbp
        self.add_frame_rule(_DEF_CFA_OFFSET, 16, _OFFSET | _BP_RULE, 2)
        self._emit(_WIDE, 0x89, 0xE5)  # mov rbp, rsp
        self.add_frame_rule(_DEF_CFA_REGISTER, _BP_RULE)
        self._emit(0x41, 0x54, 0x53)  # push r12; push rbx
        self.add_frame_rule(_OFFSET | _R12_RULE, 3, _OFFSET | _BX_RULE, 4)
        self._emit(_WIDE, 0x81, 0xEC)  # sub rsp
        self._frame_at = len(self.code)
        self._emit_number32(0)
        self.move(self.callee, _DI)
        self.move(self.items, _SI)

    def _set_frame(self, size: int) -> None:
        self.code[self._frame_at : self._frame_at + 4] = size.to_bytes(4, "little")

    def leave(self) -> None:
        self._emit_memory((0x8B,), _BX, _BP, -16)  # mov
        self._emit_memory((0x8B,), _R12, _BP, -8)
        self._emit(0xC9)  # leave
        self.add_frame_rule(_DEF_CFA, _SP_RULE, 8)
        self._emit(0xC3)  # ret
        self.add_frame_rule(_DEF_CFA, _BP_RULE, 16)

    def load(self, register: int, base: int, offset: int, *, half: bool = False) -> None:
        self._emit_memory((0x8B,), register, base, offset, wide=not half)  # mov

    def store(self, register: int, offset: int) -> None:
        self._emit_memory((0x89,), register, _SP, offset)  # mov

    def load_address(self, register: int, offset: int) -> None:
        self._emit_memory((0x8D,), register, _SP, offset)  # lea

    def load_number(self, register: int, value: int) -> None:
        if value >> 32:
            self._emit(_WIDE | register >> 3, 0xB8 | register & 7)  # mov
            self.code += value.to_bytes(8, "little")
        else:  # a 32-bit mov clears the upper half of the register
            self._emit_prefix(register >> 3)
            self._emit(0xB8 | register & 7)  # mov
            self._emit_number32(value)

    def move(self, register: int, source: int) -> None:
        self._emit_registers((0x89,), source, register)  # mov

    def load_symbol(self, register: int, name: str) -> None:
        self._emit(_WIDE | register >> 3 << 2, 0x8B, 0x05 | (register & 7) << 3)  # mov
        self.relocations.append(Relocation(len(self.code), _REX_GOTPCRELX, name, -4))
        self._emit_number32(0)

    def call(self, name: str) -> None:
        self._emit(0xFF, 0x15)  # through the global offset table: no stub between
        self.relocations.append(Relocation(len(self.code), _GOTPCRELX, name, -4))
        self._emit_number32(0)

    def call_register(self, register: int) -> None:
        self._emit_prefix(register >> 3)
        self._emit(0xFF, 0xD0 | register & 7)  # call

    def extend(self, register: int, source: int, size: int, *, signed: bool) -> None:
        if size == 4:  # noqa: PLR2004 - bytes
            self._emit_registers((0x63,) if signed else (0x8B,), register, source, wide=signed)  # movsxd; mov
        else:
            self._emit_registers((0x0F, (0xBE if signed else 0xB6) + size // 2), register, source)  # movsx; movzx; prefix as in `set_truth`

    def set_truth(self, register: int, source: int) -> None:
        self._emit_registers((0x85,), source, source, wide=False)  # test
        self._emit(0x40 | register >> 3, 0x0F, 0x95, 0xC0 | register & 7)  # setne; without a prefix, 4 to 7 select ah to bh
        self.extend(register, register, 1, signed=False)

    def keep_low_bit(self, register: int) -> None:
        self._emit(_WIDE | register >> 3, 0x83, 0xE0 | register & 7, 1)  # and

    def shift_right(self, register: int, bits: int) -> None:
        self._emit(_WIDE | register >> 3, 0xC1, 0xE8 | register & 7, bits)  # shr

    def clear_top_bit(self, register: int) -> None:
        self._emit(_WIDE | register >> 3, 0x0F, 0xBA, 0xF0 | register & 7, 63)  # btr

    def load_float(self, number: int, offset: int, size: int) -> None:
        self._emit_float_move(0x10, number, offset, size)

    def store_float(self, number: int, offset: int, size: int) -> None:
        self._emit_float_move(0x11, number, offset, size)

    def _emit_float_move(self, opcode: int, number: int, offset: int, size: int) -> None:
        """Emit a load or a store, as `opcode` says, of a floating-point register of `size` bytes."""
        self._emit(0xF3 if size == 4 else 0xF2)  # noqa: PLR2004 - bytes
        self._emit_memory((0x0F, opcode), number, _SP, offset, wide=False)

    def convert_float(self, *, to: int) -> None:
        self._emit(0xF2 if to == 4 else 0xF3, 0x0F, 0x5A, 0xC0)  # cvtsd2ss; cvtss2sd  # noqa: PLR2004 - bytes

    def copy_float_bits(self, register: int) -> None:
        self._emit(0x66, _WIDE | register >> 3, 0x0F, 0x7E, 0xC0 | register & 7)  # movq

    def jump(self, label: int) -> None:
        self._emit(0xE9)  # jmp
        self._jump_here(label)
        self._emit_number32(0)

    def _set_jump(self, at: int, target: int) -> None:
        self.code[at : at + 4] = (target - at - 4).to_bytes(4, "little", signed=True)

    def _jump_if(self, condition: int, label: int) -> None:
        """Emit a conditional jump to a label. `condition` is the second opcode byte of jcc, like `_ZERO`."""
        self._emit(0x0F, condition)  # jcc
        self._jump_here(label)
        self._emit_number32(0)

    def jump_if_zero(self, register: int, label: int, *, half: bool = False) -> None:
        self._emit_registers((0x85,), register, register, wide=not half)  # test
        self._jump_if(_ZERO, label)

    def jump_if_not_zero(self, register: int, label: int, *, half: bool = False) -> None:
        self._emit_registers((0x85,), register, register, wide=not half)  # test
        self._jump_if(_NOT_ZERO, label)

    def jump_if_negative(self, register: int, label: int) -> None:
        self._emit_registers((0x85,), register, register, wide=False)  # test
        self._jump_if(_NEGATIVE, label)

    def jump_if_minus_one(self, register: int, label: int) -> None:
        self._emit(_WIDE | register >> 3, 0x83, 0xF8 | register & 7, 0xFF)  # cmp
        self._jump_if(_ZERO, label)

    def jump_if_equal(self, register: int, other: int, label: int) -> None:
        self._emit_registers((0x39,), other, register)  # cmp
        self._jump_if(_ZERO, label)

    def jump_if_different(self, register: int, other: int, label: int) -> None:
        self._emit_registers((0x39,), other, register)  # cmp
        self._jump_if(_NOT_ZERO, label)
