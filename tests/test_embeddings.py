"""Where the package works: start methods of processes, programs that embed the interpreter, interpreters of one process.

Threads are in test_threads.py, forks in test_processes.py and test_linking.py, free-threaded builds and the refusal of
subinterpreters in test_runtime.py.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT, adder, caller

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path

    from compcache import TypedCallTarget

#: Starts and ends the interpreter three times; each one loads and calls, and leaves its target to the end.
PROGRAM = r"""
#include <Python.h>
#include <stdio.h>

int main(int argc, char **argv) {
    for (int round = 0; round < 3; round++) {
        Py_Initialize();
        int failed = PyRun_SimpleString(argv[1]);
        int ended = Py_FinalizeEx();
        if (argc != 2 || failed || ended) {
            fprintf(stderr, "round %d: %d %d\n", round, failed, ended);
            return 1;
        }
    }
    return 0;
}
"""
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from compcache import Cache
cache = Cache({directory!r})
outer, bump = cache.get_target("outer"), cache.get_target("bump")
print(outer(10), bump(), bump(), flush=True)
"""
COUNTER = """\
@count = internal global i64 0
define i64 @bump() {
  %old = load i64, ptr @count
  %new = add i64 %old, 1
  store i64 %new, ptr @count
  ret i64 %new
}
"""


@pytest.fixture
def filled(cache: Cache) -> Cache:
    cache.add_module(ModuleSource(adder("inner", 5)))
    cache.add_module(ModuleSource(caller("outer", "inner"), imports=["inner"]))
    cache.add_module(ModuleSource(COUNTER))
    return cache


def call_and_load(target: TypedCallTarget, directory: str) -> list[object]:
    """What a worker does with a target that it was given, and with one that it asks for."""
    bump = Cache(directory).get_target("bump")
    return [target(3), bump(), bump()]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_get_targets_and_load(filled: Cache, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method} here")
    bump = filled.get_target("bump")
    assert [bump(), bump()] == [1, 2]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(call_and_load, (filled.get_target("outer"), filled.path)) == [8, 1, 2]
    assert bump() == 3


@pytest.mark.slow
def test_a_program_that_starts_the_interpreter_several_times(filled: Cache, tmp_path: Path) -> None:
    """What an interpreter leaves mapped when it ends is not used by the next one: its counters begin anew."""
    compiler, library = shutil.which("gcc") or shutil.which("cc"), sysconfig.get_config_var("LDLIBRARY")
    if compiler is None or not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("needs a C compiler and a shared libpython")
    folder = sysconfig.get_config_var("LIBDIR")
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM)
    name = library.removeprefix("lib").partition(".so")[0]
    options = ["-I", sysconfig.get_path("include"), "-L", folder, f"-Wl,-rpath,{folder}", f"-l{name}"]
    options += shlex.split(sysconfig.get_config_var("SYSLIBS") or "")
    subprocess.run([compiler, str(source), "-o", str(program), *options], check=True)
    script = SCRIPT.format(root=str(PACKAGE_ROOT), directory=filled.path)
    environment = {**os.environ, "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"}

    def run(text: str) -> subprocess.CompletedProcess[str]:
        command = [str(program), text]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    if run("import _blake2; _blake2.blake2b(b'', digest_size=16)").returncode:
        pytest.skip("in this interpreter hashlib cannot be used after the first round (3.12.1)")
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "15 1 2\n" * 3, "")
