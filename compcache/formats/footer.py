"""The codec for module files: image, records, graph, bitcode and notes, followed by a footer.

Layout. The image comes first, because `dlopen` and ORC ignore the bytes after it::

    image | records | graph | bitcode | notes | footer (FOOTER_SIZE bytes)

The footer is a struct (little-endian): magic, version, flags, the five section sizes, the module_id, a digest
of the notes, a keyed digest (MAC) over all preceding fields (zeros if the module is not signed), and a
check of all preceding bytes. `module_id` is the digest of the sections before the notes and of their sizes,
and the name of the file. It does not depend on the notes (time and duration of the compilation), so that two
builds of the same code are one module.

Limitations: sections are below 2**63 bytes; the bitcode section is zlib-compressed by the miss path.
"""

from __future__ import annotations

from struct import Struct

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, MAC_SIZE, check, digest, mac
from compcache.errors import FormatError, UnknownVersionError
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "FOOTER_SIZE", "LARGEST_FOREIGN", "Footer", "decode_footer", "encode_container", "intact_footer", "is_signed_with", "module_digest",
    "require_intact", "sections_of",
]  # fmt: skip

_MAGIC = b"CCMODULE"
_VERSION = 6
_FOOTER = Struct("<8sII5Q16s16s")
FOOTER_SIZE = _FOOTER.size + MAC_SIZE + CHECK_SIZE
#: The size limit in bytes of module files of other users. Such a file is read whole, and may have holes.
LARGEST_FOREIGN = 1 << 29
_SIZES = Struct("<4Q")
_PERSON = b"compcache-module"
_CHUNK = 1 << 20


class Footer(Record):
    """The sizes of the sections in bytes, the identity of the module, and its signature."""

    __slots__ = ("image", "records", "graph", "bitcode", "notes", "module_id", "notes_digest", "mac", "signed")
    image: int
    records: int
    graph: int
    bitcode: int
    notes: int
    module_id: bytes
    notes_digest: bytes
    mac: bytes
    signed: bytes  # the bytes that `mac` covers

    @property
    def content(self) -> int:
        """The number of bytes from the start of the file that `module_id` covers."""
        return self.image + self.records + self.graph + self.bitcode


def module_digest(content: Iterable[bytes], image: int, records: int, graph: int, bitcode: int) -> bytes:
    """Compute the module_id from the content and the sizes of these sections. `content` yields their bytes, in parts of any size."""
    return digest([_SIZES.pack(image, records, graph, bitcode), *content], size=DIGEST_SIZE, person=_PERSON)


def encode_container(
    image: bytes, records: bytes, graph: bytes, bitcode: bytes, notes: bytes, signing_key: bytes | None, module_id: bytes = b""
) -> tuple[bytes, list[bytes]]:
    """Encode a module file, and return its module_id and its parts, in order.

    Args:
        image, records, graph, bitcode, notes: the sections.
        signing_key: the key that signs the footer, or None for an unsigned module.
        module_id: the module_id if it is known, or b"".
    """
    sections = [image, records, graph, bitcode]
    module_id = module_id or module_digest(sections, *map(len, sections))
    sizes = [*map(len, sections), len(notes)]
    footer = _FOOTER.pack(_MAGIC, _VERSION, 0, *sizes, module_id, digest([notes]))
    footer += mac(footer, signing_key) if signing_key else bytes(MAC_SIZE)
    return module_id, [*sections, notes, footer + check(footer)]


def decode_footer(data: bytes, file_size: int) -> Footer:
    """Decode the footer of a module file. `data` are the last FOOTER_SIZE bytes of a file of `file_size` bytes.

    Raises:
        UnknownVersionError: the footer has another version.
        FormatError: the bytes are not a footer, are damaged, or belong to a file of another size.
    """
    if len(data) != FOOTER_SIZE or data[:8] != _MAGIC:
        raise FormatError(f"the last {len(data)} bytes of the file are not a module footer")
    if check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        raise FormatError("the module footer is damaged: its checksum does not match")
    _, version, _, *sizes, module_id, notes_digest = _FOOTER.unpack_from(data)
    if version != _VERSION:
        raise UnknownVersionError(
            f"the module has format version {version}, but this release of compcache reads version {_VERSION}: use a release that reads "
            "this version, or compile the module again"
        )
    if sum(sizes) + FOOTER_SIZE != file_size:
        raise FormatError(f"the module footer describes a file of {sum(sizes) + FOOTER_SIZE} bytes, but the file has {file_size} bytes")
    signed = data[: _FOOTER.size]
    return Footer(*sizes, module_id, notes_digest, data[_FOOTER.size : -CHECK_SIZE], signed)


def require_intact(footer: Footer, module_id: bytes, read: Callable[[int, int], bytes]) -> None:
    """Check that a file contains the module that its name says, and that its content matches the footer.

    `module_id` is the id in the file's name. `read(offset, size)` returns bytes of the file, or fewer at its end.

    Raise `FormatError` if the file contains another module, or its content or notes do not match the footer.
    """
    if footer.module_id != module_id:
        raise FormatError("the module file contains a different module than its name says")
    content = (read(offset, min(_CHUNK, footer.content - offset)) for offset in range(0, footer.content, _CHUNK))
    if module_digest(content, footer.image, footer.records, footer.graph, footer.bitcode) != module_id:
        raise FormatError("the content of the module file does not match the digest in its name")
    if digest([read(footer.content, footer.notes)]) != footer.notes_digest:
        raise FormatError("the notes of the module file do not match the digest in its footer")


def intact_footer(data: bytes | memoryview, module_id: bytes | None = None) -> Footer:
    """Verify the content of a module file, and return its footer. Any module is accepted if `module_id` is None.

    Raise `FormatError` if the bytes are not an intact module file, or contain another module.
    """
    footer = decode_footer(bytes(data[-FOOTER_SIZE:]), len(data))
    require_intact(footer, footer.module_id if module_id is None else module_id, lambda at, size: bytes(data[at : at + size]))
    return footer


def sections_of(data: bytes, footer: Footer) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return the image, records, graph, bitcode and notes of a module file. `data` are the bytes of the file."""
    sections, start = [], 0
    for size in (footer.image, footer.records, footer.graph, footer.bitcode, footer.notes):
        sections.append(data[start : start + size])
        start += size
    image, records, graph, bitcode, notes = sections
    return image, records, graph, bitcode, notes


def is_signed_with(footer: Footer, signing_key: bytes) -> bool:
    """Return whether a footer has a valid MAC by a key. The comparison takes constant time."""
    expected = mac(footer.signed, signing_key)
    difference = 0
    for expected_byte, actual_byte in zip(expected, footer.mac, strict=True):  # importing `hmac` is slow
        difference |= expected_byte ^ actual_byte
    return difference == 0
