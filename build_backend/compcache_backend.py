"""The build backend (PEP 517): setuptools, which gets a C compiler where the machine has none.

Only there the build asks for the `ziglang` wheel: 80 MB to download, and the first build takes most of a minute.

Editable installations write their metadata and the extension modules into the work tree. Those that begin at the same time, each into
an environment of its own, do so one after the other.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from c_compiler import ZIG_REQUIREMENT, find_system_compiler
from setuptools import build_meta
from setuptools.build_meta import build_sdist, build_wheel, get_requires_for_build_sdist, prepare_metadata_for_build_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def _compiler_requirements() -> list[str]:
    return [] if find_system_compiler() else [ZIG_REQUIREMENT]


@contextlib.contextmanager
def _alone_in_this_tree() -> Iterator[None]:
    with Path(__file__).open("rb") as file:
        with contextlib.suppress(ImportError, OSError):  # Windows, and file systems without locks
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: dict[str, str | list[str] | None] | None = None) -> str:
    """Make the metadata of an editable installation while no other one builds in this tree."""
    with _alone_in_this_tree():
        name: str = build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)
    return name


def build_editable(
    wheel_directory: str, config_settings: dict[str, str | list[str] | None] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the extension modules and an editable wheel while no other installation builds in this tree."""
    with _alone_in_this_tree():
        name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str] | None] | None = None) -> list[str]:
    """What a build needs beside `build-system.requires`."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler_requirements()]


def get_requires_for_build_editable(config_settings: dict[str, str | list[str] | None] | None = None) -> list[str]:
    """What an editable installation needs beside `build-system.requires`."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler_requirements()]
