"""The whole package on AArch64, under QEMU's user mode: compile, link, publish, load, call; CPUs among one another.

`tools/aarch64_python.sh` gets Python for AArch64 from the registries, once (`COMPCACHE_TEST_AARCH64` names what it made before).
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import PACKAGE_ROOT

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("apt-get") is None, reason="needs Debian's packages"),
]

#: QEMU's CPUs: Armv8.0, 8.2 with LSE, 8.2 with SVE, and all that the emulator has.
CPUS = ("cortex-a57", "neoverse-n1", "a64fx", "max")

CODE = """\
declare double @exp(double)
@scale = external global double
define double @f(ptr %a, i64 %n) {
entry:
  %scale = load double, ptr @scale
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = phi double [0.0, %entry], [%t, %loop]
  %p = getelementptr double, ptr %a, i64 %i
  %x = load double, ptr %p
  %m = fmul fast double %x, %scale
  %t = fadd fast double %s, %m
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %out, label %loop
out:
  %e = call double @exp(double 0.0)
  %r = fadd double %t, %e
  ret double %r
}
"""
EXPECTED = 2.0 * sum(range(100)) + 1.0
ADD = f"""
from compcache import Cache, ModuleSource
with Cache(directory) as cache:
    cache.add_module(ModuleSource({CODE!r}, {{"f": "f64(f64[:])"}}, {{"scale": 2.0}}, targets=targets))
    result = sorted(r.cpu for r in cache.realizations("f")), cache.info().features
"""
CALL = """
import array, sys
from compcache import Cache, NotCachedError
try:
    with Cache(directory, retarget=False) as cache:
        target = cache.get_target("f")
        result = target(array.array("d", range(100))), target.module_id, "llvmlite" in sys.modules
except NotCachedError as error:
    result = str(error)
"""


@pytest.fixture(scope="module")
def home(peer_dir: Path) -> Path:
    """A directory with Python and the package for AArch64, QEMU where the system has none, and a linker."""
    chosen = os.environ.get("COMPCACHE_TEST_AARCH64")
    if chosen:
        return Path(chosen)
    place = peer_dir / "aarch64"
    tool = PACKAGE_ROOT / "tools" / "aarch64_python.sh"
    made = subprocess.run(
        ["sh", str(tool), str(place)], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    if made.returncode:
        reason = f"{tool.name} cannot get what it needs: {made.stderr[-1000:]}"
        if os.environ.get("COMPCACHE_PEER_REQUIRED", "0") != "0":
            pytest.fail(reason)
        pytest.skip(reason)
    return place


Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run_on(home: Path) -> Run:
    """`run_on(cpu, directory, script, targets)`: what the script leaves in `result` on one of QEMU's CPUs."""

    def run(emulated: str, directory: Path, script: str, targets: list[str] | None = None) -> Any:
        return _run_on(home, emulated, directory, script, targets)

    return run


def _run_on(home: Path, emulated: str, directory: Path, script: str, targets: list[str] | None) -> Any:
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    qemu = shutil.which("qemu-aarch64-static", path=path) or shutil.which("qemu-aarch64", path=path)
    head = f"directory, targets = {str(directory)!r}, {targets!r}\n"
    done = subprocess.run(
        [str(qemu), "-cpu", emulated, "-L", str(home / "root"), str(home / "root/usr/bin/python3.11"), "-P",
         "-c", head + script + "\nprint(repr(result))"],
        capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "PYTHONPATH": str(home / "site"),
             "COMPCACHE_LINKER": str(home / "bin/ld.lld")},
    )  # fmt: skip
    assert done.returncode == 0, f"on {emulated}: status {done.returncode}: {done.stderr[-2000:]}"
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def made(run_on: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory for each CPU, with what was compiled on it for it."""
    root = tmp_path_factory.mktemp("aarch64")
    for cpu in CPUS:
        run_on(cpu, root / cpu, ADD, ["native"])
    return {cpu: root / cpu for cpu in CPUS}


@pytest.mark.parametrize("cpu", CPUS)
def test_what_was_compiled_on_a_host_is_a_hit_there(run_on: Run, made: dict[str, Path], cpu: str) -> None:
    value, _, llvm = run_on(cpu, made[cpu], CALL)
    assert (value, llvm) == (EXPECTED, False)


def test_the_kernel_tells_what_the_cpu_has(run_on: Run, tmp_path: Path) -> None:
    features = {cpu: set(run_on(cpu, tmp_path / cpu, ADD, ["native"])[1].split(",")) for cpu in CPUS[:3]}
    assert "+neon" in features["cortex-a57"]
    assert "+lse" not in features["cortex-a57"]
    assert {"+lse", "+dotprod"} <= features["neoverse-n1"]
    assert "+sve" in features["a64fx"]
    assert "+sve" not in features["neoverse-n1"]


def test_code_of_a_newer_cpu_is_a_miss_on_an_older_one(run_on: Run, made: dict[str, Path]) -> None:
    assert "+sve" not in run_on("neoverse-n1", made["cortex-a57"], CALL)
    assert run_on("neoverse-n1", made["cortex-a57"], CALL)[0] == EXPECTED
    assert "sve" in run_on("neoverse-n1", made["a64fx"], CALL)
    assert "lse" in run_on("cortex-a57", made["neoverse-n1"], CALL)


def test_targets_are_versions_of_the_architecture_and_cpus(run_on: Run, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    run_on("cortex-a57", directory, ADD, ["armv8-a", "armv8.1-a", "a64fx"])
    modules = {cpu: run_on(cpu, directory, CALL)[1] for cpu in CPUS}
    assert len({modules["cortex-a57"], modules["neoverse-n1"], modules["a64fx"]}) == 3


def test_entry_points_of_random_signatures(run_on: Run, tmp_path: Path) -> None:
    """Put together of patterns they do what LLVM has made of their assembly: see `tests/build/test_entry_code.py`."""
    script = f"""
import sys
sys.path.append({str(PACKAGE_ROOT / "tests")!r})
from entry_programs import differences
result = differences(directory, 36, 20, 8)
"""
    good, unequal = run_on("max", tmp_path, script)
    assert good > 50
    assert not unequal
