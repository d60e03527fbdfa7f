"""Remote stores on real servers: moto's S3, nginx with WebDAV, Redis, and what a bad network makes of them.

Each server runs on loopback and ends with the test. Those that are not installed are skipped: `moto[server]` and `redis` come from
PyPI, `redis-server` and `nginx` from the distribution.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import constant

from compcache import Cache, Identity, ModuleSource, NotCachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.peer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


def start(command: list[str], port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(port)
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Helper processes of this test end with it."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield
    shutil.rmtree(directory)


def redis_server(tmp_path: Path) -> tuple[subprocess.Popen[bytes], int, str]:
    program = shutil.which("redis-server") or pytest.skip("redis-server is not installed")
    pytest.importorskip("redis")
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    return start(command, port), port, "redis://127.0.0.1:{port}/0"


def nginx_server(tmp_path: Path) -> tuple[subprocess.Popen[bytes], int, str]:
    program = shutil.which("nginx") or pytest.skip("nginx is not installed")
    pytest.importorskip("obstore")
    port = free_port()
    (tmp_path / "www").mkdir()
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; user root; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; client_max_body_size 0; client_body_temp_path {tmp_path}/body;\n"
        f" proxy_temp_path {tmp_path}/p; fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
        f" server {{ listen 127.0.0.1:{port}; root {tmp_path}/www;\n"
        "  location / { dav_methods PUT DELETE MKCOL; create_full_put_path on; dav_access user:rw; } } }\n"
    )
    return start([program, "-c", str(tmp_path / "nginx.conf")], port), port, "http://127.0.0.1:{port}/cache"


def s3_server(_: Path) -> tuple[subprocess.Popen[bytes], int, str]:
    pytest.importorskip("moto")
    pytest.importorskip("obstore")
    port = free_port()
    process = start([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port)
    request = f"PUT /bucket HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request.encode())
        assert connection.recv(100).split()[1] == b"200"
    return process, port, "s3://bucket/prefix"


SERVERS = {"redis": redis_server, "nginx": nginx_server, "s3": s3_server}


@pytest.fixture(params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, str]]:
    """The port of a server, and the URL of a store on it with ``{port}`` for the port."""
    process, port, url = SERVERS[request.param](tmp_path)
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    yield port, url
    stop(process)


class Proxy:
    """Forwards connections to a server, in the way that `behaviour` says."""

    def __init__(self, port: int) -> None:
        self._server = port
        self.behaviour = "forward"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.behaviour == "refuse":
                return
            if self.behaviour == "stall":
                time.sleep(5)
                return
            if self.behaviour == "answer 500":
                client.recv(1 << 16)
                client.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", self._server)) as server:
                back = threading.Thread(target=self._copy, args=(server, client, self.behaviour), daemon=True)
                back.start()
                self._copy(client, server, "forward")
                back.join(5)

    def _copy(self, source: socket.socket, sink: socket.socket, behaviour: str) -> None:
        total = 0
        with suppress(OSError):
            while data := source.recv(1 << 14):
                if behaviour == "corrupt" and len(data) > 600:
                    data = data[:500] + bytes(byte ^ 0x55 for byte in data[500:520]) + data[520:]
                total += len(data)
                if behaviour == "cut" and total > 700:
                    sink.sendall(data[:100])
                    break
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def proxy(server: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server, and the URL of the store through it."""
    port, url = server
    between = Proxy(port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{between.port}")
    yield between, url.format(port=between.port)
    between.close()


def large(number: int) -> str:
    table = ", ".join(f"i64 {(n + number) * 0x9E3779B97F4A7C15 % 2**63}" for n in range(6000))
    head = f"@t = internal constant [6000 x i64] [{table}]\ndefine i64 @f(i64 %i) {{\n %p = getelementptr i64, ptr @t, i64 %i\n"
    return head + " %v = load i64, ptr %p\n ret i64 %v\n}\n"


def test_small_and_large_modules_go_there_and_back(server: tuple[int, str], tmp_path: Path) -> None:
    url = server[1].format(port=server[0])
    small, big = Identity("f", code="small"), Identity("f", code="big")
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as first:
        first.get_or_compile(small, lambda: constant("f", 7))
        first.get_or_compile(big, lambda: large(0))
        assert first.flush_uploads(30)
    with Cache(tmp_path / "b", remote=url) as second:
        assert second.has_many([small, big, Identity("f", code="absent")]) == (True, True, False)
        assert second.get_target(small)() == 7
        assert second.get_target(big.func_name)(1) == 0x9E3779B97F4A7C15 % 2**63
        assert second.stats().counters["remote_hits"] == 2


def test_many_functions_come_with_one_question(server: tuple[int, str], tmp_path: Path) -> None:
    url = server[1].format(port=server[0])
    names = [Identity("f", number=number) for number in range(60)]
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as first:
        for number, name in enumerate(names):
            first.get_or_compile(name, partial(constant, "f", number))
        first.push(names)
        assert first.flush_uploads(60)
    with Cache(tmp_path / "b", remote=url) as second:
        assert len(second.prefetch(names)) == len(names)
        assert [second.get_target(name.func_name)() for name in names] == list(range(60))


@pytest.mark.parametrize("behaviour", ["refuse", "stall", "cut", "corrupt", "answer 500"])
def test_a_bad_network_costs_little_and_gives_no_wrong_answer(
    proxy: tuple[Proxy, str], tmp_path: Path, behaviour: str
) -> None:
    between, url = proxy
    names = [Identity("f", number=number) for number in range(4)]
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as first:
        for number, name in enumerate(names):
            first.get_or_compile(name, partial(large, number))
        first.push(names)
        assert first.flush_uploads(60)
    between.behaviour = behaviour
    with Cache(tmp_path / "b", remote=url) as second:
        for number, name in enumerate(names):
            started = time.monotonic()
            function = second.get_or_compile(name, partial(large, number))
            assert time.monotonic() - started < 10
            assert function(3) == (3 + number) * 0x9E3779B97F4A7C15 % 2**63


def test_a_thousand_misses_lose_little_to_a_store_that_is_gone(
    server: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port on which nothing listens: in all less than 1.5 s, and the next process loses nothing."""
    del server
    dead = free_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{dead}")
    url = f"http://127.0.0.1:{dead}/cache"

    def misses(directory: str, remote: str | None) -> float:
        with Cache(tmp_path / directory, remote=remote) as cache:
            cache.add_module(ModuleSource(constant("g", 1)))
            started = time.monotonic()
            for number in range(1000):
                with pytest.raises(NotCachedError):
                    cache.get_target(Identity("f", number=number).func_name)
            return time.monotonic() - started

    plain = misses("plain", None)
    assert misses("first", url) - plain < 1.5 + 0.5 * plain
    assert misses("second", url) - plain < 0.5 + 0.5 * plain


@pytest.mark.parametrize("kill", [False, True])
def test_processes_race_with_one_helper(server: tuple[int, str], tmp_path: Path, kill: bool) -> None:
    """Eight processes; with `kill` their helper is killed while they work: nothing is lost but time."""
    url = server[1].format(port=server[0])
    script = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from compcache import Cache, Identity\n"
        "path, url = sys.argv[1:]\n"
        "with Cache(path, remote=url, remote_mode='write') as cache:\n"
        "    for n in range(20):\n"
        "        ir = f'define i64 @f() {{\\n ret i64 {n}\\n}}\\n'\n"
        "        assert cache.get_or_compile(Identity('f', n=n), lambda: ir)() == n\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / f"c{number % 4}"), url]) for number in range(8)
    ]
    if kill:
        from compcache.remote.address import RemoteSettings
        from compcache.remote.connection import ask

        question = ask(RemoteSettings(url, "write"), "status")
        assert question.wait(20)
        os.kill(question.answer["pid"], 9)
    assert [worker.wait(120) for worker in workers] == [0] * 8


def test_what_waits_is_uploaded_when_the_store_comes_back(proxy: tuple[Proxy, str], tmp_path: Path) -> None:
    between, url = proxy
    between.behaviour = "refuse"
    name = Identity("f", code="later")
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as cache:
        cache.get_or_compile(name, lambda: constant("f", 5))
        assert not cache.flush_uploads(3)
        between.behaviour = "forward"
        directory: Callable[[], str] = cache._remote_store().directory  # type: ignore[union-attr]
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(directory(), "breaker"))
        cache.push([name])
        assert cache.flush_uploads(30)
    with Cache(tmp_path / "b", remote=url) as second:
        assert second.get_target(name)() == 5
