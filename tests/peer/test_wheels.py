"""The wheels of a release, built, installed and used: here, and on AArch64 under QEMU's user mode.

`COMPCACHE_TEST_WHEELS` names a directory with wheels that `make wheels` has made; without it they are built. The interpreter for AArch64
and the packages that compcache needs are those of `test_aarch64.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from helpers import PACKAGE_ROOT

from peer.test_aarch64 import home  # noqa: F401 - a fixture

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

PROGRAM = """
import sys
from compcache import Cache
CODE = "define i64 @twice(i64 %x) {\\n  %y = shl i64 %x, 1\\n  ret i64 %y\\n}\\n"
with Cache(sys.argv[1]) as cache:
    print(cache.compile(CODE).twice(21), "llvmlite" in sys.modules, cache.info().platform)
import compcache
print(compcache.__file__)
"""


@pytest.fixture(scope="module")
def wheels(peer_dir: Path) -> Path:
    """The directory of the wheels."""
    chosen = os.environ.get("COMPCACHE_TEST_WHEELS")
    if chosen:
        return Path(chosen)
    place = peer_dir / "wheels"
    environment = peer_dir / "release"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    for command in (
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{PACKAGE_ROOT}[release]"],
        [python, PACKAGE_ROOT / "tools/wheels.py", place],
    ):
        subprocess.run(list(map(str, command)), check=True, cwd=PACKAGE_ROOT)
    return place


def wheel_for(wheels: Path, platform: str) -> Path:
    (wheel,) = [path for path in wheels.glob("*.whl") if path.stem.endswith(platform)]
    return wheel


def run(command: list[str | Path], directory: Path, **variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COMPCACHE_"))}
    done = subprocess.run(
        list(map(str, command)), cwd=directory, env={**environment, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="a wheel for x86-64")
def test_the_wheel_for_this_platform_works_in_a_fresh_environment(wheels: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel_for(wheels, "manylinux_2_17_x86_64")], tmp_path)
    for llvm in (True, False):
        result, where = run([python, "-c", PROGRAM, tmp_path / "cache"], tmp_path)
        assert result == f"42 {llvm} x86_64-linux-elf"
        assert where.startswith(str(tmp_path))
    assert run([tmp_path / "env/bin/compcache", "--dir", tmp_path / "cache", "call", "twice", "4"], tmp_path) == ["8"]


def test_the_wheel_for_aarch64_works_there(wheels: Path, home: Path, tmp_path: Path) -> None:  # noqa: F811 - the fixture
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    platform = ["--implementation", "cp", "--python-version", "3.11", "--platform", "manylinux2014_aarch64"]
    wheel = wheel_for(wheels, "manylinux_2_17_aarch64")
    run([*pip, *platform, "--target", tmp_path / "site", wheel], tmp_path)
    needed = tmp_path / "needed"  # what the package needs, without the checkout's own copy of the package
    shutil.copytree(home / "site", needed, ignore=shutil.ignore_patterns("compcache"))
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    qemu = shutil.which("qemu-aarch64-static", path=path) or shutil.which("qemu-aarch64", path=path)
    python: list[str | Path] = [str(qemu), "-L", home / "root", home / "root/usr/bin/python3.11", "-P"]
    variables = {
        "PYTHONPATH": f"{tmp_path / 'site'}:{needed}", "COMPCACHE_LINKER": str(home / "bin/ld.lld"), "HOME": str(tmp_path),
    }  # fmt: skip
    for llvm in (True, False):
        result, where = run([*python, "-c", PROGRAM, tmp_path / "cache"], tmp_path, **variables)
        assert result == f"42 {llvm} aarch64-linux-elf"
        assert where.startswith(str(tmp_path / "site"))
    command = [*python, "-m", "compcache", "--dir", tmp_path / "cache", "call", "twice", "4"]
    assert run(command, tmp_path, **variables) == ["8"]
