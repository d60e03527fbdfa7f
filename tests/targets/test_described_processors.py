"""The tests that depend on the processor, on other processors: those described in `processors.json` that this one contains.

Whole runs of pytest in an environment in which the processor describes itself as another one (`pretended_processor`): to the package, to
LLVM and to every process that a test starts. Nothing in the package knows of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from pretended_processor import environment, is_possible
from test_processor_words import PROCESSORS, description_of

from compcache.formats.host import Processor, read_processor
from compcache.hit.target import load_runtime

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs x86-64, gcc, nm and iced-x86")

#: What is run: what is stored, chosen, refused and translated by the processor, with and without LLVM, by other users, in other processes.
SHORT = (
    "layers/test_layers.py", "signing/test_shared_directories.py", "hit/test_without_llvm.py", "targets/test_used_code.py",
    "miss/test_retarget.py",
)  # fmt: skip
#: Starts a process with an environment of its own, which is not in the pretence.
OUTSIDE = "not makes_its_own_in_the_background"
LONG = (
    *SHORT, "targets/test_choice_of_cpu.py", "targets/test_required_features.py", "hit/test_loading.py", "hit/test_realizations.py",
    "bundles/test_bundles.py", "publish/test_races.py",
)  # fmt: skip


def contained() -> list[str]:
    """The described processors whose features this one has."""
    try:
        here = read_processor(load_runtime(), lambda _: None, str)
    except ImportError:
        return []
    found = []
    for name, row in PROCESSORS.items():
        words = {word: mask for word, mask in row["words"].items() if word not in ("1.0.a", "24.0.b")}
        version = int(row["words"].get("24.0.b", "0"), 16) & 0xFF
        needs = ",".join([f"{word}:{_of_programs(word, int(mask, 16)):x}" for word, mask in words.items()] + [f"24.0.b>{version:x}"])
        if here.meets(f";{needs}"):
            found.append(name)
    return found


def _of_programs(word: str, mask: int) -> int:
    """The bits of a word that tell of instructions in the table of features; others are the kernel's."""
    from compcache.targets.processor_words import feature_words

    known = 0
    for text in feature_words("x86_64").values():
        for item in text.split(","):
            name, by, bits = item.partition(":")
            known |= int(bits, 16) if by and name == word else 0
    return mask & known


def run_on(name: str, files: tuple[str, ...], folder: Path) -> None:
    variables = {**os.environ, **environment(folder, description_of(PROCESSORS[name]["words"]))}
    variables.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", OUTSIDE, *files]
    done = subprocess.run(command, cwd=PACKAGE_ROOT / "tests", env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


@pytest.mark.slow
def test_the_pretence_reaches_the_package_and_llvm(tmp_path: Path) -> None:
    code = (
        "import json, llvmlite.binding as llvm\nfrom compcache.hit.target import load_runtime\n"
        "from compcache.formats.host import read_processor\n"
        "p = read_processor(load_runtime(), lambda _: None, str)\n"
        "print(json.dumps([p.words['1.0.a'], llvm.get_host_cpu_features()['avx'], llvm.get_host_cpu_features()['sse4.2']]))"
    )
    variables = {**os.environ, **environment(tmp_path, description_of(PROCESSORS["Nehalem"]["words"]))}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [0x106A2, False, True]


def test_a_processor_contains_itself() -> None:
    assert isinstance(Processor({}, "").meets(""), bool)
    assert "Nehalem" in contained() or not contained()


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_on_a_processor_without_avx(tmp_path: Path) -> None:
    """The short one of the next, in each run of CI."""
    if "Nehalem" not in contained():
        pytest.skip("this processor is older")
    run_on("Nehalem", SHORT[:4], tmp_path)


@pytest.mark.stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", contained())
def test_on_every_processor_that_this_one_contains(name: str, tmp_path: Path) -> None:
    run_on(name, LONG, tmp_path)
