"""Redis as a store: what is asked of a server, when its objects were written, and servers that answer without end."""

from __future__ import annotations

import asyncio
import fnmatch
import re
import resource
import socketserver
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from compcache.remote.address import RemoteSettings
from compcache.remote.helper import backends
from compcache.remote.helper.backends import Backend, TooLargeError, open_backend
from compcache.remote.helper.garbage import GarbageCollector
from compcache.remote.maintenance import RemoteObject
from compcache.remote.shelves import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("redis")
KEY = f"{LAYOUT}/m/ab/object"


class Server(socketserver.ThreadingTCPServer):
    """The part of Redis that stores use. `clock` is its time; `misbehave` answers in place of a command, where it wants to."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.objects: dict[str, bytes] = {}
        self.scores: dict[str, float] = {}
        self.clock = 1_600_000_000.5
        self.misbehave: Callable[[str, Any], bool] = lambda *_: False
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up."""

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> object:
        if b"NX" in options and key.decode() in self.objects:
            return None
        self.objects[key.decode()] = value
        return "OK"

    def do_getrange(self, key: bytes, start: bytes, end: bytes) -> object:
        return self.objects.get(key.decode(), b"")[int(start) : int(end) + 1]

    def do_strlen(self, key: bytes) -> object:
        return len(self.objects.get(key.decode(), b""))

    def do_del(self, key: bytes) -> object:
        return int(self.objects.pop(key.decode(), None) is not None)

    def do_time(self) -> object:
        return [str(int(self.clock)).encode(), str(int(self.clock % 1 * 1e6)).encode()]

    def do_zadd(self, name: bytes, *rest: bytes) -> object:
        assert name == f"{LAYOUT}-times".encode()
        *options, score, key = rest
        if b"NX" not in options or key.decode() not in self.scores:
            self.scores[key.decode()] = float(score)
        return 1

    def do_zscore(self, _: bytes, key: bytes) -> object:
        found = self.scores.get(key.decode())
        return None if found is None else repr(found).encode()

    def do_zrem(self, _: bytes, key: bytes) -> object:
        return int(self.scores.pop(key.decode(), None) is not None)

    def do_scan(self, _: bytes, *options: bytes) -> object:
        pattern = re.sub(r"\\(.)", r"\1", options[options.index(b"MATCH") + 1].decode())
        return [b"0", [key.encode() for key in self.objects if fnmatch.fnmatchcase(key, pattern)]]


class Connection(socketserver.StreamRequestHandler):
    """One connection."""

    server: Server

    def handle(self) -> None:
        with suppress(OSError):
            while (line := self.rfile.readline()).startswith(b"*"):
                words = [self._bulk() for _ in range(int(line[1:]))]
                name = words[0].decode().lower()
                if self.server.misbehave(name, self.wfile):
                    return
                do = getattr(self.server, f"do_{name}", None)
                self._answer("OK" if do is None else do(*words[1:]))

    def _bulk(self) -> bytes:
        data: bytes = self.rfile.read(int(self.rfile.readline()[1:]) + 2)
        return data[:-2]

    def _answer(self, value: object) -> None:
        if isinstance(value, str):
            self.wfile.write(f"+{value}\r\n".encode())
        elif isinstance(value, int):
            self.wfile.write(f":{value}\r\n".encode())
        elif isinstance(value, bytes):
            self.wfile.write(b"$%d\r\n%s\r\n" % (len(value), value))
        elif value is None:
            self.wfile.write(b"$-1\r\n")
        else:
            assert isinstance(value, list)
            self.wfile.write(b"*%d\r\n" % len(value))
            for item in value:
                self._answer(item)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server in this process, which a busy machine may keep from accepting a connection in a quarter of a second."""
    monkeypatch.setattr(backends, "_CONNECT_SECONDS", 60.0)
    with Server() as found:
        yield found
        found.shutdown()


def run(server: Server, work: Callable[[Backend], Any]) -> Any:
    """What comes of work with a client of the server."""

    async def start() -> Any:
        backend = open_backend(RemoteSettings(f"redis://127.0.0.1:{server.server_address[1]}/0?protocol=2", "write"))
        try:
            return await work(backend)
        finally:
            await backend._redis.aclose()  # type: ignore[attr-defined]

    return asyncio.run(start())


async def listed(backend: Backend) -> list[RemoteObject]:
    return [item async for item in backend.list(f"{LAYOUT}/m/")]


@pytest.mark.slow
def test_objects_have_the_time_of_the_server(server: Server) -> None:
    async def work(backend: Backend) -> None:
        assert await backend.stat(KEY) is None
        assert await backend.create(KEY, b"one")
        server.clock += 100
        assert not await backend.create(KEY, b"two")
        assert await backend.get(KEY, 10) == b"one"
        assert await listed(backend) == [await backend.stat(KEY)] == [RemoteObject(KEY, 3, server.clock - 100)]
        await backend.replace(KEY, b"three")
        assert await listed(backend) == [RemoteObject(KEY, 5, server.clock)]
        server.objects[f"{LAYOUT}/m/cd/of-an-older-version"] = b"x"
        server.clock += 100
        assert [item.modified for item in await listed(backend)] == [server.clock - 100, server.clock]
        server.clock += 100
        assert (await listed(backend))[1].modified == server.clock - 100
        await backend.delete(KEY)
        assert [item.key for item in await listed(backend)] == [f"{LAYOUT}/m/cd/of-an-older-version"]
        assert KEY not in server.scores

    run(server, work)


@pytest.mark.slow
def test_garbage_has_its_grace_there_too(server: Server) -> None:
    async def work(backend: Backend) -> None:
        await backend.create(KEY, b"a module that no card leads to")
        removed = []
        for hours in (0, 12, 13):
            server.clock += 3600 * hours
            found = await GarbageCollector(backend).collect(grace=86400.0, older_than=None, dry_run=False)
            removed.append([item.key for item in found.removed])
        assert removed == [[], [], [KEY]]
        assert KEY not in server.objects

    run(server, work)


def endless(start: bytes, more: bytes) -> Callable[[str, Any], bool]:
    """A server that answers every question about an object so, until nobody listens."""

    def misbehave(name: str, answer: Any) -> bool:
        if name not in ("getrange", "strlen", "set", "scan"):
            return False
        answer.write(start)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            answer.write(more)
        return True

    return misbehave


@pytest.mark.parametrize(
    "answer",
    [
        (b"$1073741824\r\n", bytes(1 << 16)),
        (b"*1000000000\r\n", b"$4\r\naaaa\r\n" * 4096),
        (b"-", b"ERR" * 4096),
        (b"*1\r\n" * 100_000, b"*1\r\n" * 4096),
        (b"$-7\r\n", bytes(1 << 16)),
    ],
    ids=["length", "array", "line", "nesting", "negative"],
)
def test_an_answer_without_end_is_refused(server: Server, answer: tuple[bytes, bytes]) -> None:
    """Whatever is asked, at once and without much memory."""
    server.misbehave = endless(*answer)

    async def work(backend: Backend) -> list[Any]:
        asked = [backend.get(f"{LAYOUT}/f/{number}", 1 << 20) for number in range(8)]
        return await asyncio.gather(*asked, backend.create(KEY, b"x"), listed(backend), return_exceptions=True)

    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    found = run(server, work)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert all(isinstance(each, Exception) or each in (None, False) for each in found), found
    if answer[0][:1] == b"$" and answer[0][1:2] != b"-":
        assert any(isinstance(each, TooLargeError) for each in found)
    assert grown < 128 << 20
    assert time.monotonic() - started < 20
