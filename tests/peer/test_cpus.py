"""Code of each CPU offered to every other one, under QEMU's user mode: it runs and is right, or it is a miss. Never a signal."""

from __future__ import annotations

import ast
import itertools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT

from compcache import Cache, ModuleSource
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from pathlib import Path

QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(600),
    pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="the CPUs are of x86-64"),
    pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not installed"),
]

#: QEMU's own CPUs; its emulation has no AVX-512, which it hides from Skylake-Server as hypervisors do.
CPUS = ("Nehalem", "Haswell", "Skylake-Server", "EPYC", "max")
NAMED = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4")

KERNEL = """\
define double @dot(ptr %a, i64 %na, ptr %b, i64 %nb) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = phi double [0.0, %entry], [%t, %loop]
  %pa = getelementptr double, ptr %a, i64 %i
  %pb = getelementptr double, ptr %b, i64 %i
  %x = load double, ptr %pa
  %y = load double, ptr %pb
  %big = fcmp ogt double %x, 50.0
  %z = select i1 %big, double %x, double %y
  %m = fmul fast double %z, %y
  %t = fadd fast double %s, %m
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %na
  br i1 %done, label %out, label %loop
out:
  ret double %t
}
"""
SIGNATURE = "f64(f64[:], f64[:])"
EXPECTED = float(sum(n * n for n in range(100)))

_ADD = f"""
from compcache import Cache, ModuleSource
with Cache(directory) as cache:
    cache.add_module(ModuleSource({KERNEL!r}, {{"dot": {SIGNATURE!r}}}, cpu=cpu))
    result = cache.info().features
"""
_CALL = """
import array
from compcache import Cache, NotCachedError
values = array.array("d", range(100))
try:
    with Cache(directory, retarget=retarget) as cache:
        target = cache.get_target("dot")
        result = target(values, values), target.module_id
except NotCachedError as error:
    result = str(error)
"""


def run_on(emulated: str | None, directory: Path, script: str, *, retarget: bool = False, **names: Any) -> Any:
    """What a script leaves in `result`, run on one of QEMU's CPUs, or on this machine."""
    emulator = [] if emulated is None else [str(QEMU), "-cpu", emulated]
    head = "".join(f"{name} = {value!r}\n" for name, value in {"directory": str(directory), "retarget": retarget, **names}.items())
    done = subprocess.run(
        [*emulator, sys.executable, "-c", head + script + "\nprint(repr(result))"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, f"on {emulated}: status {done.returncode}: {done.stderr[-2000:]}"
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory for each CPU with the code that was compiled on it for it, and for each named target."""
    root = tmp_path_factory.mktemp("made")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda cpu: run_on(cpu, root / cpu, _ADD, cpu=None), CPUS))
    for cpu in NAMED:
        with Cache(root / cpu) as cache:
            cache.add_module(ModuleSource(KERNEL, {"dot": SIGNATURE}, cpu=cpu))
    return {cpu: root / cpu for cpu in (*CPUS, *NAMED)}


@pytest.mark.parametrize("host", CPUS)
def test_what_was_compiled_on_a_host_runs_there(made: dict[str, Path], host: str) -> None:
    value, _ = run_on(host, made[host], _CALL)
    assert value == EXPECTED


@pytest.mark.parametrize(("maker", "host"), list(itertools.product((*CPUS, *NAMED), (*CPUS, None))))
def test_code_of_one_cpu_is_right_on_another_or_a_miss(
    made: dict[str, Path], maker: str, host: str | None, tmp_path: Path
) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(made[maker], directory)
    answer = run_on(host, directory, _CALL)
    if isinstance(answer, str):
        assert "does not have" in answer
    else:
        assert answer[0] == EXPECTED


def test_old_code_runs_on_newer_cpus_and_new_code_is_refused_by_older_ones(made: dict[str, Path]) -> None:
    assert run_on("Haswell", made["Nehalem"], _CALL)[0] == EXPECTED
    assert run_on("max", made["x86-64-v3"], _CALL)[0] == EXPECTED
    assert "avx" in run_on("Nehalem", made["Haswell"], _CALL)
    assert "avx512" in run_on("Skylake-Server", made["x86-64-v4"], _CALL)
    assert "avx" in run_on("Nehalem", made["x86-64-v3"], _CALL)


def test_hosts_share_a_directory_at_the_same_time(tmp_path: Path) -> None:
    """Each adds its own code and takes the best there is, while the others do; none is in another's way."""
    directory = tmp_path / "shared"
    hosts = [*CPUS, None]

    def work(cpu: str | None) -> Any:
        run_on(cpu, directory, _ADD, cpu=None)
        return [run_on(cpu, directory, _CALL) for _ in range(3)]

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(work, hosts))
    assert {value for per_host in answers for value, _ in per_host} == {EXPECTED}
    with Cache(directory) as cache:
        assert cache.check().findings == ()
        own = {r.cpu for r in cache.realizations("dot")}
        assert {"nehalem", "haswell", "skylake-avx512", "znver1"} <= own
    for host, cpu in (("Nehalem", "nehalem"), ("Haswell", "haswell"), ("EPYC", "znver1")):
        _, module_id = run_on(host, directory, _CALL)
        with Cache(directory) as cache:
            assert [r.cpu for r in cache.realizations("dot") if r.module_id == module_id] == [cpu]


@pytest.mark.parametrize(("maker", "host"), [("x86-64-v4", "Nehalem"), ("Haswell", "Nehalem"), ("znver4", "EPYC")])
def test_code_of_a_newer_cpu_is_compiled_again_for_an_older_one(
    made: dict[str, Path], maker: str, host: str, tmp_path: Path
) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(made[maker], directory)
    value, module_id = run_on(host, directory, _CALL, retarget=True)
    assert value == EXPECTED
    assert run_on(host, directory, _CALL) == (value, module_id)
