"""x86-64.

`tables/x86_64-words.json` contains the bits of CPUID that indicate each feature. ``tools/cpu_tables.py`` writes the table: it runs LLVM's
detection of features with made-up results of CPUID. The features of machine code are found with a disassembler that reports the features of
each instruction (`iced-x86`).
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any

from compcache.arch.architecture import (
    ADDRESS,
    CALL,
    DISTANCE,
    LOW,
    SIGNED32,
    SYMBOL,
    TABLE,
    TLS_MODULE,
    TLS_OFFSET,
    TLS_PAIR,
    UNSIGNED32,
    Architecture,
    Fixup,
    Linking,
    Relocations,
    store64,
)
from compcache.interrupts import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.arch.architecture import CodeReader

__all__ = ["ARCHITECTURE"]

#: The feature of the intrinsics ``llvm.x86.<family>.*``, for families that do not have the name of their feature.
_FAMILIES = {
    "aesni": "aes", "atomic": "64bit", "avx512": "avx512f", "pclmulqdq": "pclmul", "rdrand": "rdrnd", "sse41": "sse4.1", "sse42": "sse4.2",
    "sha1msg1": "sha", "sha256msg1": "sha", "xgetbv": "xsave", "flags": "64bit", "int": "64bit", "rdtsc": "64bit", "rdtscp": "64bit",
}  # fmt: skip
#: Features for operating systems. Compilers do not select their instructions, so code uses these features only in intrinsics and
#: assembly. Hypervisors hide these features, so a host rarely has all of the features that LLVM lists for its CPU.
_SYSTEM_FEATURES = {
    "clzero": (),
    "enqcmd": (),
    "fsgsbase": ("rdfsbase", "rdgsbase", "wrfsbase", "wrgsbase"),
    "hreset": (),
    "invpcid": (),
    "mwaitx": ("mwaitx", "monitorx"),
    "pconfig": (),
    "pku": ("rdpkru", "wrpkru"),
    "ptwrite": (),
    "rdpru": (),
    "sgx": ("enclu", "encls", "enclv"),
    "shstk": ("ssp", "wrss", "wruss", "setssbsy", "clrssbsy"),
    "uintr": ("clui", "stui", "testui", "senduipi", "uiret"),
    "usermsr": ("urdmsr", "uwrmsr"),
    "wbnoinvd": (),
    "xsavec": (),
    "xsaveopt": (),
    "xsaves": ("xsaves", "xrstors"),
}
#: https://gitlab.com/x86-psABIs/x86-64-ABI (the types of relocations, and the types that may be relaxed)
_TYPES_OF_8_BYTES = frozenset((1, 16, 17, 18, 24, 25, 27, 28, 29, 30, 31, 33))
_TYPES_THROUGH_GOT = frozenset((9, *range(41, 49)))
_ABS64, _PC32, _GLOB_DAT, _JUMP_SLOT = 1, 2, 6, 7
_OPCODE = 4  # the largest number of bytes before the operand of the instruction
#: The members of `iced_x86.CpuidFeature` that require no feature: every x86-64 processor has the feature, the feature concerns system calls
#: or old coprocessors, or its instructions have no effect on processors without the feature (hints).
_WITHOUT_FEATURE = frozenset((
    "CET_IBT", "CLFSH", "CMOV", "CPUID", "CX8", "FPU", "FPU287", "FPU387", "FXSR", "HLE", "HLE_OR_RTM", "INTEL186", "INTEL286", "INTEL386",
    "INTEL486", "INTEL8086", "MMX", "MSR", "MULTIBYTENOP", "PAUSE", "PREFETCHITI", "PREFETCHWT1", "RDTSCP", "SSE", "SSE2", "SYSCALL",
    "TSC", "X64",
))  # fmt: skip
#: LLVM's names of the other features. If code uses a feature that is in neither table, it requires all features for which it was compiled.
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
#: The features of instructions for which the disassembler reports no feature, although the first 64-bit processors lacked the instructions.
_BY_MNEMONIC = {"LAHF": "sahf", "SAHF": "sahf"}
_BITS = 64
_form = attrgetter("code")


def _feature_words() -> dict[str, str]:
    """Return the packaged table of processor features: the CPUID word and bit of each feature's name."""
    table = resources.files("compcache.arch") / "tables" / "x86_64-words.json"
    content: dict[str, str] = json.loads(table.read_text())
    return content


def _changed_range(offset: int, relocation_type: int) -> tuple[int, int]:
    """Return the range of bytes that linking may change: the operand, or the complete instruction if linkers may relax it."""
    start = offset - _OPCODE if relocation_type in _TYPES_THROUGH_GOT else offset
    return max(start, 0), offset + (8 if relocation_type in _TYPES_OF_8_BYTES else 4)


#: A relaxed instruction has an opcode of two bytes, and addresses relative to its end, four bytes behind the place.
_RELAXED_OPCODE_SIZE, _TO_NEXT_INSTRUCTION = 2, -4
_LOAD, _LEA, _JUMP, _NOP = 0x8B, 0x8D, 0xE9, 0x90
_INDIRECT_CALL, _INDIRECT_JUMP, _CALL = b"\xff\x15", b"\xff\x25", b"\x67\xe8"  # the call with a prefix without effect
_STUB = Struct("<2si2s")  # jmp *entry(%rip), and a nop


def _stub_code(address: int, entry: int) -> bytes:
    """Return the instruction at `address` that jumps through the table entry at `entry`, padded to eight bytes."""
    return _STUB.pack(_INDIRECT_JUMP, entry - (address + 6), b"\x66\x90")


def _can_relax(code: memoryview, offset: int, addend: int) -> bool:
    """Return whether the operand at `offset` belongs to a load, call or jump that can do without the global offset table."""
    if offset < _RELAXED_OPCODE_SIZE or addend != _TO_NEXT_INSTRUCTION:
        return False
    return code[offset - 2] == _LOAD or bytes(code[offset - 2 : offset]) in (_INDIRECT_CALL, _INDIRECT_JUMP)


def _relax(code: bytearray, offset: int, distance: int) -> None:
    """Relax an instruction (ABI, B.2): replace `mov` with `lea`, or an indirect call or jump with a direct one.

    A direct jump is one byte shorter than an indirect jump.
    """
    if code[offset - 2] == _LOAD:
        code[offset - 2] = _LEA
    elif code[offset - 2 : offset] == _INDIRECT_CALL:
        code[offset - 2 : offset] = _CALL
    else:
        code[offset - 2], code[offset + 3] = _JUMP, _NOP
        offset, distance = offset - 1, distance + 1
    SIGNED32.pack_into(code, offset, distance)


_LINKING = Linking(
    page=0x1000,
    fixups={
        1: Fixup(SYMBOL, ADDRESS, store64),  # R_X86_64_64
        _PC32: Fixup(SYMBOL, DISTANCE, SIGNED32.pack_into),
        4: Fixup(CALL, DISTANCE, SIGNED32.pack_into),  # PLT32
        9: Fixup(TABLE, DISTANCE, SIGNED32.pack_into),  # GOTPCREL
        19: Fixup(TLS_PAIR, DISTANCE, SIGNED32.pack_into),  # TLSGD
        20: Fixup(TLS_MODULE, DISTANCE, SIGNED32.pack_into),  # TLSLD
        21: Fixup(TLS_OFFSET, LOW, SIGNED32.pack_into),  # DTPOFF32
        24: Fixup(SYMBOL, DISTANCE, store64),  # PC64
        41: Fixup(TABLE, DISTANCE, SIGNED32.pack_into, relaxes=True),  # GOTPCRELX
        42: Fixup(TABLE, DISTANCE, SIGNED32.pack_into, relaxes=True),  # REX_GOTPCRELX
    },
    debug={1: store64, 10: UNSIGNED32.pack_into, 17: store64, 21: UNSIGNED32.pack_into},
    debug_tls=frozenset((17, 21)),
    relative=8,
    absolute=_ABS64,
    in_table=_GLOB_DAT,
    tls_pair=(16, 17),
    stub=_stub_code,
    stub_size=_STUB.size,
    can_relax=_can_relax,
    relax=_relax,
    unwind_type=0x70000001,  # SHT_X86_64_UNWIND
)


class _Reader:
    """Reads machine code with `iced-x86`, and caches the features of each instruction form."""

    def __init__(self, decoder: Any, features: Mapping[int, str], special: Mapping[int, str], padding: frozenset[int]) -> None:
        self._decoder = decoder
        self._names = features  # the disassembler's names of features, by their numbers
        self._special = special  # the features of instructions for which the disassembler reports none, by mnemonic
        self._padding = padding  # the mnemonics of padding instructions
        self._known: dict[int, frozenset[str] | None] = {}  # the features that were found, by form

    def used_features(self, code: bytes) -> frozenset[str] | None:
        """Return the features that the instructions use, by their LLVM names, or None if an instruction or its feature is unknown."""
        forms = set(map(_form, self._decoder(_BITS, code)))
        if not forms <= self._known.keys():
            unknown = {
                _form(instruction): instruction for instruction in self._decoder(_BITS, code) if _form(instruction) not in self._known
            }
            self._known.update({form: self._features_of(instruction) for form, instruction in unknown.items()})
        features = set(map(self._known.__getitem__, forms))
        return None if None in features else frozenset[str]().union(*filter(None, features))

    def _features_of(self, instruction: Any) -> frozenset[str] | None:
        """Return the CPU features that an instruction needs, or None if the instruction is invalid or has an unknown feature."""
        if instruction.is_invalid:
            return None
        if instruction.mnemonic in self._special:
            return frozenset((self._special[instruction.mnemonic],))
        names = {self._names.get(number, "") for number in instruction.cpuid_features()} - _WITHOUT_FEATURE
        return frozenset(_NAMES[name] for name in names) if names <= _NAMES.keys() else None

    def is_padding(self, code: bytes) -> bool:
        """Return whether the bytes are only padding instructions between functions."""
        return not code or all(instruction.mnemonic in self._padding for instruction in self._decoder(_BITS, code))


@cache
def _code_reader() -> CodeReader | None:
    """Return the reader of instructions, or None if iced-x86 is not installed or cannot be imported."""
    try:
        from iced_x86 import CpuidFeature, Decoder, Mnemonic
    except Exception as error:  # noqa: BLE001 - a broken installation counts as a missing one
        reraise_interrupt(error)
        return None
    names = {value: name for name, value in vars(CpuidFeature).items() if name.isupper()}
    special = {getattr(Mnemonic, name): feature for name, feature in _BY_MNEMONIC.items()}
    return _Reader(Decoder, names, special, frozenset((Mnemonic.NOP, Mnemonic.INT3)))


ARCHITECTURE = Architecture(
    "x86_64",
    spellings=("amd64", "x64"),
    baseline="x86-64",
    package_target="x86-64",
    convention="x86_64_sysvcc",
    levels=("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"),
    first_features=("64bit", "sse2"),
    basic_features=frozenset(("64bit", "64bit-mode", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "x87")),
    other_modes=frozenset(("16bit-mode", "32bit-mode", "soft-float", "x32")),
    feature_words=_feature_words,
    system_features=_SYSTEM_FEATURES,
    intrinsics="llvm.x86.",
    intrinsic_features=_FAMILIES,
    code_reader=_code_reader,
    conventions=("x86_",),
    elf_machine=62,
    relocations=Relocations((_ABS64,), (_GLOB_DAT, _JUMP_SLOT), _changed_range, _PC32),
    linking=_LINKING,
    coff_magic=b"d\x86",
    dynamic_linker="ld-linux-x86-64.so.2",
)
