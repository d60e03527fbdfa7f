"""Programs in two versions, which run on one cache; each must say what it says with plain Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from numba_helpers import Project

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Edit(NamedTuple):
    """Modules, an expression over `p`, and what one edit replaces in them."""

    name: str
    source: str
    old: str
    new: str
    settings: str = ""
    call: str = "p.f(7.0, 2.0)"
    environment: tuple[str, str, str] = ("UNUSED", "", "")


OVERLOADED = """
    from numba import njit, types
    from numba.extending import intrinsic, overload, overload_method, overload_attribute, register_jitable

    def scaled(x):
        raise NotImplementedError

    {code}

    @njit(cache=True)
    def f(x, y):
        return scaled(x) + y
"""


def overloaded(code: str) -> str:
    """A program whose only overload is this."""
    return OVERLOADED.replace("{code}", code)


#: Plain Numba here is Numba that compiles: its own cache is stale for many of these.
_TELL = """
import os
import numba.core.caching
numba.core.caching.IndexDataCacheFile.load = lambda *_: None
import warnings
warnings.simplefilter("error", numba.core.errors.NumbaWarning)
from importlib import import_module
result = []
for name, call, variable, value in {calls!r}:
    os.environ[variable] = value
    try:
        result.append(repr(eval(call, {{"p": import_module(name)}})))
    except Exception as error:
        result.append(type(error).__name__)
result = result, counts
"""
_PLAIN, _CACHED = "counts = None\n", "\nresult = result[0], (backend.hits, backend.misses, backend.refused)"


def _write(project: Project, edits: Sequence[Edit], version: int) -> str:
    """Write the modules of one version; the script that tells what each of them says."""
    calls = []
    for number, edit in enumerate(edits):
        source, settings = edit.source, edit.settings
        if version:
            source, settings = source.replace(edit.old, edit.new), settings.replace(edit.old, edit.new)
        project.write(**{
            f"program{number}": source.replace("settings import", f"settings{number} import")
            .replace("import settings\n", f"import settings{number} as settings\n")
            .replace("import settings as", f"import settings{number} as")
            .replace("settings.py", f"settings{number}.py"),
            f"settings{number}": settings,
        })  # fmt: skip
        calls.append((f"program{number}", edit.call, edit.environment[0], edit.environment[1 + version]))
    return _PLAIN + _TELL.format(calls=calls)


class Told(NamedTuple):
    """What the programs said: with plain Numba, and on the cache, by run."""

    plain: list[list[str]]
    cached: list[tuple[int, list[str]]]
    warm: tuple[int, int, dict[str, str]]


def run_edits(edits: Sequence[Edit], directory: Path) -> Told:
    """All programs, in one process per run: both versions, cold and warm, and the first version again."""
    project = Project(directory)
    plain, cached = [], []
    for version in (0, 1):
        script = _write(project, edits, version)
        plain.append(project.run(script, backend=False)[0])
        for _ in range(2):
            said, counts = project.run(script + _CACHED, backend=True)
            cached.append((version, said))
    return Told(
        plain, [*cached, (0, project.run(_write(project, edits, 0) + _CACHED, backend=True)[0])], counts
    )


def assert_edit_counts(told: Told, number: int) -> None:
    """Each run said what plain Numba says, and the two versions say different things."""
    said = [(version, answers[number]) for version, answers in told.cached]
    assert said == [(version, told.plain[version][number]) for version, _ in told.cached]
    assert told.plain[0][number] != told.plain[1][number]
