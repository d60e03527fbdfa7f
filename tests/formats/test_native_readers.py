"""The native readers of formats, and what the plain case of a hit has in its own words."""

from __future__ import annotations

import re
import zlib
from hashlib import blake2b
from struct import pack

import pytest
from encoded import encode_table
from hypothesis import example, given
from hypothesis import strategies as st

from compcache import FormatError, hit
from compcache.digest import check, digest, is_content_name
from compcache.directory import places
from compcache.formats import manifest
from compcache.hit import recorder
from compcache.hit.closures import HEAD, MAGIC, seal
from compcache.native import runtime


@pytest.mark.slow
@given(st.binary(max_size=600), st.integers(1, 64), st.binary(max_size=16), st.binary(max_size=16), st.binary(max_size=64))
def test_digests_are_those_of_the_standard_library(data: bytes, size: int, person: bytes, salt: bytes, key: bytes) -> None:
    assert runtime.digest(data, size, person, salt, key) == blake2b(data, digest_size=size, person=person, salt=salt, key=key).digest()


def test_the_plain_case_knows_the_places_of_the_store() -> None:
    assert places.INDEX.directory == hit.INDEX_DIRECTORY
    assert (places.CLOSURES.directory, places.CLOSURES.suffix) == (hit.CLOSURES_DIRECTORY, hit.CLOSURE_SUFFIX)
    assert (places.MODULES.directory, places.MODULES.suffix) == (hit.MODULES_DIRECTORY, hit.MODULE_SUFFIX)
    assert (places.VOLUMES.directory, places.VOLUMES.suffix) == (hit.VOLUMES_DIRECTORY, hit.VOLUME_SUFFIX)
    assert (places.GONE.directory, places.GONE.suffix) == (hit.VOLUMES_DIRECTORY, hit.GONE_SUFFIX)
    assert (places.JOURNALS.directory, places.JOURNALS.suffix) == (recorder.DIRECTORY, recorder.SUFFIX)


def test_the_plain_case_knows_the_numbers_of_records() -> None:
    numbers = manifest.IMAGE_SHARED, manifest.NO_ENTRY, manifest.LINKED, manifest.LINK_ONLY
    assert numbers == (hit._IMAGE_SHARED, hit._NO_ENTRY, hit._LINKED, hit._LINK_ONLY)


@pytest.mark.slow
@given(st.text(max_size=4), st.text("-0123456789abcdefgF", min_size=30, max_size=34))
@example("", "-" + "0" * 32)
@example("\0f", "a" * 32)
@example("f\0-", "f" * 32)
@example("-" + "0" * 31, "\u0660")
def test_names_of_content_and_of_entries_have_no_order(label: str, end: str) -> None:
    name = label + end
    assert runtime.is_ordered(name) == (not is_content_name(name) and not name.startswith("\0"))


@pytest.mark.slow
@given(st.lists(st.text("-0123456789abcdefgF.idx", min_size=29, max_size=32), max_size=3))
@example([f"07-{'0123456789abcdef' * 2}.idx"[:27] + ".idx"] * 2)
@example(["07-" + "a" * 24 + ".idx", "07-" + "a" * 24 + ".tmp"])
@example(["0a-" + "a" * 24 + ".idx"])
@example(["00-" + "g" * 24 + ".idx"])
@example(["000" + "a" * 24 + ".idx"])
def test_names_of_segments_are_those_that_the_index_takes(names: list[str]) -> None:
    are_segments = all(re.fullmatch(r"\d\d-[0-9a-f]{24}\.idx", name) for name in names)
    assert runtime.segment_names("".join(f"{name}/" for name in names).encode()) == (names if are_segments else None)


SEGMENTS = [f"{level:02}-{number:024x}.idx" for level, number in ((0, 7), (3, 2), (0, 1), (11, 5))]


def closure_file(name: str, segments: list[str], *, holds: bool, parts: list[bytes], homes: int) -> bytes:
    """The file that records, as the loader writes it, whether a closure is valid."""
    state = digest([segment.encode() for segment in sorted(segments, key=lambda each: (-int(each[:2]), each))])
    content = HEAD.pack(bytes(16), state, holds, homes) + b"".join(parts)
    return MAGIC + seal(content, name, None) + content


def test_a_closure_is_valid_for_the_state_that_its_file_names() -> None:
    parts = [bytes([number]) * 16 for number in range(3)]
    data = closure_file("name", SEGMENTS, holds=True, parts=parts, homes=2)

    def ask(data: bytes, segments: list[str], name: bytes = b"name") -> object:
        return runtime.valid_closure(data, name, "".join(f"{segment}/" for segment in segments).encode())

    assert ask(data, SEGMENTS) == ask(data, SEGMENTS[::-1]) == (b"".join(parts), 2)
    assert ask(data, SEGMENTS[1:]) is None
    assert ask(data, []) is None
    assert ask(data, SEGMENTS, b"other") is None
    assert ask(closure_file("name", SEGMENTS, holds=False, parts=parts, homes=2), SEGMENTS) is None
    assert ask(closure_file("name", [], holds=True, parts=[], homes=0), []) == (b"", 0)
    for size in range(len(data)):
        assert ask(data[:size], SEGMENTS) is None
    for at in range(len(data)):
        assert ask(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], SEGMENTS) is None


def member(stream: bytes, size: int, signatures: int = 0) -> bytes:
    """The entry of a member of a volume that begins with its stream, without its key."""
    return pack("<QIIId", 0, len(stream), size, signatures, 2.5)


def compressed(data: bytes, dictionary: bytes, level: int, strategy: int) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy, dictionary)
    return compressor.compress(data) + compressor.flush()


REPEATED = st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=9), st.integers(1, 400))
TEXTS = st.lists(st.binary(max_size=40) | REPEATED, max_size=6).map(b"".join)
STRATEGIES = zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED


@pytest.mark.slow
@given(TEXTS, TEXTS, st.integers(0, 9), st.sampled_from(STRATEGIES), st.booleans())
def test_streams_of_volumes_are_those_of_the_standard_library(
    data: bytes, dictionary: bytes, level: int, strategy: int, repeats: bool
) -> None:
    data += dictionary[len(dictionary) // 3 :] if repeats else b""
    stream = compressed(data, dictionary, level, strategy)
    assert runtime.unpack_member(stream, dictionary, member(stream, len(data))) == (data, b"")
    assert runtime.unpack_member(stream, dictionary, member(stream, 0, len(data))) == (b"", data)
    for size in {0, len(data) - 1, len(data) + 1} - {-1, len(data)}:
        with pytest.raises(FormatError):
            runtime.unpack_member(stream, dictionary, member(stream, size))
    with pytest.raises(FormatError):
        runtime.unpack_member(stream[:-1], dictionary, member(stream, len(data)))


@pytest.mark.slow
@given(TEXTS, TEXTS, st.sampled_from(STRATEGIES), st.data())
def test_damaged_streams_of_volumes_are_content_of_that_size_or_an_error(
    data: bytes, dictionary: bytes, strategy: int, draw: st.DataObject
) -> None:
    """Whatever zlib accepts is the same here. It refuses some codes that the stream does not use."""
    stream = bytearray(compressed(data, dictionary, 6, strategy))
    for _ in range(draw.draw(st.integers(1, 3))):
        stream[draw.draw(st.integers(0, len(stream) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    decompressor = zlib.decompressobj(-15, dictionary)
    try:
        expected = decompressor.decompress(stream, len(data) + 1)
    except zlib.error:
        expected = b""
    try:
        found, _ = runtime.unpack_member(bytes(stream), dictionary, member(bytes(stream), len(data)))
    except FormatError:
        assert not decompressor.eof or len(expected) != len(data)
    else:
        assert len(found) == len(data)
        assert expected in (b"", found)


def test_streams_of_volumes_reach_no_further_back_than_the_dictionary() -> None:
    """A block with fixed codes, the last one: three bytes from four before, the end."""
    bits = "1" + "10" + "0000001" + "00011" + "0000000"
    stream = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    assert runtime.unpack_member(stream, b"abcd", member(stream, 3)) == (b"abc", b"")
    with pytest.raises(FormatError, match="cannot be decompressed"):
        runtime.unpack_member(stream, b"bcd", member(stream, 3))


def test_members_of_volumes_have_bounded_sizes() -> None:
    assert runtime.member_status(member(b"stream", 1 << 20, 1 << 20)) == (6, 2.5)
    for entry in (member(b"", (1 << 20) + 1), member(b"", 0, (1 << 20) + 1), pack("<QIIId", 0, (1 << 20) + 1, 0, 0, 0.0)):
        with pytest.raises(FormatError, match="more than 1048576 bytes"):
            runtime.unpack_member(b"", b"", entry)
        with pytest.raises(FormatError, match="more than 1048576 bytes"):
            runtime.member_status(entry)
    with pytest.raises(FormatError, match="another size"):
        runtime.member_status(b"")


def test_tails_of_volumes_describe_places_in_the_file() -> None:
    """Each tail has the check of its fields: the sizes are checked apart from it."""
    table = encode_table([], 44)

    def volume(
        dictionary: bytes, names: bytes, *, at: int = 8, table_at: int | None = None, size: int | None = None, count: int | None = None
    ) -> bytes:
        fields = pack(
            "<QIIQ", at, len(dictionary) if size is None else size, len(names) // 12 if count is None else count,
            8 + len(dictionary + names) if table_at is None else table_at,
        )  # fmt: skip
        return b"CCVOLUM1" + dictionary + names + table + fields + check(fields + dictionary + names)

    def read(data: bytes, *, is_known: bool = False) -> tuple[int, bytes, bytes]:
        _, at, dictionary, names = runtime.open_volume(data, len(data), is_known)
        return at, dictionary, names

    intact = volume(b"dictionary", b"a" * 24)
    assert read(intact) == read(intact, is_known=True) == (8, b"dictionary", b"a" * 24)
    large = 1 << 64
    for wrong in (
        volume(b"", b"", at=large - 1, size=1, table_at=0), volume(b"", b"", at=large - 12, count=1, table_at=0),
        volume(b"", b"", at=9), volume(b"", b"", at=large - 1, table_at=large - 1), volume(b"", b"", at=1 << 20, table_at=1 << 20),
        volume(bytes(1 << 15) + b"x", b""), volume(b"", b"", count=1 << 17),
    ):  # fmt: skip
        for is_known in (False, True):
            with pytest.raises(FormatError, match="impossible sizes"):
                read(wrong, is_known=is_known)
    damaged = intact.replace(b"dictionary", b"dictionarY")
    with pytest.raises(FormatError, match="checksum"):
        read(damaged)
    for size in range(len(intact)):
        with pytest.raises(FormatError):
            read(intact[:size])
