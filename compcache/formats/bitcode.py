"""Finds the functions that LLVM bitcode defines, without LLVM.

Layout (LLVM's "LLVM Bitcode File Format"): an optional wrapper header, the magic ``BC C0 DE``, then a stream of bits, the least
significant bit of each byte first. Only the records of the module block and the string table with the names are read. Nested
blocks begin with their length in words and are skipped, so the time depends on the number of global values, not on the size of
functions. Bitcode from before LLVM 5 has names in other places and is not supported.
"""

from __future__ import annotations

from compcache.errors import FormatError

__all__ = ["MAGIC", "defined_functions", "weak_functions"]

MAGIC = b"BC\xc0\xde"
_WRAPPER = b"\xde\xc0\x17\x0b"
_MODULE_BLOCK, _STRTAB_BLOCK = 8, 23
_END_BLOCK, _ENTER_BLOCK, _DEFINE_ABBREV, _UNABBREVIATED, _FIRST_ABBREVIATION = range(5)
_FIXED, _VBR, _ARRAY, _CHAR6, _BLOB = 1, 2, 3, 4, 5
_CODE_VERSION, _CODE_FUNCTION, _CODE_ALIAS, _CODE_IFUNC, _CODE_BLOB = 1, 8, 14, 15, 1
#: Fields of a function record: name offset, name size, type, calling convention, whether it is a declaration, linkage, parameter
#: attributes, alignment, section, visibility.
_IS_DECLARATION, _LINKAGE, _VISIBILITY = 4, 5, 9
#: The numbers of invisible linkages: internal (3), private (9; 13 and 14 in old bitcode), available_externally (12).
_INVISIBLE = frozenset((3, 9, 12, 13, 14))
#: The numbers of weak and linkonce linkages, with and without `_odr`, in old and current bitcode.
_WEAK = frozenset((1, 4, 10, 11, 16, 17, 18, 19))
_HIDDEN = 1
_NAMES_IN_STRTAB = 2
_WORD = 32
_LEAST_CHUNK, _MOST_BITS = 2, 64


class _Bits:
    """A position in a stream of bits."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.end = 8 * len(data)

    def fixed(self, width: int) -> int:
        """Return the number in the next `width` bits. Like all methods, raise `FormatError` at the end of the stream."""
        start, self.at = self.at, self.at + width
        if self.at > self.end:
            raise FormatError(f"the bitcode is truncated: it has {self.end} bits, but a number should end at bit {self.at}")
        chunk = int.from_bytes(self.data[start >> 3 : (self.at + 7) >> 3], "little")
        return chunk >> (start & 7) & (1 << width) - 1

    def vbr(self, width: int) -> int:
        """Return a number in chunks of `width` bits; their highest bits say whether more follow. Raise `FormatError` beyond 64 bits."""
        value = shift = 0
        while True:
            chunk = self.fixed(width)  # raises for a width beyond the data, before numbers of that size are computed
            continuation_bit = 1 << width - 1
            value |= (chunk & continuation_bit - 1) << shift
            if not chunk & continuation_bit:
                return value
            shift += width - 1
            if width < _LEAST_CHUNK:
                raise FormatError(f"the bitcode is damaged: it has a number whose chunks of width {width} leave no bits for a value")
            if shift > _MOST_BITS:
                raise FormatError("the bitcode is damaged: it contains a number of more than 64 bits")

    def align(self) -> None:
        """Move to the next multiple of 32 bits."""
        self.at = (self.at + _WORD - 1) // _WORD * _WORD

    def blob(self, size: int) -> bytes:
        """Return `size` bytes, starting at the next multiple of 32 bits. Raise `FormatError` if the bitcode ends before."""
        self.align()
        start = self.at >> 3
        self.at += 8 * size
        if self.at > self.end:
            raise FormatError(f"the bitcode is truncated: it has {self.end} bits, but a blob should end at bit {self.at}")
        self.align()
        return self.data[start : start + size]


def defined_functions(bitcode: bytes) -> tuple[str, ...] | None:
    """Return the names of the visible functions that bitcode defines, in file order, or None if only LLVM can determine them.

    Raise `FormatError` if the data is not bitcode, or is damaged.
    """
    functions = _visible_functions(*_read_modules(bitcode))
    return None if functions is None else tuple([name for name, _ in functions])


def weak_functions(bitcode: bytes) -> frozenset[str]:
    """Return the names of visible functions with weak or linkonce linkage. The set is empty if only LLVM can determine them.

    Raise `FormatError` if the data is not bitcode, or is damaged.
    """
    return frozenset([name for name, linkage in _visible_functions(*_read_modules(bitcode)) or () if linkage in _WEAK])


def _read_modules(bitcode: bytes) -> tuple[list[list[int]], bytes]:
    """Return the records of the module blocks, and the bytes of the string table. Raise `FormatError` if the bitcode is malformed."""
    bits = _Bits(_unwrap(bitcode))
    records: list[list[int]] = []
    names = b""
    while bits.at + _WORD <= bits.end:
        if bits.fixed(2) != _ENTER_BLOCK:
            raise FormatError("the bitcode is damaged: it does not consist of blocks")
        block, width, end = _enter_block(bits)
        if block == _MODULE_BLOCK:
            records += [values for values, _ in _read_records(bits, width)]
        elif block == _STRTAB_BLOCK:
            names = b"".join(blob for values, blob in _read_records(bits, width) if values[0] == _CODE_BLOB)
        bits.at = end
    return records, names


def _unwrap(bitcode: bytes) -> bytes:
    """Return the bitcode after its magic number, without a wrapper. Raise `FormatError` if the data is not bitcode."""
    if bitcode.startswith(_WRAPPER):
        offset, size = (int.from_bytes(bitcode[start : start + 4], "little") for start in (8, 12))  # after the magic and the version
        bitcode = bitcode[offset : offset + size]
    if not bitcode.startswith(MAGIC):
        raise FormatError(f"the data is not LLVM bitcode: it starts with {bitcode[:4]!r}, not with {MAGIC!r}")
    return bitcode[len(MAGIC) :]


def _enter_block(bits: _Bits) -> tuple[int, int, int]:
    """Read the head of a block, and return its number, the width of its abbreviation ids, and the position after the block.

    Raise `FormatError` if the head is damaged.
    """
    block, width = bits.vbr(8), bits.vbr(4)
    # Alignment is relative to the magic, which has one word, so it is the same without the magic.
    bits.align()
    words = bits.fixed(_WORD)
    return block, width, bits.at + words * _WORD


def _read_records(bits: _Bits, width: int) -> list[tuple[list[int], bytes]]:
    """Return the code and values, and the blob, of each record of a block, without nested blocks.

    `width` is the number of bits of an abbreviation id in the block. Raise `FormatError` if a record is malformed.
    """
    abbreviations: list[list[tuple[int, int]]] = []
    records: list[tuple[list[int], bytes]] = []
    while True:
        number = bits.fixed(width)
        if number == _END_BLOCK:
            return records
        if number == _ENTER_BLOCK:
            _, _, bits.at = _enter_block(bits)
        elif number == _DEFINE_ABBREV:
            abbreviations.append(_read_abbreviation(bits))
        elif number == _UNABBREVIATED:
            code = bits.vbr(6)
            records.append(([code, *[bits.vbr(6) for _ in range(bits.vbr(6))]], b""))
        elif number - _FIRST_ABBREVIATION < len(abbreviations):
            values, blob = _read_abbreviated(bits, abbreviations[number - _FIRST_ABBREVIATION])
            if not values:
                raise FormatError("the bitcode is damaged: it contains a record without a code")
            records.append((values, blob))
        else:
            raise FormatError("the bitcode is damaged: it uses an abbreviation that it does not define")


def _read_abbreviation(bits: _Bits) -> list[tuple[int, int]]:
    """Return the operands of an abbreviation as (encoding, width or value); encoding 0 is a literal.

    Raise `FormatError` if the abbreviation is damaged.
    """
    operands = []
    for _ in range(bits.vbr(5)):
        if bits.fixed(1):
            operands.append((0, bits.vbr(8)))
            continue
        encoding = bits.fixed(3)
        operands.append((encoding, bits.vbr(5) if encoding in (_FIXED, _VBR) else 0))
    return operands


def _read_abbreviated(bits: _Bits, operands: list[tuple[int, int]]) -> tuple[list[int], bytes]:
    """Return the values and the blob of a record with an abbreviation. Raise `FormatError` if the abbreviation is damaged."""
    values: list[int] = []
    blob = b""
    for number, (encoding, data) in enumerate(operands):
        if encoding == _ARRAY:
            element, width = operands[number + 1] if number + 1 < len(operands) else (0, 0)
            if element == 0 or (element != _CHAR6 and not width):  # the file could contain any number of such elements
                raise FormatError("the bitcode is damaged: it contains an array whose elements have no bits")
            values += [_read_scalar(bits, element, width) for _ in range(bits.vbr(6))]
            break  # the array's element type is the last operand
        if encoding == _BLOB:
            blob = bits.blob(bits.vbr(6))
        else:
            values.append(_read_scalar(bits, encoding, data))
    return values, blob


def _read_scalar(bits: _Bits, encoding: int, data: int) -> int:
    """Return a value of an abbreviated record. Raise `FormatError` if its encoding is unknown."""
    if encoding == 0:
        return data
    if encoding == _CHAR6:
        return bits.fixed(6)
    if encoding not in (_FIXED, _VBR):
        raise FormatError("the bitcode is damaged: it contains an abbreviation with an unknown encoding")
    if not data:
        return 0
    return bits.fixed(data) if encoding == _FIXED else bits.vbr(data)


def _visible_functions(records: list[list[int]], strings: bytes) -> list[tuple[str, int]] | None:
    """Return the names and linkages of the visible functions that records define, or None if only LLVM can determine them.

    `strings` is the string table, which contains the names.
    """
    codes = {record[0] for record in records}
    if [_CODE_VERSION, _NAMES_IN_STRTAB] not in records or codes & {_CODE_ALIAS, _CODE_IFUNC}:
        return None  # names are not in the string table, or an alias may name a function
    names = []
    for _, *fields in [record for record in records if record[0] == _CODE_FUNCTION]:
        if len(fields) <= _VISIBILITY:
            return None
        offset, size, linkage = fields[0], fields[1], fields[_LINKAGE]
        if not fields[_IS_DECLARATION] and linkage not in _INVISIBLE and fields[_VISIBILITY] != _HIDDEN:
            names.append((strings[offset : offset + size].decode("utf-8", "surrogateescape"), linkage))
    return names
