"""JAX's persistent compilation cache, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import Spelling

if TYPE_CHECKING:
    from pathlib import Path

_DRIVER = """
import jax
from conformance_serve import serve

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))

import main

def ask(name, *arguments):
    del events[:]
    answer = getattr(main, name)(*arguments)
    return float(answer), True if "cache_hits" in events else False if "cache_misses" in events else None

serve(ask)
"""


class Jax(Adapter):
    """Functions under `jax.jit`; every entry is kept, however small and fast to compile."""

    name: ClassVar[str] = "jax"
    requirements: ClassVar[tuple[str, ...]] = ("jax",)
    distribution: ClassVar[str] = "jax"
    shapes: ClassVar[frozenset[str]] = frozenset(
        {"call", "files", "constant", "table", "environment", "data", "record", "closure", "default"}
    )
    spelling: ClassVar[Spelling] = Spelling("import jax", lambda _: "@jax.jit")
    driver: ClassVar[str] = _DRIVER
    patience: ClassVar[float] = 90.0
    limits: ClassVar[dict[str, str]] = dict.fromkeys(
        ("children compile", "children find"), "its warning: JAX has threads, and a child that was forked will likely stand still"
    )

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Its settings."""
        return {
            "JAX_COMPILATION_CACHE_DIR": str(store),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_X64": "1",
        }

    def limited_environment(self, size: int) -> dict[str, str]:
        """Its limit."""
        return {"JAX_COMPILATION_CACHE_MAX_SIZE": str(size)}
