"""What several peers do: a cold run in a fresh process, timed, and a check of the value."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from compare.context import size_of
from compare.peers import Prepared
from compare.work import ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compare.context import Context
    from compare.work import Work


def write_assembly(context: Context, work: Work) -> str:
    """The path of the work's assembly."""
    path = context.workspace.root / f"work-{work.name}.ll"
    path.write_text(work.assembly(), encoding="utf-8")
    return str(path)


def call(work: Work, function: str) -> str:
    """An expression that calls `function` and checks the value (a numeric exit status would hide in a timing)."""
    x, y = ARGUMENTS
    return f"assert abs(float({function}({x}, {y})) - {work.expected!r}) < 1e-6 * {work.expected!r}"


def prepared(
    context: Context,
    cold: str,
    hit: str,
    directory: str,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    timeout: float = 240,
) -> Prepared:
    """Run `cold` (code) once in a fresh process, timed, and `hit` once to see that it works."""
    import time

    extra = environment or {}
    started = time.perf_counter()
    context.output([python, "-c", cold], extra, timeout)
    elapsed = time.perf_counter() - started
    command = [python, "-c", hit]
    context.output(command, extra, timeout)
    return Prepared(command, extra, elapsed * 1e3, size_of(directory))
