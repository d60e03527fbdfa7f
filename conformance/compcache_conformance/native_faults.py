"""The library of `native/faults.c`, built once for each run of the suite."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from compcache_conformance.results import Lacking

__all__ = ["library"]

_SOURCE = Path(__file__).parent / "native" / "faults.c"


@functools.cache
def library() -> Path:
    """The built library.

    Raises:
        Lacking: this machine has no C compiler.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Lacking("needs a C compiler for what stands between the program and its files")
    folder = tempfile.mkdtemp(prefix="conformance-faults-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", str(_SOURCE), "-o", str(path)], check=True)
    return path
