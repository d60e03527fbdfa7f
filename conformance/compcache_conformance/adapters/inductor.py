"""PyTorch's Inductor: the caches of `torch.compile`, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling

if TYPE_CHECKING:
    from pathlib import Path

_DRIVER = """
import torch
from conformance_serve import serve
from torch._dynamo.utils import counters

import main

compiled = {}

def ask(name, *arguments):
    if name not in compiled:
        compiled[name] = torch.compile(getattr(main, name))
    counters.clear()
    answer = compiled[name](*[torch.tensor([float(argument)], dtype=torch.float64) for argument in arguments])
    told = counters["inductor"]
    hits, misses = told["fxgraph_cache_hit"], told["fxgraph_cache_miss"]
    kept = counters["aot_autograd"]["autograd_cache_hit"]
    return answer.item(), True if hits or kept else False if misses else None

serve(ask)
"""


class Inductor(Adapter):
    """Functions of tensors of one element under `torch.compile`."""

    name: ClassVar[str] = "inductor"
    requirements: ClassVar[tuple[str, ...]] = ("torch", "numpy")
    programs: ClassVar[tuple[str, ...]] = ("g++",)
    distribution: ClassVar[str] = "torch"
    shapes: ClassVar[frozenset[str]] = frozenset(
        {"call", "files", "constant", "table", "environment", "data", "record", "closure", "default"}
    )
    spelling: ClassVar[Spelling] = Spelling("", lambda _: "")
    driver: ClassVar[str] = _DRIVER
    patience: ClassVar[float] = 240.0
    entries: ClassVar[int] = 10

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Its directory."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(store), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "CUDA_VISIBLE_DEVICES": ""}
