"""Decoders take whatever a disk can hold: right values or the declared error, in bounded time and memory.

What single formats promise is in `test_formats.py`; here is what somebody could have made of them: valid files with
fields changed behind their checksums, lengths beyond everything, and bombs. ``COMPCACHE_FUZZ_EXAMPLES`` says how
many examples each test tries.
"""

from __future__ import annotations

import os
import time
import tracemalloc
import zlib
from struct import pack, pack_into
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from encoded import encode_table, known_kinds
from helpers import module_entries
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compcache import FormatError, Signature, SignatureError
from compcache.digest import KEY_SIZE, check, digest, name_key
from compcache.directory.places import INDEX
from compcache.errors import GlobalValidationError, UnknownVersionError
from compcache.files import Files
from compcache.formats import graph
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container
from compcache.formats.graph import decode_graph, decode_notes
from compcache.formats.host_file import HostFile, decode_host, encode_host
from compcache.formats.index import Index, ModuleEntry, Stamp
from compcache.formats.journal import BATCH_END
from compcache.formats.manifest import FunctionRecord, NeedsRecord, decode_function, decode_needs, read_frame
from compcache.formats.manifest_writer import encode_function, encode_global, encode_link_type, encode_module, encode_needs
from compcache.formats.records import GlobalRecord, ModuleRecord, decode_global, decode_link_type, decode_module
from compcache.formats.sorted_keys import SortedKeys, encode_keys
from compcache.formats.statistics import decode_stats, encode_stats
from compcache.formats.table import Table
from compcache.globals import Integer, Text, decode_definition, define
from compcache.publish.index_merge import encode_function_entry, encode_segment, merge
from compcache.publish.module_rows import Platform, decode_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 2.0
FEW = settings(max_examples=int(os.environ.get("COMPCACHE_FUZZ_EXAMPLES", "30")))
#: Above the input itself: what a decoder may take is a small multiple of what it was given.
BYTES = 1 << 21

RECORDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "module": (
        encode_module(ModuleRecord(
            b"k" * 16, "shared", "x86_64-linux-elf", "cpu", ("+avx;1.0.c:18000000,xcr0:6", ""), "musl", "", "22", "1.0.c:18000000", "00", 1
        )),
        decode_module,
    ),
    "function": (encode_function(FunctionRecord("f", "f", "i64(i64)", b"target42", 1, 2, 3)), decode_function),
    "needs": (encode_needs(NeedsRecord(((1, "g", b"", b""), (2, "h", b"", b"")), (3,), ("strlen",), (4,))), decode_needs),
    "function of a known type": (
        encode_function(FunctionRecord("f", "f", "i64(i64)", b"target42", 1, 2, 3, b"digest42" + bytes(4))), decode_function
    ),
    "needs of known types": (
        encode_needs(NeedsRecord(((1, "g", b"", b"digest42" + bytes(4)), ("h", "h", bytes(16), b"")), (3,), ("strlen",), (4,))),
        decode_needs,
    ),
    "link type": (encode_link_type("f64(f64) | i64(i64) ignored"), decode_link_type),
    "global": (encode_global(GlobalRecord("g", 1, "int", 8, "integer", b"payload")), decode_global),
}
GRAPH = zlib.compress(
    msgpack.packb([["f", "function", "f", "i64()", ["g"]], ["g", "variable", None, "", []]])
)


def bounded(decode: Callable[[bytes], Any], data: bytes, *errors: type[Exception]) -> Any:
    """What `decode` makes of the data, None for a declared error; it took little time and memory."""
    tracemalloc.start()
    started = time.perf_counter()
    try:
        return decode(data)
    except errors:
        return None
    finally:
        seconds = time.perf_counter() - started
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert seconds < SECONDS
        assert peak < BYTES + 64 * len(data), peak


def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Valid bytes with some changed, cut out or put in, preferably numbers that are too large."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(changed)))
        kind = draw(st.sampled_from(["set", "huge", "cut", "put"]))
        if kind == "cut":
            del changed[at : at + draw(st.integers(1, 9))]
        elif kind == "put":
            changed[at:at] = draw(st.binary(min_size=1, max_size=9))
        else:
            value = (
                draw(st.binary(min_size=1, max_size=4))
                if kind == "set"
                else b"\xff" * draw(st.integers(1, 8))
            )
            changed[at : at + len(value)] = value
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECORDS)
@FEW
@given(data=st.data())
def test_records(kind: str, data: st.DataObject) -> None:
    valid, decode = RECORDS[kind]
    bounded(decode, data.draw(st.composite(mutated)(valid)), FormatError)


@FEW
@given(st.data())
def test_frames(data: st.DataObject) -> None:
    """The length is limited by the section before anything is read."""
    section = data.draw(st.binary(max_size=100))
    offset = data.draw(st.integers(-10, 2**33))
    limit = data.draw(st.integers(0, 2**40))
    asked = []

    def read(at: int, size: int) -> bytes:
        asked.append(size)
        assert size >= 0
        return section[at : at + size]

    bounded(lambda _: read_frame(read, offset, limit, bytes(16)), b"", FormatError)
    assert all(size <= 1 << 26 for size in asked)


@pytest.mark.slow
@FEW
@given(st.data())
def test_tables_behind_a_right_checksum(data: st.DataObject) -> None:
    entries = sorted(
        digest([b"%d" % n], size=KEY_SIZE) + bytes(8) for n in range(data.draw(st.integers(0, 40)))
    )
    table = bytearray(encode_table(entries, KEY_SIZE + 8))
    number = st.one_of(st.integers(0, 2**16), st.integers(0, 2**32 - 1))
    pack_into("<IIQ", table, 8, data.draw(number), data.draw(st.integers(0, 40)), data.draw(number))
    table[24:32] = check(bytes(table[:24]))
    content = data.draw(st.composite(mutated)(bytes(table[32:])))
    whole = bytes(table[:32]) + content
    asked = []

    def read(offset: int, size: int) -> bytes:
        asked.append(size)
        return whole[offset : offset + size]

    def use(_: bytes) -> None:
        opened = Table(read)
        for n in range(3):
            opened.find(digest([b"%d" % n], size=KEY_SIZE))

    bounded(use, whole, FormatError)
    assert all(size <= 1 << 26 for size in asked), "a length in a file never sizes a read unchecked"


def test_a_bucket_that_claims_to_be_huge_is_not_read() -> None:
    header = pack("<8sIIQ", b"CCTABLE1", 4096, 0, 2**32)
    whole = header + check(header) + pack("<Q", 2**32 - 1) + bytes(8)
    asked = []

    def read(offset: int, size: int) -> bytes:
        asked.append(size)
        return whole[offset : offset + size]

    with pytest.raises(FormatError, match="larger than any can be"):
        Table(read).find(bytes(KEY_SIZE))
    assert max(asked) < 100


def segment() -> bytes:
    module_id = digest([b"m"], size=16)
    entry = ModuleEntry(module_id, Stamp(1, 2, 3, 4), 5, 6, b"target!!", 1, 1, b"k" * 16, bytes(16))
    return encode_segment([encode_function_entry("f", module_id, 77, "needs")], [entry.encode()], ["needs"])


@FEW
@given(st.data())
def test_index_segments(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever the file holds: the entry, or nothing and a note that the file is damaged."""
    place: Path = tmp_path_factory.mktemp("index")
    content = data.draw(st.one_of(st.composite(mutated)(segment()), st.binary(max_size=300)))
    name = (
        digest([segment()], size=12).hex() if data.draw(st.booleans()) else digest([content], size=12).hex()
    )
    (place / f"00-{name}.idx").write_bytes(content)
    index = Index(Files(), str(place), str(place / "tmp"), INDEX.suffix)

    def use(_: bytes) -> list[Any]:
        found = list(index.find(name_key("f")))
        module_entries(index, digest([b"m"], size=16))
        merge(index)
        return found

    found = bounded(use, content)
    assert found in ([], [(digest([b"m"], size=16), 77)])


@FEW
@given(st.data())
def test_footers_behind_a_right_checksum(data: st.DataObject) -> None:
    content = b"".join(encode_container(b"image", b"records", b"graph", b"bitcode", b"notes", b"key")[1])
    footer = bytearray(content[-FOOTER_SIZE:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, FOOTER_SIZE - 9))
        footer[at] = data.draw(st.integers(0, 255))
    whole = bytes(footer[:-8])
    decoded = bounded(lambda d: decode_footer(d, len(content)), whole + check(whole), FormatError)
    if decoded is not None:
        assert decoded.content + decoded.notes + FOOTER_SIZE == len(content)


def test_a_footer_that_promises_more_than_there_is() -> None:
    content = b"".join(encode_container(b"image", b"records", b"", b"", b"", None)[1])
    for position in range(16, 56, 8):
        footer = bytearray(content[-FOOTER_SIZE:-8])
        pack_into("<Q", footer, position, 2**63)
        with pytest.raises(FormatError, match="describes"):
            decode_footer(bytes(footer) + check(bytes(footer)), len(content))
    pack_into("<I", footer := bytearray(content[-FOOTER_SIZE:-8]), 8, 7)
    with pytest.raises(UnknownVersionError):
        decode_footer(bytes(footer) + check(bytes(footer)), len(content))


@pytest.mark.slow
@FEW
@given(st.data(), st.sampled_from([None, b"key"]))
def test_hosts(data: st.DataObject, key: bytes | None) -> None:
    valid = encode_host(HostFile("znver4", "22.1.0", "+avx2,+fma", "0a1b"), "name", key)
    changed = data.draw(st.one_of(st.composite(mutated)(valid), st.binary(max_size=60)))
    decoded = bounded(lambda d: decode_host(d, "name", key), changed)
    assert decoded is None or changed == valid
    assert decode_host(valid, "name", key) == HostFile("znver4", "22.1.0", "+avx2,+fma", "0a1b")
    assert decode_host(valid, "name", b"another key") is None
    assert decode_host(valid, "another", key) is None


@pytest.mark.slow
@FEW
@given(st.data())
def test_graphs_and_notes(data: st.DataObject) -> None:
    rows: st.SearchStrategy[Any] = st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-(2**63), 2**64 - 1),
            st.text(max_size=4),
            st.binary(max_size=4),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=12,
    )
    value = msgpack.packb(data.draw(rows), use_bin_type=True)
    for section in (zlib.compress(value), data.draw(st.composite(mutated)(GRAPH)), GRAPH):
        bounded(decode_graph, section, FormatError)
    for notes in (value, data.draw(st.binary(max_size=60))):
        bounded(decode_notes, notes, FormatError)


@pytest.mark.parametrize(
    "head",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 5000,
    ],
    ids=["array", "map", "bytes", "text", "nesting"],
)
def test_lengths_in_msgpack_allocate_nothing(head: bytes) -> None:
    bounded(decode_notes, head, FormatError)
    bounded(decode_graph, zlib.compress(head), FormatError)
    bounded(decode_row, head, FormatError)
    bounded(read_keys, check(head) + head, FormatError)


@pytest.mark.slow
@FEW
@given(st.data())
def test_statistics(data: st.DataObject) -> None:
    valid = encode_stats({(5, "hits"): 2.0}, {(bytes(16), bytes(16)): (3, 4.0)}, ("a.stats1",))
    changed = data.draw(st.composite(mutated)(valid[:-8]))
    bounded(decode_stats, changed + check(changed), FormatError)
    bounded(decode_stats, data.draw(st.composite(mutated)(valid)), FormatError)
    bounded(decode_row, data.draw(st.binary(max_size=60)), FormatError)


def decode_row(data: bytes) -> object:
    return decode_rows([(bytes(16), Platform("", "", "", "", "", 0, ""), data)])


def read_keys(data: bytes) -> object:
    keys = SortedKeys(lambda at, size: data[at : at + size], len(data))
    return list(keys.between(b"", b"\xff")), keys.find(b"b")


@pytest.mark.slow
@FEW
@given(st.data())
def test_sorted_keys(data: st.DataObject) -> None:
    valid = b"".join(encode_keys([(b"a", b"1"), (b"b", b""), (b"c", b"3")], lambda: b"told"))
    assert read_keys(valid) == ([(b"a", b"1"), (b"b", b""), (b"c", b"3")], b"")
    bounded(read_keys, data.draw(st.composite(mutated)(valid)), FormatError)
    value = msgpack.packb(data.draw(st.lists(st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(max_size=4), st.none()), max_size=6)))
    block = check(value) + value
    for index in (value, msgpack.packb([b"a", 0, len(block)])):
        tail = pack("<8sQQI64s", b"CCKEYS01", len(block), 8 + len(index), 0, b"")
        bounded(read_keys, block + check(index) + index + tail + check(tail), FormatError)


@pytest.mark.slow
@FEW
@given(st.data())
def test_globals(data: st.DataObject) -> None:
    """Decoding is not loading: nothing is imported, unpickled or called."""
    kinds = [kind for kind in known_kinds() if not kind.startswith("numba")]
    kind = data.draw(st.sampled_from([*kinds, "no such kind"]))
    definitions = [Integer(7), Text("text"), define(b"bytes"), define(2.5)]
    payload = data.draw(
        st.one_of(
            st.binary(max_size=60),
            *(st.composite(mutated)(definition.encode()) for definition in definitions),
        )
    )
    definition = bounded(lambda d: decode_definition(kind, d), payload, GlobalValidationError)
    if definition is not None:
        assert definition.kind == kind
        assert repr(definition)


@FEW
@given(st.text(max_size=60) | st.text("iuf8163264(),[]* boidcstrptrvl:", max_size=60))
def test_signatures(text: str) -> None:
    parsed = bounded(lambda _: Signature.parse(text), text.encode("utf-8", "surrogatepass"), SignatureError)
    if parsed is not None:
        assert Signature.parse(str(parsed)) == parsed


def test_a_long_signature_takes_linear_time() -> None:
    parameters = "i64(" + "i64, " * 5_000 + "i64)"
    for text in ("(" * 50_000, parameters, "f64(f64" + "[:]" * 50_000 + ")", " " * 100_000):
        bounded(lambda data: Signature.parse(data.decode()), text.encode(), SignatureError)


@pytest.mark.slow
def test_a_bomb_does_not_go_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A little deflated data may be very much: no more of it is inflated than a graph can have."""
    monkeypatch.setattr(graph, "_MAX_GRAPH", BYTES // 4)
    bomb = zlib.compress(bytes(1 << 27), 9)
    assert bounded(decode_graph, bomb, FormatError) is None


@FEW
@given(st.lists(st.text("0123456789abcdefhits. -einfrow_\n=", max_size=50), max_size=4), st.booleans())
@example(["inf hits 1"], True)
@example(["1e300 hits 1"], True)
@example(["nan hits nan"], True)
def test_journals_behind_a_right_checksum(lines: list[str], ends: bool) -> None:
    text = "\n".join(lines).encode()
    batch = b"\n" + text + b"\n" + BATCH_END.encode() + check(text).hex().encode() + b"\n" * ends
    decoded = bounded(decode_stats, batch, FormatError)
    assert (
        decode_stats(encode_stats(decoded.counters, decoded.uses)).counters.keys() == decoded.counters.keys()
    )
