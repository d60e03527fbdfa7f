"""What is taken from a store only with a signature, or not at all."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import constant, module_file
from shared_store import Counting, card_of, never, objects, open_cache_fixture, put_card, store_fixture, upload  # noqa: F401 - fixtures

from compcache import Cache, Function, Identity, ModuleSource, NotCachedError
from compcache.globals import Pickled
from compcache.remote.answer import FOUND
from compcache.remote.breaker import Breaker
from compcache.remote.card import Card, encode_cards
from compcache.remote.helper.reads import Reads
from compcache.remote.shelves import card_key
from compcache.signing.keys import generate_key
from compcache.signing.signatures import signers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_card_of_another_function_leads_nowhere(tmp_path: Path, cache: Cache) -> None:
    module_id = cache.add_module(ModuleSource(constant("f", 1)))
    data = module_file(cache.path, module_id).read_bytes()
    card = Card("f", bytes.fromhex(module_id), len(data), 0.5, data)

    def finds(name: str, card: Card) -> bool:
        store = Counting({card_key("platform", name): encode_cards({"v2": card})})
        reads = Reads(store, Breaker(str(tmp_path / "breaker")))  # type: ignore[arg-type]
        return bool(asyncio.run(reads.find(name, "platform", ["v2"]))[0] == FOUND)

    assert finds("f", card)
    assert not finds("g", card)
    assert not finds("f", card._replace(module=data[:-1], size=len(data) - 1))
    assert not finds("f", card._replace(module_id=bytes(16)))


@pytest.mark.slow
def test_a_module_of_another_key_is_refused(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code=6)
    first = open_cache("a", signing_key=b"one")
    first.get_or_compile(name, lambda: constant("f", 1))
    upload(first, name)
    same = open_cache("b", "read", signing_key=b"one")
    assert same.get_or_compile(name, never)() == 1
    other = open_cache("c", "read", signing_key=b"two")
    with pytest.raises(NotCachedError):
        other.get_target(name.func_name)
    assert other.stats().counters["remote_rejected"] == 1


@pytest.mark.slow
def test_a_module_without_the_function_that_was_asked_for_is_refused(open_cache: Callable[..., Cache], store: Path) -> None:
    """The card of one function leads to an intact module of another one: nothing of it comes into the directory."""
    name, other = Identity("f", code=14), Identity("g", code=14)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 1))
    first.get_or_compile(other, lambda: constant("g", 2))
    upload(first, name, other)
    cards = {card_of(path).name: path for path in objects(store, "f")}
    path, stranger = cards[name.func_name], card_of(cards[other.func_name])
    put_card(path, stranger._replace(name=name.func_name))
    for pack in objects(store, "p"):
        pack.unlink()
    reader = open_cache("b", "read")
    with pytest.raises(NotCachedError):
        reader.get_target(name.func_name)
    assert list(reader) == []
    assert reader.stats().counters["remote_rejected"] == 1


def pickling(name: Identity) -> ModuleSource:
    """A module that unpickles an object when it is loaded."""
    text = "@o = external global ptr\ndefine ptr @f() {\n  %x = load ptr, ptr @o\n  ret ptr %x\n}\n"
    return ModuleSource(text, {name.func_name: Function("ptr()", symbol="f")}, {"o": Pickled.of({"a": 1})})


def test_pickles_come_only_with_a_signature(open_cache: Callable[..., Cache]) -> None:
    """Who can write to an unsigned store must not make its readers unpickle, even those who unpickle what is their own."""
    name = Identity("f", code=15)
    first = open_cache("a", allow_pickle=True)
    first.add_module(pickling(name))
    upload(first, name)
    reader = open_cache("b", "read", allow_pickle=True)
    with pytest.raises(NotCachedError):
        reader.get_target(name.func_name)
    assert list(reader) == []
    assert reader.stats().counters["remote_rejected"] == 1


@pytest.mark.slow
def test_pickles_with_the_signature_of_the_key_come(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code=16)
    first = open_cache("a", allow_pickle=True, signing_key=b"one")
    first.add_module(pickling(name))
    upload(first, name)
    assert open_cache("b", "read", allow_pickle=True, signing_key=b"one").get_target(name.func_name)()


@pytest.mark.slow
def test_what_another_cache_compiled_gets_no_signature_here(open_cache: Callable[..., Cache], tmp_path: Path) -> None:
    """A key signs what its owner compiles, not what came from elsewhere: others would take it for the owner's."""
    pytest.importorskip("nacl")
    name, other = Identity("f", code=17), generate_key("other")
    first = open_cache("a", publish_key=str(other))
    first.get_or_compile(name, lambda: constant("f", 1))
    upload(first, name)
    second = open_cache("b", publish_key=str(generate_key("mine")), trusted_keys=[str(other.public())])
    assert second.get_or_compile(name, never)() == 1
    (file,) = (tmp_path / "b").rglob("*.ed25519")
    assert signers(file.read_bytes()) == ("other",)


@pytest.mark.slow
@pytest.mark.parametrize("value", [1, 2])
def test_a_publisher_signs_what_is_there_unsigned(open_cache: Callable[..., Cache], value: int) -> None:
    """By compiling it: whether that gives the same module or another one, those who trust the key have it then, as has the publisher."""
    pytest.importorskip("nacl")
    mine, name = generate_key("mine"), Identity("f", code=value)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 1))
    upload(first, name)
    publisher = open_cache("b", publish_key=str(mine))
    assert publisher.get_or_compile(name, partial(constant, "f", value))() == value
    assert publisher.stats().remote.rejected == 1
    upload(publisher, name)
    assert open_cache("c", "read", trusted_keys=[str(mine.public())]).get_or_compile(name, never)() == value
    again = open_cache("d", publish_key=str(mine))
    assert again.get_or_compile(name, never)() == value
    upload(again, name)
    assert open_cache("e", "read", trusted_keys=[str(mine.public())]).get_or_compile(name, never)() == value


@pytest.mark.slow
def test_a_reader_with_trusted_keys_takes_what_they_signed(open_cache: Callable[..., Cache]) -> None:
    pytest.importorskip("nacl")
    mine, other = generate_key("mine"), generate_key("other")
    name, unsigned = Identity("f", code=9), Identity("f", code=10)
    first = open_cache("a", publish_key=str(mine))
    first.get_or_compile(name, lambda: constant("f", 1))
    upload(first, name)
    plain = open_cache("b")
    plain.get_or_compile(unsigned, lambda: constant("f", 2))
    upload(plain, unsigned)
    reader = open_cache("c", "read", trusted_keys=[str(mine.public())])
    assert reader.get_or_compile(name, never)() == 1
    stranger = open_cache("d", "read", trusted_keys=[str(other.public())])
    for cache, wanted in ((reader, unsigned), (stranger, name)):
        with pytest.raises(NotCachedError):
            cache.get_target(wanted)
        assert cache.stats().counters["remote_rejected"] == 1


@pytest.mark.slow
def test_what_a_retired_key_has_signed_is_replaced(open_cache: Callable[..., Cache], store: Path) -> None:
    """Cards and packs of it alike: who compiles with the new key puts its own in their place."""
    pytest.importorskip("nacl")
    old, new = generate_key("old"), generate_key("new")
    names = [Identity("f", number=number) for number in range(5)]

    def compile_all(cache: Cache) -> None:
        for number, name in enumerate(names):
            assert cache.get_or_compile(name, partial(constant, "f", number))() == number
        upload(cache, *names)

    compile_all(open_cache("a", publish_key=str(old)))
    options = {"trusted_keys": [str(new.public())]}
    second = open_cache("b", publish_key=str(new), **options)
    compile_all(second)
    assert second.stats().remote.rejected >= 5
    reader = open_cache("c", "read", **options)
    assert [reader.get_or_compile(name, never)() for name in names] == list(range(5))
    assert objects(store, "p")


@pytest.mark.slow
def test_a_module_that_a_second_key_signs_has_both_signatures(open_cache: Callable[..., Cache]) -> None:
    """While a key is replaced, readers of the former key and readers of the new one are served, also by plain names."""
    pytest.importorskip("nacl")
    former, new = generate_key("former"), generate_key("new")
    name = Identity("f", code=18)
    for publisher, key in (("a", former), ("b", new), ("c", None)):
        cache = open_cache(publisher, publish_key=str(key) if key else None)
        if key:
            cache.get_or_compile(name, lambda: constant("f", 1))
        cache.add_module(ModuleSource(constant("plain", 2)))
        upload(cache, "plain", *([name] if key else []))
    for reader, key in (("d", former), ("e", new)):
        cache = open_cache(reader, "read", trusted_keys=[str(key.public())])
        assert cache.prefetch([name, "plain"]) == (name.func_name, "plain")
        assert (cache.get_target(name)(), cache.get_target("plain")()) == (1, 2)
