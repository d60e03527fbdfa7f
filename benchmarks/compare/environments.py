"""Environments of peers that live apart: JAX (large), typed_python (needs an old Python). Installed in a bounded time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Recipe(NamedTuple):
    """How to make an environment: steps of pip arguments, and the interpreters that will do."""

    package: str
    steps: Sequence[Sequence[str]]
    pythons: Sequence[str]
    seconds: float


JAX = Recipe("jax", (("jax", "jaxlib"),), (sys.executable,), 420)
#: It is built from source, and generates code that LLVM 11 accepts and 14 does not any more.
TYPED_PYTHON = Recipe(
    "typed_python",
    (
        ("setuptools<70", "wheel", "numpy<2"),
        ("--no-build-isolation", "typed_python"),
        ("--only-binary=:all:", "llvmlite==0.38.1"),
    ),
    ("python3.8", "python3.7"),
    600,
)


def find_or_make(
    recipe: Recipe, place: Path, *, install: bool, python: str | None = None
) -> tuple[str | None, str]:
    """The interpreter of an environment with the package, else None and the reason."""
    found = place / "bin" / "python"
    if found.exists() and _has(str(found), recipe.package):
        return str(found), ""
    if not install:
        return None, f"{recipe.package} is not in {place.name}, and this run installs nothing (--no-install)"
    candidates = [python] if python else [path for name in recipe.pythons if (path := shutil.which(name))]
    base = next((path for path in candidates if _works(path)), None)
    if base is None:
        return (
            None,
            f"{recipe.package} needs {' or '.join(recipe.pythons)}, which is not on this machine's path",
        )
    reason = _make(recipe, base, place)
    return (None, reason) if reason else (str(found), "")


def _make(recipe: Recipe, base: str, place: Path) -> str:
    """Make the environment; why it could not be made, if so."""
    try:
        subprocess.run([base, "-m", "venv", str(place)], check=True, capture_output=True, timeout=120)
        for step in recipe.steps:
            command = [
                str(place / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *step,
            ]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=recipe.seconds)
    except subprocess.TimeoutExpired:
        return f"{recipe.package} was not installed within {recipe.seconds:.0f} s"
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines()
        return f"{recipe.package} could not be installed: {lines[-1] if lines else error}"
    return ""


def _works(python: str) -> bool:
    return subprocess.run([python, "-c", "pass"], capture_output=True, check=False).returncode == 0


def _has(python: str, package: str) -> bool:
    return bool(version(python, package))


def version(python: str, package: str) -> str:
    """The version of a package in another environment, empty where it is not there."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
