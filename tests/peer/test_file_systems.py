"""One cache directory on file systems that are not ext4: two clients of a network, and what this machine can mount.

The network is `conformance/compcache_conformance/network_double.py`: two FUSE mounts of one directory that show what NFS may show.
`make peer` installs what it needs; where FUSE, root or a program is missing, tests are skipped and say so. `COMPCACHE_TEST_SECONDS` is
how long each goes on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
LOAD = Path(__file__).with_name("file_system_load.py")
SECONDS = float(os.environ.get("COMPCACHE_TEST_SECONDS", "60"))


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("mfusepy")
    monkeypatch.syspath_prepend(str(ROOT / "conformance"))
    return importlib.import_module("compcache_conformance.network_double")


class Hosts:
    """Two clients of one server: `mounts`, and what each has done, once they are unmounted."""

    def __init__(self, double: Any, base: Path, *options: str) -> None:
        self.server = base / "server"
        self.mounts = [base / "first", base / "second"]
        self.reports = [base / "first.json", base / "second.json"]
        for place in (self.server, *self.mounts):
            place.mkdir(mode=0o700)
        self._stack = ExitStack()
        try:
            for number, (place, report) in enumerate(zip(self.mounts, self.reports, strict=True)):
                locks = "fail" if number else "own"
                said = ("--report", str(report), "--locks", locks, "--seed", str(number), *options)
                self._stack.enter_context(double.mounted(self.server, place, *said))
        except Exception as error:
            self._stack.close()
            if isinstance(error, double.Lacking):
                pytest.skip(str(error))
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for report in self.reports:
            for name, number in json.loads(report.read_text()).items():
                found[name] = found.get(name, 0) + number
        return found


def load(directory: Path, seed: int, seconds: float) -> list[str]:
    role = "disturbs" if seed % 3 == 1 else "uses"
    return [sys.executable, str(LOAD), str(directory), str(seconds), str(seed), role]


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COMPCACHE_")}
    return {**inherited, "PYTHONPATH": str(ROOT), **more}


def require_right(status: int, output: str, errors: str) -> dict[str, Any]:
    """Require that a user had neither a wrong answer nor an error, and give what it did."""
    assert status == 0, f"status {status}\n{output}\n{errors[-3000:]}"
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert said["problems"] == {}, f"{output}\n{errors[-3000:]}"
    return said


# ------------------------------------------------------------------ a network


@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_two_clients_share_a_directory(double: Any, tmp_path: Path, lost: float) -> None:
    """Additions, hits, removals, prunes and questions from both: every answer is right, and nothing raises."""
    wanted = {"stale", "locks refused"} | ({"answers lost"} if lost else set())
    for number in range(6):  # on a busy machine there may be too few requests for each fault
        root = tmp_path / str(number)
        root.mkdir()
        wanted -= share_directory(double, root, lost)
        if not wanted:
            break
    assert not wanted


def share_directory(double: Any, root: Path, lost: float) -> set[str]:
    """Let six processes use a directory through two mounts, require that all is right, and return the faults that there were."""
    with Hosts(double, root, "--seconds", "2", "--lost", str(lost)) as hosts:
        started = [
            subprocess.Popen(
                load(hosts.mounts[seed % 2] / "cache", seed, SECONDS),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
            )
            for seed in range(6)
        ]  # fmt: skip
        ended = [(*process.communicate(), process.returncode) for process in started]
    users = [require_right(status, output, errors) for output, errors, status in ended]
    assert all(user["done"]["answered"] > 0 and user["done"]["compiled"] > 0 for user in users)
    assert not any("damaged" in text for user in users for text in user["warnings"]), users
    counts = hosts.counts()
    print(counts, sum(sum(user["done"].values()) for user in users), "requests")
    with Cache(hosts.server / "cache") as cache:
        assert cache.check().errors == ()
    return {fault for fault, count in counts.items() if count}


def test_the_double_keeps_a_file_open_that_one_thread_closes_while_another_looks_at_it(
    double: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = double.Client(str(tmp_path), argparse.Namespace(seconds=0, seed=0, lost=0.0, late=0.0))
    (tmp_path / "other").touch()
    handles = [client.create("/file", 0o600, os.O_WRONLY | os.O_CREAT)]
    client.write("/file", b"content", 0, handles[0])
    compares = double._is

    def close_then_compare(opened: Any, inode: int) -> bool:
        if handles:
            client.release("/file", handles.pop())
        same: bool = compares(opened, inode)
        return same

    monkeypatch.setattr(double, "_is", close_then_compare)
    assert client.getattr("/other")["st_size"] == 0
    assert not handles
    assert client.getattr("/file")["st_size"] == 7


#: Code of a page that no call has touched is called once other hosts have removed its file.
GONE = """
import os, sys, time
from compcache import Cache
with Cache(sys.argv[1]) as cache:
    near, far = cache.get_target("near"), cache.get_target("far")
    assert near(1) == 2
    print("loaded", flush=True)
    sys.stdin.readline()
    print(far(1), cache.info().loader)
"""


@pytest.mark.parametrize("taken", ["removed", "cut"])
@pytest.mark.parametrize("mapping", ["", "1"])
def test_code_that_another_host_takes_away_is_run_to_its_end(double: Any, tmp_path: Path, taken: str, mapping: str) -> None:
    """Mapped by a setting the same program ends with SIGBUS, which shows that the double can do it."""
    with Hosts(double, tmp_path, "--seconds", "0.2") as hosts:
        first, second = (mount / "cache" for mount in hosts.mounts)
        nops = 'call void asm sideeffect ".fill 1048576, 1, 0x90", ""()'
        far = f"define i64 @far(i64 %x) {{\n  {nops}\n  ret i64 %x\n}}"
        with Cache(first) as cache:
            cache.add_module(ModuleSource("define i64 @near(i64 %x) {\n  %y = add i64 %x, 1\n  ret i64 %y\n}\n" + far, optimize=0))
        settings = {"COMPCACHE_MAP_FILES": mapping} if mapping else {}
        with subprocess.Popen(
            [sys.executable, "-c", GONE, str(second)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**settings),
        ) as process:  # fmt: skip
            assert process.stdout is not None
            said = process.stdout.readline()
            for path in (first / "modules-v1").rglob("*.ccm"):
                if taken == "removed":
                    path.unlink()
                else:
                    path.chmod(0o600)
                    os.truncate(path, 0)
            output, errors = process.communicate("\n")
    assert said == "loaded\n", errors
    if mapping:
        assert process.returncode == -signal.SIGBUS, (output, errors)
    else:
        assert process.returncode == 0, errors
        assert output.startswith("1 ")
        assert "copied to memory, then mapped (fuse)" in output


# ------------------------------------------------------------------ what this machine can mount


#: Commands that mount a file system at $P in a mount name space of its own, with $D for what they need.
_LOOP = "truncate -s 320m $D/i && {} $D/i >/dev/null && mount -o loop{} $D/i $P"
MOUNTS = {
    "tmpfs": "mount -t tmpfs -o size=300m tmpfs $P",
    "small tmpfs": "mount -t tmpfs -o size=600k tmpfs $P",
    "ramfs": "mount -t ramfs ramfs $P",
    "overlay": (
        "mount -t tmpfs tmpfs $D && mkdir $D/l $D/u $D/w && "
        "mount -t overlay -o lowerdir=$D/l,upperdir=$D/u,workdir=$D/w overlay $P"
    ),
    "xfs": _LOOP.format("mkfs.xfs -q", ""),
    "btrfs": _LOOP.format("mkfs.btrfs -q", ""),
    "ext4": _LOOP.format("mkfs.ext4 -q", ""),
    "ext4 noexec": _LOOP.format("mkfs.ext4 -q", ",noexec"),
    "ext4 without case": _LOOP.format("mkfs.ext4 -q -O casefold", "") + " && mkdir $P/cache && chattr +F $P/cache && chmod 700 $P/cache",
    "ext4 with a quota": _LOOP.format("mkfs.ext4 -q -O quota", ",usrquota") + " && setquota -u root 600 700 0 0 $P",
    "ext4 with few inodes": _LOOP.format("mkfs.ext4 -q -N 64", ""),
    "vfat": _LOOP.format("mkfs.vfat", ",umask=077"),
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "place").mkdir()
    (tmp_path / "more").mkdir()
    yield tmp_path / "place"
    shutil.rmtree(tmp_path / "more", ignore_errors=True)


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="mounts need root and unshare")
@pytest.mark.parametrize("name", MOUNTS)
def test_a_directory_on_a_local_file_system(place: Path, name: str) -> None:
    seconds = min(SECONDS, 10)
    users = [shlex.join(load(place / "cache", seed, seconds)) for seed in range(3)]
    drop = "setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource --" if "quota" in name else ""
    started = "".join(f"{drop} {user} >$S/out{number} 2>$S/err{number} &\np{number}=$!\n" for number, user in enumerate(users))
    ended = "".join(f"wait $p{number}; echo $? >$S/status{number}\n" for number in range(len(users)))
    script = f"{MOUNTS[name]} || exit 97\nchmod 700 $P\n{started}{ended}stat -f -c %T $P"
    more = place.with_name("more")
    said_at = place.with_name("said")
    said_at.mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True, text=True, check=False, env=environment(P=str(place), D=str(more), S=str(said_at)),
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"cannot be mounted here: {done.stderr.strip()[-200:]}")
    for number in range(len(users)):
        status = int((said_at / f"status{number}").read_text())
        said = require_right(status, (said_at / f"out{number}").read_text(), (said_at / f"err{number}").read_text())
        assert said["done"]["answered"] > 0 or "small" in name
        print(name, done.stdout.strip(), said)
