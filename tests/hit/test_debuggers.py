"""gdb follows `dlopen` in a process that it runs, and opens the names that it is given."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")

CODE = """
define i64 @outer_function(i64 %x) noinline uwtable {
  %y = call i64 @inner_function(i64 %x)
  %z = add i64 %y, 1
  ret i64 %z
}
define internal i64 @inner_function(i64 %x) noinline uwtable {
  %p = inttoptr i64 %x to ptr
  %v = load volatile i64, ptr %p
  ret i64 %v
}
"""
PROGRAM = """
import gc, os, sys
sys.path.insert(0, {root!r})
from compcache import Cache
cache = Cache({directory!r})
target = cache.get_target("outer_function")
pipes = [os.pipe() for _ in range(8)]  # one has the number of the descriptor by now, and nothing to read
del target
gc.collect()
assert ".ccm" not in open("/proc/self/maps").read()
target = cache.get_target("outer_function")
print("loaded", flush=True)
target(8)
"""


@pytest.mark.slow
def test_a_program_runs_under_gdb_and_its_frames_have_names(tmp_path: Path) -> None:
    """Loads, an unload, and a load: a name that gdb reads and nothing can be read from would have it wait for ever."""
    directory = tmp_path / "cache"
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(CODE))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(PACKAGE_ROOT), directory=str(directory)))
    commands = [argument for text in ("run", "bt") for argument in ("-ex", text)]
    command = ["gdb", "-q", "-nx", "-batch", *commands, "--args", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False)
    if "ptrace" in done.stderr:
        pytest.skip(f"gdb may not trace here: {done.stderr.strip().splitlines()[-1]}")
    (module,) = (directory / "modules-v1").rglob("*.ccm")
    assert "loaded" in done.stdout
    assert "BFD: reopening" not in done.stderr
    frames = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert "inner_function" in frames[0], done.stdout + done.stderr
    assert "outer_function" in frames[1]
    assert "compcache.entry." in frames[2]
    assert all(str(module) in frame for frame in frames[:3])
