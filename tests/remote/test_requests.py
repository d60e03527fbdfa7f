"""Requests that fail, or are silent: what is made again, when, how often, and what it says of the store."""

from __future__ import annotations

import asyncio
import base64
import errno
import itertools
import os
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from helpers import constant
from memory_store import MemoryStore, VirtualLoop
from web_store import WebStore

from compcache import Cache, Identity
from compcache.remote.address import RemoteSettings
from compcache.remote.answer import MISSING, UNAVAILABLE
from compcache.remote.breaker import Breaker
from compcache.remote.card import MAX_CARDS, Card, decode_cards, encode_cards, merge_cards
from compcache.remote.helper.backends import open_backend
from compcache.remote.helper.leases import Leases
from compcache.remote.helper.packs import LARGEST_PACK
from compcache.remote.helper.reads import Reads
from compcache.remote.helper.requests import Requests
from compcache.remote.helper.uploads import Uploads
from compcache.remote.outbox import Outbox, Upload
from compcache.remote.shelves import card_key, module_key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path


class ThrottledError(Exception):
    """Passes after so many seconds; None: never."""

    def __init__(self, after: float | None = 0.0) -> None:
        super().__init__(f"after {after}")
        self.after = after


class Scripted:
    """A store that does with each request what its script says: raise, be silent for so long, answer. All that it was asked, and when."""

    def __init__(self, *script: Exception | float | bytes | None, tells: bool = False) -> None:
        self._script = iter(script)
        self._tells = tells
        self.asked: list[tuple[float, str, str]] = []

    async def get(self, key: str, largest: int, begun: Callable[[], None] | None = None, /) -> bytes | None:
        del largest
        answer: Exception | float | bytes | None = self._next("get", key)
        if isinstance(answer, float):
            if self._tells and begun is not None:
                begun()
            await asyncio.sleep(answer)
            return b"late"
        assert not isinstance(answer, Exception)
        return answer

    async def create(self, key: str, data: bytes) -> bool:
        self._next("create", key)
        return bool(data)

    async def delete(self, key: str) -> None:
        self._next("delete", key)

    def retry_delay(self, error: Exception) -> float | None:
        return error.after if isinstance(error, ThrottledError) else None

    def _next(self, what: str, key: str) -> Any:
        self.asked.append((asyncio.get_running_loop().time(), what, key))
        answer = next(self._script, b"answer")
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """In virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def requests_of(store: Any, concurrent: int = 32) -> Requests:
    return Requests(store, concurrent)


def test_what_passes_is_tried_again_after_longer_and_longer_pauses() -> None:
    store = Scripted(*[ThrottledError()] * 4)
    assert run(requests_of(store).get("key", 10)) == b"answer"
    times = [when for when, *_ in store.asked]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(0.5 <= pause / (0.05 * 2**number) <= 1.5 for number, pause in enumerate(pauses))


def test_pauses_are_not_those_of_others() -> None:
    def pause() -> float:
        store = Scripted(ThrottledError())
        run(requests_of(store).get("key", 10))
        return store.asked[1][0]

    assert len({pause() for _ in range(4)}) > 1


def test_what_does_not_pass_is_not_tried_again() -> None:
    store = Scripted(ThrottledError(None))
    with pytest.raises(ThrottledError):
        run(requests_of(store).get("key", 10))
    assert len(store.asked) == 1


def test_what_the_store_demands_is_waited_for() -> None:
    """And not where that takes longer than the request may: it fails at once then."""
    store = Scripted(ThrottledError(2.0))
    assert run(requests_of(store).get("key", 10, patience=3.0)) == b"answer"
    assert store.asked[1][0] >= 2.0
    store = Scripted(ThrottledError(2.0))
    with pytest.raises(ThrottledError):
        run(requests_of(store).get("key", 10, patience=1.0))
    assert len(store.asked) == 1


def test_a_silent_try_gets_a_copy_and_the_first_answer_is_taken() -> None:
    store = Scripted(30.0, 30.0)
    assert run(requests_of(store).get("key", 10, seconds=5.0)) == b"answer"
    assert store.asked[2][0] < 2.0


def test_an_answer_that_has_begun_gets_no_copy() -> None:
    store = Scripted(3.0, tells=True)
    assert run(requests_of(store).get("key", 10, seconds=5.0)) == b"late"
    assert len(store.asked) == 1


def test_a_copy_that_fails_does_not_end_the_try() -> None:
    store = Scripted(1.0, ThrottledError(), ThrottledError(), ThrottledError())
    assert run(requests_of(store).get("key", 10, seconds=5.0)) == b"late"


def test_a_store_that_is_silent_throughout_is_asked_within_the_time_of_one_try() -> None:
    store = Scripted(*[100.0] * 100)

    async def work() -> float:
        with pytest.raises(TimeoutError):
            await requests_of(store).get("key", 10, seconds=1.0, patience=10.0)
        return asyncio.get_running_loop().time()

    assert run(work()) == pytest.approx(1.0)


def test_the_wait_for_a_turn_is_not_the_time_of_the_store() -> None:
    store = Scripted(*[0.2] * 20)
    requests = requests_of(store, concurrent=1)

    async def work() -> list[bytes | None]:
        return await asyncio.gather(*[requests.get(f"{number}", 10, seconds=1.0, patience=1.0) for number in range(20)])

    assert run(work()) == [b"late"] * 20


def test_a_store_that_fails_for_everybody_gets_few_requests_more() -> None:
    store = Scripted(*[ThrottledError()] * 10_000)
    requests = requests_of(store)

    async def work() -> list[Any]:
        return await asyncio.gather(*[requests.get(f"{number}", 10) for number in range(1000)], return_exceptions=True)

    assert {type(answer) for answer in run(work())} == {ThrottledError}
    assert len(store.asked) <= 1000 + 64
    assert requests.repeated == len(store.asked) - 1000


def test_large_objects_cost_more_of_what_is_made_again() -> None:
    store = Scripted(*[ThrottledError()] * 10_000)
    requests = requests_of(store)

    async def work() -> None:
        for number in range(10):
            with pytest.raises(ThrottledError):
                await requests.get(f"{number}", 256 << 20)

    run(work())
    assert len(store.asked) < 13


def test_a_removal_is_made_once() -> None:
    store = Scripted(ThrottledError())
    with pytest.raises(ThrottledError):
        run(requests_of(store).delete("key"))
    assert len(store.asked) == 1


# ------------------------------------------------------------------------------------------- what look-ups say


class Shelves:
    """A store with these objects, whose requests for some keys fail."""

    def __init__(self, objects: dict[str, bytes], *failing: str) -> None:
        self.objects = objects
        self.failing = failing

    async def get(self, key: str, _: int, begun: object = None, /) -> bytes | None:
        del begun
        if key in self.failing:
            raise ThrottledError(None)
        return self.objects.get(key)

    async def create(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    async def replace(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def retry_delay(self, error: Exception) -> float | None:
        return error.after if isinstance(error, ThrottledError) else None


MODULE_ID = bytes(range(16))
KEY = card_key("platform", "f")
SHELVES = ["best", "other"]
CARD = Card("f", MODULE_ID, 5000, 0.5, b"")
CARDS = encode_cards({"other": CARD})


def outcome(store: Any, place: Path) -> str:
    reads = Reads(store, Breaker(str(place / "breaker")))
    answer: str = run(reads.find("f", "platform", SHELVES))[0]
    return answer


def test_an_error_is_no_miss(tmp_path: Path) -> None:
    assert outcome(Shelves({}), tmp_path) == MISSING
    assert outcome(Shelves({}, KEY), tmp_path) == UNAVAILABLE


def test_a_module_that_could_not_be_asked_for_is_no_miss(tmp_path: Path) -> None:
    assert outcome(Shelves({KEY: CARDS}), tmp_path) == MISSING
    assert outcome(Shelves({KEY: CARDS}, module_key(MODULE_ID)), tmp_path) == UNAVAILABLE


def test_what_could_not_be_asked_for_is_not_known_to_be_absent(tmp_path: Path) -> None:
    def has(store: Any, *shelves: str) -> bool | None:
        reads = Reads(store, Breaker(str(tmp_path / "breaker")))
        return run(reads.has("f", "platform", list(shelves or SHELVES)))  # type: ignore[no-any-return]

    assert has(Shelves({})) is False
    assert has(Shelves({KEY: CARDS})) is True
    assert has(Shelves({KEY: CARDS}), "best") is False
    assert has(Shelves({}, KEY)) is None


class NoPacks:
    """Remembers nothing."""

    def remember_module(self, *_: object) -> None:
        """Nothing."""

    async def store_packs(self, *, now: bool) -> None:
        """Nothing."""


def uploads_of(store: Any, place: Path) -> Uploads:
    packs: Any = NoPacks()
    requests = Requests(store)
    leases = Leases(requests, lambda: False)
    return Uploads(Reads(store, Breaker(str(place / "breaker"))), requests, Outbox(str(place / "outbox")), packs, leases)


def test_a_card_whose_module_could_not_be_asked_for_is_not_replaced(tmp_path: Path) -> None:
    store: Any = Shelves({KEY: CARDS}, module_key(MODULE_ID))
    (tmp_path / "outbox").mkdir()
    outbox = Outbox(str(tmp_path / "outbox"))
    mine = encode_cards({"other": Card("f", bytes(16), 3, 0.5, b"abc")})
    outbox.put(Upload("m", b"", [(KEY, mine)], 1.0, always=True))

    async def work() -> None:
        await uploads_of(store, tmp_path).flush(5.0)

    run(work())
    assert store.objects[KEY] == CARDS
    assert len(outbox.names()) == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_an_upload_that_cannot_be_read_now_is_uploaded_later(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Upload:
        raise OSError(number, os.strerror(number))

    (tmp_path / "outbox").mkdir()
    outbox = Outbox(str(tmp_path / "outbox"))
    mine = encode_cards({"best": Card("f", MODULE_ID, 3, 0.5, b"abc")})
    outbox.put(Upload("m", b"", [(KEY, mine)], 1.0, always=True))

    async def work() -> None:
        store = MemoryStore(random.Random(3))
        uploads = uploads_of(store, tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(Outbox, "read", fail)
            await uploads.flush(5.0)
        assert len(outbox.names()) == 1
        await uploads.flush(5.0)
        assert store.objects[KEY][0] == mine

    run(work())


def test_uploads_that_cannot_be_read_delay_no_others_and_are_dropped_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compcache.remote.helper.uploads.SETTLE_SECONDS", 0.0)
    (tmp_path / "outbox").mkdir()
    outbox = Outbox(str(tmp_path / "outbox"))
    read = Outbox.read

    def put(function: str) -> str:
        before = outbox.names()
        card = encode_cards({"best": Card(function, MODULE_ID, 3, 0.5, b"abc")})
        outbox.put(Upload("m", b"", [(card_key("platform", function), card)], 1.0, always=True))
        (name,) = set(outbox.names()).difference(before)
        return name

    unreadable = {put(f"key{number}") for number in range(4)}
    finished = outbox.mark_finished(put("key5"))
    unreadable.add(finished)
    put("key6")

    def fail(self: Outbox, name: str) -> Upload:
        if name in unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, name)

    async def work() -> None:
        store = MemoryStore(random.Random(3))
        uploads = uploads_of(store, tmp_path)
        monkeypatch.setattr(Outbox, "read", fail)
        await uploads.flush(5.0)
        assert len(store.objects) == 1
        assert (len(outbox.names()), outbox.finished()) == (4, [finished])  # the sixth has been checked
        for _ in range(2):
            await uploads.flush(5.0)
        assert (list(outbox.names()), list(outbox.finished())) == ([], [])

    run(work())


def test_a_finished_upload_that_cannot_be_checked_now_is_checked_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))  # of a store on a file system

    monkeypatch.setattr("compcache.remote.helper.uploads.SETTLE_SECONDS", 0.0)
    (tmp_path / "outbox").mkdir()
    outbox = Outbox(str(tmp_path / "outbox"))
    outbox.put(Upload("m", b"", [(KEY, encode_cards({"best": Card("f", MODULE_ID, 3, 0.5, b"abc")}))], 1.0, always=True))

    async def work() -> None:
        uploads = uploads_of(MemoryStore(random.Random(3)), tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(Uploads, "_is_complete", fail)
            await uploads.flush(5.0)
        assert len(outbox.finished()) == 1
        await uploads.flush(5.0)
        assert not outbox.finished()

    run(work())


def test_an_object_that_is_too_large_for_cards_is_replaced(tmp_path: Path) -> None:
    async def work() -> None:
        store = MemoryStore(random.Random(3))
        store.objects[KEY] = bytes(LARGEST_PACK + 1), store.now()
        card = Card("f", MODULE_ID, 3, 0.5, b"abc")
        await uploads_of(store, tmp_path).put_card(KEY, "best", card)
        assert decode_cards(store.objects[KEY][0]) == {"best": card}

    run(work())


def test_hosts_that_add_cards_at_once_lose_none(tmp_path: Path) -> None:
    """Twelve shelves of one function, over a store that compares."""
    shelves = [f"cpu-{number}" for number in range(12)]

    async def work() -> dict[str, Card]:
        store = MemoryStore(random.Random(3))
        store.slow = True
        writers = [uploads_of(store, tmp_path / shelf) for shelf in shelves]
        mine = Card("f", MODULE_ID, 3, 0.5, b"abc")
        await asyncio.gather(*[writer.put_card(KEY, shelf, mine) for writer, shelf in zip(writers, shelves, strict=True)])
        return decode_cards(store.objects[KEY][0])

    assert sorted(run(work())) == sorted(shelves)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_card_of_the_same_module_gets_the_signatures_of_both(tmp_path: Path, replaces: bool) -> None:
    async def work() -> None:
        store = MemoryStore(random.Random(3))
        uploads = uploads_of(store, tmp_path)
        uploads._reads.fetch_module = held  # type: ignore[method-assign, assignment]
        lines = [f"{name} {base64.b64encode(bytes(64)).decode()}\n".encode() for name in ("one", "two")]
        first, second, unsigned = [Card("f", MODULE_ID, 3, 0.5, b"abc", signatures) for signatures in (*lines, b"")]
        for card in (first, second, unsigned, second):
            await uploads.put_card(KEY, "best", card, replaces=replaces)
        (stored,) = decode_cards(store.objects[KEY][0]).values()
        assert sorted(stored.signatures.splitlines(keepends=True)) == lines

    async def held(card: Card) -> bytes:
        return card.module

    run(work())


@pytest.mark.parametrize("others", [8, 20, 64, 90])
def test_the_signature_of_a_publisher_reaches_the_card_whatever_others_have_signed(tmp_path: Path, others: int) -> None:
    """So many publishers of one module, or lines that somebody made up: the newest signature comes first, and as many as fit follow."""
    lines = [f"{number:03} {base64.b64encode(bytes(64)).decode()}\n".encode() for number in range(others + 1)]

    async def work() -> None:
        store = MemoryStore(random.Random(3))
        uploads = uploads_of(store, tmp_path)
        uploads._reads.fetch_module = held  # type: ignore[method-assign, assignment]
        for signatures in (b"".join(lines[1:]), lines[0], b"".join(lines[1:9])):
            await uploads.put_card(KEY, "best", Card("f", MODULE_ID, 3, 0.5, b"abc", signatures))
        (stored,) = decode_cards(store.objects[KEY][0]).values()
        assert stored.signatures.splitlines(keepends=True) == lines[:64]

    async def held(card: Card) -> bytes:
        return card.module

    run(work())


def test_a_card_of_a_shelf_that_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    async def work() -> None:
        store = MemoryStore(random.Random(3))
        uploads = uploads_of(store, tmp_path)
        uploads._reads.fetch_module = held  # type: ignore[method-assign, assignment]
        first, second = [Card("f", bytes([number]) * 16, 3, 0.5, b"abc") for number in range(2)]
        await uploads.put_card(KEY, "best", first)
        await uploads.put_card(KEY, "best", second)
        assert decode_cards(store.objects[KEY][0]) == {"best": first}
        await uploads.put_card(KEY, "best", second, replaces=True)
        assert decode_cards(store.objects[KEY][0]) == {"best": second}

    async def held(card: Card) -> bytes:
        return card.module

    run(work())


@pytest.mark.slow
def test_cards_are_bounded_and_the_oldest_shelf_goes_first() -> None:
    cards: dict[str, Card] = {}
    own = Card("g", MODULE_ID, 60 << 10, 0.5, bytes(60 << 10))
    for number in range(40):
        card = Card("f", MODULE_ID, 32 << 10, 0.5, bytes(32 << 10), imports=(own,))
        data = merge_cards(cards, f"cpu-{number}", card)
        assert len(data) <= MAX_CARDS
        cards = decode_cards(data)
    assert list(cards)[-1] == "cpu-39"
    assert 8 < len(cards) < 40
    assert sum(bool(card.imports) for card in cards.values()) < 4


def test_who_asks_for_the_same_at_the_same_time_shares_a_request(tmp_path: Path) -> None:
    store = Scripted(0.5, 0.5, 0.5, tells=True)
    reads = Reads(store, Breaker(str(tmp_path / "breaker")))  # type: ignore[arg-type]

    async def work() -> None:
        await asyncio.gather(*[reads.cards("f", "platform", SHELVES) for _ in range(16)])

    run(work())
    assert len(store.asked) == 1


# ---------------------------------------------------------------------------------------------------- over HTTP


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    pytest.importorskip("obstore")
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with WebStore() as server:
        yield server
        server.shutdown()
    (tmp_path / "run").rename(tmp_path / "ended")  # the helper process ends


@pytest.mark.slow
def test_all_functions_arrive_from_a_store_that_fails_now_and_then(web: WebStore, tmp_path: Path) -> None:
    """Every tenth request, in each of three ways; without one more compilation."""
    names = [Identity("f", number=number) for number in range(20)]
    with Cache(tmp_path / "a", remote=web.url, remote_mode="write") as cache:
        for number, name in enumerate(names):
            cache.get_or_compile(name, partial(constant, "f", number))
        cache.push(names)
        assert cache.flush_uploads(60)
    web.objects = {key: data for key, data in web.objects.items() if "/p/" not in key}
    ways = itertools.cycle(["throttle", *[""] * 9, "hang_up", *[""] * 9, "fail", *[""] * 9])
    web.behave = lambda *_: next(ways)
    with Cache(tmp_path / "b", remote=web.url) as cache:
        assert len(cache.prefetch(names)) == len(names)
        assert cache.has_many(names) == (True,) * len(names)


def test_the_client_tells_what_passes(web: WebStore) -> None:
    async def pause(url: str, way: str) -> float | None:
        web.behave = lambda *_: way
        backend = open_backend(RemoteSettings(url, "read"))
        try:
            await backend.get("key", 100)
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            return backend.retry_delay(error)
        raise AssertionError("it did not fail")

    def passes(way: str, url: str = web.url) -> bool:
        return asyncio.run(pause(url, way)) is not None

    assert [passes(way) for way in ("throttle", "fail", "hang_up")] == [True] * 3
    assert passes("", "http://127.0.0.1:1/cache")
    assert not passes("forbid")


def test_a_busy_host_does_not_make_the_store_farther() -> None:
    """The least of the last answers tells how far it is, slowly forgotten; the first ones tell nothing."""
    requests = Requests(Shelves({}, ""))  # type: ignore[arg-type]
    for _ in range(7):
        requests._update_latency(0.01, 10)
        assert requests.distance == 0.0
    for seconds in (0.02, *[0.5] * 20):
        requests._update_latency(seconds, 10)
    assert requests.latency > 0.3
    assert 0.01 <= requests.distance < 0.03
    for _ in range(100):
        requests._update_latency(0.5, 10)
    assert requests.distance == 0.5
