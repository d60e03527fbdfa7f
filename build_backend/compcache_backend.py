"""The build backend (PEP 517): setuptools, which gets a C compiler where the machine has none.

Only there the build asks for the `ziglang` wheel: 80 MB to download, and the first build takes most of a minute.
"""

from __future__ import annotations

from c_compiler import ZIG_REQUIREMENT, find_system_compiler
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

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


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str] | None] | None = None) -> list[str]:
    """What a build needs beside `build-system.requires`."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler_requirements()]


def get_requires_for_build_editable(config_settings: dict[str, str | list[str] | None] | None = None) -> list[str]:
    """What an editable installation needs beside `build-system.requires`."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler_requirements()]
