"""CPU features on AArch64 Linux: bits of the auxiliary vector, as names of LLVM's features.

LLVM itself parses `/proc/cpuinfo`, which shows another machine's CPU under an emulator and names fewer features. The bits
are the kernel's (``arch/arm64/include/uapi/asm/hwcap.h``, ``Documentation/arch/arm64/elf_hwcaps.rst``). A feature that no
bit tells of is not among what code may require: it is of the operating system's side, or has no instruction that a compiler chooses.
"""

from __future__ import annotations

__all__ = ["AARCH64", "AT_HWCAP", "AT_HWCAP2", "features_of"]

#: Keys of the auxiliary vector (``getauxval(3)``).
AT_HWCAP, AT_HWCAP2 = 16, 26

#: (key, the bits that must all be set, LLVM's feature)
AARCH64: tuple[tuple[int, tuple[int, ...], str], ...] = (
    (AT_HWCAP, (0,), "fp-armv8"),
    (AT_HWCAP, (1,), "neon"),
    (AT_HWCAP, (3, 4), "aes"),
    (AT_HWCAP, (5, 6), "sha2"),
    (AT_HWCAP, (7,), "crc"),
    (AT_HWCAP, (8,), "lse"),
    (AT_HWCAP, (9, 10), "fullfp16"),
    (AT_HWCAP, (12,), "rdm"),
    (AT_HWCAP, (13,), "jsconv"),
    (AT_HWCAP, (14,), "complxnum"),
    (AT_HWCAP, (15,), "rcpc"),
    (AT_HWCAP, (16,), "ccpp"),
    (AT_HWCAP, (17, 21), "sha3"),
    (AT_HWCAP, (18, 19), "sm4"),
    (AT_HWCAP, (20,), "dotprod"),
    (AT_HWCAP, (22,), "sve"),
    (AT_HWCAP, (23,), "fp16fml"),
    (AT_HWCAP, (24,), "dit"),
    (AT_HWCAP, (25,), "lse2"),
    (AT_HWCAP, (26,), "rcpc-immo"),
    (AT_HWCAP, (27,), "flagm"),
    (AT_HWCAP, (28,), "ssbs"),
    (AT_HWCAP, (29,), "sb"),
    (AT_HWCAP, (30, 31), "pauth"),
    (AT_HWCAP, (32,), "gcs"),
    (AT_HWCAP, (33,), "cmpbr"),
    (AT_HWCAP, (34,), "fprcvt"),
    (AT_HWCAP, (39,), "sve-aes2"),
    (AT_HWCAP, (40,), "sve-bfscale"),
    (AT_HWCAP, (41,), "sve2p2"),
    (AT_HWCAP, (42,), "sme2p2"),
    (AT_HWCAP2, (0,), "ccdp"),
    (AT_HWCAP2, (1,), "sve2"),
    (AT_HWCAP2, (2, 3), "sve-aes"),
    (AT_HWCAP2, (4,), "sve-bitperm"),
    (AT_HWCAP2, (5,), "sve-sha3"),
    (AT_HWCAP2, (6,), "sve-sm4"),
    (AT_HWCAP2, (7,), "altnzcv"),
    (AT_HWCAP2, (8,), "fptoint"),
    (AT_HWCAP2, (10,), "f32mm"),
    (AT_HWCAP2, (11,), "f64mm"),
    (AT_HWCAP2, (13,), "i8mm"),
    (AT_HWCAP2, (14,), "bf16"),
    (AT_HWCAP2, (16,), "rand"),
    (AT_HWCAP2, (17,), "bti"),
    (AT_HWCAP2, (18,), "mte"),
    (AT_HWCAP2, (23,), "sme"),
    (AT_HWCAP2, (24,), "sme-i16i64"),
    (AT_HWCAP2, (25,), "sme-f64f64"),
    (AT_HWCAP2, (30,), "sme-fa64"),
    (AT_HWCAP2, (31,), "wfxt"),
    (AT_HWCAP2, (34,), "cssc"),
    (AT_HWCAP2, (36,), "sve2p1"),
    (AT_HWCAP2, (37,), "sme2"),
    (AT_HWCAP2, (38,), "sme2p1"),
    (AT_HWCAP2, (41,), "sme-b16b16"),
    (AT_HWCAP2, (42,), "sme-f16f16"),
    (AT_HWCAP2, (43,), "mops"),
    (AT_HWCAP2, (44,), "hbc"),
    (AT_HWCAP2, (45,), "sve-b16b16"),
    (AT_HWCAP2, (46,), "rcpc3"),
    (AT_HWCAP2, (47,), "lse128"),
    (AT_HWCAP2, (49,), "lut"),
    (AT_HWCAP2, (50,), "faminmax"),
    (AT_HWCAP2, (51,), "fp8"),
    (AT_HWCAP2, (52,), "fp8fma"),
    (AT_HWCAP2, (53,), "fp8dot4"),
    (AT_HWCAP2, (54,), "fp8dot2"),
)


def features_of(words: dict[int, int]) -> set[str]:
    """LLVM's features of an AArch64 CPU whose auxiliary vector holds these words, by key."""
    return {feature for key, bits, feature in AARCH64 if all(words.get(key, 0) >> bit & 1 for bit in bits)}
