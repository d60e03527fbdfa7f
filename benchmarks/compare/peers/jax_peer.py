"""JAX on the CPU with its persistent compilation cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compare.peers.common import call, prepared

if TYPE_CHECKING:
    from compare.context import Context
    from compare.peers import Prepared
    from compare.work import Work


LABEL = "JAX, persistent cache"


class Jax:
    """`jax.jit(entry)` in a process whose compilation cache holds it; tracing is part of every process."""

    label = LABEL
    light = False

    def missing(self, context: Context) -> str | None:
        return None if context.jax_python else context.skipped.get(LABEL, "not asked for")

    def prepare(self, context: Context, work: Work) -> Prepared:
        assert context.jax_python is not None
        directory = Path(context.workspace.fresh_directory(f"peer-jax-{work.name}"))
        (directory / "source").mkdir(parents=True)
        module = f"jax_work_{work.name}"
        text = work.python("", "@jax.jit", "import jax\n")
        (directory / "source" / f"{module}.py").write_text(text, encoding="utf-8")
        cache = str(directory / "cache")
        environment = {
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_X64": "1",
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        code = f"import sys; sys.path.insert(0, {str(directory / 'source')!r}); import {module}; " + call(
            work, f"{module}.{work.entry}"
        )
        return prepared(
            context, code, code, cache, python=context.jax_python, environment=environment, timeout=120
        )


PEERS = (Jax(),)
