"""Runs the command line as a process of its own, in a pipe or on a terminal.

The commands run in forks of one process that has imported everything and done nothing (`nursery`); `fresh` starts an
interpreter, for tests that are about what a command imports or how it is started.
"""

from __future__ import annotations

import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from fcntl import ioctl
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from helpers import PACKAGE_ROOT
from nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Mapping

KERNELS = PACKAGE_ROOT / "examples" / "kernels"
_PREPARATION = """\
import pkgutil, warnings
from importlib import import_module
import llvmlite.binding
import compcache.cli, compcache.errors, compcache.linker
for module in pkgutil.walk_packages(compcache.cli.__path__, "compcache.cli."):
    import_module(module.name)
warnings.simplefilter("error")
warnings.simplefilter("always", compcache.errors.CacheWarning)

def work(request):
    return compcache.cli.main(request["arguments"])
"""


class Outcome(NamedTuple):
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str


@cache
def _nursery() -> Nursery:
    return Nursery(_PREPARATION, environment({}))


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
        status = _nursery().run(streams, environment(variables), arguments=[*map(str, arguments)])
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
    status = _nursery().run([theirs] * 3, environment(variables), arguments=[*map(str, arguments)])
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
