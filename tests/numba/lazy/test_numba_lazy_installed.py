"""Packages that register with Numba, installed anew or edited: starts without Numba notice, and give Numba's answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]
pytest.importorskip("numba")

PROGRAM = """
    from compcache.numba import njit
    import acme

    @njit
    def scaled(x):
        return acme.scaled(x)

    @njit
    def twice(x):
        return x * 2
"""
PACKAGE = """
    def scaled(x):
        return x

    def init():
        from numba.extending import overload

        @overload(scaled)
        def implementation(x):
            return lambda x: x * {factor}
"""
SAY = """
import sys, program
result = program.twice(2), 'numba.core' in sys.modules, program.scaled(2)
"""


def install(project: Project, factor: int, *, editable: bool = False) -> None:
    """Install a package whose overload is registered by an entry point, in the place of what was there."""
    project.write(acme=PACKAGE.format(factor=factor))
    metadata = project.source / "acme-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[numba_extensions]\ninit = acme:init\n")
    (metadata / "RECORD").write_text(f"acme.py,sha256={'editable' if editable else factor},10\n")
    if editable:
        origin = {"url": project.source.as_uri(), "dir_info": {"editable": True}}
        (metadata / "direct_url.json").write_text(json.dumps(origin))


def say(project: Project, script: str = SAY) -> Any:
    return project.run(script, backend=False, COMPCACHE_DIR=str(project.cache))


@pytest.mark.parametrize("editable", [False, True], ids=["installed again", "edited where it is"])
def test_another_version_of_a_package_counts(tmp_path: Path, *, editable: bool) -> None:
    project = Project(tmp_path)
    project.write(program=PROGRAM)
    said = []
    for factor in (3, 3, 4, 4):
        install(project, factor, editable=editable)
        said.append(say(project))
    assert said == [(4, True, 6), (4, False, 6), (4, True, 8), (4, False, 8)]


def test_what_is_installed_while_a_process_runs_is_not_recorded_under_what_was_there(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program=PROGRAM)
    install(project, 3)
    say(project)
    metadata = project.source / "acme-1.dist-info" / "RECORD"
    late = f"""
import sys, program
first = program.twice(2), 'numba.core' in sys.modules
with open({str(metadata)!r}, "w") as file:
    file.write("acme.py,sha256=5,10")
result = first, program.twice(2.5)
"""
    assert say(project, late) == ((4, False), 5.0)
    install(project, 3)
    script = "import sys, program\nresult = program.twice(2.5), 'numba.core' in sys.modules"
    assert say(project, script) == (5.0, True)


def test_a_profiler_does_not_change_what_a_function_is(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program=PROGRAM.replace("import acme", "").replace("acme.scaled(x)", "twice(x) + 1"))
    script = """
import cProfile, sys, program
profile = cProfile.Profile()
if {profiled}:
    profile.enable()
result = program.twice(2), program.scaled(3), 'numba.core' in sys.modules
profile.disable()
"""
    assert [say(project, script.format(profiled=on)) for on in (True, False)] == [(4, 7, True), (4, 7, False)]


def build_wheel(directory: Path, version: int, factor: int) -> Path:
    """A wheel of the package, as build tools make it."""
    info = f"acme-{version}.dist-info"
    files = {
        "acme.py": textwrap.dedent(PACKAGE.format(factor=factor)),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: acme\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[numba_extensions]\ninit = acme:init\n",
    }
    rows = [
        f"{name},sha256={urlsafe_b64encode(sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for name, text in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = directory / f"acme-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def test_pip_installs_another_version_between_two_processes(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program=PROGRAM)
    said = []
    wheels = [build_wheel(tmp_path, version, factor) for version, factor in ((1, 3), (2, 4))]
    for wheel in (wheels[0], wheels[0], wheels[1], wheels[1], wheels[0]):
        for old in project.source.glob("acme-*.dist-info"):
            shutil.rmtree(old)  # `pip install --target` replaces files of the same name only
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--target", str(project.source)]
        subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
        said.append(say(project))
    assert said == [(4, True, 6), (4, False, 6), (4, True, 8), (4, False, 8), (4, False, 6)]
