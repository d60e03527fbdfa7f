"""Runs the command line as a process of its own, in a pipe or on a terminal.

Starting an interpreter and importing LLVM costs more than most commands. So the commands run in forks of one process
that has imported everything and done nothing (`_Nursery`); `fresh` starts an interpreter, for tests that are about
what a command imports or how it is started.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from fcntl import ioctl
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from helpers import PACKAGE_ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECONDS = 60
_LONGEST = 1 << 20
KERNELS = PACKAGE_ROOT / "examples" / "kernels"
_NURSERY = """\
import gc, json, os, pkgutil, socket, sys, warnings
from importlib import import_module
import llvmlite.binding
import compcache.cli, compcache.errors, compcache.linker
for module in pkgutil.walk_packages(compcache.cli.__path__, "compcache.cli."):
    import_module(module.name)
warnings.simplefilter("error")
warnings.simplefilter("always", compcache.errors.CacheWarning)
gc.freeze()  # else each fork would copy what its collector looks at

def serve(channel):
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            return 0
        request = json.loads(message)
        child = os.fork()
        for number, descriptor in enumerate(descriptors):
            if child == 0:
                os.dup2(descriptor, number)
            os.close(descriptor)
        if child == 0:
            channel.close()
            sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)
            sys.__stdout__ = sys.stdout
            os.environ.clear()
            os.environ.update(request["environment"])
            return compcache.cli.main(request["arguments"])
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        channel.send(str(status).encode())

with socket.socket(fileno=int(sys.argv[1])) as channel:
    sys.exit(serve(channel))
"""


class Outcome(NamedTuple):
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str


class _Nursery:
    """The process whose forks run the commands; it ends when this process does."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _NURSERY, str(theirs.fileno())],
            env=environment({}),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def run(self, arguments: Sequence[str], variables: Mapping[str, str], streams: Sequence[int]) -> int:
        request = json.dumps({"arguments": arguments, "environment": environment(variables)}).encode()
        assert len(request) < _LONGEST
        socket.send_fds(self._channel, [request], list(streams))
        for stream in set(streams):
            os.close(stream)
        return int(self._channel.recv(64))

    def close(self) -> None:
        self._channel.close()
        self._process.wait(_SECONDS)


@cache
def _nursery() -> _Nursery:
    import atexit

    started = _Nursery()
    atexit.register(started.close)
    return started


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The variables of a command: nothing that whoever runs the tests has set for compcache."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COMPCACHE_")}
    inherited.pop("NO_COLOR", None)
    return {**inherited, "PYTHONPATH": str(PACKAGE_ROOT), "TERM": "xterm-256color", **extra}


def compcache(*arguments: object, input: str | bytes = b"", **variables: str) -> Outcome:  # noqa: A002
    """Run ``compcache ARGUMENT...`` with its output in files."""
    data = input.encode() if isinstance(input, str) else input
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(data)
        given.seek(0)
        streams = [os.dup(file.fileno()) for file in (given, out, err)]
        status = _nursery().run([*map(str, arguments)], variables, streams)
        out.seek(0)
        err.seek(0)
        return Outcome(status, out.read().decode(), err.read().decode())


def on_terminal(*arguments: object, columns: int = 100, typed: str = "", **variables: str) -> Outcome:
    """Run ``compcache ARGUMENT...`` on a terminal that somebody types on; everything that appears is in `out`."""
    variables.setdefault("COLUMNS", str(columns))  # where the preloaded process has no standard output of its own
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.write(ours, typed.encode())
    # What a terminal takes before its reader must hurry is little, but more than any of these commands shows.
    status = _nursery().run([*map(str, arguments)], variables, [theirs] * 3)
    shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    return Outcome(status, shown.decode().replace("\r\n", "\n"), "")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # what Linux says when nobody has the other end any more
        return b""


def command(*arguments: object) -> list[str]:
    """The command line of an interpreter that runs ``compcache ARGUMENT...``."""
    return [sys.executable, "-m", "compcache", *map(str, arguments)]


def fresh(*arguments: object, input: str | bytes = b"", **variables: str) -> Outcome:  # noqa: A002
    """Run ``compcache ARGUMENT...`` in a new interpreter."""
    done = subprocess.run(
        command(*arguments),
        input=input.encode() if isinstance(input, str) else input,
        env=environment(variables),
        capture_output=True,
        timeout=_SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


SIGNATURES = {
    "dot": "f64(a: const f64[:], b: const f64[:])",
    "norm": "f64(x: const f64[:])",
    "sieve": "i64(flags: u8[:])",
    "levenshtein": "i64(a: cstr, b: cstr)",
    "crc32": "u32(data: const u8[:])",
}
"""The kernels in a cache that `fill` made."""


def fill(directory: os.PathLike[str]) -> None:
    """Make a cache of some example kernels: `norm` calls `dot`, `crc32` uses a global."""
    shutil.copytree(_kernels(), directory, dirs_exist_ok=True)
    os.chmod(directory, 0o700)


@cache
def _kernels() -> str:
    import atexit

    scratch = tempfile.mkdtemp(prefix="compcache-kernels-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    directory = os.path.join(scratch, "cache")
    for name, signature in SIGNATURES.items():
        table = ["--global", "crc_table=bytes:" + "00" * 1024] if name == "crc32" else []
        code = KERNELS / f"{name}.ll"
        added = compcache("--dir", directory, "add", code, "--export", f"{name}={signature}", *table)
        assert added.status == 0, added.err
    return directory
