"""What differs between CPU architectures. The defaults hold for an architecture of which nothing is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: Puts a number into machine code or data at an offset; `ValueError` or `struct.error` if it does not fit.
    Store = Callable[[bytearray, int, int], None]

__all__ = [
    "ADDRESS",
    "CALL",
    "DISTANCE",
    "LOW",
    "NOTHING",
    "PAGE",
    "SYMBOL",
    "TABLE",
    "TLS_MODULE",
    "TLS_OFFSET",
    "TLS_PAIR",
    "Architecture",
    "CodeReader",
    "Fixup",
    "Linking",
    "Relocations",
]  # fmt: skip

#: What a relocation refers to: a symbol; a symbol that is called, which may stand elsewhere; the entry of the global offset table with its
#: address; the two entries of a thread-local variable, or of this module's variables; the offset of a variable among these.
SYMBOL, CALL, TABLE, TLS_PAIR, TLS_MODULE, TLS_OFFSET, NOTHING = range(7)
#: What is stored: the address, which depends on the place of the image; the distance; the distance of the page; the low bits.
ADDRESS, DISTANCE, PAGE, LOW = range(4)


class Relocations(NamedTuple):
    """Types of relocations, by their numbers in ELF files.

    `with_addend` store the address of a symbol plus the addend, `in_table` in the global offset table, without it. `changed` gives the
    range of bytes that linking may change for a relocation of a section of code, by offset and type; None where linking moves code.
    `distance` stores the distance of a symbol from the place, in four bytes.
    """

    with_addend: tuple[int, ...] = ()
    in_table: tuple[int, ...] = ()
    changed: Callable[[int, int], tuple[int, int]] | None = None
    distance: int | None = None


class Fixup(NamedTuple):
    """Describe a type of relocation: what it refers to, which part of that is stored, and how. `relaxes`: code that reads the address from
    the global offset table may be replaced by code that knows it.
    """

    to: int
    form: int
    store: Store
    relaxes: bool = False


class Linking(NamedTuple):
    """Relocations with exactly known meanings, by type, for writing shared objects (`compcache.images.writer`)."""

    #: The largest page that the system may have.
    page: int
    #: By type, for sections that are mapped.
    fixups: Mapping[int, Fixup]
    #: By type, for sections that are not mapped: how an address is stored, and which types store the offset of a thread-local variable.
    debug: Mapping[int, Store]
    debug_tls: frozenset[int]
    #: Types for the dynamic linker: an address in the image; the address of a symbol; the same in the global offset table.
    relative: int
    absolute: int
    in_table: int
    #: The types for the two entries of a thread-local variable: the module's number and the offset, or one relocation for both.
    tls_pair: tuple[int, int] | tuple[int]
    #: Returns the code of an entry of the procedure linkage table at one address, for the entry of the global offset table at another.
    stub: Callable[[int, int], bytes]
    stub_size: int
    #: Returns whether the code at an offset, with an addend, can do without the table; and the changed code, with the distance to store.
    can_relax: Callable[[memoryview, int, int], bool] = lambda _, __, ___: False
    relax: Store = lambda _, __, ___: None
    #: The type of sections with unwinding tables, if it is not the usual one.
    unwind_type: int = 1


class CodeReader(Protocol):
    """Finds out what machine code uses."""

    def used(self, code: bytes) -> frozenset[str] | None:
        """Return the features that instructions use, by LLVM's names; None if an instruction is not understood."""

    def is_padding(self, code: bytes) -> bool:
        """Return whether the bytes only fill the space between functions."""


class Architecture(NamedTuple):
    """A CPU architecture; 64-bit and little-endian."""

    #: Its name for modules and systems: the first part of ``x86_64-linux-elf``.
    name: str
    #: Further names of it in triples. Those of systems are in `compcache.formats.host`, because hits name their platform.
    spellings: tuple[str, ...] = ()

    # What describes a CPU.
    #: LLVM's name for the least CPU.
    baseline: str = "generic"
    #: The CPU for which packages are built by default.
    package_target: str = "native"
    #: The levels of CPUs by which remote stores keep modules apart, the least first. All hosts of a fleet must agree on them.
    levels: tuple[str, ...] = ()
    #: The features that the code generator has without the name of a CPU: LLVM's defaults for the triple.
    first_features: tuple[str, ...] = ()
    #: Features that the calling convention requires.
    basic_features: frozenset[str] = frozenset()
    #: Features that contradict the triple. Front ends that write down all features (Zig) name these with a minus.
    other_modes: frozenset[str] = frozenset()
    #: A version of the architecture, such as ``armv8.2-a``, as changes to the baseline; None for other names.
    version_changes: Callable[[str], str | None] = lambda _: None

    # What describes a host.
    #: For each feature whose bits are known, the words of the processor that tell of it (docs/format.md, "Requirements").
    feature_words: Callable[[], Mapping[str, str]] = dict
    #: Systems whose kernels report more features than LLVM looks for.
    kernels_tell: frozenset[str] = frozenset()

    # What code uses.
    #: Features of the operating system's side, and what their instructions, and so their intrinsics, are called; nothing where that is the
    #: feature's name. Another's intrinsic or assembly that has the word in its name counts, too, which does no harm.
    system_features: Mapping[str, tuple[str, ...]] = {}
    #: The prefix of its intrinsics' names.
    intrinsics: str = ""
    #: The feature of an intrinsic, by the first word of its name, if that is not the feature's; None if names do not show features.
    intrinsic_features: Mapping[str, str] | None = None
    #: Returns the reader of machine code, or None if it is not installed.
    code_reader: Callable[[], CodeReader | None] = lambda: None

    # How code is called and linked.
    #: How the names of its own calling conventions begin in LLVM's code.
    conventions: tuple[str, ...] = ()
    #: The size in bits of vectors that have registers on every CPU.
    vector_bits: int = 128
    #: Whether the address for a returned structure is passed like a first argument, not in its own register.
    result_address_is_argument: bool = True
    #: LLVM's name for the calling convention of C, if there is one in addition to `ccc`.
    convention: str = "ccc"
    #: Its number in ELF files (`e_machine`); 0 if it has none here.
    elf_machine: int = 0
    relocations: Relocations = Relocations()
    #: How shared objects are written; None if linkers make all of them.
    linking: Linking | None = None
    #: The first bytes of COFF objects.
    coff_magic: bytes = b""
    #: The name of the dynamic linker, which defines symbols as well.
    dynamic_linker: str = ""
