"""Decoders of what comes from elsewhere: cards, uploads, bundles, signatures, code, and what lists and front ends keep.

As in `test_fuzz_decoders.py`: right values or the declared error, in bounded time and memory, whatever the bytes are. Checksums are
repaired, so that what is behind them is reached.
"""

from __future__ import annotations

import marshal
import os
import zipfile
from functools import partial
from io import BytesIO
from struct import pack
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import msgpack
import pytest
from helpers import adder
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fuzz_decoders import bounded, mutated

from compcache import Cache, FormatError, ModuleSource
from compcache.bundles.layout import open_bundle
from compcache.digest import check
from compcache.directory.places import UNCACHED
from compcache.errors import GlobalValidationError, LibraryError
from compcache.formats.host_file import HostFile, decode_host, encode_host
from compcache.globals import decode_definition
from compcache.images.archives import open_archive
from compcache.images.embedded_bitcode import embedded_bitcode
from compcache.inspect.uncached import read_refusals, record_refusal
from compcache.numba.lazy.description import Description
from compcache.numba.lazy.entries import RECORD
from compcache.numba.lazy.marshalled import decode_fields, encode_fields
from compcache.remote.breaker import Breaker
from compcache.remote.card import Card, decode_cards, encode_cards
from compcache.remote.outbox import Outbox
from compcache.signing.keys import generate_key, parse_public_key
from compcache.signing.signatures import add_signature, is_signed, merge_signatures, signers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FEW = settings(max_examples=int(os.environ.get("COMPCACHE_FUZZ_EXAMPLES", "6")))
KEY = generate_key("team-1")
CARD = encode_cards({"s": Card("f", b"m" * 16, 6, 0.5, b"module", b"signatures", (Card("g", b"n" * 16, 1, 0.5, b"n"),))})
SIGNED = add_signature(b"", KEY, (), b"m" * 16, "needs")
#: Values of all kinds, as msgpack has them.
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=4), st.binary(max_size=16)),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=12,
)


def at(decode: Callable[[str], Any], argument: str) -> Callable[[bytes], Any]:
    """The decoder of a text, or of a file, as `bounded` calls it."""
    return lambda _: decode(argument)


def packed(value: object) -> bytes:
    data: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return data


def sealed(magic: bytes, content: bytes) -> bytes:
    return magic + content + check(magic + content)


def changed_fields(draw: st.DrawFn, fields: list[Any]) -> list[Any]:
    """A list with a field of another type, or more or fewer of them."""
    changed = list(fields)
    changed[draw(st.integers(0, len(fields) - 1))] = draw(VALUES)
    return changed[: draw(st.integers(len(fields) - 1, len(fields)))] + draw(st.lists(VALUES, max_size=1))


# ---------------------------------------------------------------------------------------- remote stores


@FEW
@given(st.data())
def test_cards(data: st.DataObject) -> None:
    changed = st.composite(changed_fields)
    imported = data.draw(changed(["g", b"n" * 16, 1, 0.5, b"n", b""]))
    row = data.draw(changed(["shelf", b"m" * 16, 6, 0.5, b"module", b"signatures", [imported]]))
    cards = packed(["f", [row]])
    content = data.draw(st.sampled_from([cards, data.draw(st.composite(mutated)(CARD[8:-8])), data.draw(st.binary(max_size=60))]))
    for whole in (sealed(b"CCCARD2\0", content), data.draw(st.composite(mutated)(CARD))):
        for card in (bounded(decode_cards, whole, FormatError) or {}).values():
            for each in (card, *card.imports):
                assert (type(each.name), type(each.module_id), type(each.size), type(each.module)) == (str, bytes, int, bytes)


@FEW
@given(st.data())
def test_waiting_uploads(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    place = tmp_path_factory.mktemp("outbox")
    fields = data.draw(st.composite(changed_fields)(["k", b"module", [["c", b"card"]], 0.5, True]))
    content = data.draw(st.sampled_from([packed(fields), packed(["k", b"", fields, 1.0, False]), data.draw(st.binary(max_size=60))]))
    (place / "1.upload").write_bytes(sealed(b"CCUPLD1\0", content))
    found = bounded(lambda _: Outbox(str(place)).read("1.upload"), content, FormatError)
    if found is not None:
        assert all(isinstance(key, str) and isinstance(card, bytes) for key, card in [*found.cards, (found.key, found.module)])


@FEW
@given(st.one_of(st.text("0123456789 .einfa-", max_size=30), st.text(max_size=20)))
def test_breakers(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("breaker") / "breaker"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    breaker = Breaker(str(path))
    failures, seconds = breaker.state()
    assert isinstance(failures, int)
    assert 0 <= seconds <= 601
    breaker.record_failure()
    breaker.allows_lookups()
    breaker.record_success()


# ----------------------------------------------------------------------------------- signatures, bundles


@FEW
@given(st.data())
def test_signatures_beside_modules(data: st.DataObject) -> None:
    content = data.draw(st.one_of(st.composite(mutated)(SIGNED), st.binary(max_size=200)))
    key = KEY.public()
    believed = bounded(lambda d: is_signed(d, (key,), b"m" * 16, "needs"), content)
    assert not believed or SIGNED.split()[1] in content.replace(b"\r", b"\n").split()
    bounded(signers, content)
    merged = merge_signatures(SIGNED, content, (key,), b"m" * 16, "needs")
    assert is_signed(merged, (key,), b"m" * 16, "needs")
    assert is_signed(merge_signatures(content, SIGNED, (key,), b"m" * 16, "needs"), (key,), b"m" * 16, "needs")


@FEW
@given(st.one_of(st.text(max_size=60), st.binary(max_size=40).map(lambda data: f"n:{data.hex()}")))
def test_public_keys(text: str) -> None:
    bounded(lambda _: parse_public_key(text), text.encode("utf-8", "surrogatepass"), ValueError)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bundle")
    with Cache(place / "cache", publish_key=str(KEY)) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.export(["f"], place / "f.ccb")
    return place / "f.ccb"


@FEW
@given(data=st.data())
def test_bundles(bundle: Path, data: st.DataObject) -> None:
    """Bytes of the archive's own structures, which are at its end, and of the headers of its members."""
    whole = bundle.read_bytes()
    tail = whole.index(b"PK\1\2")
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.sampled_from([0, tail, len(whole) - 22, *[at for at in range(tail) if whole[at : at + 4] == b"PK\3\4"]]))
        at = start + data.draw(st.integers(0, 45 if start != tail else len(whole) - tail))
        value = data.draw(st.one_of(st.binary(min_size=1, max_size=4), st.just(b"\xff" * 4)))
        changed[at : at + len(value)] = value
    path = bundle.with_name("changed.ccb")
    path.write_bytes(bytes(changed[: data.draw(st.sampled_from([len(changed), len(changed) - 1, tail]))]))
    bounded(lambda _: read_whole(path), whole, FormatError)


def read_whole(path: Path) -> None:
    """Read every member of a bundle."""
    with open_bundle(str(path)) as bundle:
        for name in bundle.names:
            bundle.read_module(name) if name.startswith("modules/") else bundle.read(name)


@FEW
@given(data=st.data())
def test_bundles_with_other_modules_in_them(bundle: Path, data: st.DataObject) -> None:
    """All or nothing: either everything was verified, or nothing is stored."""
    with zipfile.ZipFile(bundle) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = data.draw(st.sampled_from(sorted(members)))
    members[name] = data.draw(st.composite(mutated)(members[name]))
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    path = bundle.with_name("other.ccb")
    path.write_bytes(out.getvalue())
    target = bundle.with_name(f"target-{os.urandom(6).hex()}")
    with Cache(target) as cache:
        try:
            cache.import_bundle(path)
        except FormatError:
            assert not target.exists()
        else:
            assert cache.get_target("f")(1) == 2


# ------------------------------------------------------------------------------------------------- code


@pytest.fixture(scope="module")
def bitcode() -> bytes:
    code: bytes = llvm.parse_assembly(adder("f", 1) + adder("g", 2)).as_bitcode()
    return code


def member(name: bytes, content: bytes, size: bytes | None = None) -> bytes:
    return name.ljust(16) + b" " * 32 + (size or b"%d" % len(content)).ljust(10) + b"`\n" + content + b"\n" * (len(content) % 2)


@FEW
@given(data=st.data())
def test_archives_and_objects(bitcode: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    names = [b"a.o/", b"//", b"/7", b"#1/4", b"/", b"/SYM64/", "/²".encode(), "#1/²".encode(), b"/99999999999999", b"\xff\xfe"]
    sizes = [None, b"-1", b"1_0", b"9999999999", b"", b" 5"]
    table = pack(">I", data.draw(st.sampled_from([0, 1, 2**32 - 1]))) + bytes(8) + b"symbol\0"
    parts = [
        member(
            data.draw(st.sampled_from(names)), data.draw(st.sampled_from([bitcode, b"", b"x", table])), data.draw(st.sampled_from(sizes))
        )
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    whole = data.draw(st.sampled_from([b"!<arch>\n", b"!<thin>\n"])) + b"".join(parts)
    for content in (whole, data.draw(st.composite(mutated)(whole))):
        bounded(embedded_bitcode, content, FormatError)
        path = tmp_path_factory.mktemp("archive") / "a.a"
        path.write_bytes(content)
        bounded(at(open_archive, str(path)), content, LibraryError)


# ------------------------------------------------------------------------------- what is kept beside


@FEW
@given(st.data())
def test_notes_on_linkers(data: st.DataObject) -> None:
    valid = encode_host(HostFile("znver4", "22.1.0", "+avx2,+fma", "0a1b"), "name", None)
    changed = data.draw(st.one_of(st.composite(mutated)(valid), st.binary(max_size=60)))
    decoded = bounded(lambda d: decode_host(d, "name"), changed)
    assert (decoded == HostFile("znver4", "22.1.0", "+avx2,+fma", "0a1b")) if changed == valid else decoded is None


@FEW
@given(st.data())
def test_notes_on_uncached_functions(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with Cache(tmp_path_factory.mktemp("cache") / "c") as cache:
        store = cache._store
        record_refusal(store, "f", "why")
        (name,) = store.names(UNCACHED)
        content = packed(data.draw(st.composite(changed_fields)(["f", "why", 1.0])))
        with open(store.path(UNCACHED, name), "wb") as file:
            file.write(check(content) + content)
        for refusal in bounded(lambda _: read_refusals(store), content):
            assert (refusal.name, type(refusal.reason), type(refusal.created)) == ("f", str, float)


#: Sizes that are not those of what follows: 2**31 - 1 would be 16 GB of a tuple.
LIES = st.sampled_from([0, 1, 2, 40, 2**16, 2**24, 2**27, 2**31 - 1, 2**31, 2**32 - 1])
#: Types of marshal that no front end stores: code, references, sets, long texts, text as numbers, ellipsis, ends.
FOREIGN = st.sampled_from([bytes([letter | flag]) for letter in b"ctRr<>aAzZ)f.SyxIO0?" for flag in (0, 0x80)])


def marshalled(draw: st.DrawFn, value: Any) -> bytes:
    """A value as marshal writes it, but that any size may be another one, and any type one that is never written."""
    if draw(st.integers(0, 30)) == 0:
        return draw(FOREIGN) + pack("<I", draw(LIES)) + draw(st.binary(max_size=8))
    if isinstance(value, str | bytes):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        return (b"u" if isinstance(value, str) else b"s") + marshalled_size(draw, len(data)) + data
    if isinstance(value, tuple | list):
        parts = b"".join(marshalled(draw, part) for part in value)
        return (b"(" if isinstance(value, tuple) else b"[") + marshalled_size(draw, len(value)) + parts
    if isinstance(value, dict):
        return b"{" + b"".join(marshalled(draw, part) for pair in value.items() for part in pair) + b"0" * draw(st.integers(0, 2))
    return marshal.dumps(value, 2)


def marshalled_size(draw: st.DrawFn, size: int) -> bytes:
    return pack("<I", draw(LIES) if draw(st.integers(0, 20)) == 0 else size)


CHECKED = ("cpu", "", [("n", "c")] * 3, b"asked...", ("x",))
RECORDED = ("entry", "lines", "implementations", 7, ((1, b"pickled"), (2, b"")))


def test_what_front_ends_store_is_of_the_shapes_that_they_read() -> None:
    assert decode_fields(encode_fields(CHECKED), "(uu[(uu)]b[u])") == CHECKED
    assert decode_fields(encode_fields(RECORDED), RECORD) == RECORDED
    declared = ([[{"int64": 0, "int8": 1}], []], [RECORDED], ("layout", -1, 2**40, (), [[1, 2]], [("entry", "")]))
    assert decode_fields(encode_fields(declared), f"([[{{ui}}]][{RECORD}](uii[?][[i]][(uu)]))") == declared


@settings(FEW, deadline=None)
@given(st.data())
def test_entries_of_numba(data: st.DataObject) -> None:
    """Descriptions and records hold marshalled fields behind the digest of their module; marshal itself believes every size."""
    value: Any = data.draw(st.one_of(VALUES, st.just(CHECKED), st.composite(changed_fields)(list(CHECKED)).map(tuple)))
    whole = data.draw(st.composite(marshalled)(value))
    whole = data.draw(st.one_of(st.just(whole), st.composite(mutated)(whole)))
    head = pack("<III", len(whole), 3, 2)
    for payload in (head + whole + b"abcde", whole):
        description = bounded(Description.decode, payload, ValueError)
        if description is not None:
            assert all(isinstance(text, str) for row in (*description.dependencies, description.answered) for text in row)
            assert len(description.asked) % 4 == 0
    bounded(partial(decode_definition, "numba-symbol"), data.draw(st.binary(max_size=20)), GlobalValidationError)
    for shape in ("?", RECORD, "[?]", "{u?}", "([[{ui}]][?]?)"):
        bounded(partial(decode_fields, shape=shape), whole, ValueError)


@pytest.mark.parametrize(
    "lie",
    [*[letter + b"\xff\xff\xff\x7f" for letter in (b"(", b"[", b"<", b"s", b"l")], b"(\1\0\0\0" * 5000, b"{" * 5000],
    ids=["tuple", "list", "set", "bytes", "integer", "nested tuples", "nested dictionaries"],
)  # fmt: skip
def test_sizes_in_entries_of_numba_allocate_nothing(lie: bytes) -> None:
    """Five bytes that announce a tuple of 2**31 - 1 elements took 16 GB and 200 seconds."""
    payload = pack("<III", len(lie), 0, 0) + lie
    assert bounded(Description.decode, payload, ValueError) is None
    for shape in ("?", RECORD, "[?]"):
        assert bounded(partial(decode_fields, shape=shape), lie, ValueError) is None
