"""Uploads the content of the outbox in the background, the oldest files first."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.remote.card import decode_cards, encode_cards, merge_cards
from compcache.remote.helper.backends import TooLargeError
from compcache.remote.helper.garbage import SETTLE_SECONDS
from compcache.remote.helper.packs import LARGEST_PACK
from compcache.remote.helper.requests import loop_time
from compcache.remote.shelves import lease_of
from compcache.signing.signatures import add_missing_signatures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.remote.card import Card
    from compcache.remote.helper.leases import Leases
    from compcache.remote.helper.packs import Packs
    from compcache.remote.helper.reads import Reads
    from compcache.remote.helper.requests import Requests
    from compcache.remote.outbox import Outbox, Upload

__all__ = ["CONCURRENT", "Uploads"]

CONCURRENT = 32
#: An upload is dropped if it fails this many times while others succeed.
_REFUSALS = 3
#: A round of uploads ends after this many consecutive failures.
_IN_VAIN = 3
_FIRST_REST, _LONGEST_REST = 30.0, 600.0
_LOOK_AGAIN = 5.0  # seconds between two looks into the outbox without news
#: How often a card is merged again because other hosts change the cards of its function at the same time.
_MERGES = 8


class Uploads:
    """The uploads of one store. Their failures do not affect look-ups: readers of a store that accepts no uploads continue to read.

    Attributes:
        news: set when the outbox has a new file.
    """

    def __init__(self, reads: Reads, requests: Requests, outbox: Outbox, packs: Packs, leases: Leases) -> None:
        self._reads = reads
        self._requests = requests
        self._outbox = outbox
        self._packs = packs
        self._leases = leases
        self.news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._pause = 0.0
        self._until = 0.0
        self._refusals: dict[str, int] = {}  # by file name in the outbox
        self._stored: dict[str, float] = {}  # by file name in the outbox: when it was first known to be stored

    async def run(self) -> None:
        """Upload the waiting files, forever: when files are added, and every `_LOOK_AGAIN` seconds."""
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.news.wait(), _LOOK_AGAIN)
            self.news.clear()
            if self._outbox.names() and self._reads.breaker.is_half_open():
                await self._reads.probe()
            await self._upload_all()

    async def flush(self, seconds: float) -> None:
        """Upload waiting files for at most `seconds`, even during a pause. Probe the store first if its breaker allows no look-ups."""
        self._until = 0.0
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._upload_waiting(), seconds)

    async def _upload_waiting(self) -> None:
        """Upload the waiting files. Repeat this while the breaker is doubtful, and probe the store first if it allows no look-ups."""
        breaker = self._reads.breaker
        while True:
            if not breaker.allows_lookups():
                await asyncio.shield(self._reads.probe())
            await self._upload_all()
            if not breaker.is_doubtful():
                return

    def pause_seconds(self) -> float:
        """Return the seconds until the end of the pause after failed uploads; 0 if there is no pause."""
        return max(0.0, self._until - loop_time())

    def has_work(self) -> bool:
        """Return whether uploads are not paused, and a file waits or a finished upload must still be checked."""
        return not self.is_paused() and bool(self._outbox.names() or self._outbox.finished())

    def is_paused(self) -> bool:
        """Return whether uploads are paused, because uploads have failed or look-ups may not ask the store."""
        return not self._reads.breaker.allows_lookups() or self.pause_seconds() > 0

    async def _upload_all(self) -> None:
        """Upload everything that waits. Begin a pause if the last uploads failed, otherwise check the finished uploads."""
        async with self._turn:
            waiting = iter(self._outbox.names())
            failed: list[str] = []  # the failures since the last success
            await asyncio.gather(*[self._upload_some(waiting, failed) for _ in range(CONCURRENT)])
            if failed:
                self._begin_pause()
            if not self.is_paused():
                try:
                    await self._check_stored()
                except Exception as error:  # noqa: BLE001 - whatever the client raises
                    self._begin_pause()
                    self._reads.note_error(error)

    async def _upload_some(self, waiting: Iterator[str], failed: list[str]) -> None:
        """Upload files until none are left, uploads pause, or too many have failed. Several tasks share `waiting` and `failed`."""
        for name in waiting:
            if self.is_paused() or len(failed) >= _IN_VAIN:
                return
            is_uploaded = await self._upload_one(name)
            if is_uploaded is None:
                continue
            if is_uploaded:
                self._pause = 0.0
                self._count_refusals(failed)
                failed.clear()
            else:
                failed.append(name)

    def _begin_pause(self) -> None:
        """Pause the uploads. Each pause without a success in between is twice as long as the last, up to `_LONGEST_REST`."""
        self._pause = min(2 * self._pause, _LONGEST_REST) if self._pause else _FIRST_REST
        self._until = loop_time() + self._pause

    def _count_refusals(self, names: list[str]) -> None:
        """Count a refusal of each of these uploads: the store has accepted another upload since, or the file cannot be read.

        An upload is dropped after `_REFUSALS` refusals.
        """
        for name in names:
            self._refusals[name] = self._refusals.get(name, 0) + 1
            if self._refusals[name] >= _REFUSALS:
                del self._refusals[name]
                self._outbox.remove(name)
                self._reads.count("uploads_refused")

    def _read_upload(self, name: str) -> Upload | None:
        """Read an upload. Return None if its file is missing, damaged or cannot be read. A damaged file is removed from the outbox."""
        try:
            return self._outbox.read(name)
        except (FileNotFoundError, FormatError):
            self._outbox.remove(name)
        except OSError as error:  # no free descriptor, an error of the disk
            self._reads.note_error(error)
            self._count_refusals([name])
        return None

    async def _upload_one(self, name: str) -> bool | None:
        """Upload one file of the outbox if that saves time for other hosts, otherwise drop it.

        Return True if the file was uploaded or dropped, False if the upload must be retried, and None if the file could not be read.
        """
        upload = self._read_upload(name)
        if upload is None:
            return None
        self._remember_functions(upload)
        if not self._is_worthwhile(upload):
            self._reads.count("not_worth_uploading")
        elif await self._store_upload(upload):
            self._stored[self._outbox.mark_finished(name)] = loop_time()
            return True
        else:
            return False
        self._outbox.remove(name)
        return True

    async def _check_stored(self) -> None:
        """Check, a while after each upload, that the store still has it. Errors of the store's client are raised.

        Uploads that a garbage collection (`garbage.py`) has removed are queued again.
        """
        files = self._outbox.finished()
        self._stored = {name: self._stored.get(name, loop_time()) for name in files}
        for name in files:
            if loop_time() - self._stored[name] < SETTLE_SECONDS:
                continue
            upload = self._read_upload(name)
            if upload is None:
                continue
            is_complete = True
            with suppress(FormatError):  # of its cards: it cannot be checked
                is_complete = await self._is_complete(upload)
            if is_complete:
                self._outbox.remove(name)
            else:
                self._outbox.requeue(name)
                self._reads.count("uploads_repeated")
                self.news.set()

    async def _is_complete(self, upload: Upload) -> bool:
        """Return whether the store has the module of an upload and a card for each of its functions.

        Raise `FormatError` if the cards of the upload are damaged.
        """
        if upload.module and await self._requests.stat(upload.key) is None:
            return False
        for key, data in upload.cards:
            _, stored_cards = await self._read_cards(key)
            if not stored_cards.keys() >= decode_cards(data).keys():
                return False
        return True

    async def _read_cards(self, key: str) -> tuple[bytes | None, dict[str, Card]]:
        """Return the encoded cards at a key, or None if there are none, and the decoded cards by shelf, none if the object is damaged.

        An object that is too large to be read is returned as b"", without cards. Other errors of the store's client are raised.
        """
        data: bytes | None = b""
        with suppress(FormatError, TooLargeError):
            data = await self._requests.get(key, LARGEST_PACK)
            return data, decode_cards(data or b"")
        return data, {}

    def _remember_functions(self, upload: Upload) -> None:
        """Remember the functions of an upload, so that a later pack contains them, even if the upload itself is dropped."""
        for key, data in upload.cards:
            _layout, _kind, platform_part, *_ = key.split("/")
            with suppress(FormatError):
                for shelf, card in decode_cards(data).items():
                    self._packs.remember_module(platform_part, shelf, card, card.module or upload.module)

    def _is_worthwhile(self, upload: Upload) -> bool:
        """Return whether fetching the module is faster than compiling it, other hosts wait for it, or it is always uploaded."""
        if any(self._leases.holds(lease_of(key)) for key, _ in upload.cards):
            return True  # other hosts wait for this upload
        size = len(upload.module) + sum(len(card) for _, card in upload.cards[:1])
        requests = self._reads.requests
        return upload.always or upload.seconds > requests.latency + size * requests.rate

    async def _store_upload(self, upload: Upload) -> bool:
        """Store the module, then its cards, so that no card names a missing module. Return False if the store fails."""
        try:
            if upload.module and (upload.replaces or self._reads.forget_damaged(upload.key)):
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
        """Add a card to the cards of its function.

        An existing card of the same shelf is replaced if `replaces` is set, it is another function's, or its module is missing or damaged.
        Otherwise it is kept. If it has the same module, the card gets the signatures of both.

        Raises:
            TimeoutError: other hosts changed the cards during each of `_MERGES` attempts.
            Exception: an error of the store's client.
        """
        self._reads.forget_miss(key)
        data = encode_cards({shelf: card})
        for _ in range(_MERGES):
            if await self._requests.create(key, data):
                self._reads.forget_miss(key)
                return
            former_content, stored_cards = await self._read_cards(key)
            if former_content is None:
                continue  # the cards were removed since the attempt
            stored_card = stored_cards.get(shelf)
            new_card = card
            if stored_card is not None and stored_card.name == card.name:
                is_same = stored_card.module_id == card.module_id
                signatures = add_missing_signatures(stored_card.signatures, card.signatures) if is_same else card.signatures
                is_kept = not replaces and (not is_same or signatures == stored_card.signatures)
                if is_kept and await self._reads.fetch_module(stored_card) is not None:
                    return
                new_card = card._replace(signatures=signatures)
            merged = merge_cards(stored_cards, shelf, new_card)
            if not former_content:
                await self._requests.replace(key, merged)
            elif merged != former_content and not await self._requests.exchange(key, merged, former_content):
                continue
            self._reads.forget_miss(key)
            return
        raise TimeoutError(f"other hosts changed the cards at {key} {_MERGES} times while a card was added; uploads are tried again")
