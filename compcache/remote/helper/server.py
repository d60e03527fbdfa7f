"""The helper process: it holds the clients of remote stores, answers look-ups on a Unix socket, and uploads in the background.

The first process that asks the stores starts it. It serves every process of the user that uses the same stores in the same order with
the same credentials, and ends when it is idle. There is one helper per set of stores: the holder of the lock beside the socket.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from compcache.messagepack import unpack
from compcache.remote.address import RemoteSettings
from compcache.remote.answer import SKIPPED, STORE_ERROR, UNAVAILABLE, HelperAnswer
from compcache.remote.breaker import Breaker
from compcache.remote.connection import COMPILE_SECONDS, LENGTH, LOCK, MAX_MESSAGE, REFUSED, SOCKET, encode, owner_of
from compcache.remote.directory import remove_unused_directories
from compcache.remote.helper.backends import BackendMissingError, TooLargeError, open_backend
from compcache.remote.helper.garbage import GarbageCollector
from compcache.remote.helper.lookups import FindQuestion, LookUp
from compcache.remote.helper.packs import LARGEST_PACK, Packs
from compcache.remote.helper.reads import PATIENCE, describe_error
from compcache.remote.helper.tiers import Chain, Tier
from compcache.remote.outbox import Outbox
from compcache.remote.shelves import card_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend

__all__ = ["main"]

#: The interval between searches for ended start-ups, in seconds.
_PACKS_SECONDS = 5.0
_IDLE_SECONDS = 60.0
#: The interval in seconds at which a helper in use stores notes of uses.
_NOTES_SECONDS = 3600.0
#: Operations for a helper that serves one store. If the store fails, the answer is a message.
_OF_OPERATORS = ("list", "get", "has_object", "collect")


class Helper:
    """The state and operations of one helper process. A method ``_do_<operation>`` answers the questions for that operation.

    Args:
        directory: the directory of the socket.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._code = _code_version()
        self._chain = Chain()
        self._packs = Packs(self._chain.pack, self._put_pack, self._find_shelf, self._note_card)
        self._noted = time.monotonic()  # when notes of uses were last stored
        self._last_use = time.monotonic()
        self._connections = 0

    def add(self, backend: Backend, breaker: Breaker, outbox: Outbox, directory: str) -> None:
        """Add a store at the end of the chain. `directory` is the store's directory on this host."""
        self._chain.add(Tier(backend, breaker, outbox, directory, self._packs))

    # ---------------------------------------------------------------- serving

    async def serve(self, listener: socket.socket) -> None:
        """Answer questions on `listener` until the helper is idle and no upload waits."""
        remove_unused_directories(self._directory)
        server = await asyncio.start_unix_server(self._serve_connection, sock=listener)
        for tier in self._chain.tiers:
            tier.outbox.sweep()
        tasks = [asyncio.create_task(tier.uploads.run()) for tier in self._chain.tiers]
        tasks.append(asyncio.create_task(self._keep_packs()))
        for tier in self._chain.tiers:
            tier.check_service()  # starts a probe of a store whose pause is over
        while self._must_continue():
            await asyncio.sleep(1.0)
            if time.monotonic() - self._noted > _NOTES_SECONDS:
                await self._store_notes()
        server.close()
        await self._store_notes()
        for task in tasks:
            task.cancel()

    async def _keep_packs(self) -> None:
        """Store the packs of start-ups that have ended, forever. Failures are ignored here, because the status of the store has them."""
        while True:
            await asyncio.sleep(_PACKS_SECONDS)
            if not all(tier.uploads.is_paused() for tier in self._chain.tiers):
                with suppress(Exception):  # the status of the store has recorded the error
                    await self._packs.store_packs(now=False)

    async def _store_notes(self) -> None:
        """Store notes of uses in each store. A failure is ignored."""
        self._noted = time.monotonic()
        for tier in self._chain.tiers:
            with suppress(Exception):  # a host that may only read cannot store notes
                await asyncio.wait_for(tier.uses.store_note(), PATIENCE)

    def _must_continue(self) -> bool:
        """Return whether the helper continues.

        It ends if its socket is gone. Otherwise it continues while a client is connected. If its code is the installed version, it also
        continues while it was used lately or has uploads.
        """
        if not os.path.exists(os.path.join(self._directory, SOCKET)):
            return False  # no process can reach this helper any more
        if self._connections:
            return True
        if self._code != _code_version():
            return False  # compcache was upgraded or uninstalled: the next question starts the new version
        return time.monotonic() - self._last_use < _IDLE_SECONDS or any(tier.uploads.has_work() for tier in self._chain.tiers)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the questions of one client until it hangs up or breaks the protocol. Other users get no answer."""
        self._connections += 1
        try:
            if owner_of(writer.get_extra_info("socket")) == os.geteuid():
                await self._answer_questions(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return  # the client has hung up, or does not speak this protocol
        finally:
            self._connections -= 1
            self._last_use = time.monotonic()
            writer.close()

    async def _answer_questions(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the questions that arrive on one connection, until the connection ends."""
        while True:
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            if size > MAX_MESSAGE:
                return
            operation, *arguments = unpack(await reader.readexactly(size))
            if operation == "find":
                arguments += [lambda seconds: writer.write(encode({COMPILE_SECONDS: seconds})), reader.at_eof]
            try:
                answer = await getattr(self, f"_do_{operation}")(*arguments)
            except Exception as error:
                if operation not in _OF_OPERATORS:
                    raise
                answer = describe_error(error)
            writer.write(encode(answer))
            await writer.drain()

    # ---------------------------------------------------------------- requests

    async def _do_find(self, *fields: Any) -> list[list[Any]]:
        """Look up functions. `fields` are the fields of `FindQuestion`.

        Return the fields of `HelperAnswer` for each function, and the seconds that the answers of each store took.
        """
        question, chain = FindQuestion(*fields), self._chain
        if question.patience and not chain.is_in_service():
            await chain.probe()
        if not chain.is_in_service():
            by_store = STORE_ERROR * len(chain.tiers)
            return [[list(HelperAnswer(UNAVAILABLE, SKIPPED, by_store=by_store)) for _ in question.names], []]
        seconds_before = list(chain.seconds)
        answers = await LookUp(chain, self._packs, question).answers()
        seconds_of_stores = [now - earlier for now, earlier in zip(chain.seconds, seconds_before, strict=True)]
        return [list(map(list, answers)), seconds_of_stores]

    async def _do_probe(self) -> bool:
        """Probe the stores. Return whether a store accepts requests again."""
        return await self._chain.probe()

    async def _do_distrust(self, token: bytes) -> None:
        """Record that a process has rejected a module in its pack."""
        self._packs.distrust_start_up(token)

    async def _do_pack(self, names: list[str], platform_part: str, shelves: list[str], writes: list[int]) -> None:
        """Request a pack of these functions, which are being uploaded."""
        self._packs.announce_start_up(names, platform_part, shelves, writes)

    async def _do_has(self, names: list[str], platform_part: str, shelves: list[str]) -> list[bool | None]:
        """Return, for each function, whether it has a card on one of the shelves, or None if the stores do not answer."""
        return await asyncio.gather(*[self._chain.has(name, platform_part, shelves) for name in names])

    async def _do_status(self) -> list[dict[str, Any]]:
        """Return each store's counts, as `compcache remote status` shows them."""
        return [self._describe_tier(tier) for tier in self._chain.tiers]

    def _describe_tier(self, tier: Tier) -> dict[str, Any]:
        """Return the state and the counts of a store as plain data, for clients."""
        failures, seconds = tier.breaker.state()
        return {
            "pid": os.getpid(), "failures": failures, "left_alone_seconds": seconds, "last_error": tier.reads.error,
            "latency_seconds": tier.reads.requests.latency, "uploads_rest_seconds": tier.uploads.pause_seconds(),
            "waiting_uploads": len(tier.outbox.names()), "waiting_size": tier.outbox.size(waiting=True),
            "repeated": tier.reads.requests.repeated + tier.requests.repeated, **tier.reads.counts,
        }  # fmt: skip

    async def _do_states(self, key: str) -> list[str]:
        """Request an object from each store now. Return the problem of each store, or "" if it answers."""
        return await self._chain.collect_errors(key)

    async def _do_flush(self, seconds: float, writes: list[int]) -> int:
        """Wait for copies to nearer stores, and upload all waiting files within `seconds`. Failures are in the store's status.

        If time remains, the packs of all start-ups are stored. Return how many uploads to the stores at the positions `writes` still wait.
        """
        tiers = [self._chain.tiers[position] for position in writes]
        started = time.monotonic()
        await self._chain.wait_for_copies()
        await asyncio.gather(*[tier.uploads.flush(seconds) for tier in self._chain.tiers])
        with suppress(Exception):  # the status of the store has recorded the error
            async with asyncio.timeout(seconds - (time.monotonic() - started)):
                await self._packs.store_packs(now=True)
        return sum([len(tier.outbox.names()) for tier in tiers])

    async def _do_news(self) -> None:
        """Schedule uploads of new files in the outboxes."""
        for tier in self._chain.tiers:
            tier.uploads.news.set()

    # The operations in `_OF_OPERATORS`. They ask the first store, and raise what its client raises.

    async def _do_list(self, prefix: str) -> list[list[Any]]:
        """Return the objects below a prefix as (key, size, modified)."""
        return [list(item) async for item in self._chain.tiers[0].requests.list(prefix)]

    async def _do_get(self, key: str) -> bytes | None:
        """Return an object as bytes, None if it does not exist, or b"" if it is too large."""
        try:
            return await self._chain.tiers[0].requests.get(key, LARGEST_PACK)
        except TooLargeError:
            return b""

    async def _do_has_object(self, key: str) -> bool:
        """Return whether an object exists."""
        return await self._chain.tiers[0].requests.stat(key) is not None

    async def _do_collect(self, grace: float, older_than: float | None, dry_run: bool, unused_for: float | None) -> list[list[list[Any]]]:
        """Collect garbage. Return the removed objects and the remaining garbage. See `GarbageCollector.collect` for the arguments."""
        collector = GarbageCollector(self._chain.tiers[0].requests)
        outcome = await collector.collect(grace=grace, older_than=older_than, dry_run=dry_run, unused_for=unused_for)
        return [[list(item) for item in items] for items in outcome]

    # ------------------------------------------------------------------- packs

    async def _find_shelf(self, name: str, platform_part: str, shelves: list[str], writes: Sequence[int]) -> str:
        """Return the shelf of the best card of a function, or "" if it has no card, or if the store fails."""
        try:
            return next(iter(await self._chain.cards(name, platform_part, shelves, writes, fresh=False)), "")
        except Exception:  # noqa: BLE001 - the status of the store has recorded it
            return ""

    async def _note_card(self, platform_part: str, shelf: str, card: Card, writes: Sequence[int]) -> None:
        """Add a card to the cards of its function, in the stores at the positions `writes`, as `Chain.store_in_each` does."""
        await self._chain.store_in_each(writes, lambda tier: tier.uploads.put_card(card_key(platform_part, card.name), shelf, card))

    async def _put_pack(self, key: str, data: bytes, writes: Sequence[int]) -> bool:
        """Store a pack in the stores at the positions `writes`. Return whether all have it, as `Chain.store_in_each` does."""

        async def put(tier: Tier) -> None:
            """Store the pack in one store, and count it."""
            await tier.put_pack(key, data)
            tier.reads.count("packs_stored")

        return await self._chain.store_in_each(writes, put)


def _code_version() -> tuple[int, int]:
    """Return the inode and modification time of this source file, which change with an upgrade; zeros if the file is missing."""
    try:
        status = os.stat(__file__)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _remove_files(*paths: str) -> None:
    """Remove files. A file that is missing or cannot be removed is skipped."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def main(arguments: list[str]) -> int:
    """Serve stores until the helper is idle. Return the exit status.

    `arguments` contains the directory of the socket. Standard input contains the URL, the mode and the two directories of each store. If
    a store cannot be served, write the reason to the file `REFUSED`.
    """
    (directory,) = arguments
    with open(0, "rb", closefd=False) as description:
        stores = unpack(description.read()[LENGTH.size :])
    os.umask(0o077)
    os.chdir(directory)  # the socket is bound by a relative path, because a socket's path has at most 107 bytes
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0  # another helper serves
    helper = Helper(directory)
    try:
        for url, mode, state_directory, outbox in stores:
            breaker = Breaker(os.path.join(state_directory, "breaker"))
            helper.add(open_backend(RemoteSettings(url, mode)), breaker, Outbox(outbox), state_directory)
    except (BackendMissingError, ValueError, OSError) as error:
        with open(REFUSED, "w", encoding="utf-8") as file:
            json.dump(describe_error(error), file)
        return 1
    _remove_files(REFUSED, SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    listener.listen(256)

    async def run() -> None:
        """Run `Helper.serve`, then remove the socket and end the process."""
        try:
            await helper.serve(listener)
        finally:
            _remove_files(SOCKET)
            os._exit(0)  # a thread that waits for a silent file system would keep this process alive

    asyncio.run(run())
    return 0
