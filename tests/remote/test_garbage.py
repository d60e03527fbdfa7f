"""Garbage in a remote store: what is of no use goes, after two generations, and no function that can be fetched is ever lost."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from memory_store import MemoryStore, StoreError, VirtualLoop

from compcache import Cache, Function, ModuleSource, StorageError
from compcache.errors import FormatError
from compcache.remote import maintenance
from compcache.remote.address import RemoteSettings, Stores
from compcache.remote.card import decode_cards
from compcache.remote.helper.garbage import MARKS, GarbageCollector, UncertainError
from compcache.remote.helper.leases import Leases
from compcache.remote.helper.reads import Reads
from compcache.remote.helper.requests import Requests
from compcache.remote.helper.uploads import Uploads
from compcache.remote.helper.uses import USES, Uses, decode_uses, shortened_key
from compcache.remote.outbox import Outbox, Upload
from compcache.remote.shelves import LAYOUT, module_key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from compcache.remote.helper.packs import Packs
    from compcache.remote.maintenance import RemoteGarbage

DAY = 86400.0
SECONDS = float(os.environ.get("COMPCACHE_TEST_SECONDS", "60"))


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> list[Upload]:
    """Two modules of two functions each with objects of their own, and two that their cards hold."""
    place = tmp_path_factory.mktemp("uploads")
    found = []
    with Cache(place / "cache", remote=(place / "store").as_uri(), remote_mode="write") as cache:
        remote = cache.remote
        assert remote is not None
        for number in range(4):
            table = ", ".join(f"i64 {(n + number) * 0x9E3779B97F4A7C15 % 2**63}" for n in range(5000 if number < 2 else 1))
            ir = f"@t = constant [{table.count(',') + 1} x i64] [{table}]\n" + "".join(
                f"define ptr @{name}() {{\n ret ptr @t\n}}\n" for name in ("f", "g")
            )
            functions = {f"{name}{number}": Function(symbol=name) for name in ("f", "g")}
            module_id = cache.add_module(ModuleSource(ir, functions))
            upload = remote._make_upload(bytes.fromhex(module_id), always=True)
            assert upload is not None
            assert bool(upload.module) == (number < 2)
            found.append(upload)
    return found


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        loop.close()


def in_store(work: Callable[[MemoryStore], Coroutine[Any, Any, Any]]) -> Any:
    async def start() -> Any:
        return await work(MemoryStore(random.Random(1)))

    return run(start())


async def collect(store: MemoryStore, *, grace: float = DAY, **more: Any) -> RemoteGarbage:
    return await GarbageCollector(store).collect(grace=grace, **{"older_than": None, "dry_run": False, **more})


async def put(store: MemoryStore, upload: Upload, *, module: bool = True, cards: bool = True) -> None:
    if module and upload.module:
        await store.replace(upload.key, upload.module)
    for key, card in upload.cards if cards else ():
        await store.replace(key, card)


def keys(items: Any) -> list[str]:
    return sorted(item.key for item in items)


def content(store: MemoryStore) -> set[str]:
    return {key for key in store.objects if not key.startswith(MARKS)}


def is_reachable(store: MemoryStore, upload: Upload) -> bool:
    places = [module_of(store.objects[key][0]) if key in store.objects else "" for key, _ in upload.cards]
    return all(place is None or place in store.objects for place in places)


@functools.cache
def module_of(card: bytes) -> str | None:
    """Where the module of a card is, None for one that holds it, nowhere for one that is damaged."""
    try:
        (found,) = decode_cards(card).values()
    except FormatError:
        return ""
    return None if found.module else module_key(found.module_id)


# ------------------------------------------------------------------------------------------------ two generations


def test_what_is_of_no_use_goes_a_day_after_it_was_found(uploads: list[Upload]) -> None:
    large, other, small, damaged = uploads

    async def work(store: MemoryStore) -> None:
        await put(store, large)
        await put(store, small)
        before = content(store)
        await put(store, other, module=False)  # cards that lead nowhere
        orphan = module_key(b"o" * 16)
        await store.replace(orphan, b"not a module")
        key, card = damaged.cards[0]
        await store.replace(key, card[:-1])
        await store.replace(f"{LAYOUT}/p/x/y/ab/pack", b"not a pack")
        await store.replace(f"{LAYOUT}/l/x/ab/lease", b"of a host that is gone")
        garbage = content(store) - before
        assert len(garbage) == 6
        for hours in (0, 1, 22):
            await asyncio.sleep(3600 * hours)
            found = await collect(store)
            assert (found.removed, set(keys(found.left))) == ((), garbage)
        assert keys((await collect(store, dry_run=True, grace=0.0)).removed) == sorted(garbage)
        assert content(store) == before | garbage
        await asyncio.sleep(7200)
        found = await collect(store)
        assert (set(keys(found.removed)), found.left) == (garbage, ())
        assert content(store) == before

    in_store(work)


def test_what_was_stored_anew_since_it_was_found_of_no_use_begins_anew(uploads: list[Upload]) -> None:
    async def work(store: MemoryStore) -> None:
        await put(store, uploads[0], cards=False)
        await collect(store)
        await asyncio.sleep(DAY)
        await put(store, uploads[0], cards=False)
        found = await collect(store)
        assert (found.removed, keys(found.left)) == ((), [uploads[0].key])
        await asyncio.sleep(DAY + 10)
        assert keys((await collect(store)).removed) == [uploads[0].key]

    in_store(work)


def test_what_is_old_goes_when_it_is_asked_for_but_no_module_that_a_card_leads_to(uploads: list[Upload]) -> None:
    async def work(store: MemoryStore) -> None:
        await put(store, uploads[0])
        await put(store, uploads[2])
        await asyncio.sleep(40 * DAY)
        await put(store, uploads[0], module=False)  # of another host
        found = await collect(store, older_than=30 * DAY)
        assert keys(found.removed) == keys_of_cards(uploads[2])
        assert is_reachable(store, uploads[0])

    in_store(work)


def test_what_no_reader_has_used_goes_when_it_is_asked_for(uploads: list[Upload], tmp_path: Path) -> None:
    """Notes are left once a day, and not for ever."""
    used, unused = uploads[2:]

    async def work(store: MemoryStore) -> None:
        await put(store, used)
        await put(store, unused)
        names = [next(iter(decode_cards(card).values())).name for _, card in used.cards]
        await asyncio.sleep(40 * DAY)
        hosts = [Uses(Requests(store), str(tmp_path)) for _ in range(2)]
        for host in hosts:  # two helpers of one host, one after the other
            host.note(names[0])
            await host.store_note()
            host.note(names[1])
            await host.store_note()
        assert len([key for key in store.objects if key.startswith(USES)]) == 1
        await asyncio.sleep(DAY)
        assert (await collect(store)).removed == ()
        found = await collect(store, unused_for=30 * DAY)
        assert keys(found.removed) == sorted([*keys_of_cards(unused), used.cards[1][0]])
        os.utime(tmp_path / "used", (0, 0))  # a day later
        later = Uses(Requests(store), str(tmp_path))
        later.note(names[0])
        await later.store_note()
        await put(store, used)
        await asyncio.sleep(31 * DAY)
        assert keys((await collect(store, unused_for=32 * DAY)).removed) == []
        notes = [key for key in store.objects if key.startswith(USES)]
        assert decode_uses(store.objects[notes[-1]][0]) == {shortened_key(key) for key in keys_of_cards(used)}
        await asyncio.sleep(60 * DAY)
        found = await collect(store, unused_for=30 * DAY)
        assert set(keys(found.removed)) == {*keys_of_cards(used), *notes}

    in_store(work)


def keys_of_cards(upload: Upload) -> list[str]:
    return sorted(key for key, _ in upload.cards)


def test_lists_of_version_1_0_do_not_pile_up(uploads: list[Upload]) -> None:
    async def work(store: MemoryStore) -> None:
        await put(store, uploads[0])
        before = content(store)
        for key in ("d/0123", "i/01"):
            await store.replace(f"{LAYOUT}/{key}", b"a list of cards")
        await collect(store, dry_run=True)
        assert content(store) > before
        await collect(store)
        assert content(store) == before

    in_store(work)


def test_marks_do_not_pile_up(uploads: list[Upload]) -> None:
    async def work(store: MemoryStore) -> int:
        await put(store, uploads[0], cards=False)
        for _ in range(200):
            await asyncio.sleep(3600)
            await collect(store)
        return sum(key.startswith(MARKS) for key in store.objects)

    assert in_store(work) < 14


# ------------------------------------------------------------------------------- what a store does not say, or wrongly


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_a_store_that_does_not_answer_loses_nothing(uploads: list[Upload], share: float) -> None:
    """A question that failed is no answer: the collection ends with that error."""

    async def work(store: MemoryStore) -> None:
        for upload in uploads:
            await put(store, upload)
        before, failed = content(store), 0
        for _ in range(30):
            store.faults = share
            try:
                await collect(store, grace=0.0)
            except (StoreError, TimeoutError, UncertainError):
                failed += 1
            store.faults = 0.0
            await asyncio.sleep(100)
        assert content(store) == before
        assert failed > 10

    in_store(work)


def test_cards_that_are_not_answered_are_not_taken_for_damaged(uploads: list[Upload]) -> None:
    """However often: all that is asked besides is answered, so that collections would come to their end."""

    async def work(store: MemoryStore) -> None:
        for upload in uploads:
            await put(store, upload)
        before, answered = content(store), store.get

        async def get(key: str, largest: int, _: object = None) -> bytes | None:
            if key.startswith(f"{LAYOUT}/f/"):
                raise StoreError("503")
            return await answered(key, largest)

        store.get = get  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(StoreError):
                await collect(store, grace=0.0)
            await asyncio.sleep(100)
        assert content(store) == before

    in_store(work)


def test_listings_that_miss_cards_cost_no_module(uploads: list[Upload]) -> None:
    async def work(store: MemoryStore) -> None:
        for upload in uploads:
            await put(store, upload)
        listed = store.list

        async def without_cards(prefix: str) -> Any:
            async for item in listed(prefix):
                if f"{LAYOUT}/f/" not in item.key:
                    yield item

        store.list = without_cards  # type: ignore[method-assign]
        before = content(store)
        for _ in range(3):
            assert (await collect(store, grace=0.0)).removed == ()
            await asyncio.sleep(10)
        assert content(store) == before

    in_store(work)


def test_a_store_without_a_clock_is_left_as_it_is(uploads: list[Upload]) -> None:
    async def work(store: MemoryStore) -> None:
        store.now = lambda: 0.0  # type: ignore[method-assign]
        await put(store, uploads[0], cards=False)
        for _ in range(2):
            with pytest.raises(UncertainError):
                await collect(store, grace=0.0)
        assert uploads[0].key in store.objects

    in_store(work)


def test_the_stores_of_a_cache_are_verified_and_collected_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "verify", lambda store: ("verified", store.shown))
    monkeypatch.setattr(maintenance, "collect_garbage", lambda store, **options: ("collected", store.shown, options["dry_run"]))
    for mode, collected in (("write", [("collected", "file:///none", True)]), ("read", [])):
        with Cache(tmp_path / mode, remote="file:///none", remote_mode=mode) as cache:
            remote: Any = cache.remote
            assert remote.verify() == [("verified", "file:///none")]
            assert remote.collect_garbage(dry_run=True) == collected


def test_verifying_and_collecting_say_that_the_store_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Stores((RemoteSettings("file:///none", "write"),))
    rows = [[f"{LAYOUT}/f/a", 1, 1.0]]
    monkeypatch.setattr(maintenance, "_ask_helper", lambda _, operation, *__: rows if operation == "list" else "503")
    for operation in (maintenance.verify, maintenance.collect_garbage):
        with pytest.raises(StorageError, match="failed: 503"):
            operation(store)


# ------------------------------------------------------------------------------------------------------ the model


def test_an_upload_that_a_collection_crosses_is_complete_in_the_end(uploads: list[Upload], tmp_path: Path) -> None:
    """The module is removed after it was found of no use, and after the cards that lead to it were stored."""
    upload = uploads[0]

    async def work(store: MemoryStore) -> None:
        await put(store, upload, cards=False)
        await collect(store, grace=0.0)
        writer = Writer(store, tmp_path / "outbox")
        writer.start()
        delete = store.delete

        async def delete_late(key: str) -> None:
            if key == upload.key:
                writer.offer(upload)
                await asyncio.sleep(10.0)
                assert writer.outbox.finished()
                assert is_reachable(store, upload)
            await delete(key)

        store.delete = delete_late  # type: ignore[method-assign]
        assert keys((await collect(store, grace=0.0)).removed) == [upload.key]
        assert not is_reachable(store, upload)
        assert writer.finished() == []
        await asyncio.sleep(300)
        assert writer.finished() == [upload]
        assert is_reachable(store, upload)

    in_store(work)


def test_a_removal_takes_no_longer_than_uploads_count_on(uploads: list[Upload]) -> None:
    async def work(store: MemoryStore) -> None:
        await put(store, uploads[0], cards=False)
        await collect(store, grace=0.0)
        get = store.get

        async def get_slowly(key: str, largest: int, _: object = None) -> bytes | None:
            if key == uploads[0].key:
                await asyncio.sleep(60)
            return await get(key, largest)

        store.get = get_slowly  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await collect(store, grace=0.0)
        assert uploads[0].key in store.objects

    in_store(work)


class Healthy:
    """A breaker that never opens."""

    def allows_lookups(self) -> bool:
        return True

    def is_open(self) -> bool:
        return False

    is_half_open = is_doubtful = is_open

    def record_success(self) -> None:
        """Nothing is remembered."""

    def record_failure(self, *_: object, **__: object) -> None:
        """Nothing is remembered."""


class NoPacks:
    """Packs are derived: the model is about what is not."""

    def remember_module(self, *_: object) -> None:
        """Nothing is remembered."""


class Writer:
    """A helper process that uploads, and is killed now and then; what waits is on disk."""

    def __init__(self, store: MemoryStore, directory: Path) -> None:
        self._store = store
        directory.mkdir()
        self.outbox = Outbox(str(directory))
        self.offered: dict[str, Upload] = {}
        self.task: asyncio.Task[None] | None = None
        self.uploads: Uploads | None = None

    def start(self) -> None:
        if self.task is not None:
            self.task.cancel()
        healthy: Any = Healthy()
        packs: Packs = NoPacks()  # type: ignore[assignment]
        requests = Requests(self._store)
        self.uploads = Uploads(Reads(self._store, healthy), requests, self.outbox, packs, Leases(requests, lambda: False))
        self.task = asyncio.ensure_future(self.uploads.run())

    def offer(self, upload: Upload) -> None:
        before = set(self.outbox.names())
        self.outbox.put(upload)
        (name,) = set(self.outbox.names()) - before
        self.offered[name] = upload

    def forget(self, upload: Upload) -> None:
        """What was finished of this one is not expected to stay."""
        self.offered = {name: known for name, known in self.offered.items() if known is not upload}

    def awaits(self, upload: Upload) -> bool:
        """Whether it is not finished."""
        return sum(known is upload for known in self.finished()) < sum(known is upload for known in self.offered.values())

    def finished(self) -> list[Upload]:
        """What was uploaded, and seen to be there."""
        left = {name.removesuffix("-stored") for name in (*self.outbox.names(), *self.outbox.finished())}
        return [upload for name, upload in self.offered.items() if name not in left]


async def live(seed: int, uploads: list[Upload], place: Path) -> int:
    """Writers, readers and collections on a bad store for some hours, then on a good one; how many objects were removed."""
    chance = random.Random(seed)
    store = MemoryStore(chance)
    removed = 0
    for upload in uploads:  # what earlier writers and collections have left: modules alone, cards alone, damage
        await put(store, upload, module=chance.random() < 0.7, cards=chance.random() < 0.4)
        for key, card in upload.cards if chance.random() < 0.3 else ():
            await store.replace(key, card[:-1])
    writers = [Writer(store, place / f"{seed}-{number}") for number in range(2)]
    lost: list[str] = []

    def watch() -> None:
        for writer in writers:
            lost.extend(f"{upload.key} at {store.now():.0f}" for upload in writer.finished() if not is_reachable(store, upload))

    store.watch = watch

    async def collections() -> None:
        nonlocal removed
        while True:
            await asyncio.sleep(chance.choice((0.0, 0.0, 1.0, 20.0)))
            with suppress(StoreError, TimeoutError, UncertainError):
                removed += len((await collect(store, grace=chance.choice((0.0, 0.0, 0.0, 60.0)))).removed)

    async def readers() -> None:
        healthy: Any = Healthy()
        while True:
            await asyncio.sleep(chance.uniform(1.0, 60.0))
            upload = chance.choice(uploads)
            expected = [writer for writer in writers if upload in writer.finished()]
            key, _ = chance.choice(upload.cards)
            reads = Reads(store, healthy)
            try:
                found = await reads.get(key, 1 << 20, 20.0)
                held = await reads.fetch_module(next(iter(decode_cards(found).values()))) if found is not None else None
            except FormatError:  # what earlier ones have left
                held = None
            except (StoreError, TimeoutError):
                continue
            if any(upload in writer.finished() for writer in expected):  # no cards were dropped meanwhile
                assert found is not None, f"{key} is not there"
                assert held is not None, f"{key} leads nowhere"

    store.slow = True
    store.faults, store.lies = chance.choice((0.0, 0.0, 0.01, 0.05, 0.3)), chance.choice((0.0, 0.1, 0.5))
    tasks = [asyncio.ensure_future(work) for work in (collections(), collections(), readers())]
    for writer in writers:
        writer.start()
    for _ in range(60):
        await asyncio.sleep(chance.choice((0.0, 1.0, 5.0, 20.0, chance.choice((20.0, 200.0)))))
        event = chance.choice(("offer", "offer", "offer", "drop cards", "drop cards", "kill", "clock"))
        if event == "offer":
            chance.choice(writers).offer(chance.choice(uploads))
        elif event == "drop cards":  # as `--older-than` does: the module stays, until it is collected or named again
            upload = chance.choice(uploads)
            if not any(writer.awaits(upload) for writer in writers):  # nor is what was stored a minute ago old
                for writer in writers:
                    writer.forget(upload)
                for key, _ in upload.cards:
                    store.objects.pop(key, None)
        elif event == "kill":
            chance.choice(writers).start()
        else:
            store.clock += chance.choice((-DAY, -60.0, 60.0, DAY))
        assert not lost, lost
    store.faults = store.lies = 0.0
    await asyncio.sleep(1500)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.sleep(300)
    assert not lost, lost
    for writer in writers:
        assert (writer.outbox.names(), writer.outbox.finished()) == ([], [])
        assert all(is_reachable(store, upload) for upload in writer.offered.values())
        assert writer.task is not None
        writer.task.cancel()
    for _ in range(2):
        await collect(store, grace=0.0)
    needed = {key for upload in uploads if is_reachable(store, upload) for key in (*keys_of_cards(upload), upload.key)}
    assert content(store) <= needed
    return removed


@pytest.mark.slow
def test_nothing_that_can_be_fetched_is_lost(uploads: list[Upload], tmp_path: Path) -> None:
    """Writers, readers, collections, clocks and faults in some orders; the stress test takes more of them."""
    assert sum(run(live(seed, uploads, tmp_path)) for seed in (0, 1, 2, 19)) > 0


@pytest.mark.stress
def test_nothing_that_can_be_fetched_is_lost_in_many_orders(uploads: list[Upload], tmp_path: Path) -> None:
    end, seed = time.monotonic() + SECONDS, 1000
    while time.monotonic() < end:
        run(live(seed, uploads, tmp_path))
        seed += 1
