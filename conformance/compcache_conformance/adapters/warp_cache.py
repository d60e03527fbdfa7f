"""NVIDIA Warp's kernel cache, on the CPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.language import Function

_DRIVER = """
import os

import warp as wp
from conformance_serve import Files, serve

wp.config.quiet = True
wp.config.enable_backward = False
wp.config.kernel_cache_dir = os.environ["STORE"]

import main

files = Files(os.environ["STORE"], ".o")

def ask(name, *arguments):
    before = files.names()
    out = wp.zeros(1, dtype=wp.float64, device="cpu")
    wp.launch(getattr(main, "kernel_" + name), 1, inputs=[out, *map(float, arguments)], device="cpu")
    return out.numpy()[0], not files.names() - before

serve(ask)
"""


def _kernel(function: Function) -> str:
    parameters = ", ".join(f"{argument}: wp.float64" for argument in function.arguments)
    head = f"@wp.kernel\ndef kernel_{function.name}(out: wp.array(dtype=wp.float64), {parameters}):\n"
    return f"{head}    out[0] = {function.name}({', '.join(function.arguments)})"


def _typed(text: str) -> str:
    return re.sub(r"(?<![\w.])(\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)", r"wp.float64(\1)", text)


class Warp(Adapter):
    """A kernel around each function; all of a file are one module, which is compiled whole."""

    name: ClassVar[str] = "warp"
    requirements: ClassVar[tuple[str, ...]] = ("warp-lang",)
    distribution: ClassVar[str] = "warp-lang"
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "environment", "data", "closure"})
    spelling: ClassVar[Spelling] = Spelling(
        "import warp as wp",
        lambda _: "@wp.func",
        annotation=": wp.float64",
        body=_typed,
        value=lambda text: f"wp.constant(wp.float64({text}))",
        footer=_kernel,
    )
    driver: ClassVar[str] = _DRIVER
    patience: ClassVar[float] = 180.0
    entries: ClassVar[int] = 10
    excluded: ClassVar[dict[str, str]] = dict.fromkeys(
        ("new function in the file", "edited neighbour", "flat directory"), "a file is one module here, which is compiled whole"
    )

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The directory, which the driver sets."""
        return {"STORE": str(store)}
