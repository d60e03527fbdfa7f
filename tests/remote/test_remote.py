"""A remote store on a directory: what one cache compiled another one loads, and what goes wrong costs little."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import sys
import time
import warnings
from errno import EMFILE
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from helpers import constant, flip_byte, module_file, run_fresh

from compcache import Cache, CacheWarning, Function, Identity, ModuleSource, NotCachedError, RemoteStats, frontend
from compcache.batch import Job, compile_many
from compcache.errors import FormatError
from compcache.formats.host import requirement
from compcache.globals import Pickled
from compcache.remote.address import read_settings
from compcache.remote.answer import FOUND
from compcache.remote.breaker import Breaker, Patience
from compcache.remote.card import Card, decode_cards, decode_pack, encode_cards, encode_pack
from compcache.remote.connection import SOCKET, Question, encode
from compcache.remote.helper.reads import Reads, describe_error
from compcache.remote.outbox import Outbox, Upload
from compcache.remote.shelves import card_key, includes, module_key, shelf_of
from compcache.signing.keys import generate_key
from compcache.signing.signatures import signers
from compcache.targets.processor_words import requirement_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLER = "declare i64 @callee(i64)\ndefine i64 @caller(i64 %x) {\n %y = call i64 @callee(i64 %x)\n ret i64 %y\n}\n"
CALLEE = "define i64 @callee(i64 %x) {\n %y = add i64 %x, 100\n ret i64 %y\n}\n"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a remote store; helper processes of this test end with it."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 20.0)  # the machine may be busy
    yield tmp_path / "store"
    shutil.rmtree(runtime)


@pytest.fixture
def open_cache(store: Path, tmp_path: Path) -> Iterator[Callable[..., Cache]]:
    """Opens caches by name that share the store."""
    caches: list[Cache] = []

    def open_cache(name: str, mode: str = "write", **more: object) -> Cache:
        (tmp_path / name).mkdir(mode=0o700, exist_ok=True)  # which looking up alone does not make: no statistics then
        caches.append(Cache(tmp_path / name, remote=store.as_uri(), remote_mode=mode, **more))  # type: ignore[arg-type]
        return caches[-1]

    yield open_cache
    for cache in caches:
        cache.close()


def objects(store: Path, kind: str) -> list[Path]:
    return sorted(path for path in (store / "ccr3" / kind).rglob("*") if path.is_file())


def card_of(path: Path) -> Card:
    (card,) = decode_cards(path.read_bytes()).values()
    return card


def put_card(path: Path, card: Card) -> None:
    (shelf,) = decode_cards(path.read_bytes())
    path.write_bytes(encode_cards({shelf: card}))


def upload(cache: Cache, *names: Identity | str) -> None:
    """Upload modules whether that is worth it or not: on a busy machine fetching takes longer than compiling."""
    cache.push(names)
    assert cache.flush_uploads(60)


def never() -> ModuleSource:
    raise AssertionError("it is compiled, though the store has it")


def test_what_one_cache_compiled_another_one_loads(open_cache: Callable[..., Cache], store: Path) -> None:
    name = Identity("f", code=1)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 7))
    upload(first, name)
    assert len(objects(store, "f")) == 1
    second = open_cache("b", "read")
    assert second.get_or_compile(name, never)() == 7
    counters = second.stats().counters
    assert (counters["remote_hits"], counters.get("compilations", 0)) == (1, 0)
    assert second.check()


@pytest.mark.usefixtures("store")
def test_a_store_is_created_again_if_its_parent_was_replaced(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for number in range(2):  # one helper process serves both caches
        place.mkdir()
        name = Identity("f", number=number)
        with Cache(tmp_path / f"cache {number}", remote=(place / "store").as_uri(), remote_mode="write") as cache:
            cache.get_or_compile(name, lambda: constant("f", 1))
            upload(cache, name)
        assert len(objects(place / "store", "f")) == 1
        shutil.rmtree(place)


def test_uploads_can_be_awaited_without_a_limit(open_cache: Callable[..., Cache]) -> None:
    with open_cache("a") as cache:
        name = Identity("f", number=1)
        cache.get_or_compile(name, lambda: constant("f", 1))
        cache.push([name])
        assert cache.flush_uploads(float("inf"))


def test_a_directory_that_is_not_private_is_a_warning(open_cache: Callable[..., Cache], tmp_path: Path) -> None:
    (tmp_path / "run" / "compcache").mkdir(mode=0o777)
    (tmp_path / "run" / "compcache").chmod(0o777)
    with open_cache("a") as cache, pytest.warns(CacheWarning, match="not private"):
        assert cache.has_many(["f"]) == (False,)
    with open_cache("a") as cache, pytest.warns(CacheWarning, match="not private"):
        assert not cache.flush_uploads(1)


def test_a_process_without_free_descriptors_compiles(open_cache: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[object, ...]] = []

    def open_socket(*arguments: object) -> socket.socket:
        if opened:
            raise OSError(EMFILE, os.strerror(EMFILE))
        opened.append(arguments)
        return socket.socket(*arguments)  # type: ignore[arg-type]

    with open_cache("a") as cache:
        monkeypatch.setattr("compcache.remote.connection.socket", SimpleNamespace(**{**vars(socket), "socket": open_socket}))
        with pytest.warns(CacheWarning, match="no socket can be opened: Too many open files"):
            assert cache.get_or_compile(Identity("f", number=1), lambda: constant("f", 1))() == 1


def test_the_path_of_a_store_need_not_be_utf8(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/\udcff"
    name = Identity("f", code=1)
    with Cache(tmp_path / "a", remote=store, remote_mode="write") as cache:
        assert cache.get_or_compile(name, lambda: constant("f", 7))() == 7
        upload(cache, name)
    with Cache(tmp_path / "b", remote=store) as cache:
        assert cache.get_or_compile(name, never)() == 7
    with Cache(tmp_path / "b") as cache:
        assert [(url, counts.hits) for url, counts in cache.stats().remote_stores.items()] == [(store.replace("\udcff", "\\udcff"), 1)]


def test_a_target_that_is_asked_for_without_a_source_is_fetched_with_its_imports(open_cache: Callable[..., Cache]) -> None:
    callee, caller = Identity("callee", code=1), Identity("caller", code=1)
    first = open_cache("a")
    first.get_or_compile(callee, lambda: CALLEE)
    first.get_or_compile(caller, lambda: ModuleSource(CALLER, imports={"callee": callee.func_name}))
    upload(first, caller)
    assert open_cache("b", "read").get_target(caller.func_name)(1) == 101


@pytest.mark.slow
def test_a_fresh_process_compiles_nothing_that_the_store_has(open_cache: Callable[..., Cache], store: Path, tmp_path: Path) -> None:
    first = open_cache("a")
    functions = first.compile(CALLEE)
    assert functions.callee(1) == 101
    upload(first, functions.callee.func_name)
    script = f"""
    from compcache import Cache
    from compcache.miss import compile_once
    compile_once.HEDGE_SECONDS = 20.0  # the machine may be busy
    with Cache(directory, remote={store.as_uri()!r}) as cache:
        value = cache.compile({CALLEE!r}).callee(2)
        counters = cache.stats().counters
        result = [value, counters.get("compilations", 0), counters.get("remote_hits", 0), "llvmlite" in sys.modules]
    """
    assert run_fresh(tmp_path / "b", script) == [102, 0, 1, False]


@pytest.mark.slow
def test_an_edited_source_finds_in_the_store_what_is_unchanged(open_cache: Callable[..., Cache]) -> None:
    first = open_cache("a")
    upload(first, first.compile(CALLEE).callee.func_name)
    second = open_cache("b", "read")
    functions = second.compile(constant("edited", 7) + CALLEE)
    assert (functions.callee(1), functions.edited()) == (101, 7)
    assert sorted(len(module.functions) for module in second.modules()) == [1, 1]


@pytest.mark.slow
def test_the_environment_names_a_store(
    open_cache: Callable[..., Cache], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = Identity("f", code=2)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 8))
    upload(first, name)
    monkeypatch.setenv("COMPCACHE_REMOTE", store.as_uri())
    with Cache(tmp_path / "b") as cache:
        assert cache.get_or_compile(name, never)() == 8
    monkeypatch.setenv("COMPCACHE_REMOTE_MODE", "off")
    with Cache(tmp_path / "c") as cache, pytest.raises(NotCachedError):
        cache.get_target(name.func_name)


@pytest.mark.parametrize(
    ("url", "mode"), [("ftp://host/x", "read"), ("s3:///x", "read"), ("file://host/x", "read"), ("bucket", "read"), ("file:///x", "both")]
)
def test_a_store_that_cannot_be_is_refused_at_once(tmp_path: Path, url: str, mode: str) -> None:
    with pytest.raises(ValueError, match=r"remote store|remote_mode"):
        Cache(tmp_path, remote=url, remote_mode=mode)


def test_a_store_in_read_mode_gets_nothing(open_cache: Callable[..., Cache], store: Path) -> None:
    cache = open_cache("a", "read")
    cache.get_or_compile(Identity("f", code=3), lambda: constant("f", 1))
    assert cache.flush_uploads(5)
    assert objects(store, "f") == []


@pytest.mark.slow
def test_a_module_that_is_added_if_it_is_missing_comes_from_the_store(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code="added")
    first = open_cache("a")
    frontend.add_missing(first, [name.func_name], lambda: ModuleSource(constant("f", 7), {name.func_name: Function(symbol="f")}))
    upload(first, name)
    second = open_cache("b", "read")
    assert frontend.add_missing(second, [name.func_name], never).was_cached
    assert second.get_target(name)() == 7


@pytest.mark.slow
def test_a_batch_asks_for_all_its_functions_at_once(open_cache: Callable[..., Cache]) -> None:
    names = [Identity("f", number=number) for number in range(3)]
    jobs = [Job(name, ModuleSource(constant("f", number))) for number, name in enumerate(names)]
    first = open_cache("a")
    for number, name in enumerate(names[:2]):
        first.get_or_compile(name, partial(constant, "f", number))
    upload(first, *names[:2])
    second = open_cache("b")
    report = compile_many(second, jobs, workers=1)
    assert (len(report.cached), len(report.built)) == (2, 1)
    assert [second.get_target(name)() for name in names] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("add", [Cache.add_module, lambda cache, source: cache.add_modules([source])])
def test_an_import_that_only_the_store_has_is_fetched(open_cache: Callable[..., Cache], add: Callable[..., object]) -> None:
    callee = open_cache("a").compile(CALLEE).callee.func_name
    upload(open_cache("a"), callee)
    caller = CALLER.replace("@callee", f'@"{callee}"')
    second = open_cache("b", "read")
    add(second, ModuleSource(caller))
    assert second.get_target("caller")(1) == 101


def test_what_is_added_by_the_group_is_uploaded(open_cache: Callable[..., Cache], store: Path) -> None:
    first = open_cache("a")
    first.get_or_compile(Identity("slow", code=1), lambda: constant("slow", 1))
    names = [Identity("f", number=number).func_name for number in range(3)]
    first.add_modules([ModuleSource(constant("f", number), {name: Function(symbol="f")}) for number, name in enumerate(names)])
    waiting = first.remote.outboxes()[0]  # type: ignore[union-attr]
    assert first.flush_uploads(60)
    assert waiting.names() == []
    assert len(objects(store, "f")) + first.remote.status()[0].get("not_worth_uploading", 0) == 4  # type: ignore[union-attr]


def test_workers_get_the_store_that_the_environment_names(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_REMOTE", store.as_uri())
    monkeypatch.setenv("COMPCACHE_REMOTE_MODE", "write")
    with Cache(tmp_path / "a") as cache:
        settings = frontend.settings_of(cache)
    assert (settings["remote"], settings["remote_mode"]) == (store.as_uri(), "write")


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_no_message_tells_a_password(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with Cache(tmp_path / "a", remote="http://user:secret@127.0.0.1:1/x") as cache:
        answer = cache.explain(Identity("f", code=1)).remote
        status = cache.remote.status()[0]  # type: ignore[union-attr]
    assert answer is not None
    assert answer.outcome == "unavailable"
    assert "127.0.0.1" in status["last_error"]
    assert status["last_error"].endswith(": Connection refused")
    assert "secret" not in f"{answer} {status}"


def test_a_refused_certificate_is_what_is_told() -> None:
    """As obstore writes it, cut: the reason stands in the innermost of its causes."""
    causes = (
        "HttpError { kind: Connect, source: hyper_util::client::legacy::Error( Connect, Custom { kind: Other, error: Custom { kind: "
        "InvalidData,"
    )
    text = f"Error performing GET https://store/f\n\nDebug source:\n{causes} error: InvalidCertificate(\n    Expired,\n), }} }} )"
    assert describe_error(OSError(text)) == "Error performing GET https://store/f: the certificate is not valid (Expired)"


def test_explain_tells_what_the_store_says(open_cache: Callable[..., Cache]) -> None:
    name, absent = Identity("f", code="explained"), Identity("f", code="absent")
    first = open_cache("a", signing_key=b"one")
    first.get_or_compile(name, lambda: constant("f", 7))
    upload(first, name)
    second = open_cache("b", "read", signing_key=b"one")
    found = second.explain(name).remote
    assert found is not None
    assert (found.outcome, found.is_asked, found.module_id) == ("found", True, first.realizations(name)[0].module_id)
    assert not second.has(name)
    missing, plain = second.explain(absent).remote, second.explain("plain").remote
    assert missing is not None
    assert (missing.outcome, "x86-64" in missing.message or "cpu-" in missing.message) == ("missing", True)
    assert plain is not None
    assert not plain.is_asked
    other = open_cache("c", "read", signing_key=b"two").explain(name).remote
    assert other is not None
    assert (other.outcome, "signature" in other.message) == ("rejected", True)
    assert open_cache("d", "off").explain(name).remote is None


@pytest.mark.usefixtures("store")
def test_explain_tells_that_the_store_is_left_alone(tmp_path: Path) -> None:
    with Cache(tmp_path / "a", remote="redis://127.0.0.1:1/0") as cache:
        breaker = Breaker(str(Path(cache.remote.directory()) / "breaker"))  # type: ignore[union-attr]
        for _ in range(3):
            breaker.record_failure()
        answer = cache.explain("f").remote
    assert answer is not None
    assert answer.outcome == "skipped"
    assert re.search(r"not asked for another \d+ s; consecutive failures: 3", answer.message)


def test_statistics_count_the_store_apart(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code="counted")
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 7))
    upload(first, name)
    second = open_cache("b", "read")
    second.get_or_compile(name, never)
    with pytest.raises(NotCachedError):
        second.get_target(Identity("f", code="absent").func_name)
    stats = second.stats()
    size = first.stats().size  # the second also notes where the module is from
    assert stats.remote == RemoteStats(hits=1, misses=1, size=size, answers=2, seconds=stats.remote.seconds)
    assert stats.remote.latency == stats.remote.seconds / 2 > 0
    assert first.stats().remote.offered >= 1


def test_plain_names_are_shared_only_on_purpose(open_cache: Callable[..., Cache], store: Path) -> None:
    first = open_cache("a")
    first.get_or_compile("plain", lambda: ModuleSource(constant("plain", 5)))
    assert first.flush_uploads(5)
    assert objects(store, "f") == []
    assert first.push(["plain"]) == 1
    assert first.flush_uploads(20)
    second = open_cache("b", "read")
    with pytest.raises(NotCachedError):
        second.get_target("plain")
    assert second.has_many(["plain", "other"]) == (True, False)
    assert second.prefetch(["plain", "other"]) == ("plain",)
    assert second.get_target("plain")() == 5


def test_a_plain_name_beside_one_of_content_is_not_asked_for(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code="beside")
    first = open_cache("a")
    first.get_or_compile("plain", lambda: ModuleSource(constant("plain", 5)))
    first.get_or_compile(name, lambda: constant("f", 1))
    upload(first, "plain", name)
    second = open_cache("b", "read")
    own = ModuleSource(constant("f", 2) + constant("plain", 6), {name.func_name: Function(symbol="f"), "plain": Function()})
    assert not frontend.add_missing(second, [name.func_name, "plain"], lambda: own).was_cached
    assert second.get_target("plain")() == 6


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


class Counting:
    """A store in memory that notes what is asked of it: keys, and the bytes that the answer may have."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.asked: list[tuple[str, int]] = []

    async def get(self, key: str, largest: int, _: object = None) -> bytes | None:
        self.asked.append((key, largest))
        return self.objects.get(key)


def test_no_more_is_read_than_a_card_says(tmp_path: Path) -> None:
    module_id = bytes(range(16))

    def asked(size: int) -> list[tuple[str, int]]:
        backend = Counting({module_key(module_id): b"x"})
        reads = Reads(backend, Breaker(str(tmp_path / "breaker")))  # type: ignore[arg-type]
        assert asyncio.run(reads.fetch_module(Card("f", module_id, size, 0.5, b""))) is None
        return backend.asked

    assert asked(5000) == [(module_key(module_id), 5000)]
    assert asked(1 << 40) == []


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


def test_misses_while_the_store_is_left_alone_load_no_client(store: Path, tmp_path: Path) -> None:
    with Cache(tmp_path / "a", remote=store.as_uri()) as cache:
        breaker = Breaker(str(Path(cache.remote.directory()) / "breaker"))  # type: ignore[union-attr]
        cache.add_module(ModuleSource(constant("g", 1)))
    for _ in range(3):
        breaker.record_failure()
    script = f"""
    import os, sys
    os.environ["COMPCACHE_REMOTE"] = {store.as_uri()!r}
    from compcache import Cache, Identity, NotCachedError
    with Cache(directory) as cache:
        for number in range(5):
            try:
                cache.get_target(Identity("f", number=number).func_name)
            except NotCachedError:
                pass
        loaded = sorted(name for name in sys.modules if name.startswith(("compcache.remote.", "msgpack", "socket")))
        result = [loaded, cache.stats().remote.skipped]
    """
    assert run_fresh(tmp_path / "a", script) == [["compcache.remote.breaker", "compcache.remote.directory"], 5]


def test_patience_ends_before_the_breaker_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("compcache.remote.breaker.time.monotonic", lambda: now)
    patience = Patience()
    for _ in range(3):
        assert patience.allows_waiting()
        patience.record_wait(0.15)
    assert [patience.should_ask() for _ in range(6)] == [True] * 4 + [False] * 2  # without waiting
    now += 1.5
    assert patience.allows_waiting()
    patience.record_wait(0.15)
    now += 1.5
    assert not patience.allows_waiting()
    patience.record_answer()
    assert patience.allows_waiting()


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_a_store_that_does_not_answer_is_left_alone(tmp_path: Path) -> None:
    """Nothing listens on this port: three failures, and no process of this host asks for a while."""
    url = "redis://127.0.0.1:1/0"
    pytest.importorskip("redis")
    with Cache(tmp_path / "a", remote=url) as cache:
        started = time.monotonic()
        while not (counters := cache.stats().counters).get("remote_skipped") and time.monotonic() < started + 20:
            with pytest.raises(NotCachedError):
                cache.get_target(Identity("f", code=time.monotonic_ns()).func_name)
        assert (counters["remote_errors"], counters["remote_skipped"]) >= (1, 1)
        assert cache.get_or_compile(Identity("f", code=7), lambda: constant("f", 3))() == 3


@pytest.mark.usefixtures("store")
def test_a_helper_that_cannot_work_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's library is hidden from the helper."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "obstore.py").write_text("raise ImportError('hidden')")
    monkeypatch.syspath_prepend(str(hidden))
    with Cache(tmp_path / "a", remote="s3://bucket/prefix") as cache, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number in range(3):
            with pytest.raises(NotCachedError):
                cache.get_target(Identity("f", code=number).func_name)
    (message,) = [str(each.message) for each in warned if each.category is CacheWarning]
    assert re.search(r"s3://bucket/prefix is not used: .*pip install 'compcache\[remote\]'", message)


def test_where_others_can_write_to_the_directory_of_the_socket_there_is_one_warning(
    open_cache: Callable[..., Cache], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("compcache.remote.directory._TEMPORARY", str(tmp_path))
    planted = tmp_path / f"compcache-{os.geteuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    cache = open_cache("a")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number in range(3):
            assert cache.get_or_compile(Identity("f", number=number), partial(constant, "f", number))() == number
    (message,) = [str(each.message) for each in warned if each.category is CacheWarning]
    assert f"{planted} is not private to this user" in message


def test_no_file_of_the_program_reaches_the_helper(
    open_cache: Callable[..., Cache], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from the current directory, nor by `PYTHONPATH`, nor from beside the script."""
    planted = tmp_path / "program"
    planted.mkdir()
    for name in ("json", "socket", "msgpack", "sitecustomize", "usercustomize"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'reached')!r}, 'a').write(__name__)\nraise ImportError(__name__)\n")
    monkeypatch.chdir(planted)
    monkeypatch.setenv("PYTHONPATH", str(planted))
    monkeypatch.setenv("PYTHONSTARTUP", str(planted / "json.py"))
    monkeypatch.setattr("sys.path", ["", *sys.path, str(planted)])
    wanted = Identity("f", code="isolated")
    cache = open_cache("a")
    cache.get_or_compile(wanted, lambda: constant("f", 7))
    upload(cache, wanted)
    assert not (tmp_path / "reached").exists()


@pytest.mark.slow
def test_a_child_of_a_fork_asks_as_well(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code=8)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 9))
    upload(first, name)
    second = open_cache("b", "read")
    with pytest.raises(NotCachedError):
        second.get_target(Identity("f", code="absent").func_name)
    child = os.fork()
    if not child:
        os._exit(second.get_target(name.func_name)())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_child_asks_again_by_a_connection_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not read the answer that its parent waits for."""
    monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 bytes
    Cache(tmp_path / "cache").close()  # the fork is prepared in processes that have opened a cache
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(SOCKET)
        server.listen()
        server.settimeout(20)
        settings = read_settings("https://example.org/store", None)
        assert settings is not None
        question = Question(str(tmp_path), settings, ["find"])
        question.wait(0.0)
        child = os.fork()
        if not child:
            os._exit(0 if question.wait(10) and question.answer == 2 else 1)
        first, second = server.accept()[0], server.accept()[0]
        with first, second:
            second.sendall(encode(2))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            first.sendall(encode(1))
            assert question.wait(10)
            assert question.answer == 1


def test_the_breaker_opens_after_three_failures_until_a_probe_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("compcache.remote.breaker.time.time", lambda: now)
    breaker, other = Breaker(str(tmp_path / "breaker")), Breaker(str(tmp_path / "breaker"))
    for _ in range(2):
        breaker.record_failure()
        assert breaker.allows_lookups()
    breaker.record_failure()
    assert other.is_open()
    assert not breaker.allows_lookups()
    assert breaker.state() == (3, 30.0)
    now += 30.0
    assert (other.is_open(), other.is_half_open(), breaker.allows_lookups()) == (False, True, False)
    breaker.record_failure()  # a look-up that was on its way: it is the probe that counts
    assert breaker.is_half_open()
    breaker.record_failure(probe=True)
    assert breaker.state() == (4, 60.0)
    now += 60.0
    breaker.record_success()
    assert breaker.allows_lookups()
    assert breaker.state() == (0, 0.0)
    (tmp_path / "breaker").write_text("nonsense")
    assert not breaker.is_open()


def test_a_clock_that_was_set_back_leaves_no_store_alone_for_long(tmp_path: Path) -> None:
    breaker = Breaker(str(tmp_path / "breaker"))
    for seconds, is_open in ((300.0, True), (1e6, False)):
        (tmp_path / "breaker").write_text(f"3 {time.time() + seconds} 30.0")
        assert breaker.is_open() == is_open


def test_a_look_up_that_failed_casts_doubt_on_the_store_at_once(tmp_path: Path) -> None:
    breaker, other = Breaker(str(tmp_path / "breaker")), Breaker(str(tmp_path / "breaker"))
    breaker.record_failure(is_doubtful=True)
    assert (other.is_open(), other.is_doubtful(), other.allows_lookups()) == (True, True, False)
    breaker.record_success()  # it failed once, says the probe
    assert other.allows_lookups()
    breaker.record_failure(is_doubtful=True)
    for _ in range(2):
        breaker.record_failure(probe=True)
    assert (other.is_open(), other.is_doubtful()) == (True, False)
    assert breaker.state()[1] > 20


def test_the_outbox_drops_the_oldest(tmp_path: Path) -> None:
    outbox = Outbox(str(tmp_path), limit=3000)
    for number in range(5):
        outbox.put(Upload(f"ccr3/m/{number}", bytes(900), [("key", b"card")], 0.5, always=False))
    assert [outbox.read(name).key for name in outbox.names()] == ["ccr3/m/2", "ccr3/m/3", "ccr3/m/4"]
    assert outbox.size() <= 3000


def test_a_sweep_passes_over_what_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"partial-{number}").touch()
        os.utime(tmp_path / f"partial-{number}", (0, 0))
    listed = os.listdir(tmp_path)
    (tmp_path / listed[0]).unlink()  # by another helper, after the listing
    monkeypatch.setattr("compcache.remote.outbox.os.listdir", lambda _: listed)
    Outbox(str(tmp_path)).sweep()
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_upload_is_refused(tmp_path: Path, at: int) -> None:
    outbox = Outbox(str(tmp_path))
    outbox.put(Upload("ccr3/m/1", bytes(900), [("key", b"card")], 0.5, always=False))
    (path,) = tmp_path.iterdir()
    flip_byte(path, at)
    with pytest.raises(FormatError):
        outbox.read(path.name)


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
    assert includes("x86-64-v3", "x86-64-v2", platform)
    assert includes("cpu-a", "cpu-a", platform)
    assert not includes("x86-64-v2", "x86-64-v3", platform)
    assert not includes("x86-64-v3", "cpu-a", platform)
    assert not includes("cpu-a", "x86-64-v2", platform)


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
