"""Run a few lines in a Python process that has nothing in memory but what those lines import."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

# What a hit must not import: modules that are slow, or that mean that LLVM was needed after all.
UNWANTED = ("llvmlite", "filelock", "numpy", "logging", "dataclasses")

_FIRST = """\
import ast, sys
globals().update(ast.literal_eval(sys.stdin.read()))
before = set(sys.modules)
from compcache import Cache
cache = Cache(cache_dir)
targets, kept = {}, []
def given(argument):
    if isinstance(argument, bytes):
        kept.append(bytearray(argument))
        return kept[-1]
    return argument
def call(name, *arguments):
    if name not in targets:
        targets[name] = cache.get_target(name)
    return targets[name](*map(given, arguments))
"""
_LAST = """
imported = [name for name in unwanted if name in sys.modules and name not in before]
print(repr((result, imported)))
"""


class FreshProcessError(Exception):
    """Raised when the fresh process fails: its exit status (negative: the signal) and what it printed."""


def run_fresh(cache_dir: Path, script: str, *, unwanted: tuple[str, ...] = UNWANTED, **inputs: Any) -> Any:
    """What `script` left in `result`, after a run with `cache` open and `inputs` as variables.

    `call(name, ...)` calls a target and keeps it: what C code has in static data lives as long as its module
    is loaded, and that is as long as anybody holds a target of it. `given(bytes)` is a writable copy, which lives on: that is what `call`
    passes, since LLVM does not know of each function that is declared with `const void *` that it does not write.

    Inputs and result are Python literals. Fails when the process fails or warns, and when it imported
    one of the `unwanted` modules.
    """
    if os.environ.get("COMPCACHE_LINKER") == "none":
        unwanted = ()  # objects are loaded with LLVM
    variables = repr(inputs | {"cache_dir": os.fspath(cache_dir), "unwanted": unwanted})
    program = _FIRST + textwrap.dedent(script) + _LAST
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", program],
        input=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FreshProcessError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    result, imported = ast.literal_eval(done.stdout.splitlines()[-1])
    assert imported == [], f"the hit path imported {imported}"
    return result
