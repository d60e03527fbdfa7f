"""The native readers of formats, and what the plain case of a hit has in its own words."""

from __future__ import annotations

import re
from hashlib import blake2b

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compcache import hit
from compcache.digest import digest, is_content_name
from compcache.directory import places
from compcache.formats import manifest
from compcache.hit import plain_volumes, recorder
from compcache.hit.closures import HEAD, MAGIC, seal
from compcache.native import runtime


@pytest.mark.slow
@given(st.binary(max_size=600), st.integers(1, 64), st.binary(max_size=16), st.binary(max_size=16), st.binary(max_size=64))
def test_digests_are_those_of_the_standard_library(data: bytes, size: int, person: bytes, salt: bytes, key: bytes) -> None:
    assert runtime.digest(data, size, person, salt, key) == blake2b(data, digest_size=size, person=person, salt=salt, key=key).digest()


def test_the_plain_case_knows_the_places_of_the_store() -> None:
    assert (places.INDEX.directory, places.INDEX.suffix) == (hit.INDEX_DIRECTORY, hit.SEGMENT_SUFFIX)
    assert (places.CLOSURES.directory, places.CLOSURES.suffix) == (hit.CLOSURES_DIRECTORY, hit.CLOSURE_SUFFIX)
    assert (places.MODULES.directory, places.MODULES.suffix) == (hit.MODULES_DIRECTORY, hit.MODULE_SUFFIX)
    assert (places.VOLUMES.directory, (places.VOLUMES.suffix, places.GONE.suffix)) == (plain_volumes.DIRECTORY, plain_volumes.SUFFIXES)
    assert places.GONE.directory == plain_volumes.DIRECTORY
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
