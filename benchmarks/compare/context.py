"""What every curve is given: the workspace, how long it may take, the interpreters, and what had to be left out."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workspace import Workspace

HERE = Path(__file__).resolve().parent


class ProgramError(Exception):
    """Raised when a child of the comparison fails or takes too long; the message holds the end of its stderr."""


@dataclass(frozen=True)
class Context:
    """The run.

    `jax_python` and `old_python` are the interpreters of the environments that have JAX and typed_python, or None;
    `skipped` collects who was left out, why.
    """

    workspace: Workspace
    quick: bool
    jax_python: str | None = None
    old_python: str | None = None
    skipped: dict[str, str] = field(default_factory=dict)

    def repetitions(self, full: int, quick: int) -> int:
        """How often."""
        return quick if self.quick else full

    def install_programs(self) -> None:
        """Put what children import beside the copy of the package, compiled."""
        site = self.workspace.site
        shutil.copytree(HERE / "programs", site, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__*"))
        for name in ("batch.py", "maintenance.py"):
            shutil.copy(HERE.parent / name, site / name)
        compileall.compile_dir(site, quiet=2)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of children."""
        return {**self.workspace.environment(), **(extra or {})}

    def output(
        self, command: Sequence[str], extra: Mapping[str, str] | None = None, timeout: float = 300
    ) -> str:
        """What a child wrote to stdout.

        Raises:
            ProgramError: it failed.
        """
        try:
            done = subprocess.run(
                command,
                env=self.environment(extra),
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise ProgramError(f"took more than {timeout:.0f} s") from error
        if done.returncode != 0:
            raise ProgramError(done.stderr.strip()[-2000:] or f"exit status {done.returncode}")
        return done.stdout

    def program(self, name: str, *arguments: object, timeout: float = 300) -> Any:
        """What `programs/<name>.py` printed as JSON, run in a fresh interpreter."""
        path = str(self.workspace.site / f"{name}.py")
        return json.loads(self.output([sys.executable, path, *map(str, arguments)], timeout=timeout))

    def time(self, command: Sequence[str], extra: Mapping[str, str] | None = None) -> float:
        """Milliseconds of a process, from its spawn to its reaping.

        Raises:
            ProgramError: it did not exit with status 0.
        """
        environment = self.environment(extra)
        started = time.perf_counter()
        pid = os.posix_spawn(command[0], list(command), environment)
        _, status = os.waitpid(pid, 0)
        elapsed = time.perf_counter() - started
        if status != 0:
            raise ProgramError(f"{command} ended with status {os.waitstatus_to_exitcode(status)}")
        return elapsed * 1e3


def size_of(path: str) -> int:
    """The bytes of all files below a directory (apparent sizes)."""
    return sum(file.lstat().st_size for file in Path(path).rglob("*") if file.is_file())
