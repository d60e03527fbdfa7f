"""Programs in two versions, which run on one cache; each must say what it says with plain Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
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


def reading(factor: str, before: str) -> str:
    """A program whose only overload reads a factor, after these lines."""
    return overloaded(f"""{before.removesuffix("    ")}
    @overload(scaled)
    def _(x):
        by = {factor}
        return lambda x: x * by
    """)


_KERNEL = """
    from numba import njit
    {before}

    @njit
    def f(x, y):
        {body}
"""


def kernel(body: str, before: str = "") -> str:
    return _KERNEL.replace("{before}", before).replace("{body}", body)


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
#: Each program in a forked child of a process that knows none of them.
_SAY = """
import os, sys
from importlib import import_module
def try_(f):
    try:
        return f(7.0, 2.0)
    except Exception as error:
        return type(error).__name__, repr(error.args)
def say(name, call, variable, value):
    os.environ[variable] = value
    try:
        said = repr(eval(call, {{"p": import_module(name), "try_": try_}}))
    except Exception as error:
        said = type(error).__name__
    return said, "numba" in sys.modules
def in_child(*program):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, repr(say(*program)).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    return eval(said) if os.waitpid(child, 0)[1] == 0 else ("died", None)
result = [(in_child if {forks} else say)(*program) for program in {programs!r}]
"""
_PLAIN, _CACHED = "counts = None\n", "\nresult = result[0], (backend.hits, backend.misses, backend.refused)"


def _write(project: Project, edits: Sequence[Edit], version: int, decorators: str = "numba") -> list[tuple[str, str, str, str]]:
    """Write the modules of one version; the calls, each with its module and what it finds in the environment."""
    calls = []
    for number, edit in enumerate(edits):
        source, settings = edit.source, edit.settings
        if version:
            source, settings = source.replace(edit.old, edit.new), settings.replace(edit.old, edit.new)
        source = (
            source.replace("settings import", f"settings{number} import")
            .replace("import settings\n", f"import settings{number} as settings\n")
            .replace("import settings as", f"import settings{number} as")
            .replace("settings.py", f"settings{number}.py")
        )
        modules = {f"program{number}": source, f"settings{number}": settings}
        project.write(**{name: text.replace("from numba import ", f"from {decorators} import ") for name, text in modules.items()})
        calls.append((f"program{number}", edit.call, edit.environment[0], edit.environment[1 + version]))
    return calls


def write(project: Project, edits: Sequence[Edit], version: int, decorators: str, *, forks: bool) -> str:
    """Write the modules of one version; a script that tells what each of them says, and whether Numba is imported then."""
    return _SAY.format(programs=_write(project, edits, version, decorators), forks=forks)


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
        script = _PLAIN + _TELL.format(calls=_write(project, edits, version))
        plain.append(project.run_in_fork(script)[0])
        for _ in range(2):
            said, counts = project.run(script + _CACHED, backend=True)
            cached.append((version, said))
    again = _PLAIN + _TELL.format(calls=_write(project, edits, 0)) + _CACHED
    return Told(plain, [*cached, (0, project.run(again, backend=True)[0])], counts)


@pytest.fixture(scope="module", name="told")
def run_own_edits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What the programs said that the module of the tests has in `EDITS`."""
    return run_edits(request.module.EDITS, tmp_path_factory.mktemp("stale"))


def assert_edit_counts(told: Told, number: int) -> None:
    """Each run said what plain Numba says, and the two versions say different things."""
    said = [(version, answers[number]) for version, answers in told.cached]
    assert said == [(version, told.plain[version][number]) for version, _ in told.cached]
    assert told.plain[0][number] != told.plain[1][number]
