"""The formats on disk: round trips, damage, and the bytes themselves.

The golden values pin what `docs/format.md` describes: whoever changes them makes a new format version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from encoded import encode_table
from helpers import module_entries
from hypothesis import given
from hypothesis import strategies as st

from compcache import FormatError
from compcache.digest import DIGEST_SIZE, KEY_SIZE, check, digest, name_key
from compcache.directory.places import INDEX
from compcache.files import Files
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container, is_signed_with, module_digest
from compcache.formats.graph import decode_graph, decode_notes
from compcache.formats.host import Processor
from compcache.formats.index import Index, ModuleEntry, Stamp
from compcache.formats.manifest import FunctionRecord, NeedsRecord, decode_function, decode_needs, read_frame
from compcache.formats.manifest_writer import (
    ManifestWriter,
    encode_function,
    encode_global,
    encode_link_type,
    encode_module,
    encode_needs,
    iterate_frames,
)
from compcache.formats.order import UNNUMBERED
from compcache.formats.records import GlobalRecord, ModuleRecord, decode_global, decode_link_type, decode_module
from compcache.formats.table import Table, all_entries
from compcache.publish.index_merge import (
    SMALL_LEVELS,
    add_all,
    encode_function_entry,
    encode_segment,
    full_level,
    merge,
    remove_damaged,
    segment_level,
    segments_to_merge,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

texts = st.text(st.characters(), max_size=12)
lines = texts.filter(lambda text: "\n" not in text)
u32 = st.integers(0, 2**32 - 1)


def table_of(data: bytes, *, constant: bool = False) -> Any:
    return Table(data if constant else lambda offset, size: data[offset : offset + size])


# ------------------------------------------------------------------------------------ table

WIDTH = KEY_SIZE + 4
_HEADER_SIZE = 32
entries_lists = st.lists(
    st.builds(
        lambda n, v: digest([b"%d" % n], size=KEY_SIZE) + v.to_bytes(4, "big"), st.integers(0, 60), u32
    ),
    max_size=120,
).map(lambda entries: sorted(set(entries)))


@pytest.mark.slow
@given(entries_lists, st.booleans())
def test_a_table_finds_exactly_what_was_put_in(entries: list[bytes], constant: bool) -> None:
    data = encode_table(entries, WIDTH)
    table = table_of(data, constant=constant)
    assert (table.count, table.width, table.size) == (
        len(entries),
        WIDTH,
        len(data),
    )
    assert list(all_entries(table)) == entries
    for number in range(62):
        key = digest([b"%d" % number], size=KEY_SIZE)
        expected = [entry[KEY_SIZE:] for entry in entries if entry.startswith(key)]
        assert table.find(key) == expected
        assert table.find(key) == expected


def test_a_key_inside_of_an_entry_is_no_key() -> None:
    key = bytes(KEY_SIZE)
    entries = [b"\0\0\0\0" + b"\1" * 12 + key + b"\2" * 4]
    assert table_of(encode_table(entries, 36)).find(key) == []


@pytest.mark.slow
@given(entries_lists, st.data())
def test_a_damaged_table_gives_right_answers_or_a_format_error(
    entries: list[bytes], data: st.DataObject
) -> None:
    good = encode_table(entries, WIDTH)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at]
    if not data.draw(st.booleans()):
        bad += bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    for number in range(0, 62, 5):
        key = digest([b"%d" % number], size=KEY_SIZE)
        try:
            found = table_of(bad).find(key)
        except FormatError:
            continue
        assert found == [entry[KEY_SIZE:] for entry in entries if entry.startswith(key)]


@pytest.mark.slow
def test_no_bit_of_a_table_leads_to_other_entries() -> None:
    entries = sorted(digest([b"%d" % number], size=KEY_SIZE) + b"%04d" % number for number in range(60))
    good = encode_table(entries, WIDTH)
    refused = 0
    in_header = [(at, bit) for at in range(_HEADER_SIZE) for bit in range(8)]
    for at, bit in [*in_header, *((at, at % 8) for at in range(_HEADER_SIZE, len(good)))]:
        bad = good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :]
        for entry in entries:
            try:
                assert table_of(bad).find(entry[:KEY_SIZE]) == [entry[KEY_SIZE:]], (at, bit)
            except FormatError:
                refused += 1
    assert refused > len(good)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        table_of(data)


def test_a_large_table_is_found_with_few_reads() -> None:
    entries = sorted(digest([b"%d" % n], size=KEY_SIZE) + n.to_bytes(4, "big") for n in range(20_000))
    data = encode_table(entries, WIDTH)
    reads: list[int] = []

    def read(offset: int, size: int) -> bytes:
        reads.append(size)
        return data[offset : offset + size]

    table = Table(read)
    assert table.find(digest([b"777"], size=KEY_SIZE)) == [(777).to_bytes(4, "big")]
    assert len(reads) == 3, "header, bucket, entries"
    assert sum(reads) < 3000


# ------------------------------------------------------------------------------------ manifest

link_types = st.binary(min_size=12, max_size=12)
slots = st.none() | st.integers(0, 2**32 - 2)


def needs_record(
    imports: list[tuple[int | None, str, bytes, bytes]],
    offsets: tuple[int, ...],
    natives: tuple[str, ...],
    children: tuple[int, ...],
    known: int,
) -> NeedsRecord:
    """One with no places and link types, with places, or with both. An import without a slot has places."""
    uses = [
        (name if slot is None else slot, name, places if slot is None and known else b"", kind if known > 1 else b"")
        for slot, name, places, kind in imports
    ]
    return NeedsRecord(tuple(uses), offsets, natives, children)


records: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "module": (
        st.builds(
            ModuleRecord, st.binary(min_size=16, max_size=16), texts, texts, texts, st.lists(lines, min_size=1).map(tuple),
            texts, texts, texts, texts, texts, u32,
        ),
        encode_module,
        decode_module,
    ),
    "function": (
        st.builds(FunctionRecord, texts, texts, texts, st.binary(min_size=8, max_size=8), u32, u32, u32, link_types | st.just(b"")),
        encode_function,
        decode_function,
    ),
    "needs": (
        st.builds(
            needs_record,
            st.lists(st.tuples(slots, texts, st.binary(min_size=16, max_size=16), link_types), max_size=3),
            st.lists(u32, max_size=3).map(tuple),
            st.lists(texts, max_size=3).map(tuple),
            st.lists(u32, max_size=3).map(tuple),
            st.integers(0, 2),
        ),
        encode_needs,
        decode_needs,
    ),
    "global": (
        st.builds(GlobalRecord, texts, u32, texts, u32, texts, st.binary(max_size=20)),
        encode_global,
        decode_global,
    ),
    "type of a link": (texts, encode_link_type, decode_link_type),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", records)
@given(data=st.data())
def test_a_record_comes_back_from_its_payload(kind: str, data: st.DataObject) -> None:
    strategy, encode, decode = records[kind]
    record = data.draw(strategy)
    payload = encode(record)
    assert decode(payload) == record
    for other, (_, _, wrong) in records.items():
        if other != kind:
            with pytest.raises(FormatError):
                wrong(payload)
    half = {len(payload) // 2} if kind != "needs" else set()  # which may be whole without what stands last
    for cut in {0, 1, len(payload) - 1} | half:
        with pytest.raises(FormatError):
            decode(payload[:cut])
    with pytest.raises(FormatError):
        decode(payload + b"\0")


@pytest.mark.parametrize("kind", records)
@given(data=st.data())
def test_any_payload_is_a_record_or_a_format_error(kind: str, data: st.DataObject) -> None:
    _, encode, decode = records[kind]
    payload = kind[:1].upper().encode() + data.draw(st.binary(max_size=60))
    try:
        record = decode(payload)
    except FormatError:
        return
    assert encode(record) == payload


@pytest.mark.slow
@given(st.lists(st.binary(max_size=700), min_size=1, max_size=6))
def test_frames_are_read_one_at_a_time_and_in_a_row(payloads: list[bytes]) -> None:
    key = payloads[0][9:25] if payloads[0][:1] == b"M" else b""
    writer = ManifestWriter()
    offsets = [writer.add(payload) for payload in payloads]
    section = writer.content()
    assert writer.size == len(section)
    assert list(iterate_frames(section)) == list(zip(offsets, payloads, strict=True))
    for offset, payload in zip(offsets, payloads, strict=True):
        assert read_frame(lambda at, size: section[at : at + size], offset, len(section), key) == payload


@pytest.mark.slow
@given(st.lists(st.binary(max_size=50), min_size=2, max_size=4), st.data())
def test_a_damaged_or_shifted_frame_is_a_format_error(payloads: list[bytes], data: st.DataObject) -> None:
    writer = ManifestWriter()
    offsets = [writer.add(payload) for payload in payloads]
    section = writer.content()
    at = data.draw(st.integers(0, len(section) - 1))
    bad = section[:at] + bytes([section[at] ^ data.draw(st.integers(1, 255))]) + section[at + 1 :]
    with pytest.raises(FormatError):
        list(iterate_frames(bad))
    wrong = data.draw(st.integers(-3, len(section) + 3).filter(lambda offset: offset not in offsets))
    with pytest.raises(FormatError):
        read_frame(lambda a, size: section[a : a + size], wrong, len(section), b"")


# ------------------------------------------------------------------------------------ container

sections = st.lists(st.binary(max_size=40), min_size=5, max_size=5)


def pack(parts: list[bytes], key: bytes | None) -> tuple[bytes, bytes]:
    """The module_id, and the bytes of the whole file."""
    image, records_, graph, bitcode, notes = parts
    module_id, written = encode_container(image, records_, graph, bitcode, notes, key)
    return module_id, b"".join(written)


@pytest.mark.slow
@given(sections, st.sampled_from([None, b"key", b"k" * 100]))
def test_a_container_tells_where_its_sections_are(parts: list[bytes], key: bytes | None) -> None:
    module_id, data = pack(parts, key)
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    assert footer.module_id == module_id
    sizes = [footer.image, footer.records, footer.graph, footer.bitcode, footer.notes]
    assert sizes == [len(part) for part in parts]
    assert data[: footer.content] == b"".join(parts[:4])
    assert module_digest([data[: footer.content]], *sizes[:4]) == module_id
    assert is_signed_with(footer, b"key") == (key == b"key")
    assert len(module_id) == DIGEST_SIZE


def test_the_notes_are_no_part_of_the_identity_but_sizes_are() -> None:
    base = [b"ab", b"c", b"", b"", b"notes"]
    module_id = pack(base, None)[0]
    assert pack([*base[:4], b"other notes"], b"key")[0] == module_id
    assert encode_container(b"a", b"bc", b"", b"", b"notes", None)[0] != module_id


@pytest.mark.slow
@given(sections, st.data())
def test_a_damaged_footer_is_a_format_error(parts: list[bytes], data: st.DataObject) -> None:
    content = pack(parts, None)[1]
    footer = content[-FOOTER_SIZE:]
    at = data.draw(st.integers(0, FOOTER_SIZE - 1))
    bad = footer[:at] + bytes([footer[at] ^ data.draw(st.integers(1, 255))]) + footer[at + 1 :]
    for wrong, size in (
        (bad, len(content)),
        (footer, len(content) + 1),
        (footer[1:], len(content)),
        (b"", 0),
    ):
        with pytest.raises(FormatError):
            decode_footer(wrong, size)


def test_a_footer_of_another_version_is_told() -> None:
    content = b"".join(encode_container(b"", b"", b"", b"", b"", None)[1])
    other = content[:8] + b"\x63" + content[9:-8]
    with pytest.raises(FormatError, match=r"format version 99, .* reads version 6: "):
        decode_footer(other + check(other), len(content))


# ------------------------------------------------------------------------------------ index


def entry_of(number: int, changed: int = 4) -> ModuleEntry:
    module_id = digest([b"module %d" % number], size=DIGEST_SIZE)
    return ModuleEntry(module_id, Stamp(number, 2, 3, changed), 5, 6, b"target!!", 1, 1, b"k" * 16, b"m" * 16)


def test_a_module_entry_comes_back_from_its_bytes() -> None:
    entry = entry_of(7)
    assert ModuleEntry.decode(entry.encode()) == entry
    assert entry.encode().startswith(entry.module_id)


def test_an_index_finds_what_was_added_before_and_after_merges(tmp_path: Path) -> None:
    index = Index(Files(), f"{tmp_path}/index", f"{tmp_path}/tmp", INDEX.suffix)
    reader = Index(Files(), f"{tmp_path}/index", f"{tmp_path}/tmp", INDEX.suffix)
    assert list(reader.find(name_key("f0"))) == []
    for number in range(40):
        add_all(index, [([(f"f{number}", number, "needs"), ("common", number, f"needs {number % 3}")], entry_of(number), UNNUMBERED)])
        index.refresh()
        if full_level(index.segments) is not None:
            merge(index)
    assert len(index.segments) < 12
    reader.refresh()
    for each in (index, reader):
        for number in range(40):
            module_id = entry_of(number).module_id
            assert list(each.find(name_key(f"f{number}"))) == [(module_id, number)]
            assert module_entries(each, module_id) == [entry_of(number)]
        assert len(list(each.find(name_key("common")))) == 40
        assert list(each.find(name_key("nothing"))) == []
        assert module_entries(each, bytes(16)) == []
        each.close()


@pytest.mark.parametrize(("modules", "functions"), [(300, 1), (1500, 1), (40, 8), (1, 900)])
def test_a_merge_of_small_levels_is_bounded_whatever_was_added(tmp_path: Path, modules: int, functions: int) -> None:
    index = Index(Files(), f"{tmp_path}/index", f"{tmp_path}/tmp", INDEX.suffix)
    for number in range(30):
        own = range(number * modules, (number + 1) * modules)
        names = [[(f"f{module}.{each}", each, "") for each in range(functions)] for module in own]
        add_all(index, [(indexed, entry_of(module), UNNUMBERED) for module, indexed in zip(own, names, strict=True)])
        if full_level(index.segments, SMALL_LEVELS) is not None:
            chosen = segments_to_merge(index, SMALL_LEVELS)
            assert sum((tmp_path / "index" / segment.name).stat().st_size for segment in chosen) < 200_000
            merge(index, levels=SMALL_LEVELS)
    assert full_level(index.segments, SMALL_LEVELS) is None
    for number in range(0, 30 * modules, 97):
        assert list(index.find(name_key(f"f{number}.0"))) == [(entry_of(number).module_id, 0)]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_a_merge_keeps_the_latest_stamp_of_a_module(tmp_path: Path, order: tuple[int, ...]) -> None:
    index = Index(Files(), f"{tmp_path}/index", f"{tmp_path}/tmp", INDEX.suffix)
    for changed in order:
        add_all(index, [([("f", 1, "needs")], entry_of(1, changed), UNNUMBERED)])
    merge(index)
    assert module_entries(index, entry_of(1).module_id) == [entry_of(1, 3)]


def test_levels_grow_with_the_size() -> None:
    levels = [segment_level(168 * 8**n) for n in range(8)]
    assert levels == sorted(levels)
    assert len(set(levels)) > 4


@pytest.mark.parametrize("damage", ["magic", "truncated", "empty", "longer", "bucket"])
def test_a_damaged_segment_is_named_and_left_out(tmp_path: Path, damage: str) -> None:
    index = Index(Files(), f"{tmp_path}/index", f"{tmp_path}/tmp", INDEX.suffix)
    add_all(index, [([("f", 1, "needs")], entry_of(1), UNNUMBERED)])
    (path,) = (tmp_path / "index").iterdir()
    data = path.read_bytes()
    bad = {
        "magic": b"X" + data[1:], "truncated": data[:-1], "empty": b"", "longer": data + b"\0",
        "bucket": data.replace(entry_of(1).module_id, bytes(16)),
    }[damage]  # fmt: skip
    path.write_bytes(bad)
    reader = Index(Files(), f"{tmp_path}/index", f"{tmp_path}/tmp", INDEX.suffix)
    assert list(reader.find(name_key("f"))) == []
    assert list(reader.damaged) == [path.name]
    remove_damaged(reader)
    assert not path.exists()


def test_damaged_requirements_are_noticed_and_rank_nothing(tmp_path: Path) -> None:
    index = Index(Files(), f"{tmp_path}/index", f"{tmp_path}/tmp", INDEX.suffix)
    add_all(index, [([("f", 1, "needs")], entry_of(1), UNNUMBERED)])
    (path,) = (tmp_path / "index").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    ranked: list[str] = []

    class Ranking(Processor):
        def is_native(self, requirement: str) -> bool:
            ranked.append(requirement)
            return False

    reader = Index(Files(), f"{tmp_path}/index", f"{tmp_path}/tmp", INDEX.suffix, lambda: Ranking({}, ""))
    list(reader.find(name_key("f")))
    assert (ranked, list(reader.damaged)) == ([], [path.name])


# ------------------------------------------------------------------------------------ graph and notes


@given(st.binary(max_size=80))
def test_any_bytes_are_a_graph_or_notes_or_a_format_error(data: bytes) -> None:
    for decode in (decode_graph, decode_notes):
        try:
            decode(data)
        except FormatError:
            continue


# ------------------------------------------------------------------------------------ golden bytes


FEATURES = "+avx2;1.0.c:18000000,7.0.b:20,xcr0:6"


def manifest_bytes() -> bytes:
    writer = ManifestWriter()
    writer.add(
        encode_module(
            ModuleRecord(
                b"k" * 16, "shared", "x86_64-linux-elf", "znver4", (FEATURES, ""), "glibc 2.14", "-x", "22.1.0", "7.0.b:20", "5e", 1
            )
        )
    )
    glob = writer.add(encode_global(GlobalRecord("g", 3, "int", 8, "integer", b"42")))
    child = writer.add(encode_needs(NeedsRecord((), (glob,), (), ())))
    needs = writer.add(encode_needs(NeedsRecord(((2, "other", b"", b""),), (glob,), ("strlen",), (child,))))
    writer.add(encode_function(FunctionRecord("f\u00fc", "f", "i64(i64)", b"target42", 0, 1, needs)))
    return writer.content()


def segment_bytes() -> bytes:
    entry = entry_of(1)
    return encode_segment([encode_function_entry("f", entry.module_id, 77, "needs")], [entry.encode()], ["needs"])


def container_bytes() -> bytes:
    return b"".join(encode_container(b"image", b"records", b"graph", b"bitcode", b"notes", b"key")[1])


GOLDEN: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "manifest": (manifest_bytes, 366, "71ab728fca32e2064f9ce69236c58762"),
    "segment": (segment_bytes, 317, "57f428f023b660a51e14091fbe535abc"),
    "container": (container_bytes, 157, "8e1c206d67b5840d63fdfbb7e1c0571b"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_of_each_format_are_what_they_always_were(name: str) -> None:
    make, size, expected = GOLDEN[name]
    data = make()
    assert (len(data), digest([data], size=16).hex()) == (size, expected)


def test_the_footer_byte_by_byte() -> None:
    data = container_bytes()[-FOOTER_SIZE:]
    assert data[:16] == b"CCMODULE" + bytes([6, 0, 0, 0]) + bytes(4)
    assert [int.from_bytes(data[16 + 8 * n : 24 + 8 * n], "little") for n in range(5)] == [5, 7, 5, 7, 5]
    assert data[56:72] == encode_container(b"image", b"records", b"graph", b"bitcode", b"", None)[0]
    assert data[72:88] == digest([b"notes"])
    assert data[-8:] == check(data[:-8])
    assert len(data) == FOOTER_SIZE == 128
