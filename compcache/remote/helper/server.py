"""The helper process: holds the client of one remote store, answers look-ups on a Unix socket, uploads what waits.

It is started by the first process that asks the store something, serves every process of the user that uses the same store
with the same credentials, and ends when it has been idle. One is enough: the lock beside the socket decides which.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from compcache.remote.address import RemoteSettings
from compcache.remote.answer import FOUND, MISSING, UNAVAILABLE
from compcache.remote.breaker import Breaker
from compcache.remote.connection import LENGTH, LOCK, MAX_MESSAGE, REFUSED, SOCKET, STAKE, decode, encode, owner_of
from compcache.remote.helper.backends import BackendMissingError, TooLargeError, open_backend
from compcache.remote.helper.garbage import GarbageCollector
from compcache.remote.helper.leases import LONGEST_WAIT, Leases
from compcache.remote.helper.packs import LARGEST_PACK, Packs
from compcache.remote.helper.reads import LOOKUP_SECONDS, PATIENCE, Reads, Room, is_intact, words
from compcache.remote.helper.requests import Requests
from compcache.remote.helper.uploads import CONCURRENT, Uploads
from compcache.remote.helper.uses import Uses
from compcache.remote.outbox import Outbox
from compcache.remote.shelves import card_key, lease_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend

__all__ = ["main"]

#: What a look-up is given at least, where starting this process has used up the time.
_SHORTEST_SECONDS = 0.5
_PACK_SECONDS = 10.0
_MANY = 4  # names in one question
#: How long the pack of a start-up is waited for, with many names and with few: a store that does not answer must be noticed by look-ups.
_WAIT_OF_MANY, _WAIT_OF_FEW = 2.0, 0.05
_IDLE_SECONDS = 60.0
#: After so long files with modules are removed that their asker has not opened.
_TAKEN_SECONDS = 30.0
#: After so long a helper that is still wanted leaves notes of what was used.
_NOTES_SECONDS = 3600.0
#: A function whose compilation takes less than so many requests is compiled by each host that lacks it. Whoever will compile waits for as
#: long as they take, or so many seconds, to hear whether another host does.
_LEASE_REQUESTS, _LEASE_SECONDS = 6, 0.5


class Helper:
    """What one helper process serves."""

    def __init__(self, backend: Backend, directory: str, outbox: Outbox) -> None:
        self._requests = Requests(backend, CONCURRENT)  # of uploads and of what tools ask; look-ups do not wait for these
        self._directory = directory
        self._code = _code_on_disk()
        self._breaker = Breaker(os.path.join(directory, "breaker"))
        self._reads = Reads(backend, self._breaker)
        self._outbox = outbox
        self._packs = Packs(self._get_pack, self._put_pack, self._locate, self._note_card)
        self._leases = Leases(self._requests, lambda: bool(self._outbox.names()))
        self._uploads = Uploads(self._reads, self._requests, self._outbox, self._packs, self._leases)
        self._uses = Uses(self._requests, directory)
        self._left = time.monotonic()  # when notes of uses were left
        self._last_use = time.monotonic()
        self._connections = 0

    # ---------------------------------------------------------------- serving

    async def serve(self, listener: socket.socket) -> None:
        """Answer until nobody has asked for a while and nothing waits that could be uploaded."""
        server = await asyncio.start_unix_server(self._connected, sock=listener)
        self._outbox.sweep()
        uploader = asyncio.create_task(self._uploads.go_on())
        if self._breaker.is_half_open():
            self._reads.probe()
        while self._is_wanted():
            await asyncio.sleep(1.0)
            if time.monotonic() - self._left > _NOTES_SECONDS:
                await self._leave_uses()
        server.close()
        await self._leave_uses()
        uploader.cancel()

    async def _leave_uses(self) -> None:
        self._left = time.monotonic()
        with suppress(Exception):  # who may only read leaves none
            await asyncio.wait_for(self._uses.leave(), PATIENCE)

    def _is_wanted(self) -> bool:
        if not os.path.exists(os.path.join(self._directory, SOCKET)):
            return False  # it was removed: nobody can ask any more
        if self._connections:
            return True
        if self._code != _code_on_disk():
            return False  # upgraded, or uninstalled: the next question starts the new one
        return time.monotonic() - self._last_use < _IDLE_SECONDS or self._uploads.are_wanted()

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
            if operation == "find":
                arguments += [lambda seconds: writer.write(encode({STAKE: seconds})), reader.at_eof]
            answer = await getattr(self, f"_do_{operation}")(*arguments)
            writer.write(encode(answer))
            await writer.drain()

    # ---------------------------------------------------------------- requests

    async def _do_find(
        self, names: list[str], platform: str, shelves: list[str], token: bytes, writes: bool, asked: float, patience: float,
        stake: float | None, place: str, tell: Callable[[float], None], gone: Callable[[], bool],
    ) -> list[list[Any]]:  # fmt: skip
        """For each function: FOUND, the module, its signatures, what of its imports came with it (name, module, signatures), and whether a
        pack had it; MISSING; or UNAVAILABLE and why.

        `token` names the process whose questions make a start-up, `writes` says whether it may leave a pack behind, `asked` is the
        monotonic time since when somebody waits. `patience` says for how many seconds: what has not come by then is unavailable, requests
        are made again for longer, and a store in doubt is waited for; 0: the question is one look-up that must not take long. `tell` is
        told how many seconds compiling took what is there and takes longer to fetch than a card. `stake`: the asker compiles what is
        missing, in about so many seconds (0.0: not known), and keeps its connection until then; one of many hosts does so (`leases.py`).
        `place` is the directory for modules that are not held, "" if there is none; the answer has their paths.
        """
        if patience and self._breaker.is_doubtful():
            await asyncio.shield(self._reads.probe())
        if not self._breaker.allows():
            return [[UNAVAILABLE, "it is left alone after failures"] for _ in names]
        waited = max(0.0, time.monotonic() - asked)
        seconds = LOOKUP_SECONDS if patience else max(_SHORTEST_SECONDS, LOOKUP_SECONDS - waited)
        is_known = self._packs.knows(token)
        start_up = self._packs.join(token, names, platform, shelves, writes=writes)
        wait = _WAIT_OF_MANY if len(names) >= _MANY else _WAIT_OF_FEW
        if not is_known and len(names) < _MANY:
            wait = 0.0  # the first function must not wait for all the others
        room = Room(tell, place)
        settles = stake is not None and writes and not patience and self._is_worth_a_lease(stake)
        if settles:
            tell(min(LOOKUP_SECONDS, max(_LEASE_SECONDS, _LEASE_REQUESTS * self._reads.requests.latency)))

        async def find(name: str) -> list[Any]:
            packed = await start_up.find(name, wait) if start_up is not None else None
            if packed is not None and is_intact(packed.card, packed.module):
                self._reads.count("found_in_packs")
                self._uses.note(name)
                return [FOUND, packed.module, packed.card.signatures, [], True]
            outcome, *found = await self._reads.find(name, platform, shelves, room, seconds=seconds, patience=min(patience, PATIENCE))
            if outcome == MISSING and name == names[0] and settles:
                await self._settle(name, platform, shelves, stake or 0.0, tell, gone)
                outcome, *found = await self._reads.find(name, platform, shelves, room, seconds=seconds)
            if outcome != FOUND:
                return [outcome, *found]
            module, card, shelf = found
            self._uses.note(name)
            if start_up is not None and start_up.writes and isinstance(module, bytes):
                self._packs.remember(platform, shelf, card, module)
            imports = [[each.name, each.module, each.signatures] for each in card.imports if is_intact(each, each.module)]
            return [FOUND, module, card.signatures, imports, False]

        try:
            return await _answers([find(name) for name in names], patience - waited if patience else None)
        finally:
            asyncio.get_running_loop().call_later(_TAKEN_SECONDS, _remove, room.files)

    def _is_worth_a_lease(self, stake: float) -> bool:
        return self._requests.compares and not 0 < stake < _LEASE_REQUESTS * self._reads.requests.latency

    async def _settle(
        self, name: str, platform: str, shelves: list[str], stake: float, tell: Callable[[float], None], gone: Callable[[], bool]
    ) -> None:
        """Have the asker compile a function, or wait for the host that does."""
        seconds = 2 * stake + 1.0 if stake else LONGEST_WAIT

        async def look() -> bool:
            return bool(await self._reads.cards(name, platform, shelves))

        with suppress(Exception):  # a lease that cannot be had is none
            await self._leases.settle(lease_of(card_key(platform, name)), seconds, look, gone, lambda: tell(seconds))

    async def _do_probe(self) -> bool:
        """Whether the store answers again after it was left alone."""
        if self._breaker.is_half_open() or self._breaker.is_doubtful():
            await asyncio.shield(self._reads.probe())
        return self._breaker.allows()

    async def _do_distrust(self, token: bytes) -> None:
        """The pack of this start-up holds modules that the process does not take."""
        self._packs.distrust(token)

    async def _do_pack(self, names: list[str], platform: str, shelves: list[str]) -> None:
        """These functions, which are being uploaded, are to be a pack."""
        self._packs.announce(names, platform, shelves)

    async def _do_has(self, names: list[str], platform: str, shelves: list[str]) -> list[bool | None]:
        """For each function whether there is a card on one of the shelves; None where the store does not say."""
        return await asyncio.gather(*[self._reads.has(name, platform, shelves) for name in names])

    async def _do_status(self) -> dict[str, Any]:
        """What `compcache remote status` shows."""
        failures, seconds = self._breaker.state()
        return {
            "pid": os.getpid(), "failures": failures, "left_alone_seconds": seconds, "last_error": self._reads.error,
            "latency_seconds": self._reads.requests.latency, "uploads_rest_seconds": self._uploads.rest_seconds(),
            "waiting_uploads": len(self._outbox.names()), "waiting_size": self._outbox.size(),
            "repeated": self._reads.requests.repeated + self._requests.repeated, **self._reads.counts,
        }  # fmt: skip

    async def _do_flush(self, seconds: float) -> int:
        """Upload what waits; how many uploads are left."""
        await self._uploads.flush(seconds)
        return len(self._outbox.names())

    async def _do_news(self) -> None:
        """The outbox has something new."""
        self._uploads.news.set()

    async def _do_list(self, prefix: str) -> list[list[Any]] | str:
        """The objects below a prefix as (key, size, modified); text where the store cannot list."""
        try:
            return [list(item) async for item in self._requests.list(prefix)]
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            return words(error)

    async def _do_get(self, key: str) -> bytes | str | None:
        """An object, empty where it is too large; None where there is none, text where the store does not answer."""
        try:
            return await self._requests.get(key, LARGEST_PACK)
        except TooLargeError:
            return b""
        except Exception as error:  # noqa: BLE001
            return words(error)

    async def _do_has_object(self, key: str) -> bool | str:
        """Whether there is an object; text where the store does not answer."""
        try:
            return await self._requests.look(key) is not None
        except Exception as error:  # noqa: BLE001
            return words(error)

    async def _do_collect(
        self, grace: float, older_than: float | None, dry_run: bool, unused_for: float | None
    ) -> list[list[list[Any]]] | str:
        """What a collection of garbage removed, and what it left for a later one; text where it ended before."""
        try:
            collector = GarbageCollector(self._requests)
            found = await collector.collect(grace=grace, older_than=older_than, dry_run=dry_run, unused_for=unused_for)
        except Exception as error:  # noqa: BLE001
            return words(error)
        return [[list(item) for item in items] for items in found]

    # ------------------------------------------------------------------- packs

    async def _get_pack(self, key: str) -> bytes | None:
        """A pack; None also where it could not be asked for: cards are asked for then."""
        try:
            return await self._reads.get(key, LARGEST_PACK, _PACK_SECONDS)
        except Exception:  # noqa: BLE001 - it was noted
            return None

    async def _locate(self, name: str, platform: str, shelves: list[str]) -> str:
        """The shelf of the best card of a function; "" also where that could not be asked for."""
        try:
            return next(iter(await self._reads.cards(name, platform, shelves)), "")
        except Exception:  # noqa: BLE001 - it was noted
            return ""

    async def _note_card(self, platform: str, shelf: str, card: Card) -> None:
        await self._uploads.put_card(card_key(platform, card.name), shelf, card)

    async def _put_pack(self, key: str, data: bytes) -> None:
        await self._requests.replace(key, data)
        self._reads.count("packs_stored")


async def _answers(questions: list[Coroutine[Any, Any, list[Any]]], seconds: float | None) -> list[list[Any]]:
    """The answers that come within so many seconds, and that the others did not."""
    tasks = [asyncio.ensure_future(question) for question in questions]
    await asyncio.wait(tasks, timeout=seconds)
    late = [task for task in tasks if not task.done()]
    for task in late:
        task.cancel()
    return [[UNAVAILABLE, "it did not answer in time"] if task in late else task.result() for task in tasks]


def _remove(paths: list[str]) -> None:
    """Files that the asker has opened by now, if it wanted them."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _code_on_disk() -> tuple[int, int]:
    """What tells this version of the code from another one that is put in its place."""
    try:
        status = os.stat(__file__)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def main(arguments: list[str]) -> int:
    """Serve a store. The argument is the directory of the socket; the URL and mode of the store, and the directory of the uploads that wait
    for it, come by standard input, as a message.
    """
    (directory,) = arguments
    with open(0, "rb", closefd=False) as told:
        url, mode, outbox = decode(told.read()[LENGTH.size :])
    os.umask(0o077)
    os.chdir(directory)  # paths of sockets have 107 bytes at most
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0  # another one serves
    try:
        backend = open_backend(RemoteSettings(url, mode))
    except (BackendMissingError, ValueError) as error:
        with open(REFUSED, "w", encoding="utf-8") as file:
            json.dump(words(error), file)
        return 1
    with suppress(FileNotFoundError):
        os.unlink(REFUSED)
    with suppress(FileNotFoundError):
        os.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    listener.listen(256)

    async def run() -> None:
        try:
            await Helper(backend, directory, Outbox(outbox)).serve(listener)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(SOCKET)
            os._exit(0)  # threads that wait for a file system which does not answer would keep this process

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
