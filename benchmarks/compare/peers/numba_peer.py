"""Numba with its own cache on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compare.peers import not_installed
from compare.peers.common import call, prepared

if TYPE_CHECKING:
    from compare.context import Context
    from compare.peers import Prepared
    from compare.work import Work


class Numba:
    """`@njit(cache=True)` on the entry, whose image includes all that it calls."""

    label = "Numba, cache=True"
    light = False

    def missing(self, _: Context) -> str | None:
        return not_installed("numba")

    def prepare(self, context: Context, work: Work) -> Prepared:
        directory = Path(context.workspace.fresh_directory(f"peer-numba-{work.name}"))
        (directory / "source").mkdir(parents=True)
        (directory / "cache").mkdir()
        module = f"numba_work_{work.name}"
        text = work.python("@njit", "@njit(cache=True)", "from numba import njit\n")
        (directory / "source" / f"{module}.py").write_text(text, encoding="utf-8")
        code = f"import sys; sys.path.insert(0, {str(directory / 'source')!r}); import {module}; " + call(
            work, f"{module}.{work.entry}"
        )
        cache = str(directory / "cache")
        return prepared(context, code, code, cache, environment={"NUMBA_CACHE_DIR": cache})


PEERS = (Numba(),)
