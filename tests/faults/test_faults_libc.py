"""A storm beneath libc: reads, writes, renames, locks and memory files fail, fall short or take long, in whole programs.

Whatever happens there, answers are right or errors are documented, the program lives, and what was stored stays.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import PACKAGE_ROOT
from processes import Crowd

SOURCE = Path(__file__).with_name("libc_faults.c")
STORM = """\
import ctypes, os, random, warnings
from compcache import Cache, CompcacheError, ModuleSource
from helpers import adder, caller
import compcache.linker, compcache.publish.verify, compcache.publish.quarantine, compcache.maintain.check
warnings.simplefilter("ignore")
storm = ctypes.CDLL(None).storm
chance = random.Random(number + {seed})
undocumented, wrong, answers, seen = [], 0, 0, set()
sources = {{}}
for n in range(12):
    sources[f"f{{n}}"] = ModuleSource(adder(f"f{{n}}", n), optimize=0)
    sources[f"g{{n}}"] = ModuleSource(caller(f"g{{n}}", f"f{{n}}", plus=100), optimize=0, imports=[f"f{{n}}"])
barrier()
deadline = time.monotonic() + {seconds}
turn = 0
while time.monotonic() < deadline:
    turn += 1
    name = chance.choice(list(sources))
    expected = int(name[1:]) + (105 if name[0] == "g" else 5)
    with Cache(directory, lock_timeout=2) as cache:
        storm(1000 * number + turn, {one_in})
        try:
            if name[0] == "f":
                wrong += cache.get_or_compile(name, lambda: sources[name])(5) != expected
            else:
                cache.add_module(sources[name])
                wrong += cache.get_target(name)(5) != expected
            answers += 1
            if turn % 7 == 0:
                cache.stats(), cache.functions(), cache.realizations(name), cache.explain(name)
        except CompcacheError as error:
            if name[0] == "f" and "stats" not in str(error) and isinstance(error, KeyError):
                undocumented.append(repr(error))
        except Exception as error:
            import traceback
            undocumented.append(traceback.format_exc()[-600:])
        finally:
            faults = storm(0, 0)
    with Cache(directory, readonly=True) as cache:
        seen.update(filter(cache.has, sources))
time.sleep(1)
with Cache(directory) as cache:
    lost = sorted(name for name in seen if not cache.has(name))
    wrong += sum(cache.get_target(name)(5) != int(name[1:]) + (105 if name[0] == "g" else 5) for name in seen if name[0] == "f")
quarantine = directory + "/quarantine"
quarantined = sorted(os.listdir(quarantine)) if os.path.isdir(quarantine) else []
result = undocumented[:2], wrong, lost, answers, faults, quarantined
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library to preload."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("shim") / "libc_faults.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return str(library)


def storm(directory: Path, shim: str, *, processes: int, seconds: float, one_in: int, seed: int) -> tuple[int, int]:
    """How many answers were right, and how many calls of libc were disturbed."""
    script = STORM.format(seconds=seconds, one_in=one_in, seed=seed)
    environment = {"LD_PRELOAD": shim, "STORM_DIRECTORY": str(directory), "PYTHONPATH": f"{PACKAGE_ROOT}:{PACKAGE_ROOT / 'tests'}"}
    with Crowd(directory, [script] * processes, **environment) as crowd:
        crowd.release()
        results = crowd.results()
    for undocumented, wrong, lost, _, _, quarantined in results:
        assert (undocumented, wrong, lost, quarantined) == ([], 0, [], [])
    return sum(result[3] for result in results), sum(result[4] for result in results)


@pytest.mark.slow
def test_a_storm_beneath_libc(directory: Path, shim: str) -> None:
    answers, faults = storm(directory, shim, processes=2, seconds=2, one_in=20, seed=1)
    assert answers
    assert faults


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("one_in", [4, 20, 100])
def test_storms_beneath_libc(directory: Path, shim: str, one_in: int) -> None:
    answers, faults = storm(directory, shim, processes=3, seconds=40, one_in=one_in, seed=100)
    print(f"{faults} disturbed calls, {answers} right answers")
    assert faults > 100  # as many as the machine has time for
