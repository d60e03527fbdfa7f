"""What differs between CPU architectures. The defaults hold for an architecture of which nothing is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: Puts a number into machine code or data at an offset; `ValueError` or `struct.error` where it does not fit.
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
#: What is stored of it: its address, which depends on where the image is mapped; its distance; the distance of its page; its low bits.
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
    #: By type, of sections that are mapped.
    fixups: Mapping[int, Fixup]
    #: By type, of sections that are not: how an address is stored, and of which types the offset of a thread-local variable.
    debug: Mapping[int, Store]
    debug_tls: frozenset[int]
    #: Types for the dynamic linker: an address in the image; of a symbol; the same in the global offset table.
    relative: int
    absolute: int
    in_table: int
    #: Those of the two entries of a thread-local variable: the module's number and the offset, or one relocation for both.
    tls_pair: tuple[int, int] | tuple[int]
    #: The code of an entry of the procedure linkage table at an address, for the entry of the global offset table at another one.
    stub: Callable[[int, int], bytes]
    stub_size: int
    #: Whether the code at an offset, with an addend, can do without the table, and the change that does, with the distance to store.
    can_relax: Callable[[memoryview, int, int], bool] = lambda _, __, ___: False
    relax: Store = lambda _, __, ___: None
    #: A type of sections that unwinding tables have instead of the usual one.
    unwind_type: int = 1


class CodeReader(Protocol):
    """Finds out what machine code uses."""

    def used(self, code: bytes) -> frozenset[str] | None:
        """Return the features that instructions use, by LLVM's names; None if an instruction is not understood."""

    def is_padding(self, code: bytes) -> bool:
        """Return whether the bytes only fill the space between functions."""


class Architecture(NamedTuple):
    """A CPU architecture; 64-bit and little-endian."""

    #: As modules and systems name it: the first part of ``x86_64-linux-elf``.
    name: str
    #: What triples call it as well. How systems do stands in `compcache.formats.host`, as hits name their platform.
    spellings: tuple[str, ...] = ()

    # What describes a CPU.
    #: LLVM's name for the least CPU.
    baseline: str = "generic"
    #: The CPU that packages are built for unless they name one.
    package_target: str = "native"
    #: The levels of CPUs by which remote stores keep modules apart, the least first. All hosts of a fleet must agree on them.
    levels: tuple[str, ...] = ()
    #: What the code generator has before any name of a CPU: LLVM's own start for the triple.
    first_features: tuple[str, ...] = ()
    #: Features without which code of the calling convention cannot be made.
    basic_features: frozenset[str] = frozenset()
    #: Features that contradict the triple. Front ends that write down all features (Zig) name these with a minus.
    other_modes: frozenset[str] = frozenset()
    #: A version of the architecture, such as ``armv8.2-a``, as changes to the baseline; None for other names.
    version_changes: Callable[[str], str | None] = lambda _: None

    # What describes a host.
    #: For each feature whose bits are known, the words of the processor that tell of it (docs/format.md, "Requirements").
    feature_words: Callable[[], Mapping[str, str]] = dict
    #: Systems whose kernels tell of more features than LLVM looks for.
    kernels_tell: frozenset[str] = frozenset()

    # What code uses.
    #: Features of the operating system's side, and what their instructions, and so their intrinsics, are called; nothing where that is the
    #: feature's name. Another's intrinsic or assembly that has the word in its name counts, too, which does no harm.
    system_features: Mapping[str, tuple[str, ...]] = {}
    #: How the names of its intrinsics begin.
    intrinsics: str = ""
    #: By the first word of an intrinsic's name the feature that it belongs to, where it has another name; None where names tell nothing.
    intrinsic_features: Mapping[str, str] | None = None
    #: Gives what reads machine code, or None where that is not installed.
    code_reader: Callable[[], CodeReader | None] = lambda: None

    # How code is called and linked.
    #: How the names of its own calling conventions begin in LLVM's code.
    conventions: tuple[str, ...] = ()
    #: Vectors of so many bits have registers on every CPU.
    vector_bits: int = 128
    #: Whether the address for a structure that is returned is passed like a first argument, and not in a register of its own.
    result_address_is_argument: bool = True
    #: LLVM's name for the calling convention of C, where it has one beside `ccc`.
    convention: str = "ccc"
    #: Its number in ELF files (`e_machine`), 0 where it has none here.
    elf_machine: int = 0
    relocations: Relocations = Relocations()
    #: How shared objects are written; None where linkers make all of them.
    linking: Linking | None = None
    #: What COFF objects begin with.
    coff_magic: bytes = b""
    #: The name of the dynamic linker, which defines symbols as well.
    dynamic_linker: str = ""
