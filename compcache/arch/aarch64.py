"""AArch64.

Features are bits of the kernel's auxiliary vector. LLVM itself parses `/proc/cpuinfo`, which shows another machine's CPU under an emulator
and names fewer features. The bits are the kernel's (``arch/arm64/include/uapi/asm/hwcap.h``, ``Documentation/arch/arm64/elf_hwcaps.rst``).
A feature that no bit tells of is not among what code may require: it is of the operating system's side, or has no instruction that a
compiler chooses. No disassembler for Python tells the features of instructions.
"""

from __future__ import annotations

import re

from compcache.arch.architecture import Architecture, Relocations

__all__ = ["ARCHITECTURE"]

_VERSION = re.compile(r"armv([89](?:\.[0-9])?)-a")
#: https://github.com/ARM-software/abi-aa/blob/main/aaelf64/aaelf64.rst
_ABS64, _GLOB_DAT, _JUMP_SLOT = 257, 1025, 1026
_INSTRUCTION = 4

#: (word of the processor, the bits that must all be set, LLVM's feature)
_HWCAPS: tuple[tuple[str, tuple[int, ...], str], ...] = (
    ("hwcap", (0,), "fp-armv8"),
    ("hwcap", (1,), "neon"),
    ("hwcap", (3, 4), "aes"),
    ("hwcap", (5, 6), "sha2"),
    ("hwcap", (7,), "crc"),
    ("hwcap", (8,), "lse"),
    ("hwcap", (9, 10), "fullfp16"),
    ("hwcap", (12,), "rdm"),
    ("hwcap", (13,), "jsconv"),
    ("hwcap", (14,), "complxnum"),
    ("hwcap", (15,), "rcpc"),
    ("hwcap", (16,), "ccpp"),
    ("hwcap", (17, 21), "sha3"),
    ("hwcap", (18, 19), "sm4"),
    ("hwcap", (20,), "dotprod"),
    ("hwcap", (22,), "sve"),
    ("hwcap", (23,), "fp16fml"),
    ("hwcap", (24,), "dit"),
    ("hwcap", (25,), "lse2"),
    ("hwcap", (26,), "rcpc-immo"),
    ("hwcap", (27,), "flagm"),
    ("hwcap", (28,), "ssbs"),
    ("hwcap", (29,), "sb"),
    ("hwcap", (30, 31), "pauth"),
    ("hwcap", (32,), "gcs"),
    ("hwcap", (33,), "cmpbr"),
    ("hwcap", (34,), "fprcvt"),
    ("hwcap", (35,), "f8f16mm"),
    ("hwcap", (36,), "f8f32mm"),
    ("hwcap", (37,), "sve-f16f32mm"),
    ("hwcap", (39,), "sve-aes2"),
    ("hwcap", (40,), "sve-bfscale"),
    ("hwcap", (41,), "sve2p2"),
    ("hwcap", (42,), "sme2p2"),
    ("hwcap", (43,), "ssve-bitperm"),
    ("hwcap", (44,), "ssve-aes"),
    ("hwcap", (45,), "ssve-fexpa"),
    ("hwcap", (46,), "sme-tmop"),
    ("hwcap", (47,), "sme-mop4"),
    ("hwcap2", (0,), "ccdp"),
    ("hwcap2", (1,), "sve2"),
    ("hwcap2", (2, 3), "sve-aes"),
    ("hwcap2", (4,), "sve-bitperm"),
    ("hwcap2", (5,), "sve-sha3"),
    ("hwcap2", (6,), "sve-sm4"),
    ("hwcap2", (7,), "altnzcv"),
    ("hwcap2", (8,), "fptoint"),
    ("hwcap2", (10,), "f32mm"),
    ("hwcap2", (11,), "f64mm"),
    ("hwcap2", (13,), "i8mm"),
    ("hwcap2", (14,), "bf16"),
    ("hwcap2", (16,), "rand"),
    ("hwcap2", (17,), "bti"),
    ("hwcap2", (18,), "mte"),
    ("hwcap2", (23,), "sme"),
    ("hwcap2", (24,), "sme-i16i64"),
    ("hwcap2", (25,), "sme-f64f64"),
    ("hwcap2", (30,), "sme-fa64"),
    ("hwcap2", (31,), "wfxt"),
    ("hwcap2", (34,), "cssc"),
    ("hwcap2", (36,), "sve2p1"),
    ("hwcap2", (37,), "sme2"),
    ("hwcap2", (38,), "sme2p1"),
    ("hwcap2", (41,), "sme-b16b16"),
    ("hwcap2", (42,), "sme-f16f16"),
    ("hwcap2", (43,), "mops"),
    ("hwcap2", (44,), "hbc"),
    ("hwcap2", (45,), "sve-b16b16"),
    ("hwcap2", (46,), "rcpc3"),
    ("hwcap2", (47,), "lse128"),
    ("hwcap2", (49,), "lut"),
    ("hwcap2", (50,), "faminmax"),
    ("hwcap2", (51,), "fp8"),
    ("hwcap2", (52,), "fp8fma"),
    ("hwcap2", (53,), "fp8dot4"),
    ("hwcap2", (54,), "fp8dot2"),
    ("hwcap2", (57,), "sme-lutv2"),
    ("hwcap2", (58,), "sme-f8f16"),
    ("hwcap2", (59,), "sme-f8f32"),
    ("hwcap2", (60,), "ssve-fp8fma"),
    ("hwcap2", (61,), "ssve-fp8dot4"),
    ("hwcap2", (62,), "ssve-fp8dot2"),
    ("hwcap3", (2,), "lsfe"),
)


def _feature_words() -> dict[str, str]:
    return {name: f"{word}:{sum(1 << bit for bit in bits):x}" for word, bits, name in _HWCAPS}


def _version_changes(name: str) -> str | None:
    """LLVM has a version of the architecture as a feature of the baseline."""
    match = _VERSION.fullmatch(name)
    return f"+v{match[1]}a" if match is not None else None


def _changed(offset: int, kind: int) -> tuple[int, int]:
    start = offset & -_INSTRUCTION
    return start, start + (8 if kind == _ABS64 else _INSTRUCTION)


ARCHITECTURE = Architecture(
    "aarch64",
    spellings=("arm64",),
    package_target="armv8-a",
    levels=("generic",),
    result_address_is_argument=False,
    basic_features=frozenset(("fp-armv8", "neon")),
    version_changes=_version_changes,
    feature_words=_feature_words,
    kernels_tell=frozenset(("linux",)),
    intrinsics="llvm.aarch64.",
    conventions=("aarch64_",),
    elf_machine=183,
    relocations=Relocations((_ABS64,), (_GLOB_DAT, _JUMP_SLOT), _changed),
    coff_magic=b"d\xaa",
    dynamic_linker="ld-linux-aarch64.so.1",
)
