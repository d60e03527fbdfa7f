"""Shelves that are not in use are not asked, and none that is in use is passed over."""

from __future__ import annotations

import asyncio
import random
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from helpers import constant
from memory_store import MemoryStore, VirtualLoop
from web_store import WebStore

from compcache import Cache, Identity
from compcache.remote.helper.requests import Requests
from compcache.remote.helper.used_shelves import UsedShelves

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

SHELVES = ["cpu-a", "v3", "v2", "v1"]


def in_store(work: Callable[[MemoryStore, UsedShelves], Coroutine[Any, Any, None]]) -> None:
    """With a store in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        store = MemoryStore(random.Random(1))

        async def run() -> None:
            await work(store, UsedShelves(Requests(store)))

        runner.run(run())


def test_all_are_asked_until_it_is_known_which_are_in_use() -> None:
    async def work(store: MemoryStore, shelves: UsedShelves) -> None:
        await UsedShelves(Requests(store)).note("platform", "v2")
        assert shelves.among("platform", SHELVES) == SHELVES
        await asyncio.sleep(1.0)
        assert shelves.among("platform", SHELVES) == ["v2"]
        assert shelves.among("another platform", SHELVES) == SHELVES

    in_store(work)


def test_a_store_without_marks_is_asked_on_all_shelves() -> None:
    async def work(_: MemoryStore, shelves: UsedShelves) -> None:
        for _again in range(3):
            assert shelves.among("platform", SHELVES) == SHELVES
            await asyncio.sleep(20.0)

    in_store(work)


def test_a_shelf_that_comes_into_use_is_asked_within_a_minute() -> None:
    async def work(store: MemoryStore, shelves: UsedShelves) -> None:
        await shelves.note("platform", "v2")
        shelves.among("platform", SHELVES)
        await asyncio.sleep(1.0)
        assert shelves.among("platform", SHELVES) == ["v2"]
        await UsedShelves(Requests(store)).note("platform", "v3")
        await asyncio.sleep(58.0)
        shelves.among("platform", SHELVES)  # and is asked meanwhile
        await asyncio.sleep(1.0)
        assert shelves.among("platform", SHELVES) == ["v3", "v2"]

    in_store(work)


def test_what_was_not_asked_for_a_while_is_not_believed() -> None:
    async def work(store: MemoryStore, shelves: UsedShelves) -> None:
        await shelves.note("platform", "v2")
        shelves.among("platform", SHELVES)
        await asyncio.sleep(1.0)
        await UsedShelves(Requests(store)).note("platform", "v3")
        await asyncio.sleep(100.0)
        assert shelves.among("platform", SHELVES) == SHELVES

    in_store(work)


def test_a_shelf_whose_mark_could_not_be_asked_for_is_asked() -> None:
    async def work(store: MemoryStore, shelves: UsedShelves) -> None:
        await shelves.note("platform", "v2")
        store.faults = 1e9  # each request is refused
        shelves.among("platform", SHELVES)
        await asyncio.sleep(10.0)
        assert shelves.among("platform", SHELVES) == SHELVES

    in_store(work)


def test_a_hit_asks_one_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process whose helper knows the store; a miss asks no more."""
    pytest.importorskip("obstore")
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 20.0)  # the machine may be busy
    names = [Identity("f", number=number) for number in range(3)]
    with WebStore() as web:
        with Cache(tmp_path / "a", remote=web.url, remote_mode="write") as cache:
            for number, name in enumerate(names[:2]):
                cache.get_or_compile(name, partial(constant, "f", number))
            cache.push(names[:2])
            assert cache.flush_uploads(60)
        marks = {path for path in web.objects if "/s/" in path}
        assert len(marks) == 1
        with Cache(tmp_path / "b", remote=web.url) as cache:
            assert cache.get_target(names[0])() == 0
            web.requests.clear()
            assert cache.get_target(names[1])() == 1
            assert cache.has_many(names[2:]) == (False,)
        assert len([path for _, path in web.requests if "/f/" in path]) == 2
        web.shutdown()
    shutil.rmtree(tmp_path / "run")  # the helper process ends with it
