"""Compiles the bitcode that is stored beside an image, as `compcache.translation.emission` compiled it (imports LLVM).

The records do not contain the level of LLVM's code generator. The level is found by comparing machine code: the level whose code is in the
image made the image. Bytes that linking changes are not compared.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from compcache.build import codegen
from compcache.build.pic import find_constructors, with_init_arrays
from compcache.errors import CompcacheError
from compcache.formats.host import platform_name
from compcache.formats.records import decode_module
from compcache.images.elf.reading import code_sections
from compcache.images.kinds import is_known, make_side
from compcache.interrupts import as_format_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.formats.records import ModuleRecord
    from compcache.images.elf.reading import CodeSection
    from compcache.store import Store

__all__ = ["LEVELS", "KeptCode", "NoCodeError", "is_translatable", "read_code"]

_MAX_BITCODE = 1 << 31
#: The levels of LLVM's code generator, the usual one first.
LEVELS = (2, 3, 1)


class NoCodeError(CompcacheError, LookupError):
    """Raised when a module was stored without its bitcode."""


class KeptCode:
    """The bitcode of a stored module, its target, and its image."""

    def __init__(self, bitcode: bytes, image: bytes, record: ModuleRecord) -> None:
        self.bitcode = bitcode
        self.image = image
        self.record = record
        self.target = record.cpu, record.machine_features
        self._objects: dict[int, bytes] = {}

    def object(self, level: int) -> bytes:
        """Compile the bitcode at a level of LLVM's code generator, and return the object. Objects are kept for later calls.

        Raise `CompileError` if LLVM rejects the bitcode.
        """
        if level not in self._objects:
            self._objects[level] = self._emit(level, codegen.emit_object)
        return self._objects[level]

    def assembly(self, level: int) -> str:
        """Return the machine code at a level of LLVM's code generator, as assembly text. See `object` for the exceptions."""
        return str(self._emit(level, lambda module, machine: machine.emit_assembly(module)))

    def _emit(self, level: int, emit: Any) -> Any:
        """Parse the module, call `emit` with the module and a target machine, and return the result. See `codegen.parse` for exceptions."""

        def translate(context: Any) -> Any:
            """Parse the module, with its constructors in sections as in `compcache.translation.emission`, and call `emit`."""
            module = codegen.parse(self.bitcode, context)
            text = str(module)
            constructors = find_constructors(text)
            if constructors.functions():
                module = codegen.parse(with_init_arrays(text, constructors), context)
            return emit(module, codegen.target_machine(*self.target, level))

        return codegen.run(translate)

    def is_comparable(self) -> bool:
        """Return whether compiling the bitcode in this process must give the machine code of the image.

        This requires the same platform and version of LLVM, and a known kind of image that contains the code of objects unchanged. See
        `object` for the exceptions.
        """
        if self.record.llvm_version != codegen.llvm_version() or not is_translatable(self.record):
            return False
        return make_side(self.record.image_kind).is_comparable(self.object(LEVELS[0]))

    def level(self) -> int | None:
        """Return the level of the code generator that made the image, or None if no level gives the image's code. See `_differing_at`."""
        return next((level for level in LEVELS if not self._differing_at(level)), None)

    def differing_functions(self) -> list[str]:
        """Return the names of the functions that differ from the image, at the level with the fewest differences. See `_differing_at`."""
        return min(map(self._differing_at, LEVELS), key=len)

    def _differing_at(self, level: int) -> list[str]:
        """Return the names of the functions whose machine code at a level is not in the image.

        Functions are compared one by one, because LLVM's order of functions varies. Code outside functions is compared as a whole.

        Raise `FormatError` if linking may move the code. See `object` for the other exceptions.
        """
        return [
            name
            for section in code_sections(self.object(level))
            for start, end, name in section.functions or ((0, len(section.code), "code without a name"),)
            if not _image_contains(self.image, section, start, end)
        ]


def is_translatable(record: ModuleRecord) -> bool:
    """Return whether a module is for this platform, and its image is of a known kind."""
    return record.triple == platform_name() and is_known(record.image_kind)


def read_code(store: Store, module_id: str) -> KeptCode:
    """Read the bitcode and the image of a stored module.

    Raises:
        NoCodeError: the module was stored without its bitcode.
        FileNotFoundError: the module is not in the store.
        FormatError: a part of the module is malformed.
        IntegrityError, IncompatibleTargetError, StorageError: the module cannot be used or read. See `Store.open_module`.
    """
    with store.open_module(bytes.fromhex(module_id)) as module:
        footer = module.footer()
        record = decode_module(module.read_record(0))
        packed = module.read(footer.image + footer.records + footer.graph, footer.bitcode)
        image = module.read(0, footer.image)
    if not packed:
        raise NoCodeError(f"module {module_id} was stored without its code: add it again without keep_bitcode=False or --no-bitcode")
    with as_format_error(f"the bitcode of module {module_id} cannot be decompressed"):
        bitcode = zlib.decompressobj().decompress(packed, _MAX_BITCODE)
    return KeptCode(bitcode, image, record)


def _image_contains(image: bytes, section: CodeSection, start: int, end: int) -> bool:
    """Return whether the image contains the part of a section between two offsets, apart from bytes that linking changes."""
    runs = list(_fixed_runs(section, start, end))
    if not runs:
        return True
    longest_start, longest_end = max(runs, key=lambda run: run[1] - run[0])  # has the fewest matches by chance
    seed = section.code[longest_start:longest_end]
    position = image.find(seed)
    while position >= 0:
        shift = position - longest_start  # may place the part's start before the image's start
        if start + shift >= 0 and all(image[first + shift : last + shift] == section.code[first:last] for first, last in runs):
            return True
        position = image.find(seed, position + 1)
    return False


def _fixed_runs(section: CodeSection, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges between two offsets that linking does not change, as (start, end)."""
    run_start = start
    for changed_start, changed_end in section.changed_ranges():
        if changed_end <= start or changed_start >= end:
            continue
        if changed_start > run_start:
            yield run_start, changed_start
        run_start = max(run_start, changed_end)
    if run_start < end:
        yield run_start, end
