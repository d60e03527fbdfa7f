"""The native readers of formats, and what the plain case of a hit has in its own words."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import example, given
from hypothesis import strategies as st

from compcache import hit
from compcache.digest import is_content_name
from compcache.directory import places
from compcache.formats import manifest
from compcache.hit import plain_closures, plain_volumes, recorder
from compcache.hit.closures import HEAD, MAGIC, SEAL_SIZE
from compcache.native import runtime


@given(st.binary(max_size=600), st.integers(1, 64), st.binary(max_size=16), st.binary(max_size=16), st.binary(max_size=64))
def test_digests_are_those_of_the_standard_library(data: bytes, size: int, person: bytes, salt: bytes, key: bytes) -> None:
    assert runtime.digest(data, size, person, salt, key) == blake2b(data, digest_size=size, person=person, salt=salt, key=key).digest()


def test_the_plain_case_knows_the_places_of_the_store() -> None:
    assert (places.INDEX.directory, places.INDEX.suffix) == (hit.INDEX_DIRECTORY, hit.SEGMENT_SUFFIX)
    assert (places.CLOSURES.directory, places.CLOSURES.suffix) == (plain_closures.DIRECTORY, plain_closures.SUFFIX)
    assert plain_closures.MAGIC == MAGIC
    assert len(MAGIC) + SEAL_SIZE + HEAD.size == plain_closures.PARTS
    assert (places.MODULES.directory, places.MODULES.suffix) == (hit.MODULES_DIRECTORY, hit.MODULE_SUFFIX)
    assert (places.VOLUMES.directory, (places.VOLUMES.suffix, places.GONE.suffix)) == (plain_volumes.DIRECTORY, plain_volumes.SUFFIXES)
    assert places.GONE.directory == plain_volumes.DIRECTORY
    assert (places.JOURNALS.directory, places.JOURNALS.suffix) == (recorder.DIRECTORY, recorder.SUFFIX)


def test_the_plain_case_knows_the_numbers_of_records() -> None:
    numbers = manifest.IMAGE_SHARED, manifest.NO_ENTRY, manifest.LINKED, manifest.LINK_ONLY
    assert numbers == (hit._IMAGE_SHARED, hit._NO_ENTRY, hit._LINKED, hit._LINK_ONLY)


@given(st.text(max_size=4), st.text("-0123456789abcdefgF", min_size=30, max_size=34))
@example("", "-" + "0" * 32)
@example("\0f", "a" * 32)
@example("f\0-", "f" * 32)
@example("-" + "0" * 31, "\u0660")
def test_names_of_content_and_of_entries_have_no_order(label: str, end: str) -> None:
    name = label + end
    assert runtime.is_ordered(name) == (not is_content_name(name) and not name.startswith("\0"))
