"""Hooks that tell PyInstaller which files of this package to include in programs (entry point ``pyinstaller40``).

The protocol: https://pyinstaller.org/en/stable/hooks.html#providing-pyinstaller-hooks-with-your-package
"""

from __future__ import annotations

import os

__all__ = ["get_hook_dirs"]


def get_hook_dirs() -> list[str]:
    """Return the directory of the hooks. It has one file for each package that a program may import."""
    return [os.path.dirname(__file__)]
