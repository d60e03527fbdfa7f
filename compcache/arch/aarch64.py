"""AArch64.

Features are read from the kernel's auxiliary vector, whose bits are defined in ``arch/arm64/include/uapi/asm/hwcap.h`` and described in
``Documentation/arch/arm64/elf_hwcaps.rst``. LLVM reads `/proc/cpuinfo`, which contains fewer features, and describes another machine's CPU
under an emulator. Features without a bit are never required of a host: they concern the operating system, or compilers do not choose their
instructions. No disassembler for Python reports the features of instructions.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING

from compcache.arch.architecture import (
    ADDRESS,
    CALL,
    DISTANCE,
    LOW,
    NOTHING,
    PAGE,
    SIGNED32,
    SYMBOL,
    TABLE,
    TLS_PAIR,
    UNSIGNED32,
    Architecture,
    Fixup,
    Linking,
    Relocations,
    store64,
)

if TYPE_CHECKING:
    from compcache.arch.architecture import Store

__all__ = ["ARCHITECTURE"]

_VERSION = re.compile(r"armv([89](?:\.[0-9])?)-a")
#: https://github.com/ARM-software/abi-aa/blob/main/aaelf64/aaelf64.rst
_ABS64, _PREL32, _GLOB_DAT, _JUMP_SLOT = 257, 261, 1025, 1026
_INSTRUCTION = 4

#: The bits that must all be set, by the word of the processor and by LLVM's name of the feature.
_HWCAPS: dict[str, dict[str, tuple[int, ...]]] = {
    "hwcap": {
        "fp-armv8": (0,), "neon": (1,), "aes": (3, 4), "sha2": (5, 6), "crc": (7,), "lse": (8,), "fullfp16": (9, 10), "rdm": (12,),
        "jsconv": (13,), "complxnum": (14,), "rcpc": (15,), "ccpp": (16,), "sha3": (17, 21), "sm4": (18, 19), "dotprod": (20,),
        "sve": (22,), "fp16fml": (23,), "dit": (24,), "lse2": (25,), "rcpc-immo": (26,), "flagm": (27,), "ssbs": (28,), "sb": (29,),
        "pauth": (30, 31), "gcs": (32,), "cmpbr": (33,), "fprcvt": (34,), "f8f16mm": (35,), "f8f32mm": (36,), "sve-f16f32mm": (37,),
        "sve-aes2": (39,), "sve-bfscale": (40,), "sve2p2": (41,), "sme2p2": (42,), "ssve-bitperm": (43,), "ssve-aes": (44,),
        "ssve-fexpa": (45,), "sme-tmop": (46,), "sme-mop4": (47,),
    },
    "hwcap2": {
        "ccdp": (0,), "sve2": (1,), "sve-aes": (2, 3), "sve-bitperm": (4,), "sve-sha3": (5,), "sve-sm4": (6,), "altnzcv": (7,),
        "fptoint": (8,), "f32mm": (10,), "f64mm": (11,), "i8mm": (13,), "bf16": (14,), "rand": (16,), "bti": (17,), "mte": (18,),
        "sme": (23,), "sme-i16i64": (24,), "sme-f64f64": (25,), "sme-fa64": (30,), "wfxt": (31,), "cssc": (34,), "sve2p1": (36,),
        "sme2": (37,), "sme2p1": (38,), "sme-b16b16": (41,), "sme-f16f16": (42,), "mops": (43,), "hbc": (44,), "sve-b16b16": (45,),
        "rcpc3": (46,), "lse128": (47,), "lut": (49,), "faminmax": (50,), "fp8": (51,), "fp8fma": (52,), "fp8dot4": (53,),
        "fp8dot2": (54,), "sme-lutv2": (57,), "sme-f8f16": (58,), "sme-f8f32": (59,), "ssve-fp8fma": (60,), "ssve-fp8dot4": (61,),
        "ssve-fp8dot2": (62,),
    },
    "hwcap3": {
        "lsfe": (2,),
    },
}  # fmt: skip


def _feature_words() -> dict[str, str]:
    """Return the bits of HWCAP that each feature needs, as ``word:mask``, by feature."""
    return {name: f"{word}:{sum(1 << bit for bit in bits):x}" for word, features in _HWCAPS.items() for name, bits in features.items()}


def _version_changes(name: str) -> str | None:
    """Return the feature change that selects a version of the architecture (``armv8.2-a``) in LLVM, or None for other names."""
    match = _VERSION.fullmatch(name)
    return f"+v{match[1]}a" if match is not None else None


def _changed_range(offset: int, relocation_type: int) -> tuple[int, int]:
    """Return the range of bytes that a relocation changes: its first byte, and the first byte after it."""
    start = offset & -_INSTRUCTION
    return start, start + (8 if relocation_type == _ABS64 else _INSTRUCTION)


_STUB = Struct("<IIII")
_PAGES = 1 << 20  # the range of adrp in pages, in both directions


def _replace_bits(data: bytearray, offset: int, mask: int, bits: int) -> None:
    """Replace the masked bits of an instruction."""
    UNSIGNED32.pack_into(data, offset, UNSIGNED32.unpack_from(data, offset)[0] & ~mask | bits)


def _page_bits(distance: int) -> int:
    """Return the bits of an adrp instruction that hold a distance between pages. Raise `ValueError` if the distance does not fit."""
    pages = distance >> 12
    if not -_PAGES <= pages < _PAGES:
        raise ValueError(f"the page at a distance of {distance} bytes is out of the range of adrp")
    return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _store_page(data: bytearray, offset: int, distance: int) -> None:
    """Write a distance between pages into an adrp instruction. Raise `ValueError` if the distance does not fit."""
    _replace_bits(data, offset, 0x60FFFFE0, _page_bits(distance))


def _store_branch(data: bytearray, offset: int, distance: int) -> None:
    """Write a distance into a branch instruction. Raise `ValueError` if the distance does not fit or is not a multiple of 4."""
    if distance & 3:
        raise ValueError(f"the distance of a branch, {distance} bytes, must be a multiple of 4")
    if not -(1 << 27) <= distance < 1 << 27:
        raise ValueError(f"the target at a distance of {distance} bytes is out of the range of a branch")
    _replace_bits(data, offset, 0x03FFFFFF, distance >> 2 & 0x03FFFFFF)


def _low_bits_store(scale: int) -> Store:
    """Return a function that stores the page offset of an address in an instruction, in units of ``2**scale`` bytes."""

    def store(data: bytearray, at: int, address: int) -> None:
        """Store the low 12 bits of an address in the instruction at `at`. Raise `ValueError` if the address is not aligned."""
        page_offset = address & 0xFFF
        if page_offset & (1 << scale) - 1:
            raise ValueError(f"the address {address:#x} must be a multiple of {1 << scale}")
        _replace_bits(data, at, 0x3FFC00, page_offset >> scale << 10)

    return store


def _stub_code(address: int, entry: int) -> bytes:
    """Return the code of a PLT entry (ABI, 9.3): adrp x16, ldr x17, add x16, br x17. Raise `ValueError` if a distance does not fit."""
    page = 0x90000010 | _page_bits((entry & -4096) - (address & -4096))
    page_offset = entry & 0xFFF
    return _STUB.pack(page, 0xF9400211 | page_offset >> 3 << 10, 0x91000210 | page_offset << 10, 0xD61F0220)


def _store_nothing(_: bytearray, __: int, ___: int) -> None:
    """Store nothing, because the relocation only marks an instruction."""


_LINKING = Linking(
    page=0x10000,
    fixups={
        257: Fixup(SYMBOL, ADDRESS, store64),  # R_AARCH64_ABS64
        260: Fixup(SYMBOL, DISTANCE, store64),  # PREL64
        _PREL32: Fixup(SYMBOL, DISTANCE, SIGNED32.pack_into),
        275: Fixup(SYMBOL, PAGE, _store_page),  # ADR_PREL_PG_HI21
        277: Fixup(SYMBOL, LOW, _low_bits_store(0)),  # ADD_ABS_LO12_NC
        278: Fixup(SYMBOL, LOW, _low_bits_store(0)),  # LDST8_ABS_LO12_NC
        284: Fixup(SYMBOL, LOW, _low_bits_store(1)),
        285: Fixup(SYMBOL, LOW, _low_bits_store(2)),
        286: Fixup(SYMBOL, LOW, _low_bits_store(3)),
        299: Fixup(SYMBOL, LOW, _low_bits_store(4)),
        282: Fixup(CALL, DISTANCE, _store_branch),  # JUMP26
        283: Fixup(CALL, DISTANCE, _store_branch),  # CALL26
        314: Fixup(CALL, DISTANCE, SIGNED32.pack_into),  # PLT32
        311: Fixup(TABLE, PAGE, _store_page),  # ADR_GOT_PAGE
        312: Fixup(TABLE, LOW, _low_bits_store(3)),  # LD64_GOT_LO12_NC
        562: Fixup(TLS_PAIR, PAGE, _store_page),  # TLSDESC_ADR_PAGE21
        563: Fixup(TLS_PAIR, LOW, _low_bits_store(3)),  # TLSDESC_LD64_LO12
        564: Fixup(TLS_PAIR, LOW, _low_bits_store(0)),  # TLSDESC_ADD_LO12
        569: Fixup(NOTHING, LOW, _store_nothing),  # TLSDESC_CALL
    },
    debug={257: store64, 258: UNSIGNED32.pack_into, 1029: store64},
    debug_tls=frozenset((1029,)),
    relative=1027,
    absolute=_ABS64,
    in_table=_GLOB_DAT,
    tls_pair=(1031,),
    stub=_stub_code,
    stub_size=_STUB.size,
)


ARCHITECTURE = Architecture(
    "aarch64",
    spellings=("arm64",),
    package_target="armv8-a",
    levels=("generic",),
    result_address_is_argument=False,
    basic_features=frozenset(("fp-armv8", "neon")),
    version_changes=_version_changes,
    feature_words=_feature_words,
    kernels_with_features=frozenset(("linux",)),
    intrinsics="llvm.aarch64.",
    conventions=("aarch64_",),
    elf_machine=183,
    relocations=Relocations((_ABS64,), (_GLOB_DAT, _JUMP_SLOT), _changed_range, _PREL32),
    linking=_LINKING,
    coff_magic=b"d\xaa",
    dynamic_linker="ld-linux-aarch64.so.1",
)
