"""`compcache-runtime` in an environment that has nothing else: kernels run, and what is missing says what to install."""

from __future__ import annotations

import ast
import subprocess
import sys
import venv
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

LOOP = """\
define double @total(ptr %a, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = phi double [0.0, %entry], [%t, %loop]
  %p = getelementptr double, ptr %a, i64 %i
  %x = load double, ptr %p
  %t = fadd fast double %s, %x
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %out, label %loop
out:
  ret double %t
}
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an empty environment with the runtime's wheel in it."""
    base = tmp_path_factory.mktemp("runtime")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(base), str(PACKAGE_ROOT)], check=True)
    (wheel,) = base.glob("compcache-*.whl")
    subprocess.run([sys.executable, str(PACKAGE_ROOT / "tools/runtime_distribution.py"), str(wheel)], check=True)
    (runtime,) = base.glob("compcache_runtime-*.whl")
    venv.create(base / "venv", with_pip=False)
    site = next((base / "venv").glob("lib/python*/site-packages"))
    subprocess.run([*pip, "install", "--no-index", "--target", str(site), str(runtime)], check=True)
    assert not {"llvmlite", "click", "msgpack"} & {path.name for path in site.iterdir()}
    return base / "venv/bin/python"


def run(python: Path, script: str) -> Any:
    done = subprocess.run([str(python), "-W", "error", "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("target", ["native", "x86-64-v2"])
def test_a_kernel_runs(python: Path, tmp_path: Path, target: str) -> None:
    with Cache(tmp_path) as cache:
        cache.add_module(ModuleSource(LOOP, {"total": "f64(f64[:])"}, targets=[target]))
    for _ in range(2):
        script = (
            "from array import array\nfrom compcache import Cache\n"
            f"print(Cache({str(tmp_path)!r}).get_target('total')(array('d', [1, 2, 3])))"
        )
        assert run(python, script) == 6.0


def test_a_kernel_of_a_layer_runs(python: Path, tmp_path: Path) -> None:
    """Neither the segment of all layers nor an index can be made here, and neither is needed."""
    with Cache(tmp_path / "layer") as cache:
        cache.add_module(ModuleSource(LOOP, {"total": "f64(f64[:])"}))
    script = f"""
from array import array
from compcache import Cache, NotCachedError
cache = Cache({str(tmp_path / "own")!r}, layers=[{str(tmp_path / "layer")!r}])
print(cache.get_target("total")(array("d", [1, 2, 3])))
try:
    cache.get_target("other")
except NotCachedError:
    print(1.0)
"""
    assert run(python, script) == 1.0


def test_what_is_missing_says_what_to_install(python: Path, tmp_path: Path) -> None:
    script = f"""
from compcache import Cache, ModuleSource
cache = Cache({str(tmp_path)!r})
found = []
for act in (
    lambda: cache.add_module(ModuleSource("define i64 @f() {{\\n  ret i64 1\\n}}\\n")),
    lambda: cache.get_or_compile("f", lambda: "define i64 @f() {{\\n  ret i64 1\\n}}\\n"),
    lambda: cache.functions(),
):
    try:
        act()
    except ImportError as error:
        found.append((error.name, "pip install compcache" in str(error)))
print(found)
"""
    assert run(python, script) == [("llvmlite", True), ("llvmlite", True), ("msgpack", True)]
    done = subprocess.run([str(python), "-m", "compcache", "ls"], capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, "pip install compcache" in done.stderr) == (1, True)


def test_code_for_another_cpu_is_a_miss_that_says_so(python: Path, tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_module(ModuleSource(LOOP, {"total": "f64(f64[:])"}, cpu="x86-64", features="+avx512fp16,+amx-tile"))
    script = f"""
from compcache import Cache, NotCachedError
try:
    Cache({str(tmp_path)!r}).get_target("total")
except NotCachedError as error:
    print(repr(str(error)))
"""
    assert "does not have" in run(python, script)
