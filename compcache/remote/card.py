"""The card of a function in a remote store: which module realizes it, and the module itself where that is small; packs of cards.

Layout: magic, a msgpack list ``[name, module_id, size, seconds, module, signatures]``, and the check of all that. `module` is empty
where the module has an object of its own; `signatures` is the file of signatures that its publisher keeps beside it. A card is a
pointer and decides nothing: the module that it leads to is verified by its own digest (and signature), and must realize the function.

A pack is a magic, a msgpack list of the cards (without their modules) and of the modules, each once, compressed by zlib, and the check of
all that.

Limitations: a card is at most `MAX_CARD` bytes, what a pack holds `MAX_UNPACKED`.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, check
from compcache.errors import FormatError
from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["INLINE_LIMIT", "MAX_CARD", "MAX_UNPACKED", "Card", "Packed", "decode_card", "decode_pack", "encode_card", "encode_pack"]

_MAGIC = b"CCCARD1\0"
_PACK_MAGIC = b"CCPACK2\0"
#: Modules are much alike: more effort saves little.
_EFFORT = 1
#: The size of modules, in bytes, up to which the card holds them: one request instead of two.
INLINE_LIMIT = 32 << 10
MAX_UNPACKED = 64 << 20
MAX_CARD = INLINE_LIMIT + (128 << 10)  # the longest name, and what frames it


class Card(NamedTuple):
    """One function: its module, that module's size in bytes, the seconds that compiling it took, the module if it is small."""

    name: str
    module_id: bytes
    size: int
    seconds: float
    module: bytes
    signatures: bytes = b""


def encode_card(card: Card) -> bytes:
    """The bytes of a card."""
    data: bytes = _MAGIC + msgpack.packb(list(card), unicode_errors="surrogatepass")
    return data + check(data)


def decode_card(data: bytes) -> Card:
    """The card in `data`.

    Raises:
        FormatError: the bytes are not a card, or damaged.
    """
    if len(data) > MAX_CARD or data[: len(_MAGIC)] != _MAGIC:
        raise FormatError("it is not a card of a known version")
    if check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        raise FormatError("the card is damaged")
    try:
        name, module_id, size, seconds, module, signatures = msgpack.unpackb(
            data[len(_MAGIC) : -CHECK_SIZE], unicode_errors="surrogatepass"
        )
    except (ValueError, TypeError) as error:
        reraise_interrupt(error)
        raise FormatError(f"the card does not decode: {error}") from error
    card = Card(name, module_id, size, seconds, module, signatures)
    if (
        not isinstance(name, str) or not isinstance(module_id, bytes) or len(module_id) != DIGEST_SIZE
        or not isinstance(size, int) or size < 0 or not isinstance(seconds, float) or not isinstance(module, bytes)
        or (module and len(module) != size) or not isinstance(signatures, bytes)
    ):  # fmt: skip
        raise FormatError("a field of the card is of another type or size")
    return card


class Packed(NamedTuple):
    """A function in a pack: its card without the module, and the module."""

    card: Card
    module: bytes


def encode_pack(items: Iterable[Packed]) -> bytes:
    """The bytes of a pack."""
    items = list(items)
    cards = [encode_card(item.card._replace(module=b"")) for item in items]
    modules = {item.card.module_id: item.module for item in items}
    data = _PACK_MAGIC + zlib.compress(msgpack.packb([cards, list(modules.items())]), _EFFORT)
    return data + check(data)


def decode_pack(data: bytes) -> dict[str, Packed]:
    """The functions in a pack, by name.

    Raises:
        FormatError: the bytes are not a pack, or damaged.
    """
    if data[: len(_PACK_MAGIC)] != _PACK_MAGIC or check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        raise FormatError("it is not a pack of a known version, or damaged")
    try:
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(data[len(_PACK_MAGIC) : -CHECK_SIZE], MAX_UNPACKED)
        if not unpacking.eof:
            raise FormatError("the pack holds more than packs do, or is cut")
        cards, rows = msgpack.unpackb(plain)
        modules = {bytes(module_id): bytes(module) for module_id, module in rows}
        known = [decode_card(card) for card in cards]
        return {card.name: Packed(card, modules[card.module_id]) for card in known}
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        reraise_interrupt(error)
        raise FormatError(f"the pack does not decode: {error}") from error
