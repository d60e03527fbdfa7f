"""The native readers on made-up bytes, with AddressSanitizer and UndefinedBehaviorSanitizer: what they point to is in their input."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import PACKAGE_ROOT

#: Half a second. `COMPCACHE_FUZZ_EXAMPLES=10000000` goes on for longer.
INPUTS = int(os.environ.get("COMPCACHE_FUZZ_EXAMPLES", "400000"))
NATIVE = PACKAGE_ROOT / "compcache" / "hit" / "native"


@pytest.mark.slow
def test_readers_point_to_nothing_outside_of_their_input(tmp_path: Path) -> None:
    sources = [Path(__file__).with_name("fuzz_formats.c"), *(NATIVE / name for name in ("formats.c", "blake2b.c", "deflate.c"))]
    flags = ["-O1", "-g", "-DALONE", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    program = tmp_path / "fuzz_formats"
    for compiler in filter(None, map(shutil.which, ("gcc", "clang"))):
        if subprocess.run([compiler, *flags, *sources, "-o", program], capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip("no compiler with sanitizers is installed")
    done = subprocess.run([program, str(INPUTS), "7"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
