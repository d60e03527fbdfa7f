"""The common part of the build hooks: reading ``[tool.compcache]`` of a project, and compiling its kernels.

::

    [tool.compcache]
    kernels = ["fastsum.kernels", "fastsum.llvm:sources"]   # modules of Numba kernels; functions that return ModuleSources
    targets = ["x86-64-v2", "x86-64-v3"]                    # default: the baseline of this machine's architecture
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import sysconfig
import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.arch.known import architecture
from compcache.configuration import BUILD_KEYS, PROJECT_KEYS
from compcache.errors import CompcacheError
from compcache.formats.host import platform_name
from compcache.numba.kernels.find import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Settings", "build_kernels", "read_settings", "wheel_tag"]


class Settings(NamedTuple):
    """The settings in ``[tool.compcache]`` of a project."""

    kernels: tuple[str, ...]
    targets: tuple[str, ...]

    def kernels_by_directory(self) -> dict[str, list[str]]:
        """Return the kernels grouped by their output directory, relative to the root of the wheel."""
        by_directory: dict[str, list[str]] = {}
        for kernel in self.kernels:
            package = kernel.partition(":")[0].rpartition(".")[0] or kernel.partition(":")[0]
            by_directory.setdefault("/".join([*package.split("."), DIRECTORY]), []).append(kernel)
        return by_directory


def read_settings(root: str) -> Settings | None:
    """Return the build settings in the ``pyproject.toml`` of a project; None if the file is missing, cannot be parsed or names no kernels.

    Raise `ValueError` if a setting is not valid.
    """
    try:
        with open(os.path.join(root, "pyproject.toml"), "rb") as file:
            table = tomllib.load(file).get("tool", {}).get("compcache", {})
    except (FileNotFoundError, tomllib.TOMLDecodeError):
        return None
    if "kernels" not in table:
        return None
    unknown = table.keys() - BUILD_KEYS - PROJECT_KEYS
    if unknown:
        valid = ", ".join(sorted(BUILD_KEYS | PROJECT_KEYS))
        raise ValueError(f"[tool.compcache] in pyproject.toml has the unknown setting {min(unknown)!r}; valid settings: {valid}")
    kernels = _setting_texts(table, "kernels")
    return Settings(kernels, _setting_texts(table, "targets") if "targets" in table else (architecture(platform_name()).package_target,))


def _setting_texts(table: dict[str, Any], name: str) -> tuple[str, ...]:
    """Return a setting, which is a string or a list of strings, as a tuple. Raise `ValueError` for other values."""
    value = table[name]
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} of [tool.compcache] in pyproject.toml must be a string or a list of strings, not {value!r}")
    return tuple(value)


def build_kernels(settings: Settings, source: str, parent: str) -> dict[str, str]:
    """Compile the kernels of a project into output directories. Replace the directories of an earlier build.

    `source` is the directory with the project's packages, and `parent` the directory in which the output directories are created.

    Return the paths of the output directories, by their path in the wheel.

    Raises:
        CompcacheError: a kernel does not compile, or the named modules contain no kernels.
        ValueError: a public jitted function has no signature.
        ImportError: a module cannot be imported.
        AttributeError: a module lacks the function after the colon.
    """
    created = {}
    with _first_on_path(source):
        for directory, kernels in settings.kernels_by_directory().items():
            created[directory] = os.path.join(parent, *directory.split("/"))
            shutil.rmtree(created[directory], ignore_errors=True)
            _build_directory(kernels, created[directory], settings.targets)
    return created


def _build_directory(kernels: Iterable[str], directory: str, targets: tuple[str, ...]) -> None:
    """Compile kernels into one directory. See `build_kernels` for the exceptions."""
    from compcache.numba.exports.package import package_exports, write_sources

    sources: list[Any] = []
    modules = []
    for kernel in kernels:
        name, colon, function = kernel.partition(":")
        module = importlib.import_module(name)
        if colon:
            sources += getattr(module, function)()
        else:
            modules.append(module)
    if modules:
        package_exports(modules, directory, targets)
    if sources:
        write_sources(sources, directory, targets)
    if not os.path.isdir(directory):
        raise CompcacheError(
            f"no kernels were found in {', '.join(kernels)}: correct the setting kernels of [tool.compcache] in pyproject.toml"
        )


@contextmanager
def _first_on_path(directory: str) -> Iterator[None]:
    """Prepend a directory to `sys.path` inside the block."""
    sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(directory)


def wheel_tag() -> str:
    """Return the tag of a wheel with kernels, which every Python 3 on this platform can install."""
    return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
