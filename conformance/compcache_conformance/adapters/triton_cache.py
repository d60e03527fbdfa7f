"""Triton's file cache. Kernels are compiled for a graphics card that need not be there; their PTX code is interpreted."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.language import Function

_DRIVER = """
import os

import conformance_ptx
import main
import triton
from conformance_serve import Files, serve
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

files = Files(os.environ["STORE"], ".ptx")

def ask(name, *arguments):
    before = files.names()
    kernel = getattr(main, "kernel_" + name)
    signature = {"out": "*fp64", **{argument: "fp64" for argument in kernel.arg_names[1:]}}
    compiled = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs={}), target=GPUTarget("cuda", 80, 32))
    answer = conformance_ptx.run(compiled.asm["ptx"], "kernel_" + name, list(map(float, arguments)))
    return answer, not files.names() - before

serve(ask)
"""


def _kernel(function: Function) -> str:
    parameters = ", ".join(function.arguments)
    return f"@triton.jit\ndef kernel_{function.name}(out, {parameters}):\n    tl.store(out, {function.name}({parameters}))"


class Triton(Adapter):
    """A kernel around each function; constants are `tl.constexpr`, as Triton wants globals."""

    name: ClassVar[str] = "triton"
    requirements: ClassVar[tuple[str, ...]] = ("triton",)
    distribution: ClassVar[str] = "triton"
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "environment", "data"})
    spelling: ClassVar[Spelling] = Spelling(
        "import triton\nimport triton.language as tl", lambda _: "@triton.jit", value=lambda text: f"tl.constexpr({text})", footer=_kernel
    )
    driver: ClassVar[str] = _DRIVER
    drivers: ClassVar[tuple[str, ...]] = ("conformance_ptx.py",)
    patience: ClassVar[float] = 120.0

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Its directory."""
        return {"TRITON_CACHE_DIR": str(store), "STORE": str(store), "TRITON_DEFAULT_FP_FUSION": "1"}
