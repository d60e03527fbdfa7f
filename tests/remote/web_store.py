"""An HTTP server that keeps objects in memory, and behaves badly when it is told to, for the tests of remote stores."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache import Cache

__all__ = ["WebStore"]

#: How long a server that stalls keeps who asks; more than any limit of time in the tests.
STALL_SECONDS = 30.0


class WebStore(ThreadingHTTPServer):
    """Serves GET and PUT. `behave` decides by method and path: "" (as it should), or the name of one of `Handler`'s ways to fail."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.behave: Callable[[str, str], str] = lambda *_: ""
        self.authorizations: list[str] = []
        self.accepts: Callable[[str], bool] = lambda _: True  # which of them are let in
        self.url = f"http://127.0.0.1:{self.server_address[1]}/cache"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def requested(self, cache: Cache, method: str = "GET") -> list[str]:
        """The paths that were requested, each once, except those of `Cache.remote.status`. Copies of late requests are allowed."""
        paths = [path for each, path in self.requests if each == method and "/m/00/0000" not in path]
        distinct = list(dict.fromkeys(paths))
        assert cache.remote is not None
        assert len(paths) - len(distinct) <= sum(counts["repeated"] for counts in cache.remote.status()), paths
        return distinct

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two writes: the second would wait 40 ms for the acknowledgement of the first
    server: WebStore

    def do_GET(self) -> None:
        if not self._misbehaves(b""):
            found = self.server.objects.get(self.path)
            self._answer(404 if found is None else 200, found or b"")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._misbehaves(data):
            self.server.objects[self.path] = data
            self._answer(201, b"")

    def _misbehaves(self, data: bytes) -> bool:
        self.server.requests.append((self.command, self.path))
        authorization = self.headers.get("Authorization", "")
        self.server.authorizations.append(authorization)
        way = self.server.behave(self.command, self.path) if self.server.accepts(authorization) else "forbid"
        if way:
            getattr(self, f"_{way}")(data)
        return bool(way)

    def _answer(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _forbid(self, _: bytes) -> None:
        self._answer(403, b"no")

    def _refuse_large(self, data: bytes) -> None:
        if len(data) > 10_000:
            self._answer(413, b"too large")
        else:
            self.server.objects[self.path] = data
            self._answer(201, b"")

    def _fail(self, _: bytes) -> None:
        self._answer(500, b"")

    def _throttle(self, _: bytes) -> None:
        self._answer(429, b"", **{"Retry-After": "0"})

    def _delay(self, _: bytes) -> None:
        time.sleep(0.3)
        found = self.server.objects.get(self.path)
        self._answer(404 if found is None else 200, found or b"")

    def _stall(self, _: bytes) -> None:
        time.sleep(STALL_SECONDS)
        self.close_connection = True

    def _show_login_page(self, _: bytes) -> None:
        self._answer(200, b"<html><form action=login>user <input name=user></form></html>" * 40)

    def _redirect(self, _: bytes) -> None:
        self._answer(302, b"", Location=self.path)

    def _promise_much(self, _data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 42))
        self.end_headers()
        with suppress(OSError):
            for _ in range(1000):
                self.wfile.write(bytes(1 << 20))
        self.close_connection = True

    def _drip(self, _data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        with suppress(OSError):
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.2)
        self.close_connection = True

    def _hang_up(self, _: bytes) -> None:
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def log_error(self, *_: object) -> None:
        """Say nothing."""
