"""Reads the programs and commands off the pages of the documentation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from helpers import PACKAGE_ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [PACKAGE_ROOT / "README.md", *sorted((PACKAGE_ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTS = re.compile(r"^prints `([^`]*)`", re.MULTILINE)
_COMMAND = re.compile(r"^(?:    )?\$ (compcache .*)$", re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: (language, text)."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def programs_of(page: Path) -> list[str]:
    """The blocks of a page that are Python, in order: parts of one program."""
    return [text for kind, text in blocks_of(page) if kind == "python"]


def shown_by(page: Path) -> list[str]:
    """The lines that the page says its program prints."""
    return _PRINTS.findall(page.read_text(encoding="utf-8"))


def commands_of(page: Path) -> list[str]:
    """The command lines of a page, in order, comments left out."""
    return [line.split("  #")[0].strip() for line in _COMMAND.findall(page.read_text(encoding="utf-8"))]


def session_of(page: Path) -> list[str]:
    """What a reader types into one shell, in order, comments left out."""
    text = page.read_text(encoding="utf-8")
    return [line.split("  #")[0].strip() for line in re.findall(r"^(?:    )?\$ (.*)$", text, re.MULTILINE)]


def results_of(page: Path) -> list[str]:
    """The lines of results below commands of a page."""
    return re.findall(r"^    \$ .*\n    ([^$\s].*)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def write_program(page: Path, directory: Path) -> Path:
    """Write the program of a page, as its reader would: one file of all blocks, but for those that begin with a file's name."""
    parts = []
    for part in programs_of(page):
        named = _FILE.match(part)
        if named is None:
            parts.append(part)
        else:
            (directory / named[1]).write_text(part, encoding="utf-8")
    program = directory / "program.py"
    program.write_text("\n".join(parts), encoding="utf-8")
    return program
