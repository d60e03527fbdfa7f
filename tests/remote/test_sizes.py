"""What a store says of sizes, and what it sends: no more is held than one answer may have."""

from __future__ import annotations

import asyncio
import lzma
import resource
import socketserver
import threading
import time
import tracemalloc
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from compcache.digest import check
from compcache.errors import FormatError
from compcache.remote.address import RemoteSettings
from compcache.remote.breaker import Breaker
from compcache.remote.card import MAX_UNPACKED, Card, PackedFunction, decode_pack, encode_cards, encode_pack
from compcache.remote.helper.backends import open_backend
from compcache.remote.helper.reads import LARGEST_MODULE, Reads, Room

if TYPE_CHECKING:
    from pathlib import Path


class Claiming:
    """A store whose cards claim modules of a third of what an answer may have."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def get(self, key: str, largest: int, _: object = None) -> bytes:
        if "/f/" in key:
            return encode_cards({"shelf": Card("f", b"m" * 16, LARGEST_MODULE // 3, 1.0, b"")})
        self.asked.append(largest)
        return b"not that large"


def test_one_question_reads_no_more_than_an_answer_may_have(tmp_path: Path) -> None:
    store: Any = Claiming()

    async def run() -> list[str]:
        reads, room = Reads(store, Breaker(str(tmp_path / "breaker"))), Room()
        answers = await asyncio.gather(*[reads.find("f", "platform", ["shelf"], room) for _ in range(16)])
        return sorted({answer[0] for answer in answers})

    assert asyncio.run(run()) == ["missing", "unavailable"]
    assert sum(store.asked) <= LARGEST_MODULE


def test_packs_are_compressed() -> None:
    """And decode to what they were made of."""
    items = [PackedFunction(Card(f"f{n}", bytes([n]) * 16, 4000, 0.5, b""), bytes([n]) * 4000) for n in range(20)]
    data = encode_pack(items)
    assert len(data) < 20 * 400
    assert decode_pack(data) == {item.card.name: item for item in items}


def test_a_python_without_lzma_reads_and_writes_packs_of_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which all others read; packs of others are none to it."""
    items = [PackedFunction(Card("f", b"m" * 16, 4000, 0.5, b""), bytes(4000))]
    others = encode_pack(items)
    monkeypatch.setattr("compcache.remote.card._import_lzma", lambda: None)
    own = encode_pack(items)
    assert list(decode_pack(own)) == ["f"]
    with pytest.raises(FormatError, match="this Python has no LZMA support"):
        decode_pack(others)
    monkeypatch.undo()
    assert list(decode_pack(own)) == ["f"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["X", "Z"])
@pytest.mark.parametrize("harm", ["holds too much", "is cut", "is not compressed"])
def test_a_pack_that_decompresses_to_more_than_packs_hold_is_refused(harm: str, kind: str) -> None:
    """Nor is more of it held than that: a few hundred KiB say that they are 128 MiB."""
    magic = encode_pack([])[:7] + kind.encode()
    content = bytes(2 * MAX_UNPACKED if harm == "holds too much" else 1000)
    plain = lzma.compress(content, preset=1) if kind == "X" else zlib.compress(content, 1)
    data = magic + {"is cut": plain[:-5], "is not compressed": b"plain"}.get(harm, plain)
    data += check(data)
    tracemalloc.start()
    with pytest.raises(FormatError):
        decode_pack(data)
    assert tracemalloc.get_traced_memory()[1] < 3 * MAX_UNPACKED
    tracemalloc.stop()


class Headers(socketserver.StreamRequestHandler):
    """Answers with headers without end."""

    def handle(self) -> None:
        with suppress(OSError):
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n")
            end = time.monotonic() + 40
            while time.monotonic() < end:
                self.wfile.write(b"x-header: " + b"a" * 4000 + b"\r\n")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


def test_headers_without_end_are_refused() -> None:
    pytest.importorskip("obstore")
    with Server(("127.0.0.1", 0), Headers) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

        async def run() -> list[Any]:
            backend = open_backend(RemoteSettings(f"http://127.0.0.1:{server.server_address[1]}/x", "read"))
            return await asyncio.gather(*[backend.get(f"k{n}", 1 << 20) for n in range(32)], return_exceptions=True)

        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        assert all(isinstance(answer, Exception) for answer in asyncio.run(run()))
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 64 << 20
        assert time.monotonic() - started < 30
        server.shutdown()
