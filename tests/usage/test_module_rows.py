"""The rows that tools list modules by, as bytes."""

from __future__ import annotations

import pytest

from compcache import FormatError
from compcache.publish.module_rows import Platform, Row, decode_platform, decode_row_entry, decode_rows, encode_fields, encode_platform

HERE = Platform("shared", "x86_64-linux", "cpu", "+" + "feature," * 200, "20.1", 1, "compcache 0.1.0")
THERE = HERE._replace(cpu="other")


def row(number: int, platform: Platform) -> Row:
    return Row(bytes([number]) * 16, platform, 0.5, (f"f{number}", "\udc80"), (8, 80), ("g",), ("i64()", "void()"))


ROWS = [row(1, HERE), row(2, THERE), row(3, HERE)]


def test_rows_come_back() -> None:
    parts = [(each.module_id, each.platform, encode_fields(each)) for each in ROWS]
    assert decode_rows(parts) == ROWS
    assert [decode_platform(encode_platform(each.platform)) for each in ROWS] == [each.platform for each in ROWS]


@pytest.mark.parametrize("data", [b"\xc1", b"\x01", b"\x92\x01", b"\x92\xa1x\x01", b"\x92\xc4\x01x\xc4\x01\xc1"])
def test_what_is_no_row_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_rows([(b"\1" * 16, HERE, data)])
    with pytest.raises(FormatError):
        decode_platform(data)
    with pytest.raises(FormatError):
        decode_row_entry(data)
