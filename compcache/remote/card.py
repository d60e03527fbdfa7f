"""Cards of functions in a remote store, and packs.

A card names the module that realizes a function on each shelf, and contains the module if it is small.

Layout of the cards of one function: a magic, a msgpack list of the name and of rows ``[shelf, module_id, size, seconds, module, signatures,
imports]``, the newest last, and a check over all that. `module` is empty if the module is an object of its own. `signatures` is the file of
signatures that the publisher keeps with the module. `imports` are rows ``[name, module_id, size, seconds, module, signatures]`` for the
small modules that the module imports, directly or not. A card is a pointer and decides nothing: the module that it refers to is verified by
its own digest (and signature), and must realize the function.

Layout of a pack: a magic, a msgpack list of the cards (without their modules) and of the modules, each once, compressed with LZMA, and
a check over all that. A Python that was built without LZMA compresses with zlib. Every Python can read packs compressed with
zlib. A Python without LZMA cannot read other packs.

Limitations: the cards of a function have at most `MAX_CARDS` bytes, without the oldest shelves; the content of a pack, `MAX_UNPACKED`.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, check
from compcache.errors import FormatError
from compcache.interrupts import as_format_error, suppress
from compcache.messagepack import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "IMPORTS_LIMIT", "INLINE_LIMIT", "MAX_CARDS", "MAX_UNPACKED", "Card", "PackedFunction", "checked_content", "decode_cards",
    "decode_pack",
    "encode_cards", "encode_pack", "merge_cards",
]  # fmt: skip

_MAGIC = b"CCCARD2\0"
_PACK_MAGICS = {"xz": b"CCPACK3X", "zlib": b"CCPACK3Z"}
#: zlib does not look back far enough to see how modules resemble each other. A higher level of LZMA saves little more.
_COMPRESSION_LEVEL = 1
#: A card contains its module if the module has at most this many bytes: one request instead of two.
INLINE_LIMIT = 32 << 10
#: The largest total size of the imported modules that a card contains, in bytes.
IMPORTS_LIMIT = 64 << 10
MAX_UNPACKED = 64 << 20
MAX_CARDS = 1 << 20
#: A card is added without imports if the cards of its function would otherwise have more bytes than this.
_LARGE_CARDS = 256 << 10


class Card(NamedTuple):
    """The card of one function on one shelf.

    Attributes:
        name: the function.
        module_id: the module that realizes it.
        size: the size of the module in bytes.
        seconds: the time that compiling took.
        module: the bytes of the module, or nothing if it is an object of its own.
        signatures: the signatures of the module.
        imports: cards of the modules that it imports. They contain their modules and have no imports.
    """

    name: str
    module_id: bytes
    size: int
    seconds: float
    module: bytes
    signatures: bytes = b""
    imports: tuple[Card, ...] = ()


def checked_content(data: bytes, magic: bytes, subject: str) -> bytes:
    """Return the bytes between a magic and a check.

    Raise `FormatError` if the magic differs or the check does not match. The message names the `subject`, like "the card".
    """
    if data[: len(magic)] != magic:
        raise FormatError(f"{subject} starts with {data[: len(magic)]!r}, not with {magic!r}: it is damaged, or of another version")
    if check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        raise FormatError(f"{subject} is damaged: its checksum does not match")
    return data[len(magic) : -CHECK_SIZE]


def encode_cards(cards: dict[str, Card]) -> bytes:
    """Encode the cards of one function. `cards` maps shelves to cards, at least one, the newest last."""
    rows = []
    for shelf, card in cards.items():
        name, *fields, imports = card  # all cards have this name
        rows.append([shelf, *fields, [_fields_without_imports(imported) for imported in imports]])
    data = _MAGIC + pack([name, rows])
    return data + check(data)


def _fields_without_imports(card: Card) -> list[Any]:
    """Return the fields of a card except the last, the imports."""
    *fields, _ = card
    return fields


def merge_cards(stored_cards: dict[str, Card], shelf: str, card: Card) -> bytes:
    """Add a card to the stored cards, and return the encoded cards, without those of other functions and the stored card of its shelf.

    If the result would have more than `_LARGE_CARDS` bytes, the imports of the new card are left out. If it would have more than
    `MAX_CARDS` bytes, the oldest cards are left out.
    """
    other_cards = {other: known_card for other, known_card in stored_cards.items() if other != shelf and known_card.name == card.name}
    data = encode_cards({**other_cards, shelf: card})
    if len(data) > _LARGE_CARDS and card.imports:
        return merge_cards(other_cards, shelf, card._replace(imports=()))
    while len(data) > MAX_CARDS and other_cards:
        del other_cards[next(iter(other_cards))]
        data = encode_cards({**other_cards, shelf: card})
    return data


def decode_cards(data: bytes) -> dict[str, Card]:
    """Decode the cards of a function and return them by shelf.

    Raise `FormatError` if the bytes are not cards of a known version, are damaged, or are more than `MAX_CARDS` bytes.
    """
    if len(data) > MAX_CARDS:
        raise FormatError(f"the card has {len(data)} bytes, more than the maximum of {MAX_CARDS}")
    content = checked_content(data, _MAGIC, "the card")
    with as_format_error("the card is malformed"):
        name, rows = unpack(content)
        cards = {shelf: _decode_card([name, *fields], imports) for shelf, *fields, imports in rows}
    for type_ in {*map(type, cards)} - {str}:
        raise FormatError(f"the card is malformed: the name of a shelf is of type {type_.__name__}, not str")
    return cards


def _decode_card(fields: list[Any], imports: list[list[Any]]) -> Card:
    """Return a decoded card with the cards of its imports. Raise `FormatError` if a field is not valid."""
    name, module_id, size, seconds, module, signatures = fields
    for field, value, type_ in zip(Card._fields, fields, (str, bytes, int, float, bytes, bytes), strict=False):
        if type(value) is not type_:
            raise FormatError(f"the card is malformed: {field} is of type {type(value).__name__}, not {type_.__name__}")
    if len(module_id) != DIGEST_SIZE:
        raise FormatError(f"the card of {name!r} is malformed: module_id has {len(module_id)} bytes, not {DIGEST_SIZE}")
    if size < 0 or len(module) not in (0, size):
        raise FormatError(f"the card of {name!r} is malformed: its module has {len(module)} bytes, but the stated size is {size}")
    return Card(name, module_id, size, seconds, module, signatures, tuple([_decode_card(each, []) for each in imports]))


class PackedFunction(NamedTuple):
    """A function in a pack: its card without the module, and the module."""

    card: Card
    module: bytes


def _import_lzma() -> Any:
    """Import and return `lzma`, or return None if this Python was built without it."""
    with suppress(ImportError):
        return import_module("lzma")
    return None


def encode_pack(items: Iterable[PackedFunction]) -> bytes:
    """Encode functions as a pack. A module that realizes several of them is stored once."""
    items = list(items)
    cards = [_fields_without_imports(item.card._replace(module=b"")) for item in items]
    modules = {item.card.module_id: item.module for item in items}
    lzma = _import_lzma()
    content = pack([cards, list(modules.items())])
    if lzma is None:
        data = _PACK_MAGICS["zlib"] + zlib.compress(content, _COMPRESSION_LEVEL)
    else:
        data = _PACK_MAGICS["xz"] + lzma.compress(content, preset=_COMPRESSION_LEVEL)
    return data + check(data)


def decode_pack(data: bytes) -> dict[str, PackedFunction]:
    """Decode a pack and return its functions by name.

    Raise `FormatError` if the bytes are not a pack of a known version, are damaged, are too large, or this Python cannot decompress them.
    """
    is_xz = data.startswith(_PACK_MAGICS["xz"])
    packed = checked_content(data, _PACK_MAGICS["xz" if is_xz else "zlib"], "the pack")
    lzma = _import_lzma()
    decompressor: Any = zlib.decompressobj()
    if is_xz:
        if lzma is None:
            raise FormatError("the pack is compressed with LZMA, but this Python has no LZMA support: install Python with its module lzma")
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_UNPACKED)
    with as_format_error("the pack is malformed"):
        content = decompressor.decompress(packed, MAX_UNPACKED)
        if not decompressor.eof:
            raise FormatError(f"the pack is incomplete, or has more than {MAX_UNPACKED} bytes when it is decompressed")
        cards, rows = unpack(content)
        modules = {bytes(module_id): bytes(module) for module_id, module in rows}
        known_cards = [_decode_card(card, []) for card in cards]
        return {card.name: PackedFunction(card, modules[card.module_id]) for card in known_cards}
