"""Large modules: fetched, damaged, and of the wrong size."""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers import module_file
from memory_store import MemoryStore, StoreError, VirtualLoop
from web_store import WebStore

from compcache import Cache, Identity, ModuleSource
from compcache.remote.breaker import Breaker
from compcache.remote.card import Card
from compcache.remote.helper.reads import Reads, Room
from compcache.remote.shelves import module_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = Identity("large", number=1)


SIZE = 3 << 19


def large() -> ModuleSource:
    """A function that tells bytes of a table."""
    text = "".join(f"\\{byte:02x}" for byte in random.Random(7).randbytes(SIZE))
    body = "  %p = getelementptr i8, ptr @t, i64 %i\n  %v = load i8, ptr %p\n  %r = zext i8 %v to i64\n  ret i64 %r\n"
    return ModuleSource(f'@t = internal constant [{SIZE} x i8] c"{text}"\ndefine i64 @large(i64 %i) {{\n{body}}}\n', {"large": "i64(i64)"})


@pytest.fixture(params=["file", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 20.0)  # the machine may be busy
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    if request.param == "file":
        yield (tmp_path / "store").as_uri()
    else:
        pytest.importorskip("obstore")
        with WebStore() as web:
            yield web.url
            web.shutdown()
    shutil.rmtree(tmp_path / "run")


def never() -> Any:
    raise AssertionError("it is compiled, though the store has it")


@pytest.mark.slow
def test_a_large_module_is_fetched(url: str, tmp_path: Path) -> None:
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as cache:
        cache.get_or_compile(NAME, lambda: large().ir)
        cache.push([NAME])
        assert cache.flush_uploads(60)
    with Cache(tmp_path / "b", remote=url) as cache:
        assert cache.get_or_compile(NAME, never)(SIZE - 1) == random.Random(7).randbytes(SIZE)[-1]
        assert cache.stats().remote.size > SIZE
        assert cache.check()


def run(work: Any) -> Any:
    """In virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def reads_of(store: Any, place: Path) -> Reads:
    return Reads(store, Breaker(str(place / "breaker")))


@pytest.mark.slow
def test_a_transfer_that_breaks_begins_anew(tmp_path: Path, cache: Cache) -> None:
    module_id = cache.add_module(large())
    data = module_file(cache.path, module_id).read_bytes()
    card = Card("large", bytes.fromhex(module_id), len(data), 0.5, b"")

    async def work(seed: int) -> bool:
        store = MemoryStore(random.Random(seed))
        store.objects[module_key(card.module_id)] = data, 0.0
        store.faults = 0.0002
        try:
            fetched = await reads_of(store, tmp_path).fetch_module(card, Room(), 1000.0)
        except (StoreError, TimeoutError):
            return False
        assert fetched == data
        return True

    assert sum(run(work(seed)) for seed in range(6)) >= 3


def test_what_is_not_the_module_is_none(tmp_path: Path) -> None:
    card = Card("large", bytes(16), SIZE, 0.5, b"")

    async def held(content: bytes | None) -> Any:
        store = MemoryStore(random.Random(1))
        if content is not None:
            store.objects[module_key(card.module_id)] = content, 0.0
        return await reads_of(store, tmp_path).fetch_module(card, Room())

    assert run(held(None)) is None
    assert run(held(bytes(SIZE))) is None
    assert run(held(bytes(SIZE - 1))) is None
    assert run(held(bytes(SIZE + 1))) is None
