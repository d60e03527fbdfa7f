"""Loads relocatable objects with llvmlite's ORC."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.errors import IntegrityError
from compcache.formats.module_table import TABLE_SYMBOL
from compcache.images.elf.parts import is_elf
from compcache.images.elf.reading import undefined_symbols
from compcache.images.kinds import require_table
from compcache.images.llvm_thread import in_llvm_thread
from compcache.images.native_target import initialize, target_machine
from compcache.interrupts import reraise_interrupt
from compcache.llvm import llvm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.images.kinds import Table
    from compcache.images.sides import ImageFile

__all__ = ["LinkedObject", "check", "link_object", "load"]

_numbers = itertools.count()


class LinkedObject(NamedTuple):
    """Code that ORC has mapped: the address of the requested symbol, and the object that keeps the code mapped."""

    address: int
    tracker: Any


def load(runtime: Any, file: ImageFile) -> Any:
    """Link the image of an open module file with ORC (`LoadSide.load`). Raise `IntegrityError` if ORC cannot link the image."""
    linked = link_object(file.read(0, file.image), TABLE_SYMBOL)
    return runtime.adopt_image(linked.address, file.key, linked)


def check(image: bytes, table: Table) -> None:
    """Raise `FormatError` unless the image contains the module table (`LoadSide.check`)."""
    require_table(image, table)


@functools.cache
def _create_jit() -> Any:
    """Return the linker of objects in memory (LLVM's ORC), which this process shares."""
    initialize()
    return llvm.create_lljit_compiler(target_machine("", "", 2), use_jit_link=True)


def link_object(obj: bytes, symbol: str) -> LinkedObject:
    """Map an object with ORC, and return the address of a symbol that it defines.

    References of the object are resolved in the process and the platform's libraries. Raise `IntegrityError` if ORC cannot link the object.
    """
    return in_llvm_thread(lambda: _link_with_orc(obj, symbol))


def _link_with_orc(obj: bytes, symbol: str) -> LinkedObject:
    """Load an object file by LLVM's ORC, and return the address of a symbol. Raise `IntegrityError` if it cannot be linked."""
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(obj)
    builder.export_symbol(symbol)
    if is_elf(obj):
        for name, address in _find_addresses(undefined_symbols(obj)):
            builder.import_symbol(name, address)
    else:
        builder.add_current_process()
    try:
        tracker = builder.link(_create_jit(), f"compcache-{next(_numbers)}")
    except RuntimeError as error:
        reraise_interrupt(error)
        message = f"LLVM cannot link the object with the symbol {symbol!r} into this process ({error}): compile the module again"
        raise IntegrityError(message, reason=str(error)) from error
    return LinkedObject(tracker[symbol], tracker)


def _find_addresses(names: Iterable[str]) -> Iterable[tuple[str, int]]:
    """Yield (name, address) for each of these symbols of this process. The address of a missing symbol is 0."""
    from compcache.images.platform_symbols import address_of

    for name in names:
        yield name, address_of(name)  # functions that need a symbol are checked before loading
