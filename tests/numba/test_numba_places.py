"""Built in one directory, found in another: keys have no path, and lines only where code shows them. Directories that cannot be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")

_KERNELS = """
    import numpy as np
    from {decorators} import njit

    @njit(cache=True)
    def add(a, b):
        return a + b

    @njit(cache=True)
    def divide(a, b):
        return a / b

    @njit(cache=True)
    def zeros(n):
        return np.zeros(n).sum() + n

    @njit(cache=True)
    def checked(a):
        if a < 0:
            raise ValueError("less than nothing")
        return divide(a, 2.0)
    """
_CALL = """
import sys, traceback
import kernels
result = [kernels.add(1, 2), kernels.divide(1.0, 2.0), kernels.zeros(3), kernels.checked(4.0)]
had_numba = "numba.core" in sys.modules
try:
    kernels.checked(-1.0)
except ValueError as error:
    last = traceback.extract_tb(error.__traceback__)[-1]
    shown = last.filename == kernels.__file__, last.lineno
result = result, shown, had_numba
"""
_COUNTS = "\nresult = (*result, backend.hits, backend.misses)"
_LAZY = "import compcache.numba\ncompcache.numba.install(lazy=True)\n"
_ANSWERS = [3, 0.5, 3.0, 2.0]
_SHOWN = (True, 20)


def _moved(project: Project, to: Path) -> Project:
    """The program and the cache in another directory; the first one is gone."""
    to.mkdir(parents=True)
    moved = Project(to)
    shutil.copytree(project.directory, to, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    shutil.rmtree(project.directory)
    return moved


@pytest.mark.slow
def test_a_moved_program_is_found_by_the_backend(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    project = Project(tmp_path / "build")
    project.write(kernels=_KERNELS.replace("{decorators}", "numba"))
    built = project.run(_CALL + _COUNTS, backend=True)
    moved = _moved(project, tmp_path / "app" / "inner").run(_CALL + _COUNTS, backend=True)
    assert built[0] == moved[0] == _ANSWERS
    assert moved[1] == built[1] == _SHOWN
    assert moved[4] == 0, "nothing is compiled again"


@pytest.mark.slow
@pytest.mark.parametrize("start", [_LAZY, ""])
def test_a_moved_program_starts_without_numba(tmp_path: Path, start: str) -> None:
    (tmp_path / "build").mkdir()
    project = Project(tmp_path / "build")
    project.write(kernels=_KERNELS.replace("{decorators}", "numba" if start else "compcache.numba"))
    environment = {"COMPCACHE_DIR": str(project.cache)}
    built = project.run(start + _CALL, backend=False, **environment)
    again = project.run(start + _CALL, backend=False, **environment)
    app = _moved(project, tmp_path / "app" / "inner")
    moved = app.run(start + _CALL, backend=False, COMPCACHE_DIR=str(app.cache))
    assert (built[2], again[2], moved[2]) == (True, False, False)
    assert built[0] == again[0] == moved[0] == _ANSWERS
    assert built[1] == again[1] == moved[1] == _SHOWN


@pytest.mark.slow
def test_lines_that_shift_are_no_part_of_code_that_shows_none(tmp_path: Path) -> None:
    project = Project(tmp_path)
    environment = {"COMPCACHE_DIR": str(project.cache)}
    said = []
    for comment in ("", "# a line that was not there\n"):
        project.write(kernels=comment + "from compcache.numba import njit\n@njit\ndef add(a, b):\n    return a + b\n")
        script = "import sys, kernels\nresult = kernels.add(1, 2), 'numba.core' in sys.modules"
        said.append(project.run(script, backend=False, **environment))
    assert said == [(3, True), (3, False)]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "decorators"), [("file", "numba"), ("file/deeper", "compcache.numba")])
def test_a_program_runs_whose_directory_is_a_file_or_below_one(tmp_path: Path, place: str, decorators: str) -> None:
    project = Project(tmp_path)
    (project.directory / "file").write_text("")
    project.register()
    function = "@njit(cache=True)\ndef {}(x):\n    return x + {}\n"
    project.write(p=f"from {decorators} import njit\n{function.format('f', 1)}{function.format('g', 2)}")
    script = """
import warnings, p
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    answers = p.f(1), p.g(1)
result = answers, ["p.f was compiled, but could not be stored" in str(each.message) for each in caught]
"""
    environment = {"COMPCACHE_NUMBA": "1", "COMPCACHE_DIR": str(project.directory / place)}
    assert project.run(script, backend=False, **environment) == ((2, 3), [True])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["run", "variable", "decorators"])
@pytest.mark.parametrize("setting", ["COMPCACHE_TRUSTED_KEYS", "COMPCACHE_DIR", "COMPCACHE_REMOTE"])
def test_a_program_runs_if_the_cache_cannot_be_opened(tmp_path: Path, mode: str, setting: str) -> None:
    decorators = "compcache.numba" if mode == "decorators" else "numba"
    (tmp_path / "main.py").write_text(f"from {decorators} import njit\nprint(njit(cache=True)(lambda x: x + 1)(1))\n")
    (writable := tmp_path / "writable").mkdir()
    writable.chmod(0o777)  # other users could have written there
    value = {"COMPCACHE_TRUSTED_KEYS": "no key", "COMPCACHE_DIR": str(writable), "COMPCACHE_REMOTE": "no URL"}[setting]
    command = [sys.executable, *(("-m", "compcache.numba", "run") if mode == "run" else ()), "main.py"]
    environment = {"COMPCACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(PACKAGE_ROOT), setting: value}
    environment["COMPCACHE_NUMBA"] = "1" if mode == "variable" else "0"
    done = subprocess.run(command, env=os.environ | environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert ("failed to load" if mode == "variable" else "CacheWarning: functions of Numba are not cached") in done.stderr


@pytest.mark.slow
def test_a_hit_needs_no_right_to_record_how_it_is_found_without_numba(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(p="from compcache.numba import njit\n@njit(cache=True)\ndef f(x):\n    return x + 1\n")
    script = f"""
        import compcache.numba
        from compcache import frontend
        from compcache.cache import Cache
        with compcache.numba.installed({str(project.cache)!r}):
            import p
            p.f(1)
        with Cache({str(project.cache)!r}, allow_pickle=True) as cache:
            for entry in frontend.list_entries(cache):
                frontend.remove_entry(cache, entry.name, entry.kind)
        result = 0
    """
    project.run(script, backend=False)
    script = f"""
        import warnings
        import compcache.numba
        warnings.simplefilter("error")
        backend = compcache.numba.install({str(project.cache)!r}, readonly=True)
        import p
        result = p.f(1), backend.hits, backend.misses
    """
    assert project.run(script, backend=False) == (2, 1, 0)
