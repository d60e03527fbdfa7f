"""Of many hosts that lack a function one compiles it; a lease never makes a host wait for long, and decides nothing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from memory_store import MemoryStore, StoreError, VirtualLoop

from compcache.remote.helper.leases import LONGEST_WAIT, Leases
from compcache.remote.helper.requests import Requests
from compcache.remote.shelves import card_key, lease_of

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """In virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class Host:
    """A host that asks for functions, compiles what does not come, and uploads that."""

    def __init__(self, store: MemoryStore, compiled: Counter[str], chance: random.Random) -> None:
        self._store = store
        self._uploading = 0
        self._compiled = compiled
        self._chance = chance
        self.leases = Leases(Requests(store), lambda: self._uploading > 0)
        self.waited = 0.0  # the longest that it waited for others
        self.is_dead = False

    async def get(self, name: str, seconds: float, limit: float = LONGEST_WAIT) -> None:
        """A function, which takes so many seconds to compile."""
        key, gone = card_key("platform", name), False

        async def look() -> bool:
            return await self._store.get(key, 100) is not None

        began = asyncio.get_running_loop().time()
        with suppress(StoreError, TimeoutError):
            if await look():
                return
            await self.leases.acquire_or_wait(lease_of(key), limit, look, lambda: gone or self.is_dead, lambda: None)
            self.waited = max(self.waited, asyncio.get_running_loop().time() - began)
            if await look():
                return
        self._compiled[name] += 1
        await asyncio.sleep(seconds)
        if self.is_dead:
            return
        self._uploading += 1
        gone = True
        await asyncio.sleep(self._chance.uniform(0.05, 0.5))
        while True:
            try:
                await self._store.create(key, b"card")
                break
            except StoreError:
                await asyncio.sleep(0.1)
        self._uploading -= 1


async def fleet(hosts: int, functions: int, store: MemoryStore, chance: random.Random) -> tuple[Counter[str], list[Host]]:
    """So many hosts start within a second and ask for all functions, each in an order of its own."""
    compiled: Counter[str] = Counter()
    seconds = {f"f{number}": chance.uniform(0.05, 4.0) for number in range(functions)}
    fleet = [Host(store, compiled, chance) for _ in range(hosts)]

    async def live(host: Host) -> None:
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        for name in chance.sample(list(seconds), functions):
            await host.get(name, seconds[name])

    await asyncio.gather(*map(live, fleet))
    return compiled, fleet


@pytest.mark.slow
def test_many_hosts_compile_each_function_once() -> None:
    """200 hosts, 100 functions of up to 4 s."""

    async def work() -> tuple[Counter[str], list[Host], int]:
        chance = random.Random(5)
        store = MemoryStore(chance)
        compiled, hosts = await fleet(200, 100, store, chance)
        await asyncio.sleep(20.0)
        return compiled, hosts, sum("/l/" in key for key in store.objects)

    compiled, hosts, left = run(work())
    assert len(compiled) == 100
    assert sum(compiled.values()) <= 110
    assert max(host.waited for host in hosts) <= LONGEST_WAIT + 1.0
    assert left == 0


@pytest.mark.parametrize("faults", [0.05, 0.5, 1.0])
def test_a_store_that_fails_costs_compilations_and_no_waiting(faults: float) -> None:
    async def work() -> list[Host]:
        chance = random.Random(6)
        store = MemoryStore(chance)
        store.faults = faults
        task = asyncio.ensure_future(fleet(8, 5, store, chance))
        await asyncio.sleep(3000.0)
        store.faults = 0.0
        return (await task)[1]

    assert len(run(work())) == 8


def test_a_dead_holder_costs_one_lease_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all others look at the same moment."""
    monkeypatch.setattr("compcache.remote.helper.leases.random.uniform", lambda *_: 1.0)

    async def work() -> tuple[int, float, int]:
        chance = random.Random(7)
        store, compiled = MemoryStore(chance), Counter[str]()
        first, *others = [Host(store, compiled, chance) for _ in range(20)]
        dying = asyncio.ensure_future(first.get("f", 100.0))
        await asyncio.sleep(1.2)
        for task in first.leases._held.values():
            task.cancel()
        first.is_dead = True
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*[host.get("f", 0.5) for host in others])
        took = asyncio.get_running_loop().time() - began
        dying.cancel()
        return compiled["f"], took, sum("/l/" in key for key in store.objects)

    compiled, took, _ = run(work())
    assert compiled == 2  # the one that died, and one that took its place
    assert 3.0 <= took <= 6.0


def test_a_compilation_that_takes_too_long_is_not_waited_for() -> None:
    async def work() -> tuple[int, float]:
        chance = random.Random(8)
        store, compiled = MemoryStore(chance), Counter[str]()
        first, second = [Host(store, compiled, chance) for _ in range(2)]
        slow = asyncio.ensure_future(first.get("f", 60.0))
        await asyncio.sleep(1.0)
        await second.get("f", 0.5, limit=2.0)
        slow.cancel()
        return compiled["f"], second.waited

    compiled, waited = run(work())
    assert compiled == 2
    assert 1.5 <= waited <= 3.0


def test_who_fails_to_compile_lets_the_next_one_go_on_at_once() -> None:
    async def work() -> float:
        chance = random.Random(9)
        store, compiled = MemoryStore(chance), Counter[str]()
        first, second = [Host(store, compiled, chance) for _ in range(2)]
        failed = False
        key = card_key("platform", "f")

        async def look() -> bool:
            return False

        await first.leases.acquire_or_wait(lease_of(key), 5.0, look, lambda: failed, lambda: None)
        task = asyncio.ensure_future(second.get("f", 0.1))
        await asyncio.sleep(1.0)
        failed = True
        await task
        return second.waited

    assert run(work()) <= 2.5


def test_a_store_that_cannot_compare_has_no_leases() -> None:
    async def work() -> dict[str, Any]:
        store = MemoryStore(random.Random(1))
        store.is_atomic = False
        await Host(store, Counter(), random.Random(1)).get("f", 0.1)
        return store.objects

    assert not [key for key in run(work()) if "/l/" in key]
