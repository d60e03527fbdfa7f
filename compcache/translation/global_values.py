"""Encodes the values of global variables. Each value is loaded once, as a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.build import codegen
from compcache.build.records import encode_definition
from compcache.build.slots import SLOT_PREFIX
from compcache.errors import GlobalValidationError
from compcache.globals.definition import call_load
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from compcache.build.slots import Resolution

__all__ = ["encode_checked", "encode_values"]


def encode_checked(resolution: Resolution) -> tuple[tuple[str, str, bytes], ...]:
    """Load each global variable once, as a test, in the thread that requested the module. Return the result of `encode_values`.

    Raise `GlobalValidationError` if a value cannot be loaded or stored.
    """
    return codegen.call_in_caller(_encode_globals, resolution) if resolution.storage else ()


def _encode_globals(resolution: Resolution) -> tuple[tuple[str, str, bytes], ...]:
    """Load every definition once, as a test, and return the result of `encode_values`. See `encode_checked` for the exceptions."""
    for name, (definition, storage) in resolution.storage.items():
        plain_name = name.removeprefix(SLOT_PREFIX)
        try:
            call_load(definition, storage, _DryRun())
        except GlobalValidationError as error:
            message = f"the value of global {plain_name!r} cannot be loaded: {error.reason or error}"
            raise type(error)(message, global_name=plain_name, reason=error.reason) from error
    return encode_values(resolution)


def encode_values(resolution: Resolution) -> tuple[tuple[str, str, bytes], ...]:
    """Encode globals as (name, kind, encoded value), sorted by name. Raise `GlobalValidationError` if a value cannot be stored."""
    definitions = {name: definition for name, (definition, _) in resolution.storage.items()}
    return tuple(sorted([(name, value.kind, encode_definition(value, name)) for name, value in definitions.items()]))


class _DryRun:
    """A load context for loading values as a test, without an image."""

    allow_pickle = True

    def address_of(self, buffer: object) -> int:
        """Return an arbitrary address. The test only checks that values fit their storage."""
        return id(buffer)

    def find_symbol(self, name: str, library: str | None) -> int:
        """Return the address of a symbol in a library, or in this process if `library` is None. Return 0 if there is no such symbol."""
        import ctypes

        with suppress(OSError, ValueError):
            return ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(library), name))
        return 0
