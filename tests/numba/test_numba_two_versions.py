"""Generated programs of two versions on one cache answer as plain Numba does, in every mode.

`COMPCACHE_TEST_PROGRAMS` says how many the long test draws (400), `COMPCACHE_TEST_SEED` where it begins.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from numba_helpers import Project
from numba_two_versions import VALUES, Program, draw, driver, each_source, each_state, each_use, write_all

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")
pytestmark = pytest.mark.timeout(600)

_AT_ONCE = 20
_COUNT = int(os.environ.get("COMPCACHE_TEST_PROGRAMS", "400"))
_FIRST = int(os.environ.get("COMPCACHE_TEST_SEED", "0"))


class _Run:
    """Programs that run in processes of each mode, in one place."""

    def __init__(self, directory: Path, programs: list[Program]) -> None:
        self.programs = programs
        self.project = Project(directory)
        self.project.register()

    def say(self, mode: str, value: int) -> list[str]:
        """The answers of one version."""
        place = self.project.source
        variables = write_all(place, self.programs, value)
        (place / "main.py").write_text(driver(self.programs, value, mode))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COMPCACHE_", "NUMBA_"))}
        own = {"PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{place}", "PYTHONDONTWRITEBYTECODE": "1", "COMPCACHE_DIR": str(self.project.cache)}
        own |= {"plain": {"NUMBA_CACHE_DIR": str(place.with_name("judge"))}}.get(mode, {})
        own |= {"COMPCACHE_NUMBA": "1"} if mode in ("installed", "export") else {}
        shutil.rmtree(place.with_name("judge"), ignore_errors=True)  # the judge finds nothing
        arguments = ["-m", "compcache.numba", "run", "main.py"] if mode == "run" else ["main.py"]
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", *arguments], cwd=place, env=inherited | own | variables,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers: list[str] = ast.literal_eval(done.stdout.splitlines()[-1])
        return answers


def _wrong(directory: Path, programs: list[Program], *, again: int = 2) -> list[str]:
    """Programs that say in some mode what plain Numba does not; the first version starts `again` so many times."""
    run = _Run(directory, programs)
    first, second = VALUES
    judged = {value: run.say("plain", value) for value in VALUES}
    found: dict[int, str] = {}
    values = (first, second, *[first] * again)
    for mode, value in [
        *[(mode, value) for mode in ("installed", "run", "install") for value in values],
        *[("export", value) for value in VALUES],
    ]:
        for program, said, right in zip(programs, run.say(mode, value), judged[value], strict=True):
            if said != right:
                parts = (program.source.expression, program.source.state, program.way, program.use)
                found.setdefault(program.number, f"{program.number}: {mode} says {said}, it is {right}: {parts}")
    return list(found.values())


@pytest.mark.stress
def test_a_few_generated_programs_answer_as_plain_numba(tmp_path: Path) -> None:
    assert _wrong(tmp_path, draw(1, 5), again=1) == []


@pytest.mark.stress
def test_each_source_of_a_number_that_an_overload_asks_for_is_noticed(tmp_path: Path) -> None:
    assert _wrong(tmp_path, each_source()) == []


@pytest.mark.stress
def test_each_use_of_a_number_is_noticed(tmp_path: Path) -> None:
    assert _wrong(tmp_path, each_use()) == []


#: What a program changes, and overloads that run again do not read as it was.
_PRESENT = {
    "float(DEP.v.get())", "float(DEP.v.x)", "float(next(DEP.v))", "float(DEP.get())", "float(DEP.get(1))", "float(DEP.v['x'])",
    "float(DEP.v.most)",
}  # fmt: skip


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["installed", "run"])
def test_overloads_in_loaded_code_read_the_state_that_they_had_read(tmp_path: Path, mode: str) -> None:
    run = _Run(tmp_path, each_state(changes=True))
    judged = run.say("plain", VALUES[0])
    run.programs = each_state(changes=False)
    run.say(mode, VALUES[0])
    for _ in range(2):
        run.programs = each_state(changes=True)
        rows = zip(run.programs, run.say(mode, VALUES[0]), judged, strict=True)
        wrong = {(program.source.expression, said, right) for program, said, right in rows if said != right}
        assert [row for row in wrong if row[0] not in _PRESENT] == []


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + -(-_COUNT // _AT_ONCE)))
def test_generated_programs_answer_as_plain_numba(tmp_path: Path, seed: int) -> None:
    """Each seed draws its own programs: with more of them the test grows."""
    assert _wrong(tmp_path, draw(seed, _AT_ONCE)) == []
