"""cffi's `FFI.verify`, which compiles C code into a folder and finds it there again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import as_c

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.language import Program

_DRIVER = """
import os, pathlib, re

from cffi import FFI
from conformance_serve import Files, serve

source = (pathlib.Path(__file__).parent / "program.c").read_text()
files = Files(os.environ["STORE"], ".so")
loaded = []

def ask(name, *arguments):
    before = files.names()
    if not loaded:
        ffi = FFI()
        ffi.cdef("\\n".join(head + ";" for head in re.findall(r"^double \\w+\\([^)]*\\)", source, re.MULTILINE)))
        loaded.append(ffi.verify(source, tmpdir=os.environ["STORE"]))
        return getattr(loaded[0], name)(*arguments), not files.names() - before
    return getattr(loaded[0], name)(*arguments), None

serve(ask)
"""


class CffiVerify(Adapter):
    """All files of a program as one source."""

    name: ClassVar[str] = "cffi"
    requirements: ClassVar[tuple[str, ...]] = ("cffi", "setuptools")
    programs: ClassVar[tuple[str, ...]] = ("gcc",)
    distribution: ClassVar[str] = "cffi"
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "table"})
    driver: ClassVar[str] = _DRIVER
    excluded: ClassVar[dict[str, str]] = dict.fromkeys(
        ("new function in the file", "edited neighbour", "moved lines", "edited comment", "each its own function", "flat directory"),
        "a program is one source here, whose text is the key",
    )

    def write(self, folder: Path, program: Program) -> None:
        """One source; functions of other files are not static, so that they can be called."""
        text = "\n".join(as_c(program, file) for file in program.files)
        lines = [line.removeprefix("static ") if line.startswith("static double") else line for line in text.splitlines()]
        self.put(folder / "program.c", "\n".join(line for line in lines if not line.startswith('#include "')) + "\n")

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The directory, which the driver gives to `verify`."""
        return {"STORE": str(store)}
