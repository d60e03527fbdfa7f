"""The record of the parts of a module."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compcache.errors import FormatError
from compcache.formats.parts import Part, decode_parts, encode_parts

PARTS = st.builds(Part, st.text(min_size=1, max_size=9), st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))


@given(st.lists(PARTS))
def test_parts_are_read_as_they_were_written(parts: list[Part]) -> None:
    assert decode_parts(encode_parts(parts)) == tuple(sorted(set(parts)))


@given(st.binary(max_size=60))
def test_other_bytes_are_a_format_error(data: bytes) -> None:
    for payload in (data, b"P" + data):
        try:
            found = decode_parts(payload)
        except FormatError:
            continue
        assert all(part.name for part in found)


@pytest.mark.parametrize("cut", range(1, 29))
def test_a_truncated_record_is_a_format_error(cut: int) -> None:
    whole = encode_parts([Part("f", bytes(16))])
    assert len(whole) == 30
    with pytest.raises(FormatError):
        decode_parts(whole[:-cut])
