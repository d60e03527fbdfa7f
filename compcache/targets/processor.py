"""What this machine can run, where LLVM is not there to be asked: what its processor says, in LLVM's terms.

For x86-64 the words of CPUID (Intel's manual, volume 2, "CPUID"; AMD's, volume 3, appendix E; the names are those of LLVM's
``Host.cpp``), for AArch64 those of the kernel's auxiliary vector. The CPU has no name then: code that was compiled for exactly this
host is as good as any with the same features.
"""

from __future__ import annotations

import sys

from compcache.formats.host import Host, platform_name
from compcache.targets.hwcaps import AT_HWCAP, AT_HWCAP2, features_of

__all__ = ["read_host", "x86_features"]

_OSXSAVE, _AVX = 1 << 27, 1 << 28
#: Registers that the kernel saves (XCR0): those of AVX, of AVX-512, of AMX.
_YMM, _ZMM, _TILES = 0x6, 0xE6, 0x60000
_ALWAYS = 0
#: By the word of CPUID: (bit, LLVM's feature, the registers that it uses).
_BITS: dict[str, tuple[tuple[int, str, int], ...]] = {
    "1c": (
        (0, "sse3", _ALWAYS), (1, "pclmul", _ALWAYS), (9, "ssse3", _ALWAYS), (12, "fma", _YMM), (13, "cx16", _ALWAYS),
        (19, "sse4.1", _ALWAYS), (20, "sse4.2", _ALWAYS), (20, "crc32", _ALWAYS), (22, "movbe", _ALWAYS),
        (23, "popcnt", _ALWAYS), (25, "aes", _ALWAYS), (26, "xsave", _YMM), (28, "avx", _YMM), (29, "f16c", _YMM),
        (30, "rdrnd", _ALWAYS),
    ),
    "1d": (
        (8, "cx8", _ALWAYS), (15, "cmov", _ALWAYS), (23, "mmx", _ALWAYS), (24, "fxsr", _ALWAYS),
        (25, "sse", _ALWAYS), (26, "sse2", _ALWAYS),
    ),
    "7b": (
        (0, "fsgsbase", _ALWAYS), (2, "sgx", _ALWAYS), (3, "bmi", _ALWAYS), (5, "avx2", _YMM), (8, "bmi2", _ALWAYS),
        (10, "invpcid", _ALWAYS), (11, "rtm", _ALWAYS), (16, "avx512f", _ZMM), (17, "avx512dq", _ZMM), (18, "rdseed", _ALWAYS),
        (19, "adx", _ALWAYS), (21, "avx512ifma", _ZMM), (23, "clflushopt", _ALWAYS), (24, "clwb", _ALWAYS),
        (28, "avx512cd", _ZMM), (29, "sha", _ALWAYS), (30, "avx512bw", _ZMM), (31, "avx512vl", _ZMM),
    ),
    "7c": (
        (1, "avx512vbmi", _ZMM), (4, "pku", _ALWAYS), (5, "waitpkg", _ALWAYS), (6, "avx512vbmi2", _ZMM), (7, "shstk", _ALWAYS),
        (8, "gfni", _ALWAYS), (9, "vaes", _YMM), (10, "vpclmulqdq", _YMM), (11, "avx512vnni", _ZMM), (12, "avx512bitalg", _ZMM),
        (14, "avx512vpopcntdq", _ZMM), (22, "rdpid", _ALWAYS), (25, "cldemote", _ALWAYS), (27, "movdiri", _ALWAYS),
        (28, "movdir64b", _ALWAYS), (29, "enqcmd", _ALWAYS),
    ),
    "7d": (
        (5, "uintr", _ALWAYS), (8, "avx512vp2intersect", _ZMM), (14, "serialize", _ALWAYS), (16, "tsxldtrk", _ALWAYS),
        (18, "pconfig", _ALWAYS), (22, "amx-bf16", _TILES), (23, "avx512fp16", _ZMM), (24, "amx-tile", _TILES),
        (25, "amx-int8", _TILES),
    ),
    "71a": (
        (0, "sha512", _YMM), (1, "sm3", _YMM), (2, "sm4", _YMM), (3, "raoint", _ALWAYS), (4, "avxvnni", _YMM),
        (5, "avx512bf16", _ZMM), (7, "cmpccxadd", _ALWAYS), (21, "amx-fp16", _TILES), (22, "hreset", _ALWAYS),
        (23, "avxifma", _YMM),
    ),
    "71d": (
        (4, "avxvnniint8", _YMM), (5, "avxneconvert", _YMM), (8, "amx-complex", _TILES), (10, "avxvnniint16", _YMM),
        (14, "prefetchi", _ALWAYS), (15, "usermsr", _ALWAYS),
    ),
    "80000001c": (
        (0, "sahf", _ALWAYS), (5, "lzcnt", _ALWAYS), (6, "sse4a", _ALWAYS), (8, "prfchw", _ALWAYS), (11, "xop", _YMM),
        (15, "lwp", _ALWAYS), (16, "fma4", _YMM), (21, "tbm", _ALWAYS), (29, "mwaitx", _ALWAYS),
    ),
    "80000001d": ((29, "64bit", _ALWAYS),),
    "d1a": ((0, "xsaveopt", _YMM), (1, "xsavec", _YMM), (3, "xsaves", _YMM)),
}  # fmt: skip


def read_host(processor: bytes, xsave: int) -> Host:
    """This machine, as its processor describes it.

    Args:
        processor: what the native runtime reads of it (``processor()``).
        xsave: the variants of XSAVE that it has (``xsave_variants()``).
    """
    words = [int.from_bytes(processor[at : at + 4], sys.byteorder) for at in range(0, len(processor), 4)]
    architecture = platform_name().partition("-")[0]
    if architecture == "x86_64" and words:
        have = x86_features(words, xsave)
    elif architecture == "aarch64" and words:
        have = features_of({AT_HWCAP: words[0] | words[1] << 32, AT_HWCAP2: words[2] | words[3] << 32})
    else:
        have = set()
    return Host("", ",".join(["+" + name for name in sorted(have)]), "")


def x86_features(words: list[int], xsave: int) -> set[str]:
    """LLVM's features of an x86-64 processor whose CPUID has these words, in the order of ``processor.c``."""
    waiting = iter(words)
    next(waiting)
    found = {"1c": next(waiting), "1d": next(waiting), "d1a": xsave}
    saved = next(waiting) if found["1c"] & _OSXSAVE else 0
    rest = list(waiting)
    found["80000001c"], found["80000001d"] = rest[-2:]
    if found["1c"] & _AVX:
        names = ("7b", "7c", "7d", "71a", "71b", "71d")
        found |= dict(zip(names, rest[:-2], strict=False))
    return {
        feature
        for word, rows in _BITS.items()
        for bit, feature, registers in rows
        if found.get(word, 0) >> bit & 1 and saved & registers == registers
    }
