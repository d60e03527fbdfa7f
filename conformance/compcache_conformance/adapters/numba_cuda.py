"""numba-cuda's cache. Its dispatcher asks for a graphics card before it looks into the cache, so that the column needs one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling
from compcache_conformance.results import Cannot

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.language import Function

_DRIVER = """
import main
import numpy
from conformance_serve import serve

def ask(name, *arguments):
    kernel, out = getattr(main, "kernel_" + name), numpy.zeros(1)
    kernel[1, 1](out, *map(float, arguments))
    stats = kernel.stats
    return out[0], sum(stats.cache_hits.values()) > 0

serve(ask)
"""


def _kernel(function: Function) -> str:
    parameters = ", ".join(function.arguments)
    return f"@cuda.jit(cache=True)\ndef kernel_{function.name}(out, {parameters}):\n    out[0] = {function.name}({parameters})"


class NumbaCuda(Adapter):
    """A kernel around each function."""

    name: ClassVar[str] = "numba-cuda"
    requirements: ClassVar[tuple[str, ...]] = ("numba-cuda[cu12]",)
    distribution: ClassVar[str] = "numba-cuda"
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "table", "environment", "data", "closure"})
    spelling: ClassVar[Spelling] = Spelling("from numba import cuda", lambda _: "@cuda.jit(device=True)", footer=_kernel)
    driver: ClassVar[str] = _DRIVER
    patience: ClassVar[float] = 90.0

    def __init__(self, interpreter: Path | None = None) -> None:
        super().__init__(interpreter)
        code = "from numba import cuda; raise SystemExit(0 if cuda.is_available() else 3)"
        if subprocess.run([str(self.interpreter), "-c", code], check=False, capture_output=True).returncode != 0:
            raise Cannot("needs a graphics card and its driver: the dispatcher asks for the card before it looks into its cache")

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Its directory."""
        return {"NUMBA_CUDA_CACHE_DIR": str(store), "NUMBA_CACHE_DIR": str(store)}
