"""Runs scripts that use Numba in fresh processes, with Numba's own cache or with compcache's."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from itertools import cycle
from typing import TYPE_CHECKING, Any

from helpers import PACKAGE_ROOT, FreshProcessError
from nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: What Numba registers for its types and functions is a third of its first compilation. It loads entry points in each fork.
_PREPARATION = """\
import atexit, os, sys, threading, types
from numba.core import entrypoints
from numba.core.registry import cpu_target
entrypoints._already_initialized = True
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
entrypoints._already_initialized = False

def work(request):
    os.chdir(request["directory"])
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(request["script"], "<string>", "exec"), main.__dict__)
    if request["is_whole"]:
        return 0
    # What an interpreter does before it takes its objects down, most of which are shared with this process.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
"""
#: Import what the backend imports when it stores and when it loads: a fork of either kind tells.
_PRELOADING = """
import importlib, tempfile

def names_imported(script):
    reading, writing = os.pipe()
    if os.fork() == 0:
        exec(script)
        os.write(writing, " ".join(name for name in sys.modules if name.partition(".")[0] == "compcache").encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as names:
        return names.read().split()

with tempfile.TemporaryDirectory() as place:
    with open(os.path.join(place, "first_calls.py"), "w") as module:
        module.write("from numba import njit\\n@njit(cache=True)\\ndef first(x):\\n    return x + 1\\n")
    for _ in "stores", "loads":
        found = names_imported(FIRST)
        os.wait()
        sys.path.insert(0, ROOT)
        for name in found:
            importlib.import_module(name)
        del sys.path[0]
"""
_FIRST = """
sys.path[:0] = [place, ROOT]
import compcache.numba
compcache.numba.install(os.path.join(place, "cache"))
import first_calls
first_calls.first(1)
"""
_OWN = ""
_INSTALLED = "import compcache.numba\nbackend = compcache.numba.install({root!r})\n"
_LAST = "\nsys.stdout.write('\\n' + repr(result) + '\\n')\n"

#: A module of one cached function.
ADD = """
    from numba import njit

    @njit(cache=True)
    def add(x, y):
        return x + y
"""
#: Runs commands of compcache where neither Numba nor LLVM can be imported; `cache` is the directory.
WITHOUT_NUMBA = textwrap.dedent("""
    import contextlib, io, json
    sys.modules["numba"] = sys.modules["llvmlite"] = None
    from compcache.cli import main
    def run(*command):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                main(["--dir", {cache!r}, *command, "--json"])
            except SystemExit:
                pass
        return json.loads(out.getvalue())
    """)


class Project:
    """A directory of modules, and a cache for each of the two backends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = directory / "source"
        self.source.mkdir()
        self.cache = directory / "cache"
        self._turns = {backend: cycle((0, 1)) for backend in (False, True)}

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
        # Numba's own cache lies beside the source, as for most of its users.
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", self._whole(script, backend=backend)],
            env=_inherited() | environment, cwd=self.source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, script: str, *, backend: bool, **environment: str) -> Any:
        """What a script left in `result`, after a run in a fresh process.

        With the backend, the process is a fork of one that has imported Numba and the backend's modules, and done nothing with them.
        Variables that Numba or Python reads earlier give it an interpreter of its own.
        """
        if backend and all(name.startswith("COMPCACHE_") for name in environment):
            return self.run_in_fork(script, backend=True, **environment)
        return finish(self.start(script, backend=backend, **environment))

    def run_in_fork(self, script: str, *, backend: bool = False, **environment: str) -> Any:
        """What a script left in `result`, which ran in a fork of a process that has imported Numba, and with the backend its modules.

        A run and the next one of the same kind are forks of different processes: hashes of strings and addresses differ.
        """
        return _answer(*self.fork(self._whole(script, backend=backend), environment, backend=backend))

    def fork(self, script: str, environment: Mapping[str, str], *, backend: bool = False) -> tuple[int, str, str]:
        """The exit status and the output of a whole script in such a fork. Every second one ends without taking its objects down."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            streams = [os.open(os.devnull, os.O_RDONLY), os.dup(out.fileno()), os.dup(err.fileno())]
            number = next(self._turns[backend])
            status = _nursery(number, backend=backend).run(
                streams, {**_inherited(), **environment}, script=script, directory=str(self.source), is_whole=number == 0
            )
            out.seek(0)
            err.seek(0)
            return status, out.read(), err.read()

    def _whole(self, script: str, *, backend: bool) -> str:
        first = f"import sys\nsys.path[:0] = [{str(self.source)!r}, {str(PACKAGE_ROOT)!r}]\n"
        first += _INSTALLED.format(root=str(self.cache)) if backend else _OWN
        return first + textwrap.dedent(script) + _LAST


def _inherited() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
    return inherited | {"PYTHONDONTWRITEBYTECODE": "1"}


_nurseries: dict[tuple[int, bool], Nursery] = {}


def _nursery(number: int, *, backend: bool) -> Nursery:
    """One of the processes that have imported Numba, and with `backend` what compcache's backend imports."""
    known = _nurseries.get((number, backend))
    if known is None or not known.is_running:
        preloading = f"ROOT, FIRST = {str(PACKAGE_ROOT)!r}, {_FIRST!r}\n{_PRELOADING}" if backend else ""
        known = _nurseries[number, backend] = Nursery(_PREPARATION + preloading, _inherited())
    return known


def finish(process: subprocess.Popen[str]) -> Any:
    """The answer of a process of `Project.start`."""
    out, err = process.communicate()
    return _answer(process.returncode, out, err)


def _answer(status: int, out: str, err: str) -> Any:
    if status:
        raise FreshProcessError(f"exit status {status}\n{out}\n{err}")
    return ast.literal_eval(out.splitlines()[-1])
