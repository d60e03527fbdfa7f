"""Packages that register implementations of operators: functions with these operators start without Numba, until a package changes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers import FreshProcessError
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]
pytest.importorskip("numba")

PROGRAM = """
    import math
    from compcache.numba import njit

    @njit
    def twice(x):
        return math.comb(x * 2, 1)
"""
#: Numba asks for each product, and finds that its own implementation comes first. Of the implementations of `math.comb`, which Numba lacks,
#: the first declines until `ACCEPTS` is true.
TEMPLATE = """
import math, operator, os
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import overload
import {name}

@infer_global(operator.mul)
class Product(AbstractTemplate):
    def generic(self, args, kws):
        return None

@overload(math.comb)
def comb(n, k):
    if {name}.ACCEPTS:
        return lambda n, k: n * 1.0

@overload(math.comb)
def comb_of_integers(n, k):
    return lambda n, k: n
"""
SAY = "import sys, program\nresult = repr(program.twice(2)), 'numba.core' in sys.modules"


def install(place: Path, accepts: str = "False", *, name: str = "acme", version: int = 1) -> Path:
    """Install a package with an entry point into a directory. Return the directory of the package."""
    package, metadata = place / name, place / f"{name}-{version}.dist-info"
    for directory in (package, metadata):
        directory.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(f"import os\nACCEPTS = {accepts}\ndef init():\n    import {name}.templates\n")
    (package / "templates.py").write_text(TEMPLATE.format(name=name))
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[numba_extensions]\ninit = {name}:init\n")
    (metadata / "RECORD").write_text(f"{name}/__init__.py,sha256={version},10\n")
    return package


@pytest.fixture
def project(tmp_path: Path) -> Project:
    created = Project(tmp_path)
    created.write(program=PROGRAM)
    return created


def say(project: Project, script: str = SAY, **environment: str) -> Any:
    return project.run(script, backend=False, COMPCACHE_DIR=str(project.cache), **environment)


def test_a_package_whose_template_declines_does_not_make_starts_import_numba(project: Project, tmp_path: Path) -> None:
    """Each change makes one start import Numba, which gives the new answer."""
    package = install(project.source)
    assert [say(project), say(project)] == [("4", True), ("4", False)]
    install(project.source, "True")  # edited where it is: the metadata stays
    assert [say(project), say(project)] == [("4.0", True), ("4.0", False)]
    hidden = install(tmp_path / "before")
    shutil.rmtree(tmp_path / "before" / "acme-1.dist-info")
    before = {"PYTHONPATH": str(tmp_path / "before")}
    script = f"import sys\nsys.path.remove({before['PYTHONPATH']!r})\nsys.path.insert(0, {before['PYTHONPATH']!r})\n{SAY}"
    assert say(project, script, **before) == ("4", False), "a copy of the earlier content"
    (hidden / "__init__.py").write_text((package / "__init__.py").read_text().replace("True", "1 > 0"))
    assert [say(project, script, **before), say(project, script, **before)] == [("4.0", True), ("4.0", False)]
    shutil.rmtree(project.source / "acme-1.dist-info")
    with pytest.raises(FreshProcessError, match="TypingError"):
        say(project)


def test_packages_that_are_installed_beside_or_instead_count(project: Project) -> None:
    install(project.source)
    assert [say(project), say(project)] == [("4", True), ("4", False)]
    install(project.source, "True", name="a_first")
    (answer, has_numba), *later = [say(project), say(project)]  # the order of the packages in the directory decides which comes first
    assert (has_numba, later) == (True, [(answer, False)])
    shutil.rmtree(project.source / "acme-1.dist-info")
    assert [say(project), say(project)] == [("4.0", True), ("4.0", False)]
    for directory in ("a_first", "a_first-1.dist-info"):
        shutil.rmtree(project.source / directory)
    install(project.source, "1 > 0", version=2)
    assert [say(project), say(project)] == [("4.0", True), ("4.0", False)]


def test_a_copy_that_appears_before_the_package_counts(project: Project, tmp_path: Path) -> None:
    """The state of the directory that contains the copy was noted when the copy was not there."""
    before = tmp_path / "before"
    before.mkdir()
    install(project.source)
    script = f"import sys\nsys.path.insert(0, {str(before)!r})\n{SAY}"
    assert [say(project, script), say(project, script), say(project, script)] == [("4", True), ("4", False), ("4", False)]
    install(before, "True")
    shutil.rmtree(before / "acme-1.dist-info")
    assert [say(project, script), say(project, script)] == [("4.0", True), ("4.0", False)]


def test_a_package_in_editable_mode_is_compared_by_its_files(project: Project, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    package = install(checkout)
    metadata = project.source / "acme-1.dist-info"
    shutil.move(checkout / "acme-1.dist-info", metadata)
    (metadata / "direct_url.json").write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}}))
    script = f"import sys\nsys.path.append({str(checkout)!r})\n{SAY}"
    assert [say(project, script), say(project, script)] == [("4", True), ("4", False)]
    (package / "__init__.py").write_text((package / "__init__.py").read_text().replace("False", "True"))
    assert [say(project, script), say(project, script)] == [("4.0", True), ("4.0", False)]


def test_a_variable_that_a_package_reads_counts(project: Project) -> None:
    install(project.source, '"ACME" in os.environ')
    assert [say(project), say(project)] == [("4", True), ("4", False)]
    assert [say(project, ACME="1"), say(project, ACME="1"), say(project)] == [("4.0", True), ("4.0", False), ("4", False)]


def test_a_package_that_reads_any_variable_needs_numba(project: Project) -> None:
    install(project.source, '"-".join(["AC", "ME"]) in os.environ')
    assert [say(project), say(project)] == [("4", True)] * 2


def test_a_program_that_changes_what_a_package_reads_gets_its_answer(project: Project) -> None:
    package = install(project.source)
    changed = f"import acme\nacme.ACCEPTS = True\n{SAY}"
    assert [say(project), say(project, changed), say(project, changed)] == [("4", True), ("4.0", True), ("4.0", True)]
    assert say(project) == ("4", False)
    (package / "__init__.py").touch()
    assert say(project) == ("4", False), "only content counts"


def test_a_package_that_another_requires_counts(project: Project) -> None:
    """What such a package registers may follow from another version of what it imports."""
    install(project.source)
    with (project.source / "acme-1.dist-info" / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: Rules-of-acme>=1\n")
    rules = project.source / "rules_of_acme-1.dist-info"
    rules.mkdir()
    said = []
    for version in (1, 1, 2, 2):
        (rules / "RECORD").write_text(f"rules.py,sha256={version},10\n")
        said.append(say(project))
    assert said == [("4", True), ("4", False), ("4", True), ("4", False)]


def test_the_implementation_that_needs_numba_is_named(project: Project) -> None:
    install(project.source)
    process = project.start(f"import acme\n{SAY}", backend=False, COMPCACHE_DIR=str(project.cache), COMPCACHE_DEBUG="1")
    _, error = process.communicate()
    assert "Numba asks acme.templates.Product, and the program has imported acme" in error
