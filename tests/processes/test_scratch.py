"""Temporary directories, and the forked children that exit while their parent uses them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT, run_fresh

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_child_that_exits_removes_nothing_of_its_parent(directory: Path, tmp_path: Path) -> None:
    """It leaves the context, and runs the exit handlers, that it has inherited. What is the parent's goes with the parent."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = """
    import os
    from compcache.processes.scratch import make_directory_until_exit, scratch_directory
    kept = make_directory_until_exit("kept-")
    with scratch_directory("used-") as used:
        if not (child := os.fork()):
            sys.exit(0)
        os.waitpid(child, 0)
        result = [os.path.isdir(kept), os.path.isdir(used)]
    result += [os.path.isdir(kept), os.path.isdir(used)]
    """
    assert run_fresh(directory, script, TMPDIR=str(temporary)) == [True, True, True, False]
    assert list(temporary.iterdir()) == []


def test_the_package_has_no_other_temporary_directories() -> None:
    """The finalizer of `tempfile.TemporaryDirectory` runs in forked children as well."""
    package = PACKAGE_ROOT / "compcache"
    found = [path for path in package.rglob("*.py") if re.search(r"TemporaryDirectory|mkdtemp", path.read_text(encoding="utf-8"))]
    assert found == [package / "processes" / "scratch.py"]
