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
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from compcache.remote.address import RemoteSettings
from compcache.remote.answer import FOUND, MISSING, SKIPPED, STORE_ERROR, STORE_HIT, TIMED_OUT, UNAVAILABLE, HelperAnswer
from compcache.remote.breaker import Breaker
from compcache.remote.connection import COMPILE_SECONDS, LENGTH, LOCK, MAX_MESSAGE, REFUSED, SOCKET, decode, encode, owner_of
from compcache.remote.helper.backends import BackendMissingError, TooLargeError, open_backend
from compcache.remote.helper.garbage import GarbageCollector
from compcache.remote.helper.leases import LONGEST_WAIT
from compcache.remote.helper.packs import LARGEST_PACK, Packs
from compcache.remote.helper.reads import LOOKUP_SECONDS, PATIENCE, Room, describe_error, is_intact
from compcache.remote.helper.tiers import Chain, Tier
from compcache.remote.outbox import Outbox
from compcache.remote.shelves import card_key, lease_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend
    from compcache.remote.helper.packs import StartUp

__all__ = ["main"]

#: The least time in seconds for a look-up that has already waited for this process to start.
_SHORTEST_SECONDS = 0.5
#: The interval between searches for ended start-ups, in seconds.
_PACKS_SECONDS = 5.0
_MANY = 4  # names in one question
#: For how many seconds a look-up waits for the pack of its start-up, with many names and with few: it must notice a silent store.
_WAIT_OF_MANY, _WAIT_OF_FEW = 2.0, 0.05
_IDLE_SECONDS = 60.0
#: Files with modules are removed after this number of seconds, whether the client has opened them or not.
_TAKEN_SECONDS = 30.0
#: The interval in seconds at which a helper in use stores notes of uses.
_NOTES_SECONDS = 3600.0
#: If compiling a function takes less time than this number of requests, each host that lacks the function compiles it. Callers that will
#: compile wait for the time of these requests, or for the least number of seconds, to learn whether another host compiles.
_LEASE_REQUESTS, _LEASE_SECONDS = 6, 0.5


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
        server = await asyncio.start_unix_server(self._serve_connection, sock=listener)
        for tier in self._chain.tiers:
            tier.outbox.sweep()
        tasks = [asyncio.create_task(tier.uploads.run()) for tier in self._chain.tiers]
        tasks.append(asyncio.create_task(self._keep_packs()))
        for tier in self._chain.tiers:
            tier.check_service()  # starts a probe of a store whose pause is over
        while self._is_wanted():
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
        """Store notes of uses and of deliveries in each store. A failure is ignored."""
        self._noted = time.monotonic()
        for tier in self._chain.tiers:
            for storing in (tier.uses.store_note(), tier.uploads.deliveries.store_rows(now=True)):
                with suppress(Exception):  # a host that may only read cannot store notes
                    await asyncio.wait_for(storing, PATIENCE)

    def _is_wanted(self) -> bool:
        """Return whether the helper must continue: it is reachable, and in use or expected to be used soon."""
        if not os.path.exists(os.path.join(self._directory, SOCKET)):
            return False  # the directory was removed, so no process can reach this helper any more
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
            operation, *arguments = decode(await reader.readexactly(size))
            if operation == "find":
                arguments += [lambda seconds: writer.write(encode({COMPILE_SECONDS: seconds})), reader.at_eof]
            answer = await getattr(self, f"_do_{operation}")(*arguments)
            writer.write(encode(answer))
            await writer.drain()

    # ---------------------------------------------------------------- requests

    async def _do_find(
        self, names: list[str], platform: str, shelves: list[str], token: bytes, writes: list[int], asked: float, patience: float,
        compile_seconds: float | None, place: str, first: int, tell: Callable[[float], None], is_client_gone: Callable[[], bool],
    ) -> list[list[Any]]:  # fmt: skip
        """Look up functions.

        If `patience` is 0, each request has one try, for a client that can compile. Otherwise requests are repeated, doubtful stores are
        probed first, and objects that were missing lately are requested again. If `compile_seconds` is not None, the client compiles
        missing functions, and keeps its connection open until it has done so. Leases then select one of several hosts (`leases.py`).

        Return the fields of `HelperAnswer` for each function, and the seconds that the answers of each store took.

        Args:
            names: the functions.
            platform: the platform of the client.
            shelves: the shelves that the client can use, the best first.
            token: identifies the process whose questions form a start-up.
            writes: the positions of the stores that the process may write to.
            asked: the monotonic time since which the client waits.
            patience: a time limit in seconds. Functions that have not arrived by then are unavailable.
            compile_seconds: the estimated time of compiling in seconds, 0.0 if it is unknown, or None if the client does not compile.
            place: the directory for files with large modules, or "" if there is none. The answer contains the paths of these files.
            first: the position of the first store to ask. The client has rejected the answers of the stores before it.
            tell: called before a module is fetched, with the seconds that compiling it took.
            is_client_gone: returns whether the client has closed its connection.
        """
        chain = self._chain
        if patience and not chain.is_in_service():
            await chain.probe()
        if not chain.is_in_service():
            by_store = STORE_ERROR * len(chain.tiers)
            return [[list(HelperAnswer(UNAVAILABLE, SKIPPED, by_store=by_store)) for _ in names], []]
        waited = max(0.0, time.monotonic() - asked)
        seconds = LOOKUP_SECONDS if patience else max(_SHORTEST_SECONDS, LOOKUP_SECONDS - waited)
        wait = self._pack_wait(names, token)
        start_up = self._packs.join_start_up(token, names, platform, shelves, writes) if not first else None
        room = Room(tell, place)
        tier = self._choose_lease_store(writes, compile_seconds, tell) if not patience else None
        seconds_before = list(chain.seconds)

        async def find(name: str) -> HelperAnswer:
            """Return the answer for one function: from the start-up pack, or from the stores. The first name also takes the lease."""
            answer = await self._find_in_pack(start_up, name, wait) if start_up is not None else None
            if answer is not None:
                return answer
            ask_stores = partial(chain.find, name, platform, shelves, room, seconds=seconds, first=first, writes=writes)
            result = await ask_stores(patience=min(patience, PATIENCE), fresh=patience > 0)
            # One lease is enough, because a client compiles all its missing functions from one source.
            if result.answer.outcome == MISSING and name == names[0] and tier is not None:
                await self._acquire_lease(tier, name, platform, shelves, compile_seconds or 0.0, tell, is_client_gone)
                result = await ask_stores()
            if result.card is not None:
                self._note_use(name)
                if start_up is not None and start_up.writes and isinstance(result.answer.data, bytes):
                    self._packs.remember_module(platform, result.shelf, result.card, result.answer.data)
            return result.answer

        try:
            time_limit = patience - waited if patience else None
            answers = await _gather_answers([find(name) for name in names], time_limit, len(chain.tiers))
            seconds_of_stores = [now - earlier for now, earlier in zip(chain.seconds, seconds_before, strict=True)]
            return [list(map(list, answers)), seconds_of_stores]
        finally:
            asyncio.get_running_loop().call_later(_TAKEN_SECONDS, _remove_files, room.files)

    def _pack_wait(self, names: Sequence[str], token: bytes) -> float:
        """Return for how many seconds the look-up of these functions waits for the pack of its start-up."""
        if len(names) >= _MANY:
            return _WAIT_OF_MANY
        # The first function of a process must not wait for the complete pack.
        return _WAIT_OF_FEW if self._packs.knows_process(token) else 0.0

    async def _find_in_pack(self, start_up: StartUp, name: str, seconds: float) -> HelperAnswer | None:
        """Return the answer from the pack of a start-up, or None if the pack lacks the function or does not arrive within `seconds`."""
        packed = await start_up.find(name, seconds)
        if packed is not None and is_intact(packed.card, packed.module):
            self._chain.tiers[start_up.store].reads.count("found_in_packs")
            self._note_use(name)
            by_store = "-" * start_up.store + STORE_HIT
            return HelperAnswer(FOUND, packed.module, packed.card.signatures, store=start_up.store, packed=True, by_store=by_store)
        return None

    def _choose_lease_store(self, writes: list[int], compile_seconds: float | None, tell: Callable[[float], None]) -> Tier | None:
        """Return the store whose lease decides which host compiles, and ask the client by `tell` to wait for that decision.

        The result is None if the client does not compile, or if the decision takes longer than compiling.
        """
        tier = self._chain.lease_store(writes) if compile_seconds is not None else None
        if tier is None:
            return None
        least_seconds = _LEASE_REQUESTS * tier.reads.requests.distance
        if 0 < (compile_seconds or 0.0) < least_seconds:
            return None
        tell(min(LOOKUP_SECONDS, max(_LEASE_SECONDS, least_seconds)))
        return tier

    def _note_use(self, name: str) -> None:
        """Record, for every store, that the function was used."""
        for tier in self._chain.tiers:
            tier.uses.note(name)

    async def _acquire_lease(
        self, tier: Tier, name: str, platform: str, shelves: list[str], compile_seconds: float, tell: Callable[[float], None],
        is_client_gone: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Acquire the lease of a function, so that the client compiles it, or wait for another host that is compiling it.

        `tell` is called with the longest wait in seconds when the wait begins. Errors of the store are ignored: the client compiles.
        """
        seconds = 2 * compile_seconds + 1.0 if compile_seconds else LONGEST_WAIT

        async def is_stored() -> bool:
            return bool(await tier.reads.cards(name, platform, shelves))

        with suppress(Exception):  # without a lease the client compiles
            await tier.leases.acquire_or_wait(lease_of(card_key(platform, name)), seconds, is_stored, is_client_gone, lambda: tell(seconds))

    async def _do_probe(self) -> bool:
        """Probe the stores. Return whether a store may be asked again."""
        return await self._chain.probe()

    async def _do_distrust(self, token: bytes) -> None:
        """Record that a process has rejected a module in its pack."""
        self._packs.distrust_start_up(token)

    async def _do_pack(self, names: list[str], platform: str, shelves: list[str], writes: list[int]) -> None:
        """Request a pack of these functions, which are being uploaded."""
        self._packs.announce_start_up(names, platform, shelves, writes)

    async def _do_has(self, names: list[str], platform: str, shelves: list[str]) -> list[bool | None]:
        """Return, for each function, whether it has a card on one of the shelves, or None if the stores do not answer."""
        return await asyncio.gather(*[self._chain.has(name, platform, shelves) for name in names])

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
        """Upload all waiting files, then store the packs of all start-ups, within `seconds` together. Failures are in the store's status.

        Return how many uploads to the stores at the positions `writes` still wait.
        """
        tiers = [self._chain.tiers[place] for place in writes]
        started = time.monotonic()
        await self._chain.wait_for_copies()
        await asyncio.gather(*[tier.uploads.flush(seconds) for tier in self._chain.tiers])
        with suppress(Exception):  # the status of the store has recorded the error
            async with asyncio.timeout(seconds - (time.monotonic() - started)):
                await self._packs.store_packs(now=True)
                await asyncio.gather(*[tier.uploads.deliveries.store_rows(now=True) for tier in self._chain.tiers])
        return sum([len(tier.outbox.names()) for tier in tiers])

    async def _do_news(self) -> None:
        """Schedule uploads of new files in the outboxes."""
        for tier in self._chain.tiers:
            tier.uploads.news.set()

    # These operations are for a helper that serves one store.

    async def _do_list(self, prefix: str) -> list[list[Any]] | str:
        """Return the objects below a prefix as (key, size, modified), or a message if the store fails."""
        try:
            return [list(item) async for item in self._chain.tiers[0].requests.list(prefix)]
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            return describe_error(error)

    async def _do_get(self, key: str) -> bytes | str | None:
        """Return an object as bytes. Return None if it does not exist, b"" if it is too large, and a message if the store fails."""
        try:
            return await self._chain.tiers[0].requests.get(key, LARGEST_PACK)
        except TooLargeError:
            return b""
        except Exception as error:  # noqa: BLE001
            return describe_error(error)

    async def _do_has_object(self, key: str) -> bool | str:
        """Return whether an object exists, or a message if the store fails."""
        try:
            return await self._chain.tiers[0].requests.stat(key) is not None
        except Exception as error:  # noqa: BLE001
            return describe_error(error)

    async def _do_collect(
        self, grace: float, older_than: float | None, dry_run: bool, unused_for: float | None
    ) -> list[list[list[Any]]] | str:
        """Collect garbage. Return the removed objects and the remaining garbage, or a message if the store fails."""
        try:
            collector = GarbageCollector(self._chain.tiers[0].requests)
            outcome = await collector.collect(grace=grace, older_than=older_than, dry_run=dry_run, unused_for=unused_for)
        except Exception as error:  # noqa: BLE001
            return describe_error(error)
        return [[list(item) for item in items] for items in outcome]

    # ------------------------------------------------------------------- packs

    async def _find_shelf(self, name: str, platform: str, shelves: list[str], writes: Sequence[int]) -> str:
        """Return the shelf of the best card of a function, or "" if it has no card, or if the store fails."""
        try:
            return next(iter(await self._chain.cards(name, platform, shelves, writes, fresh=False)), "")
        except Exception:  # noqa: BLE001 - the status of the store has recorded it
            return ""

    async def _note_card(self, platform: str, shelf: str, card: Card, writes: Sequence[int]) -> None:
        await self._chain.store_in_each(writes, lambda tier: tier.uploads.put_card(card_key(platform, card.name), shelf, card))

    async def _put_pack(self, key: str, data: bytes, writes: Sequence[int]) -> None:
        """Store a pack in each of the stores that are written."""

        async def put(tier: Tier) -> None:
            await tier.put_pack(key, data)
            tier.reads.count("packs_stored")

        await self._chain.store_in_each(writes, put)


async def _gather_answers(questions: list[Coroutine[Any, Any, HelperAnswer]], seconds: float | None, stores: int) -> list[HelperAnswer]:
    """Await answers for at most `seconds`, and return them in order. A late answer is replaced by `UNAVAILABLE`. None waits forever.

    `stores` is the number of stores.
    """
    tasks = [asyncio.ensure_future(question) for question in questions]
    await asyncio.wait(tasks, timeout=seconds)
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    unavailable = HelperAnswer(UNAVAILABLE, TIMED_OUT, by_store=STORE_ERROR * stores)
    return [unavailable if task in unfinished else task.result() for task in tasks]


def _remove_files(paths: list[str]) -> None:
    """Remove files. A file that is missing or cannot be removed is skipped."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _code_version() -> tuple[int, int]:
    """Return the inode and modification time of this source file, which change with an upgrade; zeros if the file is missing."""
    try:
        status = os.stat(__file__)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def main(arguments: list[str]) -> int:
    """Serve stores until the helper is idle. Return the exit status.

    `arguments` contains the directory of the socket. Standard input contains the URL, the mode and the two directories of each store. If
    a store cannot be served, write the reason to the file `REFUSED`.
    """
    (directory,) = arguments
    with open(0, "rb", closefd=False) as description:
        stores = decode(description.read()[LENGTH.size :])
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
    _remove_files([REFUSED, SOCKET])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    listener.listen(256)

    async def run() -> None:
        try:
            await helper.serve(listener)
        finally:
            _remove_files([SOCKET])
            os._exit(0)  # a thread that waits for a silent file system would keep this process alive

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
