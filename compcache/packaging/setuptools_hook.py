"""The build hook for setuptools (entry point ``setuptools.finalize_distribution_options``).

setuptools calls it in the build of every project. Only projects with ``[tool.compcache]`` are changed.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["finalize"]


def finalize(distribution: Any) -> None:
    """Replace the commands ``build_py`` and ``bdist_wheel`` of a project with kernels, and leave other projects unchanged.

    The new commands compile the kernels into the wheel and set the wheel's tag.

    Raise `ImportError` if the project has kernels, and setuptools is older than 70.1, or `ValueError` if a setting is not valid.
    """
    if not _may_have_kernels():
        return
    from compcache.packaging.build import build_kernels, read_settings, wheel_tag

    configured = read_settings(os.getcwd())
    if configured is None:
        return
    settings = configured  # type checkers know that this variable is never None in the methods below
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError as error:
        message = 'a project with [tool.compcache] requires setuptools 70.1 or later: set requires = ["setuptools>=70.1", ...]'
        raise ImportError(message, name="setuptools") from error
    from setuptools.command.build_py import build_py

    class BuildPy(distribution.cmdclass.get("build_py", build_py)):  # type: ignore[misc]
        def run(self) -> None:
            """Build the package, and then its kernels, except for an editable installation, which compiles when it runs.

            See `build_kernels` for the exceptions.
            """
            super().run()
            if not self.editable_mode:
                source = (self.distribution.package_dir or {}).get("", ".")
                build_kernels(settings, os.path.abspath(source), os.path.abspath(self.build_lib))

    class BdistWheel(distribution.cmdclass.get("bdist_wheel", bdist_wheel)):  # type: ignore[misc]
        def get_tag(self) -> tuple[str, str, str]:
            """Return the tag of the wheel. Without extension modules it has the tag of the compiled kernels."""
            if self.distribution.has_ext_modules():
                tag: tuple[str, str, str] = super().get_tag()
                return tag
            python, abi, platform = wheel_tag().split("-")
            return python, abi, platform

    distribution.cmdclass["build_py"] = BuildPy
    distribution.cmdclass["bdist_wheel"] = BdistWheel


def _may_have_kernels() -> bool:
    """Return whether ``pyproject.toml`` mentions compcache. setuptools calls this in every build, so the file is not parsed."""
    try:
        with open("pyproject.toml", "rb") as file:
            return b"tool.compcache" in file.read()
    except OSError:
        return False
