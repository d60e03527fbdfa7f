"""PyTensor's cache of what Numba compiles for its graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling

if TYPE_CHECKING:
    from pathlib import Path

_DRIVER = """
import inspect, os

import pytensor, pytensor.tensor as pt
from conformance_serve import Files, serve

import main

functions = {}

def ask(name, *arguments):
    if name in functions:
        return functions[name](*map(float, arguments)), None
    files = Files(os.environ["STORE"], ".nbc")
    before = files.names()
    plain = getattr(main, name)
    inputs = [pt.dscalar(argument) for argument in list(inspect.signature(plain).parameters)[: len(arguments)]]
    functions[name] = pytensor.function(inputs, plain(*inputs), mode="NUMBA")
    answer = functions[name](*map(float, arguments))
    return answer, not files.names() - before

serve(ask)
"""


class PyTensor(Adapter):
    """Graphs of scalars, compiled in the mode NUMBA."""

    name: ClassVar[str] = "pytensor"
    requirements: ClassVar[tuple[str, ...]] = ("pytensor",)
    distribution: ClassVar[str] = "pytensor"
    shapes: ClassVar[frozenset[str]] = frozenset(
        {"call", "files", "constant", "table", "environment", "data", "record", "closure", "default"}
    )
    spelling: ClassVar[Spelling] = Spelling("", lambda _: "")
    driver: ClassVar[str] = _DRIVER
    patience: ClassVar[float] = 120.0
    entries: ClassVar[int] = 10

    excluded: ClassVar[dict[str, str]] = {"spaces and letters": "the variable that names its directory is read as words of a shell"}

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Its directory."""
        return {"PYTENSOR_FLAGS": f"base_compiledir={store}", "STORE": str(store)}
