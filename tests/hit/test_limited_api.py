"""An extension that is built with the headers of a newer Python runs in an older one, as wheels say (``cp311-abi3``)."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import PACKAGE_ROOT

from compcache.hit.native_build import source_digest

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

MODULES = {
    "hit/_runtime": ["hit/native/*.c"], "numba/lazy/_dispatch": ["numba/lazy/native/*.c"],
    "numba/exports/_objects": ["numba/exports/native/*.c", "numba/lazy/native/calls.c"],
}  # fmt: skip
PROGRAM = """\
import json, sys
from compcache.numba import njit

@njit
def scaled(x, y):
    if x > 100:
        raise ValueError("too much", x)
    return x * y

answers = [scaled(2, 1.5), scaled(2, 3)]
try:
    scaled(101, 1)
except ValueError as error:
    answers.append(error.args)
print(json.dumps([answers, "numba.core" in sys.modules]))
"""


def headers_since_3_13() -> str:
    """Where the headers of such a Python are, which has the limited API; skips where there is none."""
    for minor in (13, 14):
        name = f"python3.{minor}"
        for python in (shutil.which(name), *sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/3.{minor}.*/bin/{name}")))):
            query = "import sysconfig as s; print(s.get_config_var('Py_GIL_DISABLED') or s.get_path('include'))"
            found = subprocess.run([python, "-c", query], capture_output=True, text=True, check=False).stdout.strip() if python else ""
            if found and Path(found, "Python.h").exists():
                return found
    pytest.skip("no Python of 3.13 or newer with its headers")


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the Python that runs the extension is to be older than 3.13")
def test_headers_of_3_13_make_an_extension_for_older_versions(tmp_path: Path) -> None:
    include = headers_since_3_13()
    package = tmp_path / "compcache"
    shutil.copytree(PACKAGE_ROOT / "compcache", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))

    def build(module: str) -> None:
        command = (
            f"cc -O1 -shared -fPIC -std=gnu11 -fvisibility=hidden -I{include} -DCOMPCACHE_LIMITED_API=0x030B0000 -o "
            f"{package / module}.abi3.so"
        )
        subprocess.run([*command.split(), f'-DCOMPCACHE_SOURCE_DIGEST="{source_digest()}"', '-DCOMPCACHE_SOURCES=""',
                        *(path for sources in MODULES[module] for path in glob.glob(f"{package / sources}"))], check=True)  # fmt: skip

    with ThreadPoolExecutor() as pool:
        list(pool.map(build, MODULES))
    (tmp_path / "program.py").write_text(PROGRAM)
    for imports_numba in (True, False):
        run = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True,
                             env=os.environ | {"PYTHONPATH": str(tmp_path), "COMPCACHE_DIR": str(tmp_path / "cache")})  # fmt: skip
        assert json.loads(run.stdout) == [[3.0, 6, ["too much", 101]], imports_numba]
