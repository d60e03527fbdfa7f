"""C source code in compcache's cache, by clang: a program is one C file with headers, which is compiled whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapters.ccache import Ccache
from compcache_conformance.adapters.compcache_facade import ByContent

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.language import Program

_DRIVER = """
import json, pathlib

import conformance_llvm as llvm
from compcache import clang
from conformance_serve import serve

here = pathlib.Path(__file__).parent
options = ["-O2", *json.loads((here / "program.json").read_text())["options"]]
loaded = []

def ask(name, *arguments):
    found = None
    if not loaded:
        loaded.append(clang.compile(here / "main.c", flags=options))
        found = not llvm.worked()
    return loaded[0][name](*arguments), found

serve(ask)
"""


class ByClang(ByContent):
    """`compcache.clang`: the code of a file, named by the text that its compiler reads."""

    name: ClassVar[str] = "compcache-clang"
    programs: ClassVar[tuple[str, ...]] = ("clang",)
    makes_llvm: ClassVar[bool] = False
    shapes: ClassVar[frozenset[str]] = Ccache.shapes
    driver: ClassVar[str] = _DRIVER
    excluded: ClassVar[dict[str, str]] = {name: why for name, why in Ccache.excluded.items() if "one file" in why}
    is_whole: ClassVar[bool] = True
    limits: ClassVar[dict[str, str]] = {
        **ByContent.limits,
        "file that assembly embeds": "docs/c.md: clang runs in each process to find the included files; machine code is cached",
    }
    entries: ClassVar[int] = 50
    most: ClassVar[int] = 0

    def write(self, folder: Path, program: Program) -> None:
        """One C file and its headers."""
        Ccache.write(self, folder, program)  # type: ignore[arg-type]
