"""The example project: its wheel is built with Numba, installed where there is nothing, and runs on v2 and v3 CPUs."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT

from compcache import Cache
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(600),
    pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="the example names CPUs of x86-64"),
]
pytest.importorskip("numba")

EXAMPLE = PACKAGE_ROOT / "examples" / "kernels_in_a_wheel"
#: QEMU's names of CPUs, and the targets of the example that fit them best.
NAMED = {"Nehalem": "x86-64-v2", "Haswell": "x86-64-v3"}
QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
PROGRAM = """
import sys, array, fastsum
found = fastsum.total(array.array("d", range(10))), fastsum.total(array.array("f", [1.5, 2.5]))
wave = array.array("d", bytes(80))
fastsum.wave(wave, 0.5)
try:
    fastsum.total("text")
except TypeError as error:
    assert "compiled for" in str(error), error
try:
    fastsum.wave(wave, -1.0)
except ValueError as error:
    problem = str(error)
print((*found, round(wave[1], 6), problem, "numba" in sys.modules, "llvmlite" in sys.modules))
"""
EXPECTED = (45.0, 4.0, 0.479426, "step must be positive", False, False)
HATCH = """
[build-system]
requires = ["hatchling", "compcache[numba]"]
build-backend = "hatchling.build"
[project]
name = "fastsum"
version = "1.0"
[tool.hatch.build.hooks.compcache]
[tool.hatch.build.targets.wheel]
packages = ["src/fastsum"]
[tool.compcache]
kernels = ["fastsum.kernels"]
targets = ["x86-64-v2", "x86-64-v3"]
"""


def build(project: Path, place: Path) -> Path:
    """The wheel of a project, built with what this environment has."""
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(place), str(project)], check=True)
    (wheel,) = place.glob("fastsum-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's wheel."""
    base = tmp_path_factory.mktemp("example")
    return build(shutil.copytree(EXAMPLE, base / "project"), base)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of `compcache-runtime`."""
    base = tmp_path_factory.mktemp("wheels")
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(base), str(PACKAGE_ROOT)], check=True)
    (full,) = base.glob("compcache-*.whl")
    subprocess.run([sys.executable, str(PACKAGE_ROOT / "tools/runtime_distribution.py"), str(full)], check=True)
    (wheel,) = base.glob("compcache_runtime-*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, runtime: Path, wheel: Path) -> Path:
    """An environment with the runtime and the example, and nothing else."""
    base = tmp_path_factory.mktemp("bare")
    venv.create(base / "venv", with_pip=False)
    site = next((base / "venv").glob("lib/python*/site-packages"))
    subprocess.run([*PIP, "install", "--no-index", "--no-deps", "--target", str(site), str(runtime), str(wheel)], check=True)
    return base / "venv/bin/python"


def run(command: list[str]) -> Any:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COMPCACHE_", "PYTHON"))}
    done = subprocess.run([*command, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd="/", env=environment)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


def test_the_wheel_is_for_the_platform_and_has_the_kernels(wheel: Path) -> None:
    assert wheel.name.startswith("fastsum-1.0-py3-none-linux_")
    with zipfile.ZipFile(wheel) as archive:
        kernels = [name for name in archive.namelist() if name.startswith("fastsum/__compcache__/modules-v1/")]
    assert len(kernels) == 6  # three signatures, two targets


def test_it_runs_where_there_is_neither_numba_nor_llvm(python: Path) -> None:
    assert run([str(python)]) == EXPECTED
    assert run([str(python)]) == EXPECTED


@pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not installed")
@pytest.mark.parametrize("cpu", ["Nehalem", "Haswell"])
def test_it_runs_on_older_and_newer_cpus(python: Path, cpu: str) -> None:
    assert run([str(QEMU), "-cpu", cpu, str(python)]) == EXPECTED


@pytest.fixture(scope="module")
def installed(runtime: Path, wheel: Path) -> Iterator[Path]:
    """What the superuser has installed for everybody: the runtime, the example, and a module with what `package` made of it."""
    with tempfile.TemporaryDirectory(prefix="installed-") as base:
        site = Path(base, "site")
        subprocess.run([*PIP, "install", "--no-index", "--no-deps", "--target", str(site), str(runtime), str(wheel)], check=True)
        shutil.copy(EXAMPLE / "src/fastsum/kernels.py", site / "packaged.py")
        script = "import compcache.numba, packaged\ncompcache.numba.package(packaged, targets=['x86-64-v2', 'x86-64-v3'])"
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": f"{PACKAGE_ROOT}:{site}"})
        for path in [Path(base), *Path(base).rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield site


def as_nobody(site: Path, program: str, *emulator: str) -> Any:
    """The result of a program that another user runs, who can write nowhere: the system's Python, as that of the tests may be private."""
    if os.geteuid():
        pytest.skip("only the superuser becomes another user")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False).returncode:
        pytest.skip("the system has no Python of version 3.11 or later")
    environment = {"PYTHONPATH": str(site), "HOME": "/nonexistent", "TMPDIR": "/nonexistent", "PATH": "/usr/bin:/bin"}
    before = {path: path.lstat().st_mtime_ns for path in site.rglob("*")}
    done = subprocess.run(
        [*emulator, python, "-W", "error", "-c", program], capture_output=True, text=True, check=False, cwd="/", env=environment,
        user=65534, group=65534, extra_groups=[],
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if not line.startswith("qemu-")]
    assert (done.returncode, said) == (0, []), done.stderr
    assert {path: path.lstat().st_mtime_ns for path in site.rglob("*")} == before
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("cpu", ["", "Nehalem", "Haswell"])
@pytest.mark.parametrize("module", ["fastsum", "packaged"])
def test_another_user_runs_what_the_superuser_installed(installed: Path, module: str, cpu: str) -> None:
    if cpu and QEMU is None:
        pytest.skip("qemu-x86_64 is not installed")
    program = PROGRAM.replace("fastsum", module)
    assert as_nobody(installed, program, *((str(QEMU), "-cpu", cpu) if cpu else ())) == EXPECTED


@pytest.mark.parametrize("cpu", sorted(NAMED))
def test_each_cpu_gets_the_code_that_fits_it(installed: Path, cpu: str) -> None:
    if QEMU is None:
        pytest.skip("qemu-x86_64 is not installed")
    name, place = "fastsum.kernels.wave", installed / "fastsum" / "__compcache__"
    program = f"from compcache import Cache\nprint(repr(Cache({str(place)!r}, readonly=True).get_target({name!r}).module_id))"
    module_id = as_nobody(installed, program, QEMU, "-cpu", cpu)
    with Cache(place, readonly=True) as cache:
        assert next(r.cpu for r in cache.realizations(name) if r.module_id == module_id) == NAMED[cpu]


def test_where_numba_is_the_same_source_is_compiled_by_it(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nsys.path.insert(0, {str(PACKAGE_ROOT)!r})\nimport numpy, fastsum\n"
        "print((fastsum.total(numpy.arange(10.0)), len(fastsum.total.nopython_signatures), 'numba.core' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == (45.0, 2, True)


def test_hatchling_builds_the_same(tmp_path: Path, wheel: Path) -> None:
    pytest.importorskip("hatchling")
    project = shutil.copytree(EXAMPLE, tmp_path / "project")
    (project / "pyproject.toml").write_text(HATCH)
    built = build(project, tmp_path)
    assert built.name == wheel.name
    with zipfile.ZipFile(built) as mine, zipfile.ZipFile(wheel) as other:
        counts = [sum(name.endswith(".ccm") for name in archive.namelist()) for archive in (mine, other)]
    assert counts == [6, 6]  # exceptions name the file that raised them, so that the modules' ids differ
