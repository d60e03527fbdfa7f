"""llvmlite that is not there, or is and cannot be loaded: hits are what they are, and what needs LLVM says why it is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT, adder, constant

from compcache import Cache, Identity, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path

BROKEN = "raise OSError('Could not find/load shared object file libllvmlite.so')\n"
#: How LLVM is missing: what stands at the head of a program, and what the error says.
WAYS = {
    "absent": ("import sys\nsys.modules['llvmlite'] = None\n", "which is not installed: pip install compcache"),
    "half blocked": ("import sys\nsys.modules['llvmlite.binding'] = None\n", "which is not installed: pip install compcache"),
    "broken": ("import sys\nsys.path.insert(0, FOLDER)\n", "llvmlite cannot be loaded (OSError: Could not find/load shared object file"),
    "broken otherwise": ("import sys\nsys.path.insert(0, FOLDER)\n", "llvmlite cannot be loaded (RuntimeError: no GLIBCXX): reinstall"),
}


def run(way: str, directory: Path, folder: Path, script: str) -> str:
    head, _ = WAYS[way]
    package = folder / "llvmlite" / "binding"
    package.mkdir(parents=True, exist_ok=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text(BROKEN if way == "broken" else "raise RuntimeError('no GLIBCXX')\n")
    code = f"FOLDER = {str(folder)!r}\n{head}directory = {str(directory)!r}\nfrom compcache import Cache\n{script}"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept", [True, False], ids=["host-file", "no-host-file"])
def test_code_of_this_host_and_of_others_is_a_hit(cache: Cache, directory: Path, tmp_path: Path, way: str, *, kept: bool) -> None:
    cache.add_module(ModuleSource(adder("native", 1)))
    cache.add_module(ModuleSource(constant("generic", 3), cpu="x86-64" if os.uname().machine == "x86_64" else "generic"))
    if not kept:
        shutil.rmtree(directory / "hosts-v4")
    script = "with Cache(directory) as c:\n    print(c.get_target('native')(41), c.get_target('generic')())"
    assert run(way, directory, tmp_path / "broken", script) == "42 3\n"


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_needs_llvm_says_why_it_is_not_there(cache: Cache, directory: Path, tmp_path: Path, way: str) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    script = f"""
from compcache import CompcacheError, ModuleSource
with Cache(directory) as c:
    for ask in (
        lambda: c.compile({adder("g", 1)!r}), lambda: c.add_module(ModuleSource({adder("g", 1)!r})),
        lambda: c.get_or_compile("g", lambda: {adder("g", 1)!r}), lambda: c.asm("f"),
    ):
        try:
            ask()
        except CompcacheError as error:
            print(isinstance(error, ImportError), error)
"""
    lines = run(way, directory, tmp_path / "broken", script).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("True compiling needs llvmlite, ") and WAYS[way][1] in line for line in lines), lines


@pytest.mark.slow
@pytest.mark.parametrize("way", ["absent", "broken"])
def test_what_the_remote_store_has_needs_no_llvm(directory: Path, tmp_path: Path, way: str) -> None:
    store = tmp_path / "store"
    store.mkdir()
    name = Identity("f", code=1)
    with Cache(directory, remote=store.as_uri(), remote_mode="write") as cache:
        cache.get_or_compile(name, lambda: adder("f", 1))
        cache.push([name])
        assert cache.flush_uploads(60)
    script = f"""
from compcache import Identity, frontend
import compcache.miss.compile_once as place
place.HEDGE_SECONDS = 60.0  # the machine may be busy
with Cache(directory + "-other", remote={store.as_uri()!r}) as c:
    print(c.get_or_compile(Identity("f", code=1), lambda: None)(41), frontend.find_stored(c, [Identity("f", code=1)]) is not None)
"""
    assert run(way, directory, tmp_path / "broken", script) == "42 True\n"
