"""Processes that start together: fresh interpreters behind a barrier, each with a script and an answer."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Self

from helpers import PACKAGE_ROOT, FreshProcessError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Crowd", "in_fork"]

_FIRST = """\
import sys, time
sys.path.insert(0, {root!r})
directory = {directory!r}
number = {number}
def barrier():
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
"""
_LAST = "\nsys.stdout.write('\\n' + repr(result) + '\\n')\n"


class Crowd:
    """Fresh processes that run scripts on one cache directory.

    A script has `sys`, `time`, `directory` and its `number`, calls `barrier()` when it has imported what it needs,
    and leaves its answer in `result`. Leaving the context ends the processes that are still there.
    """

    def __init__(self, directory: os.PathLike[str] | str, scripts: Sequence[str], **environment: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COMPCACHE_")}
        variables = inherited | {"PYTHONPATH": str(PACKAGE_ROOT)} | environment
        self.processes: list[subprocess.Popen[str]] = []
        for number, script in enumerate(scripts):
            first = _FIRST.format(root=str(PACKAGE_ROOT), directory=os.fspath(directory), number=number)
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", "-c", first + textwrap.dedent(script) + _LAST],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=variables,
                )
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def release(self, *numbers: int) -> None:
        """Wait until these processes (by default all) are at their barrier, and let them go."""
        chosen = [self.processes[number] for number in numbers] or self.processes
        for process in chosen:
            self.expect(process, "ready")
        for process in chosen:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def expect(self, process: subprocess.Popen[str], line: str) -> None:
        """Wait for this line of a process."""
        assert process.stdout is not None
        for text in process.stdout:
            if text.strip() == line:
                return
        raise FreshProcessError(f"a process ended before it said {line!r}: {process.communicate()}")

    def results(self, *numbers: int) -> list[Any]:
        """What these processes (by default all) answer."""
        return [_result(process) for process in [self.processes[number] for number in numbers] or self.processes]


def _result(process: subprocess.Popen[str]) -> Any:
    output, errors = process.communicate()
    if process.returncode:
        raise FreshProcessError(f"exit status {process.returncode}\n{output}\n{errors}")
    return ast.literal_eval(output.splitlines()[-1])


def in_fork(work: object) -> int:
    """The exit status of a forked child that runs `work` and exits at once."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = work()  # type: ignore[operator]
        finally:
            os._exit(status)
    _, wait_status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(wait_status)
