"""Several stores in order: a mirror, then the origin. What the mirror lacks, has damaged or cannot say costs the way to the origin."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest
from helpers import constant
from web_store import WebStore

from compcache import Cache, Identity, ModuleSource
from compcache.remote.address import read_settings, read_url
from compcache.remote.answer import FOUND
from compcache.remote.card import Card
from compcache.remote.helper.packs import Packs
from compcache.remote.helper.reads import StoreAnswer
from compcache.remote.helper.tiers import Chain
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

F, G = Identity("f", number=1), Identity("g", number=2)


class Fleet:
    """Two stores on loopback, and hosts that use them by a helper process of their own."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mirror, self.origin = WebStore(), WebStore()
        self._place = place
        self._monkeypatch = monkeypatch
        self._hosts = 0
        self.new_host()

    def new_host(self) -> None:
        self._hosts += 1
        runtime = self._place / f"run{self._hosts}"
        runtime.mkdir(mode=0o700)
        self._monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))

    def open(self, *, fresh: bool = True, mode: tuple[str, str] = ("write", "read"), **arguments: Any) -> Cache:
        """An empty cache of a host, a new one if it is to be."""
        if fresh:
            self.new_host()
        return Cache(self._place / os.urandom(4).hex(), remote=[self.mirror.url, self.origin.url], remote_mode=mode, **arguments)

    def fill(self, store: WebStore, *names: Identity, **arguments: Any) -> None:
        """Have functions in one store; function n of them returns n."""
        self.new_host()
        with Cache(self._place / os.urandom(4).hex(), remote=store.url, remote_mode="write", **arguments) as cache:
            for number, name in enumerate(names):
                cache.get_or_compile(name, partial(ModuleSource, constant(name.label, number)))
            cache.push(names)
            assert cache.flush_uploads(60)
        store.requests.clear()

    def close(self) -> None:
        for store in (self.mirror, self.origin):
            store.shutdown()
            store.server_close()
        for runtime in self._place.glob("run*"):
            shutil.rmtree(runtime)  # the helper processes end with it


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    pytest.importorskip("obstore")
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 20.0)  # the machine may be busy
    fleet = Fleet(tmp_path, monkeypatch)
    yield fleet
    fleet.close()


def never() -> Any:
    raise AssertionError("it is compiled, though a store has it")


def until(holds: Callable[[], Any]) -> bool:
    end = time.monotonic() + 30
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.02)
    return bool(held)


def kinds(cache: Cache, *stores: WebStore) -> list[list[str]]:
    """What was asked for in each store: cards (f), packs (p), modules (m)."""
    return [[path.split("/")[3] for path in paths] for paths in [store.requested(cache) for store in stores]]


def content(store: WebStore) -> dict[str, bytes]:
    """What is in a store, but for what its writers tell collections of garbage."""
    return {path: data for path, data in store.objects.items() if "/ccr3/d/" not in path}


@pytest.mark.slow
def test_what_the_origin_gave_goes_into_the_mirror(fleet: Fleet) -> None:
    """With its pack, and once; the next host needs the origin no more. What may only be read is not written to."""
    names = [Identity("f", number=number) for number in range(6)]
    fleet.fill(fleet.origin, *names)
    with fleet.open() as cache:
        assert len(cache.prefetch(names)) == 6
        stats = cache.stats()
        by_store = stats.remote_stores
        assert (by_store[fleet.origin.url].hits, by_store.get(fleet.mirror.url)) != (0, None)
    assert until(lambda: {"f", "p"} <= {path.split("/")[3] for path in fleet.mirror.objects})
    assert content(fleet.origin).items() >= content(fleet.mirror).items()
    assert "PUT" not in {method for method, _ in fleet.origin.requests}
    for _ in range(3):  # the origin is asked, too, where a busy machine delays the mirror's answer
        fleet.origin.requests.clear()
        with fleet.open() as cache:
            assert len(cache.prefetch(names)) == 6
            by_store = cache.stats().remote_stores
        if fleet.origin.requests == []:
            break
    assert (fleet.origin.requests, by_store[fleet.mirror.url].hits) == ([], 6)


@pytest.mark.slow
def test_a_mirror_that_may_not_be_written_to_is_only_read(fleet: Fleet) -> None:
    fleet.fill(fleet.origin, F)
    with fleet.open(mode=("read", "read")) as cache:
        assert cache.get_or_compile(F, never)() == 0
        assert cache.flush_uploads(30)
    assert fleet.mirror.objects == {}
    with fleet.open(mode=("read", "write")) as cache:
        cache.get_or_compile(G, partial(ModuleSource, constant("g", 7)))
        cache.push([G])
        assert cache.flush_uploads(30)
    assert fleet.mirror.objects == {}
    assert len([path for path in fleet.origin.objects if "/f/" in path]) == 2


@pytest.mark.slow
def test_what_is_compiled_goes_to_each_store_that_may_be_written_to(fleet: Fleet) -> None:
    with fleet.open(mode=("write", "write")) as cache:
        cache.get_or_compile(F, partial(ModuleSource, constant("f", 7)))
        cache.push([F])
        assert cache.flush_uploads(30)
    assert content(fleet.mirror) == content(fleet.origin) != {}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fail", "stall", "show_login_page", "hang_up", "redirect", "forbid"])
def test_a_mirror_that_does_not_answer_costs_the_way_to_the_origin(fleet: Fleet, way: str) -> None:
    fleet.fill(fleet.origin, F, G)
    fleet.mirror.behave = lambda *_: way
    with fleet.open() as cache:
        started = time.monotonic()
        assert cache.get_or_compile(F, never)() == 0
        assert cache.get_or_compile(G, never)() == 1
        assert time.monotonic() - started < 10
        assert cache.stats().remote.hits == 2


def test_a_mirror_that_says_nothing_does_not_keep_the_question() -> None:
    """However long its own request may take."""

    def tier(*answer: Any) -> Any:
        async def find(*_: Any, **__: Any) -> StoreAnswer:
            if not answer:
                await asyncio.Event().wait()
            return StoreAnswer(*answer)

        return SimpleNamespace(check_service=lambda: True, silence=lambda: 0.25, reads=SimpleNamespace(find=find))

    async def ask() -> Any:
        chain = Chain()
        chain.add(tier())
        chain.add(tier(FOUND, "", b"module", SimpleNamespace(imports=(), signatures=()), "shelf"))
        return await asyncio.wait_for(chain.find("f", "platform", []), 15)

    assert asyncio.run(ask()).answer.data == b"module"


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        ("ok ok", True), ("ok fails", False), ("paused ok", False), ("paused paused", False), ("paused fails", "fails"),
        ("fails fails", "fails"),
    ],
)
def test_a_pack_that_a_store_lacks_is_stored_again(states: str, outcome: bool | str) -> None:
    """With one store paused and the other failing, nobody has it, and nobody would try again."""

    def tier(state: str) -> Any:
        uploads, reads = SimpleNamespace(is_paused=lambda: state == "paused"), SimpleNamespace(note_error=str)
        return SimpleNamespace(state=state, uploads=uploads, reads=reads)

    async def put(tier: Any) -> None:
        if tier.state == "fails":
            raise OSError("fails")

    chain = Chain()
    for state in states.split():
        chain.add(tier(state))
    writes, tries = [0, 1], []

    async def store(key: str, _: bytes, writes: Sequence[int]) -> bool:
        tries.append(key)
        return await chain.store_in_each(writes, put)

    async def start() -> None:
        packs = Packs(*[AsyncMock()] * 4)
        packs._store = store
        names = [Identity("f", number=number).func_name for number in range(5)]
        for number, name in enumerate(names):
            packs.remember_module("platform", "shelf", Card(name, bytes([number]) * 16, 1, 0.5, b"m"), b"m")
        packs.announce_start_up(names, "platform", ["shelf"], writes)
        for _ in range(2):
            with pytest.raises(OSError, match="fails") if isinstance(outcome, str) else nullcontext():
                await packs.store_packs(now=True)

    asyncio.run(start())
    assert len(tries) == (1 if outcome is True else 2)


@pytest.mark.slow
def test_a_mirror_in_front_of_an_origin_that_is_down_serves_what_it_has(fleet: Fleet) -> None:
    """What it lacks may be in the origin: that is no miss. Nobody waits for the origin more than once."""
    fleet.fill(fleet.mirror, F)
    fleet.origin.behave = lambda *_: "fail"
    with fleet.open(mode=("read", "read")) as cache:
        for number in range(3, 9):
            cache.get_or_compile(Identity("g", number=number), partial(ModuleSource, constant("g", number)))
        assert cache.get_or_compile(F, never)() == 0
        remote = cache.stats().remote
        assert (remote.hits, remote.misses, remote.errors) == (1, 0, 6)
        assert cache.explain(Identity("g", number=9).func_name).remote.outcome == "unavailable"  # type: ignore[union-attr]
        assert [store["left_alone_seconds"] > 0 for store in cache.remote.status()] == [False, True]  # type: ignore[union-attr]


@pytest.mark.slow
def test_what_is_not_taken_from_the_mirror_is_taken_from_the_origin(fleet: Fleet) -> None:
    """The mirror has it unsigned, which readers with trusted keys refuse; what the origin has takes its place."""
    key = generate_key("team-1")
    fleet.fill(fleet.mirror, *[Identity("f", number=number) for number in range(5)])  # with a pack
    names = [Identity("f", number=number) for number in range(5)]
    fleet.fill(fleet.origin, *names, publish_key=str(key))
    for refused in (10, 0):  # by its pack and its cards; both are replaced
        with fleet.open(trusted_keys=[str(key.public())]) as cache:
            assert len(cache.prefetch(names)) == 5
            assert {cache.get_or_compile(name, never)() for name in names} == set(range(5))
            assert cache.flush_uploads(30)
            assert cache.stats().remote_stores[fleet.mirror.url].rejected == refused
    cards = {path: data for path, data in fleet.mirror.objects.items() if "/f/" in path}
    assert cards == {path: data for path, data in fleet.origin.objects.items() if "/f/" in path}


@pytest.mark.slow
def test_a_damaged_module_of_the_mirror_is_replaced(fleet: Fleet) -> None:
    large = ModuleSource('@t = constant [40000 x i8] c"' + "x" * 40000 + '"\ndefine ptr @f() {\n ret ptr @t\n}\n')
    fleet.new_host()
    with fleet.open(mode=("write", "write")) as cache:
        cache.get_or_compile(F, lambda: large)
        cache.push([F])
        assert cache.flush_uploads(30)
    (module,) = [path for path in fleet.mirror.objects if "/m/" in path]
    whole = fleet.mirror.objects[module]
    fleet.mirror.objects[module] = whole[:-100] + bytes(100)
    with fleet.open() as cache:
        assert cache.prefetch([F]) == (F.func_name,)
        assert until(lambda: fleet.mirror.objects[module] == whole)


@pytest.mark.slow
def test_a_miss_is_remembered_for_a_while_and_ends_with_an_own_upload(fleet: Fleet) -> None:
    """By look-ups that must not take long; who asks on purpose is told what is there now."""
    for _ in range(3):
        with fleet.open(fresh=False, mode=("read", "read")) as cache:
            cache.get_or_compile(F, partial(ModuleSource, constant("f", 1)))
            assert kinds(cache, fleet.origin, fleet.mirror) == [["f"], ["f"]]
    with fleet.open(fresh=False, mode=("write", "write")) as cache:
        fleet.origin.requests.clear()
        fleet.mirror.requests.clear()
        assert cache.has_many([F]) == (False,)
        assert kinds(cache, fleet.origin, fleet.mirror) == [["f"], ["f"]]
        cache.get_or_compile(F, partial(ModuleSource, constant("f", 1)))
        cache.push([F])
        assert cache.flush_uploads(30)
        assert cache.remote.status()[1]["remembered_misses"] >= 2  # type: ignore[union-attr]
    with fleet.open(fresh=False, mode=("read", "read")) as cache:
        assert cache.get_or_compile(F, never)() == 1


def test_settings_name_several_stores_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "origin"
    secret.write_text("https://user:pass@host/x\nredis://h/0\n")
    monkeypatch.setenv("COMPCACHE_REMOTE", f"file:///my mirror @{secret}")
    urls = "file:///my mirror https://user:pass@host/x redis://h/0"
    assert read_url("$COMPCACHE_REMOTE") == read_url(f"file:///my mirror @{secret}") == urls
    stores = read_settings(urls, "write read off")
    assert stores is not None
    assert [(store.shown, store.mode) for store in stores.each] == [("file:///my mirror", "write"), ("https://host/x", "read")]
    assert (stores.writable, stores.shown) == ((0,), "file:///my mirror, https://host/x")
    assert "pass" not in repr(stores)
    for url, mode in (("file:///a file:///a", "read"), ("file:///a file:///b", "read read read"), ("file:///a nfs://b", None)):
        with pytest.raises(ValueError, match=r"twice|modes|unknown URL scheme"):
            read_settings(url, mode)
    with pytest.raises(TypeError, match="remote must be"):
        Cache(tmp_path / "a", remote=["file:///a", 3])  # type: ignore[list-item]


def test_workers_are_told_several_stores(tmp_path: Path) -> None:
    from compcache.frontend import settings_of

    secret = tmp_path / "secret"
    secret.write_text("https://user:pass@host/x")
    with Cache(tmp_path / "a", remote=["file:///mirror", f"@{secret}"], remote_mode=["write", "read"]) as cache:
        settings = settings_of(cache)
    assert (settings["remote"], settings["remote_mode"]) == (f"file:///mirror @{secret}", "write read")
