"""The helper process: holds the clients of remote stores, answers look-ups on a Unix socket, uploads in the background.

The first process that asks the stores starts it. It serves every process of the user that uses the same stores in the same order with the
same credentials, and ends when it is idle. There is one helper per set of stores: the holder of the lock beside the socket.
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
from functools import partial
from typing import TYPE_CHECKING, Any

from compcache.remote.address import RemoteSettings
from compcache.remote.answer import FOUND, HAD, MISSING, SAID_NOTHING, UNAVAILABLE, Said
from compcache.remote.breaker import Breaker
from compcache.remote.connection import LENGTH, LOCK, MAX_MESSAGE, REFUSED, SOCKET, STAKE, decode, encode, owner_of
from compcache.remote.helper.backends import BackendMissingError, TooLargeError, open_backend
from compcache.remote.helper.garbage import GarbageCollector
from compcache.remote.helper.leases import LONGEST_WAIT
from compcache.remote.helper.packs import LARGEST_PACK, Packs
from compcache.remote.helper.reads import LOOKUP_SECONDS, PATIENCE, Room, is_intact, words
from compcache.remote.helper.tiers import Chain, Tier
from compcache.remote.outbox import Outbox
from compcache.remote.shelves import card_key, lease_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend

__all__ = ["main"]

#: The least time for a look-up if starting this process has used up what it had.
_SHORTEST_SECONDS = 0.5
#: How often ended start-ups are looked for.
_PACKS_SECONDS = 5.0
_MANY = 4  # names in one question
#: How long a look-up waits for the pack of its start-up, with many names and with few: it must notice a store that does not answer.
_WAIT_OF_MANY, _WAIT_OF_FEW = 2.0, 0.05
_IDLE_SECONDS = 60.0
#: Files with modules that their asker has not opened are removed after this time.
_TAKEN_SECONDS = 30.0
#: A helper in use leaves notes of uses at this interval.
_NOTES_SECONDS = 3600.0
#: If a function takes less time to compile than so many requests, each host that lacks it compiles it. Callers that will compile wait for
#: so long, or so many seconds, to hear whether another host compiles.
_LEASE_REQUESTS, _LEASE_SECONDS = 6, 0.5


class Helper:
    """The state and operations of one helper process.

    Args:
        directory: the directory of the socket.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._code = _code_on_disk()
        self._chain = Chain()
        self._packs = Packs(self._chain.pack, self._put_pack, self._locate, self._note_card)
        self._left = time.monotonic()  # the last time notes of uses were left
        self._last_use = time.monotonic()
        self._connections = 0

    def add(self, backend: Backend, breaker: Breaker, outbox: Outbox, directory: str) -> None:
        """Add a store, to be asked after the others. `directory` is the store's own directory on this host."""
        self._chain.add(Tier(backend, breaker, outbox, directory, self._packs))

    # ---------------------------------------------------------------- serving

    async def serve(self, listener: socket.socket) -> None:
        """Answer questions until the helper is idle and no upload waits."""
        server = await asyncio.start_unix_server(self._connected, sock=listener)
        for tier in self._chain.tiers:
            tier.outbox.sweep()
        going = [asyncio.create_task(tier.uploads.go_on()) for tier in self._chain.tiers]
        going.append(asyncio.create_task(self._keep_packs()))
        for tier in self._chain.tiers:
            tier.is_asked()  # or probed
        while self._is_wanted():
            await asyncio.sleep(1.0)
            if time.monotonic() - self._left > _NOTES_SECONDS:
                await self._leave_uses()
        server.close()
        await self._leave_uses()
        for task in going:
            task.cancel()

    async def _keep_packs(self) -> None:
        """Store the packs of start-ups that have ended, forever."""
        while True:
            await asyncio.sleep(_PACKS_SECONDS)
            if not all(tier.uploads.rests() for tier in self._chain.tiers):
                with suppress(Exception):  # the error was noted
                    await self._packs.store_packs(now=False)

    async def _leave_uses(self) -> None:
        self._left = time.monotonic()
        for tier in self._chain.tiers:
            for leaving in (tier.uses.leave(), tier.uploads.deliveries.leave(now=True)):
                with suppress(Exception):  # a host that may only read leaves none
                    await asyncio.wait_for(leaving, PATIENCE)

    def _is_wanted(self) -> bool:
        if not os.path.exists(os.path.join(self._directory, SOCKET)):
            return False  # the directory was removed: no process can reach this helper any more
        if self._connections:
            return True
        if self._code != _code_on_disk():
            return False  # upgraded or uninstalled: the next question starts the new version
        return time.monotonic() - self._last_use < _IDLE_SECONDS or any(tier.uploads.are_wanted() for tier in self._chain.tiers)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if owner_of(writer.get_extra_info("socket")) == os.geteuid():
                await self._converse(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return  # the other side has hung up, or is not one of our processes
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
        self, names: list[str], platform: str, shelves: list[str], token: bytes, writes: list[int], asked: float, patience: float,
        stake: float | None, place: str, first: int, tell: Callable[[float], None], gone: Callable[[], bool],
    ) -> list[list[Any]]:  # fmt: skip
        """Look up functions. Returns the fields of `Said` for each function, and for each store how many seconds it took.

        `token` identifies the process whose questions form a start-up. `writes` are the stores that it may write to. `asked` is the
        monotonic time since when somebody waits. `patience` is a time limit in seconds: functions that have not come by then are
        unavailable, requests are repeated for longer, stores in doubt are waited for, and recent misses are asked again. With 0 the
        question is one urgent look-up. `tell` receives the compilation time in seconds of a module that takes longer to fetch than a card.
        `stake` means that the asker compiles what is missing, in about so many seconds (0.0: unknown), and keeps its connection until then;
        of many hosts one does so (`leases.py`). `place` is the directory for modules that are not held in memory ("" if there is none); the
        answer contains their paths. `first` is the first store to ask: the answers of those before it were not accepted.
        """
        chain = self._chain
        if patience and not chain.is_in_service():
            await chain.probe()
        if not chain.is_in_service():
            by_store = SAID_NOTHING * len(chain.tiers)
            return [[list(Said(UNAVAILABLE, "it is not asked for a while, after repeated failures", by_store=by_store)) for _ in names], []]
        waited = max(0.0, time.monotonic() - asked)
        seconds = LOOKUP_SECONDS if patience else max(_SHORTEST_SECONDS, LOOKUP_SECONDS - waited)
        is_known = self._packs.knows(token)
        start_up = self._packs.join(token, names, platform, shelves, writes) if not first else None
        wait = _WAIT_OF_MANY if len(names) >= _MANY else _WAIT_OF_FEW
        if not is_known and len(names) < _MANY:
            wait = 0.0  # the first function must not wait for all the others
        room = Room(tell, place)
        tier = self._leasing(writes, stake, tell) if not patience else None
        before = list(chain.seconds)

        async def find(name: str) -> Said:
            packed = await start_up.find(name, wait) if start_up is not None else None
            if start_up is not None and packed is not None and is_intact(packed.card, packed.module):
                chain.tiers[start_up.store].reads.count("found_in_packs")
                self._note_use(name)
                by_store = "-" * start_up.store + HAD
                return Said(FOUND, packed.module, packed.card.signatures, store=start_up.store, packed=True, by_store=by_store)
            asks = partial(chain.find, name, platform, shelves, room, seconds=seconds, first=first, writes=writes)
            found = await asks(patience=min(patience, PATIENCE), fresh=patience > 0)
            if found.said.outcome == MISSING and name == names[0] and tier is not None:
                await self._settle(tier, name, platform, shelves, stake or 0.0, tell, gone)
                found = await asks()
            if found.card is not None:
                self._note_use(name)
                if start_up is not None and start_up.writes and isinstance(found.said.data, bytes):
                    self._packs.remember(platform, found.shelf, found.card, found.said.data)
            return found.said

        try:
            answers = await _answers([find(name) for name in names], patience - waited if patience else None, len(chain.tiers))
            return [list(map(list, answers)), [now - then for now, then in zip(chain.seconds, before, strict=True)]]
        finally:
            asyncio.get_running_loop().call_later(_TAKEN_SECONDS, _remove, room.files)

    def _leasing(self, writes: list[int], stake: float | None, tell: Callable[[float], None]) -> Tier | None:
        """Return the store whose lease decides who compiles, if the asker compiles; the asker is told to wait until that is known."""
        tier = self._chain.leasing(writes) if stake is not None else None
        if tier is None:
            return None
        worth = _LEASE_REQUESTS * tier.reads.requests.distance
        if 0 < (stake or 0.0) < worth:
            return None
        tell(min(LOOKUP_SECONDS, max(_LEASE_SECONDS, worth)))
        return tier

    def _note_use(self, name: str) -> None:
        """Note for every store that has the function that it was used."""
        for tier in self._chain.tiers:
            tier.uses.note(name)

    async def _settle(
        self, tier: Tier, name: str, platform: str, shelves: list[str], stake: float, tell: Callable[[float], None],
        gone: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Let the asker compile a function, or wait for the host that compiles it."""
        seconds = 2 * stake + 1.0 if stake else LONGEST_WAIT

        async def look() -> bool:
            return bool(await tier.reads.cards(name, platform, shelves))

        with suppress(Exception):  # no lease could be had
            await tier.leases.settle(lease_of(card_key(platform, name)), seconds, look, gone, lambda: tell(seconds))

    async def _do_probe(self) -> bool:
        """Probe the stores; return whether one answers again."""
        return await self._chain.probe()

    async def _do_distrust(self, token: bytes) -> None:
        """Record that the pack of this start-up contains modules that the process does not accept."""
        self._packs.distrust(token)

    async def _do_pack(self, names: list[str], platform: str, shelves: list[str], writes: list[int]) -> None:
        """Make a pack of these functions, which are being uploaded."""
        self._packs.announce(names, platform, shelves, writes)

    async def _do_has(self, names: list[str], platform: str, shelves: list[str]) -> list[bool | None]:
        """Return for each function whether it has a card on one of the shelves; None if the stores did not answer."""
        return await asyncio.gather(*[self._chain.has(name, platform, shelves) for name in names])

    async def _do_status(self) -> list[dict[str, Any]]:
        """Return what `compcache remote status` shows of each store."""
        return [self._status(tier) for tier in self._chain.tiers]

    def _status(self, tier: Tier) -> dict[str, Any]:
        failures, seconds = tier.breaker.state()
        return {
            "pid": os.getpid(), "failures": failures, "left_alone_seconds": seconds, "last_error": tier.reads.error,
            "latency_seconds": tier.reads.requests.latency, "uploads_rest_seconds": tier.uploads.rest_seconds(),
            "waiting_uploads": len(tier.outbox.names()), "waiting_size": tier.outbox.size(waiting=True),
            "repeated": tier.reads.requests.repeated + tier.requests.repeated, **tier.reads.counts,
        }  # fmt: skip

    async def _do_states(self, key: str) -> list[str]:
        """Ask each store for an object now; return the problem of each, "" if it answers."""
        return await self._chain.states(key)

    async def _do_flush(self, seconds: float, writes: list[int]) -> int:
        """Upload all that waits, then the packs of all start-ups; return how many uploads to these stores are left."""
        tiers = [self._chain.tiers[place] for place in writes]
        started = time.monotonic()
        await self._chain.settle()
        await asyncio.gather(*[tier.uploads.flush(seconds) for tier in self._chain.tiers])
        with suppress(Exception):  # the error was noted
            async with asyncio.timeout(seconds - (time.monotonic() - started)):
                await self._packs.store_packs(now=True)
                await asyncio.gather(*[tier.uploads.deliveries.leave(now=True) for tier in self._chain.tiers])
        return sum([len(tier.outbox.names()) for tier in tiers])

    async def _do_news(self) -> None:
        """React to new files in the outboxes."""
        for tier in self._chain.tiers:
            tier.uploads.news.set()

    # These operations are for a helper that serves one store.

    async def _do_list(self, prefix: str) -> list[list[Any]] | str:
        """Return the objects below a prefix as (key, size, modified), or a message if the store cannot list."""
        try:
            return [list(item) async for item in self._chain.tiers[0].requests.list(prefix)]
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            return words(error)

    async def _do_get(self, key: str) -> bytes | str | None:
        """Return an object (empty if it is too large), None if there is none, or a message if the store does not answer."""
        try:
            return await self._chain.tiers[0].requests.get(key, LARGEST_PACK)
        except TooLargeError:
            return b""
        except Exception as error:  # noqa: BLE001
            return words(error)

    async def _do_has_object(self, key: str) -> bool | str:
        """Return whether an object exists, or a message if the store does not answer."""
        try:
            return await self._chain.tiers[0].requests.look(key) is not None
        except Exception as error:  # noqa: BLE001
            return words(error)

    async def _do_collect(
        self, grace: float, older_than: float | None, dry_run: bool, unused_for: float | None
    ) -> list[list[list[Any]]] | str:
        """Collect garbage; return what was removed and what was left for a later collection, or a message if it failed."""
        try:
            collector = GarbageCollector(self._chain.tiers[0].requests)
            found = await collector.collect(grace=grace, older_than=older_than, dry_run=dry_run, unused_for=unused_for)
        except Exception as error:  # noqa: BLE001
            return words(error)
        return [[list(item) for item in items] for items in found]

    # ------------------------------------------------------------------- packs

    async def _locate(self, name: str, platform: str, shelves: list[str], writes: Sequence[int]) -> str:
        """Return the shelf of the best card of a function; "" if there is none, or the store did not answer."""
        try:
            return next(iter(await self._chain.cards(name, platform, shelves, writes, fresh=False)), "")
        except Exception:  # noqa: BLE001 - it was noted
            return ""

    async def _note_card(self, platform: str, shelf: str, card: Card, writes: Sequence[int]) -> None:
        await self._chain.each_written(writes, lambda tier: tier.uploads.put_card(card_key(platform, card.name), shelf, card))

    async def _put_pack(self, key: str, data: bytes, writes: Sequence[int]) -> None:
        async def put(tier: Tier) -> None:
            await tier.requests.replace(key, data)
            tier.reads.forget_miss(key)
            tier.uploads.deliveries.note(key, data)
            tier.reads.count("packs_stored")

        await self._chain.each_written(writes, put)


async def _answers(questions: list[Coroutine[Any, Any, Said]], seconds: float | None, stores: int) -> list[Said]:
    """Return the answers of the given number of stores that come within this number of seconds; the rest are unavailable."""
    tasks = [asyncio.ensure_future(question) for question in questions]
    await asyncio.wait(tasks, timeout=seconds)
    late = [task for task in tasks if not task.done()]
    for task in late:
        task.cancel()
    none = Said(UNAVAILABLE, "it did not answer in time", by_store=SAID_NOTHING * stores)
    return [none if task in late else task.result() for task in tasks]


def _remove(paths: list[str]) -> None:
    """Remove files that the asker has opened by now, if it wanted them."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _code_on_disk() -> tuple[int, int]:
    """Return what distinguishes this version of the code from another that replaces it."""
    try:
        status = os.stat(__file__)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def main(arguments: list[str]) -> int:
    """Serve stores. The argument is the directory of the socket. Standard input has the URL, the mode and two directories of each store."""
    (directory,) = arguments
    with open(0, "rb", closefd=False) as told:
        stores = decode(told.read()[LENGTH.size :])
    os.umask(0o077)
    os.chdir(directory)  # the path of a socket has 107 bytes at most
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0  # another helper serves
    helper = Helper(directory)
    try:
        for url, mode, own, outbox in stores:
            helper.add(open_backend(RemoteSettings(url, mode)), Breaker(os.path.join(own, "breaker")), Outbox(outbox), own)
    except (BackendMissingError, ValueError, OSError) as error:
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
            await helper.serve(listener)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(SOCKET)
            os._exit(0)  # a thread that waits for a silent file system would keep this process alive

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
