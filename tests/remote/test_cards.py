"""What a store contains: cards, shelves and packs, intact and damaged."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import constant
from shared_store import Counting, card_of, never, objects, open_cache_fixture, put_card, store_fixture, upload  # noqa: F401 - fixtures

from compcache import Cache, Identity
from compcache.errors import FormatError
from compcache.formats.host import requirement
from compcache.remote.breaker import Breaker
from compcache.remote.card import Card, decode_cards, decode_pack, encode_cards, encode_pack
from compcache.remote.helper.reads import Reads
from compcache.remote.shelves import module_key, runs_also, shelf_of
from compcache.targets.processor_words import requirement_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.slow
def test_a_large_module_has_an_object_of_its_own(open_cache: Callable[..., Cache], store: Path) -> None:
    name = Identity("f", code="large")
    table = ", ".join(f"i64 {n * 0x9E3779B97F4A7C15 % 2**63}" for n in range(6000))
    code = f"@t = internal constant [6000 x i64] [{table}]\ndefine i64 @f(i64 %i) {{\n %p = getelementptr i64, ptr @t, i64 %i\n"
    first = open_cache("a")
    first.get_or_compile(name, lambda: code + " %v = load i64, ptr %p\n ret i64 %v\n}\n")
    upload(first, name)
    assert len(objects(store, "m")) == 1
    assert open_cache("b", "read").get_or_compile(name, never)(1) == 0x9E3779B97F4A7C15 % 2**63


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["truncated", "flipped", "of another function", "empty"])
def test_a_card_that_is_not_right_is_a_miss_and_is_replaced(open_cache: Callable[..., Cache], store: Path, harm: str) -> None:
    name, other = Identity("f", code=4), Identity("g", code=4)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 1))
    first.get_or_compile(other, lambda: constant("g", 2))
    upload(first, name, other)
    (path,) = [p for p in objects(store, "f") if card_of(p).name == name.func_name]
    data = path.read_bytes()
    stranger = next(p for p in objects(store, "f") if p != path).read_bytes()
    path.write_bytes(
        {"truncated": data[:-9], "flipped": data[:60] + b"\xff" + data[61:], "of another function": stranger, "empty": b""}[harm]
    )
    second = open_cache("b")
    assert second.get_or_compile(name, lambda: constant("f", 1))() == 1
    assert second.stats().counters["compilations"] == 1
    upload(second, name)
    assert card_of(path).name == name.func_name
    assert open_cache("c", "read").get_or_compile(name, never)() == 1


def test_a_card_without_its_module_is_a_miss(open_cache: Callable[..., Cache], store: Path) -> None:
    name = Identity("f", code=5)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 1))
    upload(first, name)
    (path,) = objects(store, "f")
    put_card(path, card_of(path)._replace(module=b""))
    assert open_cache("b", "read").get_or_compile(name, lambda: constant("f", 1))() == 1


def test_no_more_is_read_than_a_card_says(tmp_path: Path) -> None:
    module_id = bytes(range(16))

    def asked(size: int) -> list[tuple[str, int]]:
        backend = Counting({module_key(module_id): b"x"})
        reads = Reads(backend, Breaker(str(tmp_path / "breaker")))  # type: ignore[arg-type]
        assert asyncio.run(reads.fetch_module(Card("f", module_id, size, 0.5, b""))) is None
        return backend.asked

    assert asked(5000) == [(module_key(module_id), 5000)]
    assert asked(1 << 40) == []


def test_shelves_are_levels_and_then_single_cpus() -> None:
    def shelf(platform: str, *features: str, made_on: str = "") -> str:
        names = frozenset(features)
        return shelf_of(requirement(1, platform, "", "cpu", "", made_on, requirement_of(names, frozenset(), platform, "here")))

    assert shelf("x86_64-linux-elf", "sse2") == "x86-64"
    assert shelf("x86_64-linux-elf", "sse2", "popcnt") == "x86-64-v2"
    assert shelf("x86_64-linux-elf", "avx2", "fma") == "x86-64-v3"
    assert shelf("x86_64-linux-elf", "avx512f", "avx512vnni").startswith("cpu-")
    assert shelf("x86_64-linux-elf", "avx512f", "avx512vnni", made_on="here") == "cpu-here"
    assert shelf("x86_64-linux-elf", "not known", made_on="here") == "cpu-here"
    assert shelf("aarch64-linux-elf", "neon") == "generic"


def test_a_shelf_includes_those_below_it() -> None:
    platform = "x86_64-linux-elf"
    assert runs_also("x86-64-v3", "x86-64-v2", platform)
    assert runs_also("cpu-a", "cpu-a", platform)
    assert not runs_also("x86-64-v2", "x86-64-v3", platform)
    assert not runs_also("x86-64-v3", "cpu-a", platform)
    assert not runs_also("cpu-a", "x86-64-v2", platform)


def test_a_card_is_what_it_was() -> None:
    card = Card("a-name", bytes(range(16)), 3, 0.25, b"abc")
    other = card._replace(imports=(Card("imported", bytes(16), 2, 0.5, b"ab", b"signed"),))
    assert decode_cards(encode_cards({"v2": card, "v3": other})) == {"v2": card, "v3": other}


def test_a_damaged_card_is_refused() -> None:
    data = encode_cards({"v2": Card("a-name", bytes(range(16)), 3, 0.25, b"abc")})
    for at in range(len(data)):
        with pytest.raises(FormatError):
            decode_cards(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


# ------------------------------------------------------------------------------------------------- packs


def without_cards(store: Path, first: Identity) -> None:
    """Leave nothing in the store but packs, and the card by which they are found."""
    for path in objects(store, "m") + [path for path in objects(store, "f") if card_of(path).name != first.func_name]:
        path.unlink()


@pytest.mark.slow
def test_what_was_pushed_together_is_fetched_with_one_pack(open_cache: Callable[..., Cache], store: Path) -> None:
    names = [Identity("f", number=number) for number in range(6)]
    first = open_cache("a")
    for number, name in enumerate(names):
        first.get_or_compile(name, partial(constant, "f", number))
    upload(first, *names)
    packs = [decode_pack(path.read_bytes()) for path in objects(store, "p")]  # of what was pushed, and of what was asked for
    assert set(packs[0]) == set(packs[-1]) == {name.func_name for name in names}
    without_cards(store, min(names, key=lambda name: name.func_name))
    second = open_cache("b", "read")
    assert set(second.prefetch(reversed(names))) == {name.func_name for name in names}
    assert [second.get_target(name)() for name in names] == list(range(6))
    assert first.remote.status()[0]["found_in_packs"] == 6  # type: ignore[union-attr]


@pytest.mark.slow
def test_packs_are_learned_from_what_a_start_up_asks_for(open_cache: Callable[..., Cache], store: Path) -> None:
    names = [Identity("f", number=number) for number in range(6)]
    first = open_cache("a")
    for number, name in enumerate(names):
        assert first.get_or_compile(name, partial(constant, "f", number))() == number
    assert first.flush_uploads(60)
    (pack,) = objects(store, "p")
    without_cards(store, names[0])
    second = open_cache("b", "read")
    assert second.get_or_compile(names[0], partial(constant, "f", 0))() == 0  # it does not wait for all the others
    assert [second.get_or_compile(name, never)() for name in names[1:]] == list(range(1, 6))
    assert pack.exists()


@pytest.mark.slow
def test_a_pack_is_found_whose_first_function_was_not_worth_a_card(open_cache: Callable[..., Cache], store: Path) -> None:
    names = [Identity("f", number=number) for number in range(6)]
    first = open_cache("a")
    for number, name in enumerate(names):
        first.get_or_compile(name, partial(constant, "f", number))
    upload(first)
    packs = objects(store, "p")
    for path in objects(store, "f"):
        path.unlink()
    for path in packs:
        path.unlink()
    first.remote.pack([name.func_name for name in names])  # type: ignore[union-attr]
    assert first.flush_uploads(60)
    assert len(objects(store, "p")) == 1
    assert [card_of(path).name for path in objects(store, "f")] == [min(name.func_name for name in names)]


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["truncated", "flipped", "with other sizes", "with other modules"])
def test_a_pack_that_is_not_right_is_passed_over(open_cache: Callable[..., Cache], store: Path, harm: str) -> None:
    names = [Identity("f", number=number) for number in range(4)]
    first = open_cache("a")
    for number, name in enumerate(names):
        first.get_or_compile(name, partial(constant, name.label, number))
    upload(first, *names)
    for path in objects(store, "p"):
        data = path.read_bytes()
        items = list(decode_pack(data).values())
        packs = {
            "truncated": data[:-9],
            "flipped": data[:60] + b"\xff" + data[61:],
            "with other sizes": encode_pack([item._replace(card=item.card._replace(size=9)) for item in items]),
            "with other modules": encode_pack([item._replace(module=items[n - 1].module) for n, item in enumerate(items)]),
        }
        path.write_bytes(packs[harm])
    second = open_cache("b", "read")
    assert len(second.prefetch(names)) == 4
    assert second.stats().counters.get("remote_rejected", 0) == 0  # the helper has found out, before anything was sent
    assert [second.get_target(name)() for name in names] == list(range(4))
