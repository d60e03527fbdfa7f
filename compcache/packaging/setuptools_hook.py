"""The build hook for setuptools (entry point ``setuptools.finalize_distribution_options``).

setuptools calls it in the build of every project. Only projects with ``[tool.compcache]`` are changed.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["finalize"]


def finalize(distribution: Any) -> None:
    """Replace two build commands of a project with kernels. They compile the kernels into the wheel, and set its tag.

    Raises:
        ImportError: setuptools is too old.
    """
    if not _has_kernels():
        return
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError as error:
        message = '[tool.compcache] needs setuptools 70.1 or later to build: requires = ["setuptools>=70.1", ...]'
        raise ImportError(message, name="setuptools") from error
    from setuptools.command.build_py import build_py

    from compcache.packaging.build import build_kernels, read_settings, wheel_tag

    read = read_settings(os.getcwd())
    if read is None:
        return
    settings = read

    class BuildPy(distribution.cmdclass.get("build_py", build_py)):  # type: ignore[misc]
        def run(self) -> None:
            super().run()
            if not self.editable_mode:
                source = (self.distribution.package_dir or {}).get("", ".")
                build_kernels(settings, os.path.abspath(source), os.path.abspath(self.build_lib))

    class BdistWheel(distribution.cmdclass.get("bdist_wheel", bdist_wheel)):  # type: ignore[misc]
        def get_tag(self) -> tuple[str, str, str]:
            if self.distribution.has_ext_modules():
                tag: tuple[str, str, str] = super().get_tag()
                return tag
            python, abi, platform = wheel_tag().split("-")
            return python, abi, platform

    distribution.cmdclass["build_py"] = BuildPy
    distribution.cmdclass["bdist_wheel"] = BdistWheel


def _has_kernels() -> bool:
    """Return whether the project in this directory may have kernels. Every build with setuptools calls this, so it parses no TOML."""
    try:
        with open("pyproject.toml", "rb") as file:
            return b"tool.compcache" in file.read()
    except OSError:
        return False
