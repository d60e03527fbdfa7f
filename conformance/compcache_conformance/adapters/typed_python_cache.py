"""typed_python's compiler cache, which linked its modules first; it needs an old Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling

if TYPE_CHECKING:
    from pathlib import Path

_DRIVER = """
import os

import main
from conformance_serve import Files, serve

files = Files(os.environ["STORE"])

def ask(name, *arguments):
    before = files.names()
    answer = getattr(main, name)(*arguments)
    return answer, not files.names() - before

serve(ask)
"""


class TypedPython(Adapter):
    """Functions under `@Entrypoint`, with $TP_COMPILER_CACHE."""

    name: ClassVar[str] = "typed_python"
    python: ClassVar[str] = "3.8"
    requirements: ClassVar[tuple[str, ...]] = ("typed_python==0.2.6", "llvmlite==0.38.1")
    distribution: ClassVar[str] = "typed_python"
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "environment", "data", "closure", "default"})
    spelling: ClassVar[Spelling] = Spelling("from typed_python import Entrypoint", lambda _: "@Entrypoint")
    driver: ClassVar[str] = _DRIVER
    patience: ClassVar[float] = 90.0

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Its directory."""
        return {"TP_COMPILER_CACHE": str(store), "STORE": str(store)}
