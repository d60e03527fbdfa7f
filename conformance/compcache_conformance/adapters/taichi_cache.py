"""Taichi's offline cache, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.language import Function

_DRIVER = """
import os

import taichi as ti
from conformance_serve import Files, serve

files = Files(os.environ["STORE"], ".tic")

def begin():
    ti.init(arch=ti.cpu, offline_cache=True, offline_cache_file_path=os.environ["STORE"], default_fp=ti.f64, log_level=ti.ERROR)

begin()
import main

def ask(name, *arguments):
    before = files.names()
    answer = getattr(main, "kernel_" + name)(*map(float, arguments))
    ti.reset()  # what was compiled is written when a runtime ends
    begin()
    return answer, not files.names() - before

serve(ask)
"""


def _kernel(function: Function) -> str:
    parameters = ", ".join(f"{argument}: ti.f64" for argument in function.arguments)
    return f"@ti.kernel\ndef kernel_{function.name}({parameters}) -> ti.f64:\n    return {function.name}({', '.join(function.arguments)})"


class Taichi(Adapter):
    """A kernel around each function."""

    name: ClassVar[str] = "taichi"
    requirements: ClassVar[tuple[str, ...]] = ("taichi",)
    distribution: ClassVar[str] = "taichi"
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "environment", "data", "closure"})
    spelling: ClassVar[Spelling] = Spelling("import taichi as ti", lambda _: "@ti.func", footer=_kernel)
    driver: ClassVar[str] = _DRIVER
    patience: ClassVar[float] = 90.0
    excluded: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            ("threads compile", "threads find", "children compile", "children find"),
            "its kernels run in the thread and process that made the runtime",
        ),
        "memory": "each call begins its runtime anew here",
    }

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The directory, which the driver gives to `ti.init`."""
        return {"STORE": str(store)}
