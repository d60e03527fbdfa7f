"""The directory of a run: a compiled copy of the package, the caches under test, and the processes that use them."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "compcache"


class Workspace:
    """Where a run keeps its files.

    The package is copied and its bytecode compiled, as an installer does: in a work tree the bytecode may be absent
    or stale (PYTHONDONTWRITEBYTECODE, an edit since), and every fresh process would compile the sources again.
    """

    def __init__(self, root: Path, *, quick: bool, modules: int | None = None) -> None:
        self.root = root
        self.quick = quick
        self.modules = modules or (5_000 if quick else 100_000)
        self.site = root / "site"
        root.mkdir(parents=True, exist_ok=True)
        self._install()

    def _install(self) -> None:
        shutil.rmtree(self.site, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "native")  # no C sources, as in a wheel
        shutil.copytree(PACKAGE, self.site / "compcache", ignore=ignored)
        shutil.copytree(HERE / "children", self.site / "children", ignore=ignored)
        for name in ("prototype.py", "sources.py"):
            shutil.copy(HERE / name, self.site / name)
        if not compileall.compile_dir(self.site, quiet=2):
            print("some files of the package do not compile with this Python", file=sys.stderr)
        sys.path.insert(0, str(self.site))

    def directory(self, name: str) -> str:
        """The path of a cache of this run; it is not created."""
        return str(self.root / name)

    def fresh_directory(self, name: str) -> str:
        """The same, with nothing in it."""
        path = self.root / name
        shutil.rmtree(path, ignore_errors=True)
        return str(path)

    def cached(self, name: str, fill: Callable[[str], None]) -> str:
        """The directory `name`, filled once for each state of the package."""
        path = self.root / name
        mark = self.root / f"{name}.filled"
        state = f"{_newest(PACKAGE)} {_newest(HERE)}"
        if not mark.exists() or mark.read_text() != state:
            fill(self.fresh_directory(name))
            mark.write_text(state)
        return str(path)

    def environment(self) -> dict[str, str]:
        """The environment of children: no setting of Python's or the package's but the path to the copy."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COMPCACHE"))}
        return {**kept, "PYTHONPATH": str(self.site)}

    def time_process(self, *arguments: str) -> float:
        """The wall time in milliseconds of a fresh interpreter with these arguments, from spawn to reaping.

        Raises:
            RuntimeError: it did not exit with status 0.
        """
        command = [sys.executable, *arguments]
        environment = self.environment()
        started = time.perf_counter()
        pid = os.posix_spawn(sys.executable, command, environment)
        _, status = os.waitpid(pid, 0)
        elapsed = time.perf_counter() - started
        if status != 0:
            raise RuntimeError(f"{command} ended with status {os.waitstatus_to_exitcode(status)}")
        return elapsed * 1e3

    def child(self, name: str, *arguments: object) -> Any:
        """What `children/<name>.py` printed as JSON, run in a fresh interpreter.

        Raises:
            RuntimeError: it failed; the message holds what it wrote to stderr.
        """
        command = [sys.executable, "-m", f"children.{name}", *map(str, arguments)]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed: {done.stderr.strip()}")
        return json.loads(done.stdout)


def _newest(folder: Path) -> int:
    files: Sequence[Path] = [*folder.rglob("*.py"), *folder.rglob("*.so")]
    return max(path.stat().st_mtime_ns for path in files)
