"""Runs scripts that use Numba in fresh processes, with Numba's own cache or with compcache's."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
import tomllib
from typing import TYPE_CHECKING, Any

from helpers import PACKAGE_ROOT, FreshProcessError

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS = 600
_OWN = ""
_INSTALLED = "import compcache.numba\nbackend = compcache.numba.install({root!r})\n"
_LAST = "\nsys.stdout.write('\\n' + repr(result) + '\\n')\n"


class Project:
    """A directory of modules, and a cache for each of the two backends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = directory / "source"
        self.source.mkdir()
        self.cache = directory / "cache"

    def write(self, **modules: str) -> None:
        """Write modules; the old ones' bytecode goes, so that an edit within the same second counts."""
        for name, text in modules.items():
            path = self.source / f"{name}.py"
            path.write_text(textwrap.dedent(text))
            for stale in (self.source / "__pycache__").glob(f"{name}.*.pyc"):
                stale.unlink()

    def register(self) -> None:
        """Make what `pyproject.toml` registers with Numba known to processes, as installing the package does."""
        tables = tomllib.loads((PACKAGE_ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        points = tables["numba_extensions"].items()
        metadata = self.source / "compcache-0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: compcache\nVersion: 0\n")
        lines = ["[numba_extensions]", *[f"{name} = {where}" for name, where in points]]
        (metadata / "entry_points.txt").write_text("\n".join(lines))

    def start(self, script: str, *, backend: bool, **environment: str) -> subprocess.Popen[str]:
        """A process that runs a script, which leaves its answer in `result`."""
        first = f"import sys\nsys.path[:0] = [{str(self.source)!r}, {str(PACKAGE_ROOT)!r}]\n"
        first += _INSTALLED.format(root=str(self.cache)) if backend else _OWN
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
        # Numba's own cache lies beside the source, as for most of its users.
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", first + textwrap.dedent(script) + _LAST],
            env=inherited | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
            cwd=self.source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, script: str, *, backend: bool, **environment: str) -> Any:
        """What a script left in `result`."""
        return finish(self.start(script, backend=backend, **environment))


def finish(process: subprocess.Popen[str], seconds: float = _SECONDS) -> Any:
    """The answer of a process of `Project.start`."""
    out, err = process.communicate(timeout=seconds)
    if process.returncode:
        raise FreshProcessError(f"exit status {process.returncode}\n{out}\n{err}")
    return ast.literal_eval(out.splitlines()[-1])
