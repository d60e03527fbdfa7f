"""A cache of the suite's own tests: it "compiles" expressions of numbers by storing them, rightly, or with one fault that is asked for.

It is also the shortest example of an adapter: what a system needs to be in the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from compcache_conformance.adapter import Adapter

_TOY = Path(__file__).with_name("toy_cache.py")


class Toy(Adapter):
    """The sound one; `fault` makes a broken one of it."""

    name: ClassVar[str] = "toy"
    makes_llvm: ClassVar[bool] = True
    shapes: ClassVar[frozenset[str]] = frozenset(
        {"call", "files", "constant", "table", "environment", "data", "header", "embedded", "record", "closure", "fast", "default"}
    )
    entries: ClassVar[int] = 20
    patience: ClassVar[float] = 4.0
    most: ClassVar[int] = 40
    driver: ClassVar[str] = _TOY.read_text()
    is_forked: ClassVar[bool] = True

    def __init__(self, interpreter: Path | None = None, fault: str = "") -> None:
        super().__init__(interpreter)
        self.fault = fault

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The directory, and which fault."""
        return {"STORE": str(store), "TOY_FAULT": self.fault}

    def limited_environment(self, size: int) -> dict[str, str]:
        """Its limit."""
        return {"TOY_LIMIT": str(size)}

    def processor_environment(self, name: str) -> dict[str, str]:
        """Its processor."""
        return {"TOY_PROCESSOR": name}

    def default_environment(self, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """No directory: below the home directory."""
        return {"STORE": ""}
