"""Directories, bundles and stores that released versions have written are read: `tests/golden`, and what this version writes now.

The formats are frozen: an archive that is not read any more is a defect of this version, never of the archive.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, run_fresh

import compcache
from compcache import Cache, CacheWarning, NotCachedError, PrunePolicy, frontend

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the archives have code for x86-64")
pytest.importorskip("nacl", reason="some of what is read is signed")

ARCHIVES = sorted((PACKAGE_ROOT / "tests" / "golden").glob("*.tar.xz"))
NOW = "now"
CALL = """
import json, os, sys, warnings
warnings.simplefilter("error")
sys.path.insert(0, os.path.join({root!r}, "tools"))
from golden import arguments_of
from compcache import Cache
cache = Cache(directory, **{options!r})
calls = json.loads({calls!r})
result = [{{name: cache.get_target(name)(*arguments_of(arguments)) for name, (arguments, _) in calls.items()}}, "llvmlite" in sys.modules]
"""


@pytest.fixture(scope="module", params=[*ARCHIVES, NOW], ids=lambda archive: getattr(archive, "name", archive))
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Where the content of an archive is, and what is expected of it."""
    directory = tmp_path_factory.mktemp("golden")
    if request.param == NOW:
        script = "import sys; sys.path.insert(0, 'tools'); import golden; golden.write_all(golden.Path(sys.argv[1]), with_numba=False)"
        subprocess.run([sys.executable, "-c", script, directory], cwd=PACKAGE_ROOT, check=True)
    else:
        with tarfile.open(request.param) as tar:
            tar.extractall(directory, filter="data")
    return directory, json.loads((directory / "expected.json").read_text(encoding="utf-8"))


def read(directory: Path, part: dict[str, Any], **options: Any) -> None:
    """Every function is called by a process that loads no LLVM and warns of nothing."""
    script = CALL.format(root=str(PACKAGE_ROOT), options=options, calls=json.dumps(part["calls"]))
    assert run_fresh(directory, script) == [{name: value for name, (_, value) in part["calls"].items()}, False]


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", ["plain", "grouped"])
def test_a_cache_is_looked_up_loaded_called_and_checked(golden: tuple[Path, dict[str, Any]], part: str) -> None:
    directory, expected = golden[0] / part, golden[1][part]
    read(directory, expected)
    with Cache(directory) as cache:
        assert not [str(finding) for finding in cache.check().findings]
        assert set(expected["calls"]) <= {function.func_name for function in cache.functions()}
        assert cache.stats().modules > 0
        assert all(cache.explain(name).hit and cache.ir(name) for name in expected["calls"])
        assert {group.name: len(group.members) for group in frontend.list_groups(cache)} == expected.get("groups", {})
        assert list(cache.pinned()) == expected.get("pinned", [])
        if "entry" in expected:
            name, kind, text = expected["entry"]
            assert frontend.get_entry(cache, name, kind) == text.encode()


@pytest.mark.slow
def test_a_cache_is_added_to_and_pruned(golden: tuple[Path, dict[str, Any]]) -> None:
    directory, expected = golden[0] / "plain", golden[1]["plain"]
    with Cache(directory) as cache:
        cache.add_module(compcache.ModuleSource("define i64 @new() {\n  ret i64 1\n}\n"))
        assert cache.get_target("new")() == 1
        report = cache.prune(PrunePolicy(max_modules=1))
        assert len(report.removed) >= 1
        assert cache.has(expected["pinned"][0])
        assert cache.check()


@pytest.mark.slow
def test_signed_code_is_run_by_those_who_trust_the_key(golden: tuple[Path, dict[str, Any]]) -> None:
    directory, expected = golden[0] / "signed", golden[1]["signed"]
    read(directory, expected, trusted_keys=expected["key"])
    with Cache(directory, trusted_keys="golden:" + 43 * "A" + "=") as cache, pytest.warns(CacheWarning), pytest.raises(NotCachedError):
        cache.get_target("top")


def test_a_bundle_is_imported_and_a_store_read(golden: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    expected = golden[1]["signed"]
    with Cache(tmp_path / "bundle", trusted_keys=expected["key"]) as cache:
        assert "top" in cache.import_bundle(golden[0] / "signed.bundle")
        assert cache.get_target("top")(2) == 106
    with Cache(tmp_path / "store", trusted_keys=expected["key"], remote=(golden[0] / "store").as_uri()) as cache:
        assert "top" in cache.prefetch(["top"])
        assert cache.get_target("top")(2) == 106


@pytest.mark.slow
def test_numbas_functions_are_listed_and_hits_where_numba_is_the_same(golden: tuple[Path, dict[str, Any]]) -> None:
    directory, expected = golden[0] / "numba", golden[1]["numba"]
    if expected is None:
        pytest.skip("written without Numba")
    with Cache(directory / "cache") as cache:
        assert "__main__.kernel(int64)" in [compcache.identity.label_of(function.func_name) for function in cache.functions()]
        assert cache.check()
        before = cache.stats()
    numba = pytest.importorskip("numba")
    if (numba.__version__, platform.python_version()) != (expected["numba"], expected["python"]):
        pytest.skip("another Numba or Python")
    variables = {**os.environ, "COMPCACHE_DIR": str(directory / "cache"), "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-m", "compcache.numba", "run", "program.py"]
    done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == expected["prints"]
    with Cache(directory / "cache") as cache:
        assert (cache.stats().misses, cache.stats().hits > before.hits) == (before.misses, True)


def test_this_version_has_an_archive() -> None:
    assert f"{compcache.__version__}.tar.xz" in [archive.name for archive in ARCHIVES], "make golden"
