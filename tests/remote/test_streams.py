"""Large modules go from the store into a file, part by part, and nobody holds them."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers import module_file
from memory_store import MemoryStore, StoreError, VirtualLoop
from web_store import WebStore

from compcache import Cache, Identity, ModuleSource, NotCachedError
from compcache.remote.address import RemoteSettings
from compcache.remote.answer import HelperAnswer
from compcache.remote.breaker import Breaker
from compcache.remote.card import Card
from compcache.remote.helper.backends import TooLargeError, open_backend
from compcache.remote.helper.reads import STREAMED, Reads, Room
from compcache.remote.helper.requests import Requests
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
def test_a_large_module_comes_by_a_file(url: str, tmp_path: Path) -> None:
    """And none is left behind."""
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as cache:
        cache.get_or_compile(NAME, lambda: large().ir)
        cache.push([NAME])
        assert cache.flush_uploads(60)
    with Cache(tmp_path / "b", remote=url) as cache:
        assert cache.get_or_compile(NAME, never)(SIZE - 1) == random.Random(7).randbytes(SIZE)[-1]
        assert cache.stats().remote.size > SIZE
        temporary = cache._store.temporary
        assert [name for name in os.listdir(temporary) if name.startswith("fetched-")] == []
        assert cache.check()


def run(work: Any) -> Any:
    """In virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def reads_of(store: Any, place: Path) -> Reads:
    return Reads(store, Breaker(str(place / "breaker")))


@pytest.mark.slow
def test_a_transfer_that_breaks_begins_anew(tmp_path: Path, cache: Cache) -> None:
    """What is in the file in the end is the module, or there is none."""
    module_id = cache.add_module(large())
    data = module_file(cache.path, module_id).read_bytes()
    card = Card("large", bytes.fromhex(module_id), len(data), 0.5, b"")

    async def work(seed: int) -> bool:
        store = MemoryStore(random.Random(seed))
        store.objects[module_key(card.module_id)] = data, 0.0
        store.faults = 0.0002
        room = Room(directory=str(tmp_path))
        try:
            path = await reads_of(store, tmp_path).fetch_module(card, room, 1000.0)
        except (StoreError, TimeoutError):
            return False
        assert isinstance(path, str)
        with open(path, "rb") as file:  # noqa: ASYNC230
            assert file.read() == data
        return True

    assert sum(run(work(seed)) for seed in range(6)) >= 3


def test_what_is_not_the_module_is_none(tmp_path: Path) -> None:
    card = Card("large", bytes(16), 2 * STREAMED, 0.5, b"")

    async def held(content: bytes | None) -> Any:
        store = MemoryStore(random.Random(1))
        if content is not None:
            store.objects[module_key(card.module_id)] = content, 0.0
        return await reads_of(store, tmp_path).fetch_module(card, Room(directory=str(tmp_path)))

    assert run(held(None)) is None
    assert run(held(bytes(2 * STREAMED))) is None
    assert run(held(bytes(2 * STREAMED - 1))) is None
    assert run(held(bytes(2 * STREAMED + 1))) is None


def test_a_store_that_sends_without_end_is_stopped(tmp_path: Path) -> None:
    class Endless(MemoryStore):
        async def parts(self, key: str, largest: int) -> Any:
            del key, largest
            for _ in range(1000):
                yield bytes(1 << 16)

    async def work() -> None:
        with pytest.raises(TooLargeError):
            await Requests(Endless(random.Random(1))).save(
                "key", 1 << 20, str(tmp_path / "file"), seconds=60.0, patience=60.0, require=lambda: None
            )

    run(work())
    assert (tmp_path / "file").stat().st_size <= (1 << 20) + (1 << 16)


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "file").symlink_to(tmp_path / "victim")

    async def work() -> None:
        store = MemoryStore(random.Random(1))
        store.objects["key"] = b"theirs", 0.0
        with pytest.raises(OSError, match="symbolic links"):
            await Requests(store).save("key", 100, str(tmp_path / "file"), seconds=60.0, patience=60.0, require=lambda: None)

    run(work())
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_directories_give_their_objects_in_parts(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(range(256)) * 10_000)
    (tmp_path / "link").symlink_to(tmp_path / "key")
    backend = open_backend(RemoteSettings(tmp_path.as_uri(), "read"))

    async def parts(key: str, largest: int) -> list[bytes]:
        return [part async for part in backend.parts(key, largest)]

    found = asyncio.run(parts("key", 3_000_000))
    assert len(found) > 1
    assert b"".join(found) == bytes(range(256)) * 10_000
    with pytest.raises(TooLargeError):
        asyncio.run(parts("key", 1000))
    for absent in ("absent", "link"):
        with pytest.raises(FileNotFoundError, match=absent):
            asyncio.run(parts(absent, 1000))


def test_a_file_elsewhere_is_not_taken(tmp_path: Path) -> None:
    with Cache(tmp_path / "a", remote=(tmp_path / "store").as_uri()) as cache:
        remote = cache.remote
        assert remote is not None
        cache.add_module(ModuleSource("define i64 @f() {\n ret i64 1\n}\n"))
        (tmp_path / "elsewhere").write_bytes(b"x")
        assert remote.adopt_answers(("f2",), [HelperAnswer("found", str(tmp_path / "elsewhere"), store=0)]) == ()
        assert (tmp_path / "elsewhere").exists()
        with pytest.raises(NotCachedError):
            cache.get_target("f2")


@pytest.mark.slow
def test_a_large_module_comes_into_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    """The helper makes no directory of a cache; it holds the module."""
    name = Identity("f", number=1)
    source = '@t = constant [2000000 x i8] c"' + "x" * 2000000 + '"\ndefine ptr @f() {\n ret ptr @t\n}\n'
    with Cache(tmp_path / "a", remote=(tmp_path / "store").as_uri(), remote_mode="write") as cache:
        cache.get_or_compile(name, lambda: ModuleSource(source))
        cache.push([name])
        assert cache.flush_uploads(30)
    with Cache(tmp_path / "b", remote=(tmp_path / "store").as_uri()) as cache:
        assert cache.prefetch([name]) == (name.func_name,)
