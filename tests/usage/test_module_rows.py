"""The rows that tools list modules by: how additions leave them in a journal, and what of them survives damage."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller

from compcache import Cache, ModuleSource
from compcache.miss.build import build_source
from compcache.store import Store
from compcache.usage.ledger import read_ledger
from compcache.usage.listings import functions
from compcache.usage.module_rows import Platform, Row, decode_rows, encode_rows, make_row, read_row, row_of_built

if TYPE_CHECKING:
    from pathlib import Path

HERE = Platform("shared", "x86_64-linux", "cpu", "+" + "feature," * 200, "20.1", 1, "compcache 0.1.0")
THERE = HERE._replace(cpu="other")


def row(number: int, platform: Platform) -> Row:
    return Row(bytes([number]) * 16, platform, 0.5, (f"f{number}", "\udc80"), (8, 80), ("g",), ("i64()", "void()"))


TWO_IMPORTS = """\
define i64 @first(i64 %x) {
  %y = call i64 @a(i64 %x)
  ret i64 %y
}
define i64 @second(i64 %x) {
  %y = call i64 @b(i64 %x)
  %z = call i64 @first(i64 %y)
  ret i64 %z
}
"""
ROWS = [row(1, HERE), row(2, THERE), row(3, HERE)]


def test_rows_come_back_whatever_the_order_of_their_items() -> None:
    items = encode_rows(ROWS)
    assert len(items) == 5
    for order in itertools.permutations(items):
        assert sorted(decode_rows(b"".join(order))) == ROWS
    assert decode_rows(b"".join(items + items)) == ROWS + ROWS


def test_a_row_whose_platform_is_lost_is_left_out_alone() -> None:
    items = encode_rows(ROWS)
    for lost, left in ((0, [ROWS[1]]), (1, [ROWS[0], ROWS[2]])):
        assert decode_rows(b"".join(items[:lost] + items[lost + 1 :])) == left


def test_what_was_built_is_listed_as_what_its_records_say(cache: Cache) -> None:
    sources = [
        ModuleSource(adder("plain", 1) + adder("other", 2)),
        ModuleSource(caller("user", "plain") + adder("own", 3), imports=["plain"]),
        ModuleSource("declare i64 @a(i64)\ndeclare i64 @b(i64)\n" + TWO_IMPORTS, imports={"a": "one", "b": "two"}),
        ModuleSource(adder("hidden", 1), {}),
    ]
    for source in sources:
        built = build_source(cache._session(), source)
        _, records, _, _, notes = built.sections
        assert row_of_built(b"id", built) == make_row(b"id", records, notes)


@pytest.mark.parametrize("data", [b"\xc1", b"\x01", b"\x92\x01", b"\x92\xa1x\x01", b"\x92\xc4\x01x\xc4\x01\xc1"])
def test_what_is_no_rows_gives_none(data: bytes) -> None:
    assert decode_rows(data) == []


def test_a_process_says_once_what_its_modules_are_for(cache: Cache, directory: Path) -> None:
    added = [cache.add_module(ModuleSource(adder(f"f{n}", n))) for n in range(8)]
    cache._store.stats.flush()
    store = Store(str(directory))
    rows = read_ledger(store).rows()
    assert rows == {key: read_row(store, key) for key in map(bytes.fromhex, added)}
    (journal,) = (directory / "stats").glob("*.journal1")
    features = rows[bytes.fromhex(added[0])].platform.triple.encode().hex()
    batches = journal.read_text().count("\n= ")  # one a second at most, and one at the end
    assert 1 <= journal.read_text().count(features) <= batches < len(added)


def test_listing_reads_no_module_whose_row_is_in_a_journal(cache: Cache, directory: Path) -> None:
    for n in range(3):
        cache.add_module(ModuleSource(adder(f"f{n}", n)))
    cache._store.stats.flush()
    before = functions(Store(str(directory), readonly=True))
    for path in (directory / "modules-v1").rglob("*.ccm"):
        path.write_bytes(bytes(path.stat().st_size))
    assert [f.func_name for f in functions(Store(str(directory), readonly=True))] == ["f0", "f1", "f2"]
    assert len(before) == 3
