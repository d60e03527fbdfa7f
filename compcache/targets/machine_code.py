"""Which features of the processor machine code uses, instruction by instruction (x86-64; miss path; needs `iced-x86`).

A compiler that may use AVX-512 rarely does. What it did use is in the code that it made, and a disassembler that knows the
feature of each instruction reads it there. Where that package is missing, for AArch64 (no disassembler for Python tells the features of its
instructions), and wherever something cannot be decoded, there is no answer, and code requires all that it was compiled for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from compcache.errors import FormatError
from compcache.images import elf

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["used_by_functions"]

#: The names of `iced_x86.CpuidFeature` that every x86-64 processor has, that system calls and old coprocessors go by, or whose
#: instructions do nothing where the feature is missing (hints).
_EVERYWHERE = frozenset((
    "CET_IBT", "CLFSH", "CMOV", "CPUID", "CX8", "FPU", "FPU287", "FPU387", "FXSR", "HLE", "HLE_OR_RTM", "INTEL186", "INTEL286", "INTEL386",
    "INTEL486", "INTEL8086", "MMX", "MSR", "MULTIBYTENOP", "PAUSE", "PREFETCHITI", "PREFETCHWT1", "RDTSCP", "SSE", "SSE2", "SYSCALL",
    "TSC", "X64",
))  # fmt: skip
#: LLVM's names for the others. What stands in neither is not understood, and narrows nothing.
_NAMES = {
    "ADX": "adx", "AES": "aes", "AESKLE": "kl", "AMX_BF16": "amx-bf16", "AMX_COMPLEX": "amx-complex", "AMX_FP16": "amx-fp16",
    "AMX_INT8": "amx-int8", "AMX_TILE": "amx-tile", "AVX": "avx", "AVX2": "avx2", "AVX512BW": "avx512bw", "AVX512CD": "avx512cd",
    "AVX512DQ": "avx512dq", "AVX512F": "avx512f", "AVX512VL": "avx512vl", "AVX512_BF16": "avx512bf16",
    "AVX512_BITALG": "avx512bitalg", "AVX512_FP16": "avx512fp16", "AVX512_IFMA": "avx512ifma", "AVX512_VBMI": "avx512vbmi",
    "AVX512_VBMI2": "avx512vbmi2", "AVX512_VNNI": "avx512vnni", "AVX512_VP2INTERSECT": "avx512vp2intersect",
    "AVX512_VPOPCNTDQ": "avx512vpopcntdq", "AVX_IFMA": "avxifma", "AVX_NE_CONVERT": "avxneconvert", "AVX_VNNI": "avxvnni",
    "AVX_VNNI_INT16": "avxvnniint16", "AVX_VNNI_INT8": "avxvnniint8", "BMI1": "bmi", "BMI2": "bmi2", "CET_SS": "shstk",
    "CLDEMOTE": "cldemote", "CLFLUSHOPT": "clflushopt", "CLWB": "clwb", "CLZERO": "clzero", "CMPCCXADD": "cmpccxadd",
    "CMPXCHG16B": "cx16", "ENQCMD": "enqcmd", "F16C": "f16c", "FMA": "fma", "FMA4": "fma4", "FSGSBASE": "fsgsbase", "GFNI": "gfni",
    "HRESET": "hreset", "INVPCID": "invpcid", "KL": "kl", "LWP": "lwp", "LZCNT": "lzcnt", "MONITORX": "mwaitx", "MOVBE": "movbe",
    "MOVDIR64B": "movdir64b", "MOVDIRI": "movdiri", "PCLMULQDQ": "pclmul", "PCONFIG": "pconfig", "PKU": "pku", "POPCNT": "popcnt",
    "PREFETCHW": "prfchw", "PTWRITE": "ptwrite", "RAO_INT": "raoint", "RDPID": "rdpid", "RDPRU": "rdpru", "RDRAND": "rdrnd",
    "RDSEED": "rdseed", "RTM": "rtm", "SERIALIZE": "serialize", "SGX1": "sgx", "SHA": "sha", "SHA512": "sha512", "SM3": "sm3",
    "SM4": "sm4", "SSE3": "sse3", "SSE4A": "sse4a", "SSE4_1": "sse4.1", "SSE4_2": "sse4.2", "SSSE3": "ssse3", "TBM": "tbm",
    "TSXLDTRK": "tsxldtrk", "UINTR": "uintr", "VAES": "vaes", "VPCLMULQDQ": "vpclmulqdq", "WAITPKG": "waitpkg",
    "WBNOINVD": "wbnoinvd", "WIDE_KL": "widekl", "XOP": "xop", "XSAVE": "xsave", "XSAVEC": "xsavec", "XSAVEOPT": "xsaveopt",
    "XSAVES": "xsaves",
}  # fmt: skip
#: Instructions of which the disassembler says less: in 64-bit mode the first processors lacked them.
_BY_MNEMONIC = {"LAHF": "sahf", "SAHF": "sahf"}
_BITS = 64


@cache
def _decoder() -> tuple[Any, Mapping[int, str], Mapping[int, str], frozenset[int]] | None:
    """The class, the names of its features and of its special mnemonics, what pads code; None where the package is not installed."""
    try:
        from iced_x86 import CpuidFeature, Decoder, Mnemonic
    except Exception:  # noqa: BLE001 - a broken installation is none
        return None
    names = {value: name for name, value in vars(CpuidFeature).items() if name.isupper()}
    special = {getattr(Mnemonic, name): feature for name, feature in _BY_MNEMONIC.items()}
    return Decoder, names, special, frozenset((Mnemonic.NOP, Mnemonic.INT3))


@cache
def _features_of_code() -> dict[int, frozenset[str] | None]:
    """By the number of an instruction's form, as they have been met: the features that it uses; None for what is not understood."""
    return {}


def used_by_functions(obj: bytes) -> dict[str, frozenset[str]] | None:
    """The features that each function in a relocatable object uses, by LLVM's names.

    None where nothing can be said: without the disassembler, for another architecture, where a byte cannot be decoded,
    where an instruction's feature is not known, and where sections of code hold anything beside functions and padding.
    """
    try:
        if elf.machine(obj) != elf.EM_X86_64:
            return None
        sections = elf.code_sections(obj)
    except FormatError:
        return None
    if _decoder() is None:
        return None
    found: dict[str, frozenset[str]] = {}
    for section in sections:
        at = 0
        for start, end, name in section.functions:
            used = _used(section.code[start:end]) if start < end else None
            if used is None or not _is_padding(section.code[at:start]):
                return None
            found[name] = found.get(name, frozenset()) | used
            at = max(at, end)
        if not _is_padding(section.code[at:]):
            return None
    return found


def _used(code: bytes) -> frozenset[str] | None:
    decoder = _decoder()
    assert decoder is not None
    known = _features_of_code()
    forms = set()
    for instruction in decoder[0](_BITS, code):
        form = instruction.code
        if form not in forms:
            forms.add(form)
            if form not in known:
                known[form] = _features_of(instruction)
    features = [known[form] for form in forms]
    return None if None in features else frozenset[str]().union(*filter(None, features))


def _features_of(instruction: Any) -> frozenset[str] | None:
    decoder = _decoder()
    assert decoder is not None
    _, names, special, _ = decoder
    if instruction.is_invalid:
        return None
    if instruction.mnemonic in special:
        return frozenset((special[instruction.mnemonic],))
    wanted = {names.get(number, "") for number in instruction.cpuid_features()} - _EVERYWHERE
    return frozenset(_NAMES[name] for name in wanted) if wanted <= _NAMES.keys() else None


def _is_padding(code: bytes) -> bool:
    if not code:
        return True
    decoder = _decoder()
    assert decoder is not None
    return all(instruction.mnemonic in decoder[3] for instruction in decoder[0](_BITS, code))
