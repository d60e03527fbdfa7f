"""The helper process: holds the client of one remote store, answers look-ups on a Unix socket, uploads what waits.

It is started by the first process that asks the store something, serves every process of the user that uses the same store
with the same credentials, and ends when it has been idle. One is enough: the lock beside the socket decides which.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from compcache.errors import FormatError
from compcache.formats.footer import intact_footer
from compcache.remote.address import RemoteSettings
from compcache.remote.breaker import Breaker
from compcache.remote.card import decode_card
from compcache.remote.connection import LENGTH, MAX_MESSAGE, decode, encode, owner_of
from compcache.remote.helper.backends import BackendMissingError, open_backend
from compcache.remote.helper.packs import Packs
from compcache.remote.outbox import Outbox
from compcache.remote.shelves import card_key, module_key

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import TypeVar

    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend
    from compcache.remote.helper.packs import StartUp
    from compcache.remote.outbox import Upload

    _T = TypeVar("_T")

__all__ = ["FOUND", "MISSING", "UNAVAILABLE", "main"]

#: The first field of an answer about a function.
FOUND, MISSING, UNAVAILABLE = "found", "missing", "unavailable"
_CONCURRENT = 32
_LOOKUP_SECONDS = 1.0
_SECONDS_PER_BYTE = 1.0 / (1 << 20)
_PACK_SECONDS = 10.0
_MANY = 4  # names in one question
#: How long the pack of a start-up is waited for, with many names and with few: a store that does not answer must be noticed by look-ups.
_WAIT_OF_MANY, _WAIT_OF_FEW = 2.0, 0.05
_UPLOAD_ATTEMPTS = 3
_UPLOAD_SECONDS = 60.0
_IDLE_SECONDS = 60.0
_SOCKET = "socket"
#: What stands before the host in a URL: messages are logged, and shown to others.
_PASSWORD = re.compile(r"//[^/@\s]*@")


class _LeftAloneError(Exception):
    """The store is left alone after failures."""


class Helper:
    """What one helper process serves."""

    def __init__(self, backend: Backend, directory: str) -> None:
        self._backend = backend
        self._directory = directory
        self._breaker = Breaker(os.path.join(directory, "breaker"))
        self._outbox = Outbox(os.path.join(directory, "outbox"))
        self._packs = Packs(lambda key: self._get(key, _PACK_SECONDS), self._put_pack)
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._last_use = time.monotonic()
        self._connections = 0
        self._latency = 0.0  # seconds of a small request: a moving average
        self._rate = 0.0  # seconds per byte of larger ones
        self._counts: dict[str, float] = {}
        self._error = ""
        self._news = asyncio.Event()
        self._uploading = asyncio.Lock()

    # ---------------------------------------------------------------- serving

    async def serve(self, listener: socket.socket) -> None:
        """Answer until nobody has asked for a while and nothing waits that could be uploaded."""
        server = await asyncio.start_unix_server(self._connected, sock=listener)
        uploader = asyncio.create_task(self._upload_forever())
        while self._is_wanted():  # noqa: ASYNC110 - time passes
            await asyncio.sleep(1.0)
        server.close()
        uploader.cancel()

    def _is_wanted(self) -> bool:
        if not os.path.exists(os.path.join(self._directory, _SOCKET)):
            return False  # it was removed: nobody can ask any more
        if self._connections or time.monotonic() - self._last_use < _IDLE_SECONDS:
            return True
        return bool(self._outbox.names()) and not self._breaker.is_open()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if owner_of(writer.get_extra_info("socket")) == os.geteuid():
                await self._converse(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return  # the other side has hung up, or is not one of ours
        finally:
            self._connections -= 1
            self._last_use = time.monotonic()
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            if size > MAX_MESSAGE:
                return
            operation, *arguments = decode(await reader.readexactly(size))
            answer = await getattr(self, f"_do_{operation}")(*arguments)
            writer.write(encode(answer))
            await writer.drain()

    # ---------------------------------------------------------------- requests

    async def _do_find(
        self, names: list[str], platform: str, shelves: list[str], token: bytes, writes: bool
    ) -> list[list[Any]]:
        """For each function: FOUND, the module, its signatures, and whether a pack had it; MISSING; or UNAVAILABLE and why.

        `token` names the process whose questions make a start-up, `writes` says whether it may leave a pack behind.
        """
        if self._breaker.is_open():
            return [[UNAVAILABLE, "it is left alone after failures"] for _ in names]
        is_known = self._packs.knows(token)
        start_up = self._packs.join(token, names, platform, shelves, writes=writes)
        wait = _WAIT_OF_MANY if len(names) >= _MANY else _WAIT_OF_FEW
        if not is_known and len(names) < _MANY:
            wait = 0.0  # the first function must not wait for all the others
        return await asyncio.gather(*[self._find(name, platform, shelves, start_up, wait) for name in names])

    async def _do_distrust(self, token: bytes) -> None:
        """The pack of this start-up holds modules that the process does not take."""
        self._packs.distrust(token)

    async def _do_pack(self, names: list[str], platform: str, shelves: list[str]) -> None:
        """These functions, which are being uploaded, are to be a pack."""
        self._packs.announce(names, platform, shelves)

    async def _do_has(self, names: list[str], platform: str, shelves: list[str]) -> list[bool]:
        """For each function whether there is a card on one of the shelves."""
        return await asyncio.gather(*[self._has(name, platform, shelves) for name in names])

    async def _do_status(self) -> dict[str, Any]:
        """What `compcache remote status` shows."""
        failures, seconds = self._breaker.state()
        return {
            "pid": os.getpid(), "failures": failures, "left_alone_seconds": seconds, "latency_seconds": self._latency,
            "waiting_uploads": len(self._outbox.names()), "waiting_size": self._outbox.size(), "last_error": self._error,
            **self._counts,
        }  # fmt: skip

    async def _do_flush(self, seconds: float) -> int:
        """Upload what waits; how many uploads are left."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._upload_all(packs_now=True), seconds)
        return len(self._outbox.names())

    async def _do_news(self) -> None:
        """The outbox has something new."""
        self._news.set()

    async def _do_list(self, prefix: str) -> list[list[Any]] | str:
        """The objects below a prefix as (key, size, modified); text where the store cannot list."""
        try:
            return [list(item) async for item in self._backend.list(prefix)]
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            return _words(error)

    async def _do_get(self, key: str) -> bytes | str | None:
        """An object; None where there is none, text where the store does not answer."""
        try:
            return await self._backend.get(key)
        except Exception as error:  # noqa: BLE001
            return _words(error)

    async def _do_delete(self, keys: list[str]) -> str:
        """Remove objects; what went wrong."""
        try:
            await asyncio.gather(*[self._within(_UPLOAD_SECONDS, self._backend.delete(key)) for key in keys])
        except Exception as error:  # noqa: BLE001
            return _words(error)
        return ""

    # ---------------------------------------------------------------- look-ups

    async def _find(
        self, name: str, platform: str, shelves: list[str], start_up: StartUp | None, wait: float
    ) -> list[Any]:
        packed = await start_up.find(name, wait) if start_up is not None else None
        if packed is not None and _is_intact(packed.card, packed.module):
            self._count("found_in_packs")
            return [FOUND, packed.module, packed.card.signatures, True]
        if not self._breaker.allows():
            return [UNAVAILABLE, "it is left alone after failures"]
        found = await self._cards(name, platform, shelves)
        if all(isinstance(answer, Exception) for answer in found):
            return [UNAVAILABLE, self._error]
        for shelf, data in zip(shelves, found, strict=True):
            held = await self._held(data, name) if isinstance(data, bytes) else None
            if held is not None:
                card, module = held
                if start_up is not None and start_up.writes:
                    self._packs.remember(platform, shelf, card, module)
                return [FOUND, module, card.signatures, False]
        return [MISSING, ""]

    async def _has(self, name: str, platform: str, shelves: list[str]) -> bool:
        if not self._breaker.allows():
            return False
        return any(isinstance(data, bytes) for data in await self._cards(name, platform, shelves))

    async def _cards(self, name: str, platform: str, shelves: list[str]) -> list[bytes | Exception | None]:
        """What is on each shelf; the breaker counts the look-up once, however many shelves do not answer."""
        keys = [card_key(platform, shelf, name) for shelf in shelves]
        found = await asyncio.gather(*[self._get(key, _LOOKUP_SECONDS) for key in keys])
        if any(isinstance(answer, Exception) for answer in found):
            self._breaker.failed()
        else:
            self._breaker.succeeded()
        return found

    async def _held(self, data: bytes, name: str) -> tuple[Card, bytes] | None:
        """The card, and the intact module that it leads to; None where it leads nowhere."""
        try:
            card = decode_card(data)
            if card.name != name:
                raise FormatError("the card is that of another function")
            module = card.module or await self._get(
                module_key(card.module_id), _LOOKUP_SECONDS + card.size * _SECONDS_PER_BYTE
            )
            if not isinstance(module, bytes):
                self._count("cards_without_module")
                return None
            _require_module(card, module)
        except FormatError:
            self._count("rejected")
            return None
        return card, module

    async def _get(self, key: str, seconds: float) -> bytes | Exception | None:
        """An object, None where there is none, or what went wrong."""
        try:
            async with self._slots:
                if self._breaker.is_open():  # since this look-up began to wait for its turn
                    return _LeftAloneError()
                started = time.monotonic()
                data = await asyncio.wait_for(self._backend.get(key), seconds)
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            self._note_error(error)
            return error
        self._learn(time.monotonic() - started, len(data or b""))
        self._count("requests")
        self._count("fetched_size", len(data or b""))
        return data

    async def _within(self, seconds: float, request: Awaitable[_T]) -> _T:
        async with self._slots:
            return await asyncio.wait_for(request, seconds)

    def _note_error(self, error: Exception) -> None:
        self._count("errors")
        self._error = _words(error)

    def _learn(self, seconds: float, size: int) -> None:
        if size < 1 << 16:
            self._latency = seconds if not self._latency else 0.9 * self._latency + 0.1 * seconds
        else:
            rate = max(0.0, seconds - self._latency) / size
            self._rate = rate if not self._rate else 0.9 * self._rate + 0.1 * rate

    def _count(self, counter: str, amount: float = 1) -> None:
        self._counts[counter] = self._counts.get(counter, 0) + amount

    # ----------------------------------------------------------------- uploads

    async def _upload_forever(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), 5.0)
            self._news.clear()
            await self._upload_all()

    async def _upload_all(self, *, packs_now: bool = False) -> None:
        async with self._uploading:
            for name in self._outbox.names():
                try:
                    upload = self._outbox.read(name)
                except (OSError, FormatError):
                    self._outbox.remove(name)
                    continue
                self._remember(upload)
                if not self._is_worth_it(upload):
                    self._count("not_worth_uploading")
                elif not await self._upload(upload):
                    return  # the store is down: what waits stays
                self._outbox.remove(name)
            if self._breaker.allows():
                try:
                    await self._packs.store_packs(now=packs_now)
                except Exception as error:  # noqa: BLE001 - whatever the client raises
                    self._breaker.failed()
                    self._note_error(error)

    async def _put_pack(self, key: str, data: bytes) -> None:
        await self._within(_UPLOAD_SECONDS, self._backend.replace(key, data))
        self._breaker.succeeded()
        self._count("packs_stored")

    def _remember(self, upload: Upload) -> None:
        """Keep what is uploaded for packs, and what is not worth a request of its own."""
        for key, data in upload.cards:
            _, _, platform, shelf, *_ = key.split("/")
            with suppress(FormatError):
                card = decode_card(data)
                self._packs.remember(platform, shelf, card, card.module or upload.module)

    def _is_worth_it(self, upload: Upload) -> bool:
        size = len(upload.module) + sum(len(card) for _, card in upload.cards[:1])
        return upload.always or upload.seconds > self._latency + size * self._rate

    async def _upload(self, upload: Upload) -> bool:
        """Store the module, then its cards, so that no card leads nowhere; whether that was done."""
        for attempt in range(_UPLOAD_ATTEMPTS):
            if not self._breaker.allows():
                return False
            try:
                if upload.module:
                    await self._within(_UPLOAD_SECONDS, self._backend.create(upload.key, upload.module))
                for key, card in upload.cards:
                    await self._within(_UPLOAD_SECONDS, self._put_card(key, card, replaces=upload.replaces))
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                self._breaker.failed()
                self._note_error(error)
                await asyncio.sleep(0.2 * 4**attempt)
            else:
                self._breaker.succeeded()
                self._count("uploads")
                self._count("uploaded_size", len(upload.module) + sum(len(card) for _, card in upload.cards))
                return True
        return False

    async def _put_card(self, key: str, card: bytes, *, replaces: bool) -> None:
        """Store a card; one that is there is replaced where it leads nowhere, or with `replaces`."""
        if await self._backend.create(key, card):
            return
        present = await self._backend.get(key)
        if replaces or present is None or await self._held(present, decode_card(card).name) is None:
            await self._backend.replace(key, card)


def _is_intact(card: Card, module: bytes) -> bool:
    try:
        _require_module(card, module)
    except FormatError:
        return False
    return True


def _require_module(card: Card, data: bytes) -> None:
    if len(data) != card.size:
        raise FormatError("the module has another size than its card says")
    intact_footer(data, card.module_id)


def _words(error: Exception) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "it did not answer in time"
    text = " ".join((str(error) or type(error).__name__).split())
    return _PASSWORD.sub("//", text)[:500]


def main(arguments: list[str]) -> int:
    """Serve the store that the arguments name: its URL, its mode, the directory of the socket."""
    url, mode, directory = arguments
    os.umask(0o077)
    os.chdir(directory)  # paths of sockets have 107 bytes at most
    lock = os.open("helper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0  # another one serves
    note = "refused"
    try:
        backend = open_backend(RemoteSettings(url, mode))
    except (BackendMissingError, ValueError) as error:
        with open(note, "w", encoding="utf-8") as file:
            json.dump(str(error), file)
        return 1
    with suppress(FileNotFoundError):
        os.unlink(note)
    with suppress(FileNotFoundError):
        os.unlink(_SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(_SOCKET)
    listener.listen(256)

    async def run() -> None:
        await Helper(backend, directory).serve(listener)

    try:
        asyncio.run(run())
    finally:
        with suppress(FileNotFoundError):
            os.unlink(_SOCKET)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
