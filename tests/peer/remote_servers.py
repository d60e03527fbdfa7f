"""Servers on loopback for the tests of remote stores, and a proxy that makes a bad network of it.

Each server ends with its test. Those that are not installed are skipped: `moto[server]` and `redis` come from PyPI, `redis-server` and
`nginx` from the distribution, `azurite` (`azurite-blob` on the path) from npm.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BEHAVIOURS", "SERVERS", "Proxy", "free_port", "stop", "variables"]

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


#: The account of Azurite that its documentation names.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azure_server(tmp_path: Path) -> tuple[subprocess.Popen[bytes], int, str]:
    program = shutil.which("azurite-blob") or pytest.skip("azurite is not installed")
    pytest.importorskip("obstore")
    port = free_port()
    where = ["--location", str(tmp_path), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    process = start([program, "--silent", "--disableTelemetry", "--skipApiVersionCheck", *where], port)
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    text = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = f"{text}/{_ACCOUNT}/{_ACCOUNT}/container\nrestype:container".encode()
    signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), signed, hashlib.sha256).digest()).decode()
    headers |= {"Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Length": "0"}
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("PUT", f"/{_ACCOUNT}/container?restype=container", headers=headers)
        assert connection.getresponse().status == 201
    return process, port, "az://container/prefix"


SERVERS = {"azure": azure_server, "nginx": nginx_server, "redis": redis_server, "s3": s3_server}
BEHAVIOURS = ("refuse", "stall", "cut", "corrupt", "swap", "answer 500")


def variables(port: int) -> dict[str, str]:
    """The environment in which clients find a server at this port."""
    aws = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    azure = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}"}
    return {**aws, **azure, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


#: What tells one function's card or pack from another's in a request: ``aa/aabbcc...``.
_KEY_OF_CARD = re.compile(rb"(?<=/)[0-9a-f]{2}/[0-9a-f]{32}")


class Proxy:
    """Forwards connections to a server, in the way that `behaviour` says."""

    def __init__(self, port: int) -> None:
        self._server = port
        self.behaviour = "forward"
        self._first_key = b""
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
                back = threading.Thread(target=self._copy, args=(server, client, self.behaviour.replace("swap", "forward")), daemon=True)
                back.start()
                self._copy(client, server, "swap" if self.behaviour == "swap" else "forward")
                back.join(5)

    def _copy(self, source: socket.socket, sink: socket.socket, behaviour: str) -> None:
        total = 0
        with suppress(OSError):
            while data := source.recv(1 << 14):
                if behaviour == "swap":
                    data = _KEY_OF_CARD.sub(self._swapped, data)
                if behaviour == "corrupt" and len(data) > 600:
                    data = data[:500] + bytes(byte ^ 0x55 for byte in data[500:520]) + data[520:]
                total += len(data)
                if behaviour == "cut" and total > 700:
                    sink.sendall(data[:100])
                    break
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def _swapped(self, found: re.Match[bytes]) -> bytes:
        """The key of the first function that was asked for, in place of any other."""
        self._first_key = self._first_key or found.group()
        return self._first_key

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()
