"""Environments of systems: made from the package registry, one for each, and kept for the next run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compcache_conformance.results import Cannot

if TYPE_CHECKING:
    from compcache_conformance.adapter import Adapter

__all__ = ["default_folder", "prepare"]

_LONGEST_INSTALLATION = 1800
#: What pip says of each try without a network, before it says that there is no such package.
_NO_NETWORK = ("NewConnectionError", "ConnectTimeoutError", "ProxyError", "NameResolutionError")


def default_folder() -> Path:
    """Where environments are kept: $COMPCACHE_CONFORMANCE_ENVIRONMENTS, or a folder of the user's cache directory."""
    named = os.environ.get("COMPCACHE_CONFORMANCE_ENVIRONMENTS")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else base / "compcache-conformance"


def prepare(adapter: type[Adapter], folder: Path) -> Adapter:
    """Install a system into an environment below `folder`, unless it is installed already, and return its adapter.

    Raises:
        Cannot: a program is missing, or the system cannot be installed. The message gives the reason.
    """
    for program in adapter.programs:
        if shutil.which(program) is None:
            raise Cannot(f"{program} is not installed")
    if not adapter.requirements:
        return adapter()
    place = folder / adapter.name
    interpreter, done = place / "bin" / "python", place / ".done"
    wanted = "\n".join(adapter.requirements)
    if not done.exists() or done.read_text() not in {"", wanted}:
        try:
            shutil.rmtree(place, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            _run([_interpreter(adapter.python), "-m", "venv", str(place)])
            _run([str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *adapter.requirements])
            done.write_text(wanted)
        except OSError as error:
            raise Cannot(f"the environment cannot be created in {folder}: {error.strerror or error}") from None
    return adapter(interpreter)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_LONGEST_INSTALLATION)
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or error.stdout or "").splitlines() if line.strip()]
        if any(words in error.stderr for words in _NO_NETWORK):
            raise Cannot("the system cannot be installed: the package index cannot be reached") from None
        raise Cannot(f"the system cannot be installed: {' '.join(lines[-2:])[:300]}") from None
    except subprocess.TimeoutExpired:
        raise Cannot(f"the system cannot be installed: pip did not finish within {_LONGEST_INSTALLATION} s") from None


def _interpreter(version: str) -> str:
    """Return a Python of this version: this interpreter, a program in PATH, or a version of pyenv. Raise `Cannot` without one."""
    if not version or version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    candidates = [shutil.which(f"python{version}"), *map(str, sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")))]
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-c", "import venv"], check=False, capture_output=True).returncode == 0:
            return candidate
    raise Cannot(f"the system requires Python {version}, which is not installed")
