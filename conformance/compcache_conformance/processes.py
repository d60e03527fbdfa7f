"""Fresh processes: their limits, their rights, and what became of them."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compcache_conformance.prepared import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from compcache_conformance.prepared import Forked

__all__ = ["Call", "Order", "Reply", "Run", "Running", "prepared", "start"]

Call = tuple[str, tuple[float, ...]]
_PR_CAPBSET_DROP = 24
#: What root may do and others may not: scenarios about rights want a process that has none of it.
_POWERS = (1, 2, 3)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a process said about one call; `seconds` are of the processor. Calls below 0 are about the process (`conformance_serve.py`)."""

    call: int
    answer: str | None = None
    found: bool | None = None
    error: str | None = None
    seconds: float = 0.0
    grown: int = 0

    def is_right(self, expected: float) -> bool:
        """Whether it is the number that is expected, but for its last digits."""
        return self.answer is not None and abs(float(self.answer) - expected) <= 1e-6 * max(1.0, abs(expected))


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a process."""

    replies: tuple[Reply, ...]
    status: int
    timed_out: bool
    seconds: float
    output: str

    @property
    def processor_seconds(self) -> float:
        """The processor time of the process until its last answer, without that of other programs that it started."""
        return next((reply.seconds for reply in self.replies if reply.call == -3), 0.0)

    @property
    def all_seconds(self) -> float:
        """That, and the processor time of programs that it started and waited for."""
        return sum(reply.seconds for reply in self.replies if reply.call in {-3, -4})

    @property
    def first(self) -> Reply:
        """The reply to the first call."""
        return self.replies[0]


@dataclass(frozen=True, slots=True)
class Order:
    """What a process is to do."""

    calls: tuple[Call, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[int, int] = field(default_factory=dict)
    umask: int = 0o022
    cwd: Path | None = None
    wrap: tuple[str, ...] = ()
    threads: int = 0
    fork: int = 0
    beside: bool = False
    repeat: int = 0
    pauses: Mapping[str, str] = field(default_factory=dict)
    barrier: str = ""
    ready: str = ""
    modules: str = ""


class Running:
    """A process that was started; `wait` gives what became of it."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, folder: tempfile.TemporaryDirectory[str], patience: float) -> None:
        self._process, self._folder, self._patience = process, folder, patience
        self._started = time.monotonic()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not come to its end."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process and its children, at once."""
        with_group = os.getpgid(self._process.pid) if self._process.poll() is None else None
        if with_group is not None:
            os.killpg(with_group, signal.SIGKILL)

    def wait(self) -> Run:
        """Wait for the end, for the patience of the system at most."""
        timed_out = False
        try:
            self._process.wait(timeout=max(self._patience - (time.monotonic() - self._started), 0.1))
        except subprocess.TimeoutExpired:
            timed_out = True
            self.kill()
            self._process.wait()
        seconds = time.monotonic() - self._started
        folder = Path(self._folder.name)
        lines = (folder / "replies").read_text().splitlines() if (folder / "replies").exists() else []
        replies = tuple(Reply(**json.loads(line)) for line in lines if line.endswith("}"))
        output = (folder / "output").read_text(errors="replace")[-6000:]
        self._folder.cleanup()
        return Run(replies, self._process.wait(), timed_out, seconds, output)


def prepared(interpreter: Path, modules: Path, environment: Mapping[str, str]) -> Prepared:
    """Interpreters whose forked processes are like those of `start`, except that the modules named in a file have been imported."""
    return Prepared(interpreter, modules, {**_plain_environment(), **environment}, _preparation({}))


def start(command: Sequence[str], order: Order, patience: float, forking: Prepared | None = None) -> Running:
    """Start a process that plays an order: the command, or with `forking` the program at its end, without limits and a wrapping command."""
    holder = tempfile.TemporaryDirectory(prefix="conformance-process-", ignore_cleanup_errors=True)
    folder = Path(holder.name)
    said: dict[str, Any] = {"calls": order.calls, "replies": str(folder / "replies"), "pauses": dict(order.pauses)}
    said |= {name: getattr(order, name) for name in ("threads", "fork", "beside", "repeat", "barrier", "ready", "modules")}
    (folder / "order").write_text(json.dumps(said))
    (folder / "replies").touch()
    environment = {**_plain_environment(), **order.environment, "CONFORMANCE_ORDER": str(folder / "order")}
    with (folder / "output").open("wb") as output:
        if forking:
            cwd = str(order.cwd or Path.cwd())
            forked = forking.start(Path(command[-1]), environment=environment, cwd=cwd, umask=order.umask, output=output.name)
            return Running(forked, holder, patience)
        process = subprocess.Popen(
            [*order.wrap, *command], env=environment, cwd=order.cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, umask=order.umask, preexec_fn=_preparation(order.limits),  # noqa: PLW1509 - one thread starts them
        )  # fmt: skip
    return Running(process, holder, patience)


def _plain_environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONHASHSEED": "random", "PYTHONDONTWRITEBYTECODE": "1"}


def _preparation(limits: Mapping[int, int]) -> Callable[[], None]:
    root = os.geteuid() == 0

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for which, most in limits.items():
            resource.setrlimit(which, (most, most))
        if root:
            for power in _POWERS:
                _LIBC.prctl(_PR_CAPBSET_DROP, power, 0, 0, 0)

    return prepare
