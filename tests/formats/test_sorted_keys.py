"""Sorted keys in a file: what a question reads does not grow with the number of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compcache import FormatError
from compcache.formats.sorted_keys import SUMMARY_SIZE, SortedKeys, encode_keys, merge_keys

KEYS = st.dictionaries(st.binary(max_size=6), st.binary(max_size=3000), max_size=40)


def opened(items: dict[bytes, bytes], read: list[int] | None = None) -> SortedKeys:
    data = b"".join(encode_keys(sorted(items.items()), lambda: b"what all say"))

    def at(offset: int, size: int) -> bytes:
        if read is not None:
            read.append(size)
        return data[offset : offset + size]

    return SortedKeys(at, len(data))


@pytest.mark.slow
@given(KEYS, st.binary(max_size=6), st.binary(max_size=6))
def test_a_range_is_that_of_all_items(items: dict[bytes, bytes], start: bytes, end: bytes) -> None:
    keys = opened(items)
    assert keys.summary == b"what all say"
    assert list(keys.between(start, end)) == [(key, items[key]) for key in sorted(items) if start <= key < end]
    for key in (start, *items):
        assert keys.find(key) == items.get(key)


@pytest.mark.slow
@given(st.lists(KEYS, max_size=4))
def test_of_several_sources_the_first_is_believed(sources: list[dict[bytes, bytes]]) -> None:
    merged: dict[bytes, bytes] = {}
    for items in sources:
        merged = {**items, **merged}
    assert list(merge_keys([sorted(items.items()) for items in sources])) == sorted(merged.items())


def test_two_ranges_that_are_read_in_turn_do_not_disturb_each_other() -> None:
    items = {b"%c%06d" % (letter, number): b"" for letter in b"ab" for number in range(3000)}
    keys = opened(items)
    first, second = keys.between(b"a", b"b"), keys.between(b"a001000", b"c")
    pairs = list(zip(first, second, strict=False))
    assert [a for (a, _), _ in pairs] == sorted(key for key in items if key < b"b")
    assert [b for _, (b, _) in pairs] == sorted(key for key in items if key >= b"a001000")[: len(pairs)]


@pytest.mark.slow
def test_an_answer_costs_what_it_is_long_whatever_the_number_of_keys() -> None:
    costs = []
    for number in (2_000, 200_000):
        read: list[int] = []
        keys = opened({b"name %08d" % each: b"value" for each in range(number)}, read)
        read.clear()
        assert keys.find(b"name 00001234") == b"value"
        assert keys.find(b"name 00001234x") is None
        assert len(list(keys.between(b"name 00001500", b"name 00001520"))) == 20
        costs.append((len(read), sum(read)))
    assert costs[0][0] == costs[1][0]
    assert costs[1][1] <= 1.1 * costs[0][1]


def test_a_summary_has_its_place() -> None:
    with pytest.raises(ValueError, match="the summary of sorted keys has 65 bytes"):
        list(encode_keys([], lambda: bytes(SUMMARY_SIZE + 1)))
    with pytest.raises(FormatError):
        SortedKeys(lambda _, __: b"", 0)
