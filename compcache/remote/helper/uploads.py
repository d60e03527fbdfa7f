"""Uploads the content of the outbox in the background, oldest first."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.remote.card import decode_cards, encode_cards, merge_cards
from compcache.remote.helper.garbage import SETTLE_SECONDS
from compcache.remote.helper.packs import LARGEST_PACK
from compcache.remote.helper.surveys import Deliveries
from compcache.remote.shelves import lease_of, module_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.remote.card import Card
    from compcache.remote.helper.leases import Leases
    from compcache.remote.helper.packs import Packs
    from compcache.remote.helper.reads import Reads
    from compcache.remote.helper.requests import Requests
    from compcache.remote.outbox import Outbox, Upload

__all__ = ["CONCURRENT", "Uploads"]

CONCURRENT = 32
#: How often a module may be refused while others are accepted.
_REFUSALS = 3
#: After so many consecutive failures all uploads pause.
_IN_VAIN = 3
_FIRST_REST, _LONGEST_REST = 30.0, 600.0
_LOOK_AGAIN = 5.0
#: How many times cards are merged if other hosts change them at the same time.
_MERGES = 8


class Uploads:
    """The uploads of one store. Their failures do not affect look-ups: readers of a store that accepts nothing go on reading."""

    def __init__(self, reads: Reads, requests: Requests, outbox: Outbox, packs: Packs, leases: Leases) -> None:
        self._reads = reads
        self._requests = requests
        self._outbox = outbox
        self._packs = packs
        self._leases = leases
        self.news = asyncio.Event()  # the outbox has something new
        self.deliveries = Deliveries(requests)
        self._turn = asyncio.Lock()
        self._pause = 0.0
        self._until = 0.0
        self._refusals: dict[str, int] = {}  # by name in the outbox
        self._stored: dict[str, float] = {}  # by name in the outbox: when it was first known to be stored

    async def go_on(self) -> None:
        """Upload what comes, forever."""
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.news.wait(), _LOOK_AGAIN)
            self.news.clear()
            if self._outbox.names() and self._reads.breaker.is_half_open():
                await self._reads.probe()
            await self._upload_all()

    async def flush(self, seconds: float) -> None:
        """Upload what waits now, even during a pause; a store that is not asked after failures is probed."""
        self._until = 0.0
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._flush(), seconds)

    async def _flush(self) -> None:
        breaker = self._reads.breaker
        while True:
            if not breaker.allows():
                await asyncio.shield(self._reads.probe())
            await self._upload_all()
            if not breaker.is_doubtful():
                return

    def rest_seconds(self) -> float:
        """Return for how many seconds nothing is uploaded, after failures."""
        return max(0.0, self._until - _now())

    def are_wanted(self) -> bool:
        """Return whether something can be uploaded now, or a finished upload has to be checked again."""
        return not self.rests() and bool(self._outbox.names() or self._outbox.stored())

    def rests(self) -> bool:
        """Return whether uploads pause, after failures."""
        return not self._reads.breaker.allows() or self.rest_seconds() > 0

    async def _upload_all(self) -> None:
        async with self._turn:
            waiting = iter(self._outbox.names())
            failed: list[str] = []  # since the last upload that was accepted
            await asyncio.gather(*[self._upload_some(waiting, failed) for _ in range(CONCURRENT)])
            if failed:
                self._let_rest()
            if not self.rests():
                try:
                    await self._look_again()
                    await self.deliveries.leave(now=False)
                except Exception as error:  # noqa: BLE001 - whatever the client raises
                    self._let_rest()
                    self._reads.note_error(error)

    async def _upload_some(self, waiting: Iterator[str], failed: list[str]) -> None:
        """Upload what waits, concurrently with other tasks, until all is uploaded or too many uploads fail."""
        for name in waiting:
            if self.rests() or len(failed) >= _IN_VAIN:
                return
            if await self._upload_one(name):
                self._pause = 0.0
                self._count_refusals(failed)
                failed.clear()
            else:
                failed.append(name)

    def _let_rest(self) -> None:
        self._pause = min(2 * self._pause, _LONGEST_REST) if self._pause else _FIRST_REST
        self._until = _now() + self._pause

    def _count_refusals(self, names: list[str]) -> None:
        """Count a refusal for each of these, because the store has accepted another one since. They are dropped in the end."""
        for name in names:
            self._refusals[name] = self._refusals.get(name, 0) + 1
            if self._refusals[name] >= _REFUSALS:
                del self._refusals[name]
                self._outbox.remove(name)
                self._reads.count("uploads_refused")

    async def _upload_one(self, name: str) -> bool:
        """Upload one entry of the outbox, if that is worth it; return whether the entry is done."""
        try:
            upload = self._outbox.read(name)
        except (OSError, FormatError):
            self._outbox.remove(name)
            return True
        self._remember(upload)
        if not self._is_worth_it(upload):
            self._reads.count("not_worth_uploading")
        elif await self._upload(upload):
            self._stored[self._outbox.keep(name)] = _now()
            return True
        else:
            return False
        self._outbox.remove(name)
        return True

    async def _look_again(self) -> None:
        """Check whether uploads are still in the store after a while. Those that a garbage collection (`garbage.py`) has removed are queued
        again.

        Raises:
            Exception: an error of the store.
        """
        kept = self._outbox.stored()
        self._stored = {name: self._stored.get(name, _now()) for name in kept}
        for name in kept:
            if _now() - self._stored[name] < SETTLE_SECONDS:
                continue
            with suppress(OSError, FormatError):
                upload = self._outbox.read(name)
                if not await self._is_there(upload):
                    self._outbox.put_back(name)
                    self._reads.count("uploads_repeated")
                    self.news.set()
                    continue
            self._outbox.remove(name)

    async def _is_there(self, upload: Upload) -> bool:
        """Return whether the store has the module of an upload, and a card of each function on its shelf."""
        if upload.module and await self._requests.look(upload.key) is None:
            return False
        for key, data in upload.cards:
            _, known = await self._read_cards(key)
            if not known.keys() >= decode_cards(data).keys():
                return False
        return True

    async def _read_cards(self, key: str) -> tuple[bytes | None, dict[str, Card]]:
        """Return the cards of a function in the store, as bytes and by shelf; no bytes if it has none."""
        data = await self._requests.get(key, LARGEST_PACK)
        try:
            return data, decode_cards(data or b"")
        except FormatError:
            return data, {}

    def _remember(self, upload: Upload) -> None:
        """Remember an upload for packs, also one that is not worth a request of its own."""
        for key, data in upload.cards:
            platform = key.split("/")[2]
            with suppress(FormatError):
                for shelf, card in decode_cards(data).items():
                    self._packs.remember(platform, shelf, card, card.module or upload.module)

    def _is_worth_it(self, upload: Upload) -> bool:
        if any(self._leases.holds(lease_of(key)) for key, _ in upload.cards):
            return True  # other hosts wait for it
        size = len(upload.module) + sum(len(card) for _, card in upload.cards[:1])
        requests = self._reads.requests
        return upload.always or upload.seconds > requests.latency + size * requests.rate

    async def _upload(self, upload: Upload) -> bool:
        """Store the module, then its cards, so that no card leads nowhere; return whether that was done."""
        try:
            if upload.module and (upload.replaces or self._reads.takes_damaged(upload.key)):
                await self._requests.replace(upload.key, upload.module)
            elif upload.module:
                await self._requests.create(upload.key, upload.module)
            for key, data in upload.cards:
                for shelf, card in decode_cards(data).items():
                    await self.put_card(key, shelf, card, replaces=upload.replaces)
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            self._reads.note_error(error)
            return False
        self._reads.count("uploads")
        self._reads.count("uploaded_size", len(upload.module) + sum(len(card) for _, card in upload.cards))
        return True

    async def put_card(self, key: str, shelf: str, card: Card, *, replaces: bool = False) -> None:
        """Add a card to those of its function. A card of the same shelf is replaced if it leads nowhere, or with `replaces`."""
        self._reads.forget_miss(key)
        for _ in range(_MERGES):
            if await self._requests.create(key, data := encode_cards({shelf: card})):
                self._note(key, data, [card])
                return
            before, known = await self._read_cards(key)
            if before is None:
                continue  # it was removed meanwhile
            present = known.get(shelf)
            if present is not None and present.name == card.name and not replaces and await self._reads.held(present) is not None:
                return
            merged = merge_cards(known, shelf, card)
            if merged == before or await self._requests.exchange(key, merged, before):
                self._note(key, merged, [*known.values(), card])
                return
        raise TimeoutError

    def _note(self, key: str, data: bytes, cards: Iterable[Card]) -> None:
        self._reads.forget_miss(key)
        self.deliveries.note(key, data, [module_key(card.module_id) for card in cards if not card.module])


def _now() -> float:
    """Return the time of the event loop, which changes of the system clock do not affect."""
    return asyncio.get_running_loop().time()
