"""Programs that take this machine for another one: `pretended_processor.c`, and what it is to be told.

A description of an x86-64 processor is the answers of CPUID, ``{(leaf, subleaf): (eax, ebx, ecx, edx)}``, and XCR0.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Cpuid",
    "Description",
    "MadeUp",
    "environment",
    "everything",
    "flips",
    "is_possible",
    "library_of_llvm",
    "words_of_description",
]

Cpuid = dict[tuple[int, int], tuple[int, int, int, int]]
_ALL = 0xFFFFFFFF
#: What LLVM asks or may come to ask: leaf 6 to 80000021 less those that describe caches, clocks and topology.
_LEAVES = (
    (1, 0), (6, 0), (7, 0), (7, 1), (7, 2), (0xD, 0), (0xD, 1), (0x14, 0), (0x19, 0), (0x1E, 0), (0x1E, 1), (0x21, 0), (0x23, 0),
    (0x24, 0), (0x29, 0), (0x80000001, 0), (0x80000007, 0), (0x80000008, 0), (0x80000021, 0),
)  # fmt: skip
_SOURCE = Path(__file__).with_name("pretended_processor.c")
#: Where LLVM asks the processor.
_ASKING = ("_ZN4llvm3sys18getHostCPUFeaturesEv", "_ZN4llvm3sys14getHostCPUNameEv")


class Description(NamedTuple):
    """What a processor says of itself."""

    cpuid: Cpuid
    xcr0: int

    def as_text(self) -> str:
        """The lines for `pretended_processor.c`."""
        rows = [
            "cpuid {:x} {:x} {:x} {:x} {:x} {:x}".format(*place, *answer) for place, answer in sorted(self.cpuid.items())
        ]
        return "\n".join([*rows, f"xcr0 {self.xcr0:x}", ""])


def is_possible() -> bool:
    """Whether there is what it takes: x86-64, Linux, a C compiler, `nm` and a disassembler."""
    programs = shutil.which("gcc") and shutil.which("nm") and find_spec("iced_x86")
    return sys.platform == "linux" and os.uname().machine == "x86_64" and bool(programs)


def library_of_llvm() -> str:
    """The path of llvmlite's library."""
    import llvmlite

    return str(Path(str(llvmlite.__file__)).parent / "binding" / "libllvmlite.so")


def _build(folder: Path) -> Path:
    library = folder / "pretended_processor.so"
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(_SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


def environment(folder: Path, description: Description) -> dict[str, str]:
    """Variables under which programs, the package and LLVM in them, run on a processor of this description."""
    file = folder / "processor.txt"
    file.write_text(_description_file(description))
    return {"LD_PRELOAD": str(_build(folder)), "PRETENDED_PROCESSOR": str(file)}


def _description_file(description: Description) -> str:
    """A description, and the places in the libraries where it is asked for."""
    from compcache.hit import _runtime

    runtime = str(_runtime.__file__)
    sites = [*_sites(library_of_llvm(), _ASKING), *_sites(runtime, ())]
    return description.as_text() + "".join([f"site {name} {offset:x} {kind}\n" for name, offset, kind in sites])


class MadeUp:
    """The processor of this process, which runs in an `environment`: LLVM is told another one as often as wanted."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])

    def be(self, description: Description) -> None:
        """Take this machine for that one from now on."""
        rows = [word for place, answer in description.cpuid.items() for word in (*place, *answer)]
        words = (ctypes.c_uint32 * len(rows))(*rows)
        self._library.pretend(words, ctypes.c_size_t(len(rows) // 6), ctypes.c_uint32(description.xcr0))

    def features(self, description: Description) -> set[str]:
        """The features that LLVM then says it has."""
        import llvmlite.binding as llvm

        self.be(description)
        return {name for name, has in llvm.get_host_cpu_features().items() if has}


def everything() -> Description:
    """A processor with every bit set, in the leaves that LLVM may ask."""
    answers: Cpuid = dict.fromkeys(_LEAVES, (_ALL,) * 4)
    return Description({**answers, (0, 0): (0x40, 0, 0, 0), (1 << 31, 0): (0x80000040, 0, 0, 0)}, _ALL)


def flips(description: Description) -> Iterator[tuple[str, int, Description]]:
    """For each bit: its word (as in `compcache.formats.host`), its number, and the description with that bit changed.

    What says how many subleaves there are stays as it is.
    """
    for leaf, subleaf in _LEAVES:
        for register in range(1 if subleaf == 0 and leaf in (0x7, 0x14, 0x1E, 0x24) else 0, 4):
            for bit in range(32):
                answer = list(description.cpuid.get((leaf, subleaf), (0,) * 4))
                answer[register] ^= 1 << bit
                changed = {**description.cpuid, (leaf, subleaf): (answer[0], answer[1], answer[2], answer[3])}
                yield f"{leaf:x}.{subleaf:x}.{'abcd'[register]}", bit, description._replace(cpuid=changed)
    for bit in range(32):
        yield "xcr0", bit, description._replace(xcr0=description.xcr0 ^ 1 << bit)


def words_of_description(description: Description) -> dict[str, int]:
    """The same as words of `compcache.formats.host`."""
    words = {
        f"{leaf:x}.{subleaf:x}.{'abcd'[register]}": value
        for (leaf, subleaf), answer in description.cpuid.items()
        for register, value in enumerate(answer)
    }
    return {**words, "xcr0": description.xcr0 if words.get("1.0.c", 0) >> 27 & 1 else 0}


@functools.cache
def _sites(library: str, functions: tuple[str, ...]) -> tuple[tuple[str, int, str], ...]:
    """The instructions of a library that ask the processor, in these functions (in all where none is named)."""
    from iced_x86 import Decoder, Mnemonic

    kinds = {Mnemonic.CPUID: "cpuid", Mnemonic.XGETBV: "xgetbv"}
    found = []
    with open(library, "rb") as file:
        for name, start, size in _functions(library):
            if not functions or name in functions:
                file.seek(_file_offset(library, start))
                code = Decoder(64, file.read(size), ip=start)
                found += [(os.path.basename(library), at.ip, kinds[at.mnemonic]) for at in code if at.mnemonic in kinds]
    return tuple(found)


def _functions(library: str) -> list[tuple[str, int, int]]:
    listing = subprocess.run(["nm", "-S", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [(row[3], int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4 and row[2] in "tT"]


def _file_offset(library: str, address: int) -> int:
    """Where in the file an address is, by the program headers."""
    with open(library, "rb") as file:
        header = file.read(64)
        start, size, count = (int.from_bytes(header[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
        file.seek(start)
        table = file.read(size * count)
    for at in range(0, len(table), size):
        kind, offset, memory, length = (
            int.from_bytes(table[at + place : at + place + n], "little") for place, n in ((0, 4), (8, 8), (16, 8), (32, 8))
        )
        if kind == 1 and memory <= address < memory + length:
            return address - memory + offset
    raise ValueError(f"{library} has no address {address:#x}")
