"""The properties of a CPU architecture. The defaults are the properties of an unknown architecture."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: Stores a number in machine code or data at an offset. Raise `ValueError` or `struct.error` if the number does not fit.
    Store = Callable[[bytearray, int, int], None]

__all__ = [
    "ADDRESS", "CALL", "DISTANCE", "LOW", "NOTHING", "PAGE", "SIGNED32", "SYMBOL", "TABLE", "TLS_MODULE", "TLS_OFFSET", "TLS_PAIR",
    "UNSIGNED32", "Architecture", "CodeReader", "Fixup", "Linking", "Relocations", "store64",
]  # fmt: skip

#: The target of a relocation. SYMBOL: the symbol. CALL: the symbol or a stub that jumps to it. TABLE: the entry of the global offset table
#: with the symbol's address. TLS_PAIR: the two entries of a thread-local variable. TLS_MODULE: the two entries of the module's thread-local
#: variables. TLS_OFFSET: the offset of a thread-local variable from the module's first. NOTHING: no target.
SYMBOL, CALL, TABLE, TLS_PAIR, TLS_MODULE, TLS_OFFSET, NOTHING = range(7)
#: The number that a relocation stores. ADDRESS: the target's address, which depends on the address of the image. DISTANCE: the distance of
#: the target. PAGE: the distance of the target's page. LOW: the low bits of the address.
ADDRESS, DISTANCE, PAGE, LOW = range(4)
SIGNED32, UNSIGNED32, _BITS64 = Struct("<i"), Struct("<I"), Struct("<Q")


def store64(data: bytearray, offset: int, value: int) -> None:
    """Store the lowest 64 bits of a number."""
    _BITS64.pack_into(data, offset, value & 0xFFFFFFFFFFFFFFFF)


class Relocations(NamedTuple):
    """Types of relocations, by their numbers in ELF files.

    Attributes:
        with_addend: the types that store the address of a symbol plus the addend.
        in_table: the types that store the address of a symbol, without the addend, in the global offset table.
        changed: returns the range of bytes that linking may change, given the offset and the type of a relocation in code. None if linkers
            of the architecture move code.
        distance: the type that stores, in four bytes, the distance of a symbol from the address of the relocation.
    """

    with_addend: tuple[int, ...] = ()
    in_table: tuple[int, ...] = ()
    changed: Callable[[int, int], tuple[int, int]] | None = None
    distance: int | None = None


class Fixup(NamedTuple):
    """A type of relocation.

    Attributes:
        to: the target.
        form: the number to store.
        store: the function that stores the number.
        relaxes: whether code that reads the target's address from the global offset table may be replaced by code with the distance.
    """

    to: int
    form: int
    store: Store
    relaxes: bool = False


class Linking(NamedTuple):
    """Relocations with exactly known meanings, by type, for writing shared objects (`compcache.images.writer`)."""

    #: The largest page that the system may have.
    page: int
    #: The types for sections that are mapped.
    fixups: Mapping[int, Fixup]
    #: The types for sections that are not mapped, with the functions that store an address. `debug_tls` are the types that store the offset
    #: of a thread-local variable.
    debug: Mapping[int, Store]
    debug_tls: frozenset[int]
    #: The types for the dynamic linker that store an address in the image, the address of a symbol, and the address of a symbol in the
    #: global offset table.
    relative: int
    absolute: int
    in_table: int
    #: The types for the two entries of a thread-local variable: the module's number and the offset, or one relocation for both.
    tls_pair: tuple[int, int] | tuple[int]
    #: Returns the code of an entry of the procedure linkage table at one address, for the entry of the global offset table at another.
    stub: Callable[[int, int], bytes]
    stub_size: int
    #: `can_relax` returns whether the code at an offset, with an addend, can be replaced by code that does not read the global offset
    #: table. `relax` replaces the code, and stores the distance.
    can_relax: Callable[[memoryview, int, int], bool] = lambda _, __, ___: False
    relax: Store = lambda _, __, ___: None
    #: The type of sections with unwinding tables, if it is not the usual one.
    unwind_type: int = 1


class CodeReader(Protocol):
    """Reads the instructions of machine code."""

    def used_features(self, code: bytes) -> frozenset[str] | None:
        """Return the features that the instructions use, by their LLVM names, or None if an instruction or its feature is unknown."""

    def is_padding(self, code: bytes) -> bool:
        """Return whether the bytes are only padding instructions between functions."""


class Architecture(NamedTuple):
    """A 64-bit, little-endian CPU architecture."""

    #: The architecture's name in platforms: the first part of ``x86_64-linux-elf``.
    name: str
    #: Further names of the architecture in triples. `compcache.formats.host` has the names that operating systems use.
    spellings: tuple[str, ...] = ()

    # CPUs
    #: LLVM's name for the least capable CPU.
    baseline: str = "generic"
    #: The CPU for which packages are built by default.
    package_target: str = "native"
    #: The CPU levels by which remote stores separate modules, from the least to the most capable. All hosts of a fleet must have the same
    #: levels.
    levels: tuple[str, ...] = ()
    #: The features that LLVM enables by default for the triple, without the name of a CPU.
    first_features: tuple[str, ...] = ()
    #: Features that the calling convention requires.
    basic_features: frozenset[str] = frozenset()
    #: Features that contradict the triple. Compilers that write all features into the code (Zig) disable these features with a minus.
    other_modes: frozenset[str] = frozenset()
    #: Returns the changes to the baseline that select a version of the architecture (``armv8.2-a``); None for other names.
    version_changes: Callable[[str], str | None] = lambda _: None

    # Hosts
    #: Returns, for each feature whose bits are known, the words and bits of the processor that indicate the feature (docs/format.md,
    #: "Requirements").
    feature_words: Callable[[], Mapping[str, str]] = dict
    #: The operating systems whose kernels report more features than LLVM reads.
    kernels_with_features: frozenset[str] = frozenset()

    # Features that code uses
    #: Features for operating systems, with the names of their instructions and intrinsics; an empty tuple if the only name is the
    #: feature's. Code is taken to use the feature if an intrinsic or assembly contains one of the names.
    system_features: Mapping[str, tuple[str, ...]] = {}
    #: The prefix of the names of the architecture's intrinsics.
    intrinsics: str = ""
    #: The features of intrinsics, by the first word of the intrinsic's name, if this word is not the feature's name. None if the names of
    #: intrinsics do not contain features.
    intrinsic_features: Mapping[str, str] | None = None
    #: Returns the reader of machine code, or None if it is not installed.
    code_reader: Callable[[], CodeReader | None] = lambda: None

    # Calling and linking
    #: The prefixes of the names of the architecture's calling conventions in LLVM's assembly language.
    conventions: tuple[str, ...] = ()
    #: The size in bits of the vector registers that every CPU has.
    vector_bits: int = 128
    #: Whether the address for a returned structure is passed as the first argument, and not in a register of its own.
    result_address_is_argument: bool = True
    #: LLVM's name for the calling convention of C.
    convention: str = "ccc"
    #: The architecture's number in ELF files (`e_machine`); 0 if it is not known.
    elf_machine: int = 0
    relocations: Relocations = Relocations()
    #: The relocations for writing shared objects; None if only linkers write shared objects of the architecture.
    linking: Linking | None = None
    #: The first bytes of COFF objects.
    coff_magic: bytes = b""
    #: The file name of the dynamic linker, whose symbols every process has.
    dynamic_linker: str = ""
