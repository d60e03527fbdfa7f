"""Bundles as layers: unpacked into the cache directory, once for each state of the file, or for the process alone."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder, caller, constant, run_fresh

from compcache import Cache, CacheWarning, CompcacheError, ModuleSource, PrunePolicy, UntrustedDirectoryError

DAY = 86400
AS_ANOTHER = """
import os, sys
sys.path.insert(0, {root!r})
import compcache.bundles.unpacked_layer, compcache.layers.unpacked_bundle, compcache.publish.verify, compcache.publish.host_file, msgpack
from compcache import Cache
Cache({warm!r}, readonly=True, layers=[{warm!r} + ".ccb"]).get_target("top")  # imports what others may not reach on this machine
os.setgid(65534); os.setuid(65534)
with Cache({place!r}, layers=[{bundle!r}]) as cache:
    print(cache.get_target("top")(1))
print(sorted(os.listdir({base!r})))
"""


@pytest.fixture
def bundle(cache: Cache, tmp_path: Path) -> Path:
    """A bundle of a function and one that it calls."""
    cache.add_module(ModuleSource(adder("leaf", 1)))
    cache.add_module(ModuleSource(caller("top", "leaf", plus=10)))
    path = tmp_path / "app.ccb"
    cache.export(["top"], path)
    return path


def unpacked(place: Path) -> list[Path]:
    return sorted((place / "bundles-v1").glob("*")) if (place / "bundles-v1").exists() else []


def test_it_is_unpacked_once_into_the_directory(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    inodes = set()
    for _ in range(2):
        with Cache(own, layers=[bundle]) as cache:
            assert cache.get_target("top")(1) == 12
            assert len(cache.modules()) == 2
        (place,) = unpacked(own)
        inodes.add(place.stat().st_ino)
        assert os.listdir(own / "tmp") == []
    assert len(inodes) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.ccb", "cache", "own"]
    with Cache(own) as cache:
        assert not cache.has("top")
        assert cache.check().findings == ()


@pytest.mark.slow
def test_a_later_process_imports_nothing_that_unpacks(bundle: Path, tmp_path: Path) -> None:
    script = (
        f"import sys\nfrom compcache import Cache\nprint(Cache(directory, layers=[{str(bundle)!r}]).get_target('top')(1))\n"
        "result = [name for name in sys.modules if name.startswith(('compcache.b', 'compcache.p', 'zipfile', 'msgpack'))]"
    )
    for _ in range(3):
        time.sleep(0.15)  # what changed just now is checked again
        found = run_fresh(tmp_path / "own", script)
    assert found == []


def test_listings_pickles_and_other_processes_know_the_bundle_by_its_path(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    with Cache(own, layers=[bundle]) as cache:
        assert cache.layers == (str(bundle),)
        assert {summary.directories for summary in cache.functions()} == {(str(bundle),)}
        text = pickle.dumps(cache.get_target("top")).hex()
    shutil.rmtree(own / "bundles-v1")
    script = f"import pickle; print(pickle.loads(bytes.fromhex({text!r}))(2))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=PACKAGE_ROOT)
    assert done.stdout == "13\n", done.stderr


def test_a_replaced_bundle_is_unpacked_again(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    Cache(own, layers=[bundle]).close()
    (former,) = unpacked(own)
    with Cache(tmp_path / "new") as cache:
        cache.add_module(ModuleSource(constant("another", 3)))
        cache.export(["another"], bundle)
    with Cache(own, layers=[bundle]) as cache:
        assert cache.get_target("another")() == 3
        assert not cache.has("top")
    assert len(unpacked(own)) == 2  # a process may use the former one
    os.utime(former, (time.time() - 3 * DAY,) * 2)
    with Cache(own) as cache:
        assert any(file.path == str(former) for file in cache.prune(PrunePolicy(), dry_run=True).leftovers)
        cache.prune(PrunePolicy())
    assert former not in unpacked(own)
    assert len(unpacked(own)) == 1


def test_what_nobody_uses_is_pruned_and_what_is_used_stays(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    Cache(own, layers=[bundle]).close()
    (place,) = unpacked(own)
    long_ago = time.time() - 40 * DAY
    os.utime(place, (long_ago, long_ago))
    Cache(own, layers=[bundle]).close()  # which counts as a use
    with Cache(own) as cache:
        cache.prune(PrunePolicy())
        assert unpacked(own) == [place]
        os.utime(place, (long_ago, long_ago))
        cache.prune(PrunePolicy())
        assert unpacked(own) == []
    Cache(own, layers=[bundle]).close()
    with Cache(own) as cache:
        cache.clear()
    assert unpacked(own) == []


def test_what_an_interrupted_process_left_is_pruned(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    Cache(own, layers=[bundle]).close()
    (place,) = unpacked(own)
    left = own / "tmp" / "left"
    shutil.copytree(place, left)
    for path in [left, *left.rglob("*")]:
        os.utime(path, (1, 1))
    with Cache(own) as cache:
        cache.prune(PrunePolicy(grace=1e9))
        assert left.exists()
        time.sleep(0.01)
        cache.prune(PrunePolicy(grace=0))
    assert not left.exists()


def test_a_read_only_cache_unpacks_it_for_the_process(bundle: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = f"""
import os
from compcache import Cache
for _ in range(2):
    with Cache({str(tmp_path / "own")!r}, readonly=True, layers=[{str(bundle)!r}]) as cache:
        print(cache.get_target("top")(1), len(os.listdir({str(temporary)!r})))
if os.fork() == 0:
    raise SystemExit  # a child that ends leaves it to its parent
os.wait()
print(Cache({str(tmp_path / "own")!r}, readonly=True, layers=[{str(bundle)!r}]).get_target("leaf")(1))
"""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=PACKAGE_ROOT, env=environment)
    assert done.stdout == "12 1\n12 1\n2\n", done.stderr
    assert os.listdir(temporary) == []
    assert not (tmp_path / "own").exists()


def test_one_that_is_exchanged_while_it_is_opened_is_refused(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could have written it was asked of the file that stood there before."""
    shutil.copy(bundle, tmp_path / "other.ccb")
    made = tempfile.mkdtemp

    def exchange(prefix: str) -> str:
        (tmp_path / "other.ccb").replace(bundle)
        return made(prefix=prefix, dir=tmp_path)

    monkeypatch.setattr(tempfile, "mkdtemp", exchange)
    with pytest.warns(CacheWarning, match="is not used: .* was changed while it was opened"):
        assert Cache(tmp_path / "own", readonly=True, layers=[bundle]).layers == ()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser becomes another user")
def test_it_serves_a_user_who_cannot_write_to_the_directory(bundle: Path) -> None:
    with tempfile.TemporaryDirectory() as base:
        place, path = Path(base, "cache"), Path(base, "app.ccb")
        Cache(place).add_module(ModuleSource(constant("unrelated", 1)))
        shutil.copy(bundle, path)
        shutil.copy(bundle, f"{base}/warm.ccb")
        for each in [Path(base), *Path(base).rglob("*")]:
            os.chmod(each, 0o755 if each.is_dir() else 0o644)
        before = sorted(os.listdir(base))
        script = AS_ANOTHER.format(root=str(PACKAGE_ROOT), warm=base + "/warm", bundle=str(path), place=str(place), base=base)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout.splitlines() == ["12", repr(before)], done.stderr
        assert unpacked(place) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
@pytest.mark.parametrize("how", ["mode", "owner", "link"])
def test_one_that_others_could_have_written_is_refused(bundle: Path, tmp_path: Path, how: str) -> None:
    own, path = tmp_path / "own", bundle
    if how == "mode":
        os.chmod(bundle, 0o666)
    elif how == "owner":
        os.chown(bundle, 4711, -1)
    else:
        path = tmp_path / "link.ccb"
        path.symlink_to(bundle)
        os.lchown(path, 4711, -1)
    with pytest.raises(UntrustedDirectoryError, match=r"the bundle .* (belongs to user 4711|can be written by other users)"):
        Cache(own, layers=[path])
    assert unpacked(own) == []
    with Cache(own, layers=[path], trust=True) as cache:
        assert cache.get_target("top")(1) == 12


@pytest.mark.slow
def test_what_is_no_bundle_is_told_and_the_rest_works(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    layer, damaged = tmp_path / "layer", tmp_path / "damaged.ccb"
    with Cache(layer) as cache:
        cache.add_module(ModuleSource(constant("below", 5)))
    damaged.write_bytes(bundle.read_bytes()[:-30])
    with pytest.warns(CacheWarning, match=f"the layer {damaged} is not used: .* is not an intact compcache bundle"):
        opened = Cache(own, layers=[damaged, layer])
    with opened as cache:
        assert cache.layers == (str(layer),)
        assert (cache.get_target("below")(), "top" in cache) == (5, False)
    for command, status in (("ls", 0), ("doctor", 1), ("check", 0), ("info", 0)):
        told = compcache("--dir", own, command, COMPCACHE_LAYERS=f"{damaged}:{layer}")
        is_told = f"the layer {damaged} is not used" in " ".join((told.out + told.err).split())
        assert (told.status, is_told) == (status, True), (command, told)
    assert unpacked(own) == []
    assert os.listdir(own / "tmp") == []
    assert not list(tmp_path.glob("own-*"))
    bundle.unlink()
    with Cache(own, layers=[bundle]) as cache, pytest.raises(CompcacheError):
        cache.get_target("top")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads everything")
def test_one_that_cannot_be_read_is_told(bundle: Path, tmp_path: Path) -> None:
    bundle.chmod(0)
    with pytest.warns(CacheWarning, match="is not used: cannot use the bundle"):
        Cache(tmp_path / "own", layers=[bundle])


@pytest.mark.slow
def test_processes_that_unpack_at_once_agree(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    script = f"from compcache import Cache\nprint(Cache({str(own)!r}, layers=[{str(bundle)!r}]).get_target('top')(1))"
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=PACKAGE_ROOT) for _ in range(4)]
    assert [process.communicate()[0] for process in running] == ["12\n"] * 4
    assert len(unpacked(own)) == 1
    assert os.listdir(own / "tmp") == []
