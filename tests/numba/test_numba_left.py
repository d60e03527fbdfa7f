"""What the backend refuses is left to the cache that would have served it, where the program has asked for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")

#: Kernels that have no identity by content, with the call.
KERNELS = {
    "a compiler of its own": (
        """
        from numba import njit
        from numba.core.compiler import Compiler

        class Own(Compiler):
            pass

        @njit({options}pipeline_class=Own)
        def f(x):
            return 2 * x
        """,
        "kernel.f(21)",
    ),
}

#: Its code is made by code that no key has: Numba's cache would not see that this makes something else.
MADE = """
from numba import njit
from numba.extending import overload

STREAM = (n for n in range(3))

def factor():
    return 2

@overload(factor)
def ol_factor():
    value = 3 if STREAM.gi_running else 2
    return lambda: value

@njit(cache=True)
def f(x):
    return factor() * x
"""

#: What a process computes, and how often it has generated code: by the objects that LLVM has made.
SCRIPT = """

made = []

import numba.core.codegen as codegen
compiled = codegen.CPUCodeLibrary._optimize_final_module
def counted(self):
    made.append(self.name)
    return compiled(self)
codegen.CPUCodeLibrary._optimize_final_module = counted
import kernel
result = {call}, [name for name in made if "f" in name.split("$")[0].split(".")[-1]]
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_refused_is_found_where_numba_keeps_it(tmp_path: Path, name: str) -> None:
    project = Project(tmp_path)
    text, call = KERNELS[name]
    project.write(kernel=text.replace("{options}", "cache=True, "))
    script = SCRIPT.replace("{call}", call) + "result += (len(backend.refused), backend.hits)"
    value, made, refused, _ = project.run(script, backend=True)
    assert (value, bool(made), refused > 0) == (42, True, True)
    assert [*project.source.glob("__pycache__/kernel.*.nbc")]
    value, made, _, hits = project.run(script, backend=True)
    assert (value, made, hits) == (42, [], 0)


@pytest.mark.slow
def test_what_asks_for_no_cache_is_left_to_none(tmp_path: Path) -> None:
    project = Project(tmp_path)
    text, call = KERNELS["a compiler of its own"]
    project.write(kernel=text.replace("{options}", "").replace("from numba import", "from compcache.numba import"))
    for _ in range(2):
        assert project.run(f"import kernel\nresult = {call}", backend=False, COMPCACHE_DIR=str(project.cache)) == 42
    assert not [*project.source.glob("__pycache__/*.nb?")]


@pytest.mark.slow
def test_what_code_without_identity_has_made_is_left_to_none(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernel=MADE)
    script = SCRIPT.replace("{call}", "kernel.f(21)") + "result += (len(backend.refused),)"
    for _ in range(2):
        value, made, refused = project.run(script, backend=True)
        assert (value, bool(made), refused) == (42, True, 1)
    assert not [*project.source.glob("__pycache__/*.nb?")]


LOCATOR = """
import os, sys
from numba import njit
from numba.core.caching import CacheImpl, _CacheLocator

KEYS = {}

class Locator(_CacheLocator):
    def __init__(self, key):
        self._key = key
    def ensure_cache_path(self):
        os.makedirs(self.get_cache_path(), exist_ok=True)
    def get_cache_path(self):
        return PLACE
    def get_source_stamp(self):
        return 0
    def get_disambiguator(self):
        return self._key
    @classmethod
    def from_function(cls, function, file):
        return cls(KEYS[function]) if function in KEYS else None

CacheImpl._locator_classes.insert(0, Locator)

def generated(key, source):
    space = {"__name__": __name__}
    exec(source, space)
    KEYS[space["f"]] = key
    return njit(cache=True)(space["f"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import compcache.numba\nbackend = compcache.numba.install({root!r})", "", "lazy", "variable"])
def test_a_key_that_a_package_brought_is_the_identity(tmp_path: Path, first: str) -> None:
    """No walk looks at such a function: the process that finds it has none."""
    project = Project(tmp_path)
    place = str(tmp_path / "place")
    project.write(packaged=f"PLACE = {place!r}\n" + LOCATOR)
    lazy = "import compcache.numba\nbackend = compcache.numba.install({root!r}, lazy=True)"
    opening = {"lazy": lazy, "variable": ""}.get(first, first).format(root=str(project.cache))
    environment = {"COMPCACHE_NUMBA": "1", "COMPCACHE_DIR": str(project.cache)} if first == "variable" else {}
    script = opening + """
import packaged
from compcache.numba.identity import key
from compcache.numba.compilation import scopes
from compcache.numba.hooks import installation
looked_at = []
if WARM:
    def refuse(function):
        looked_at.append(function)
        raise AssertionError("it was looked at")
    key.fingerprint = scopes.fingerprint = installation.fingerprint = refuse
f = packaged.generated("a-key", "def f(x):\\n    return 2 * x")
g = packaged.generated("another", "def f(x):\\n    return 3 * x")
result = f(21), g(21), len(looked_at)
"""
    for warm in (False, True):
        assert project.run(f"WARM = {warm}\n" + script, backend=False, **environment) == (42, 63, 0)
    assert len([*(tmp_path / "place").glob("*.nbc")]) == 2


CALLER = """
import packaged
from called import twice
from numba import njit

g = packaged.generated("a-key", "def f(x):\\n    return 2 * x")

@njit(cache=True)
def f(x):
    return twice(g(x))
"""


@pytest.mark.slow
def test_a_caller_of_anothers_code_is_left_as_well_under_its_own_key(tmp_path: Path) -> None:
    """Numba's own cache does not see that a function in another file has changed: what has another key is not asked of it."""
    project = Project(tmp_path)
    project.write(packaged=f"PLACE = {str(tmp_path / 'place')!r}\n" + LOCATOR, kernel=CALLER)
    called = "from numba import njit\n@njit\ndef twice(x):\n    return {number} * x\n"
    project.write(called=called.format(number=2))
    assert project.run("import kernel\nresult = kernel.g(21)", backend=True) == 42
    script = SCRIPT.replace("{call}", "kernel.f(21)") + "result += ([*backend.refused],)"
    for number in (2, 3):
        project.write(called=called.format(number=number))
        for is_made in (True, False):
            value, made, refused = project.run(script, backend=True)
            assert (value, bool(made), refused) == (42 * number, is_made, ["kernel.f(int64)"] if is_made else [])


CALLS_NUMBAS = """
import os
from numba import njit as njit_of_numba
from compcache.numba import njit

FACTOR = int(os.environ["FACTOR"])

@njit
def helper(x):
    return x * FACTOR

@njit_of_numba(cache=True)
def cached_by_numba(x):
    return helper(x)

@njit
def caller(x):
    return cached_by_numba(x) + 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["new", "called", "declared"])
def test_stored_code_contains_no_code_of_numbas_own_cache(tmp_path: Path, case: str) -> None:
    """Plain Numba runs the old code of a callee with declared signatures, which it loads with the module."""
    project = Project(tmp_path)
    declared = CALLS_NUMBAS.replace("(cache=True)", "('i8(i8)', cache=True)")
    project.write(p=declared if case == "declared" else CALLS_NUMBAS)
    script = f"import p\np.helper(2)\nresult = {'p.cached_by_numba(2)' if case == 'called' else None}, p.caller(2)"

    def run(factor: str, numba: str) -> object:
        places = {"COMPCACHE_DIR": str(project.cache), "NUMBA_CACHE_DIR": str(tmp_path / numba)}
        return project.run(script, backend=False, FACTOR=factor, **places)

    run("1", "numba")
    value = run("4", "numba")  # Numba finds the code that it has stored for the other factor
    other = run("4", "other")
    assert (value, other) == {
        "new": ((None, 9), (None, 9)),
        "called": ((2, 3), (8, 9)),
        "declared": ((None, 3), (None, 9)),
    }[case]


@pytest.mark.slow
def test_a_caller_of_a_function_in_numbas_own_cache_is_stored(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p=CALLS_NUMBAS)

    def compiled(script: str, cache: str) -> object:
        """Return the functions that a process has compiled."""
        first = "import p, numba.core.event as event\nwith event.install_recorder('numba:compile') as recorder:\n    "
        last = "\nresult = sorted({str(data['dispatcher'].py_func.__name__) for _, e in recorder.buffer if (data := e.data)})"
        places = {"COMPCACHE_DIR": str(tmp_path / cache), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
        return project.run(first + script + last, backend=False, FACTOR="3", **places)

    assert "cached_by_numba" in str(compiled("p.cached_by_numba(2)", "first"))
    assert compiled("p.cached_by_numba(2)", "first") == []
    assert "caller" in str(compiled("p.caller(2)", "second"))
    assert compiled("p.caller(2)", "second") == []
    project.write(p=CALLS_NUMBAS.replace("+ 1", "+ 2"))
    assert compiled("p.caller(2)", "second") == ["caller"], "the callee has an entry"


#: Helpers of Numba's own cache that the program may call before a variable changes, each called in another way.
HELPERS_CALLED_EARLY = """
import os
import numba
from numba.extending import overload
from compcache.numba import njit

K = 1

@numba.njit(cache=True)
def named(x):
    return x + K

@numba.vectorize(cache=True)
def ufunc(x):
    return x + K

@numba.njit(cache=True)
def in_overload(x):
    return x * 10 + K

def target(x): ...

@overload(target)
def implementation(x):
    return lambda x: in_overload(x)

@numba.njit(cache=True)
def argument(x):
    return x * 100 + K

@njit
def unrelated(x):
    return x

@njit
def calls_named(x):
    return named(x)

@njit
def calls_ufunc(x):
    return ufunc(x)

@njit
def calls_target(x):
    return target(x)

@njit
def calls_argument(function, x):
    return function(x)

WAYS = os.environ["WAYS"]
if "recorded" in WAYS:
    unrelated(1)
if "early" in WAYS:
    named(1), ufunc(1), in_overload(1), argument(1)
K = 5
"""


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["early", "recorded early"])
def test_callers_of_helpers_that_were_called_early_are_not_loaded(tmp_path: Path, ways: str) -> None:
    """A process that has not called the helpers stores their callers. The code of the helpers has a former value in other processes."""
    project = Project(tmp_path)
    project.write(p=HELPERS_CALLED_EARLY)
    script = "import p\nresult = p.calls_named(1), int(p.calls_ufunc(1)), p.calls_target(1), p.calls_argument(p.argument, 1)"
    places = {"COMPCACHE_DIR": str(project.cache), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    answers = [project.run(script, backend=False, WAYS=given, **places) for given in ("", ways, ways, "")]
    assert answers == [(6, 6, 15, 105), (2, 2, 11, 101), (2, 2, 11, 101), (6, 6, 15, 105)]


TEMPLATE = """
import operator
from numba import njit
from numba.core.typing.templates import AbstractTemplate, infer_global

@infer_global(operator.getitem)
class Getitem(AbstractTemplate):
    def generic(self, args, kws):
        return None

@njit(cache=True)
def f(x):
    return [x, 2 * x][1]
"""


def test_what_numba_keeps_on_its_types_is_no_change_of_implementations(tmp_path: Path) -> None:
    """A cached property sets an attribute of a type, for example when a typed list is compiled."""
    project = Project(tmp_path)
    project.write(kernel=TEMPLATE)
    first = """
from numba.core import types
from numba.typed.listobject import ListStatus
kept = types.IntEnumClass(ListStatus, types.int64)
kept.member_type
"""
    script = SCRIPT.replace("{call}", "kernel.f(21)")
    said = [project.run(text + script, backend=True) for text in ("", first, "")]
    assert [(value, bool(made)) for value, made in said] == [(42, True), (42, False), (42, False)]
