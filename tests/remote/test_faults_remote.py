"""Remote stores that fail in every way, helpers that are killed or out of date, directories that cannot be used: calls get their code."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, constant
from web_store import WebStore

from compcache import Cache, CacheWarning, Identity, NotCachedError, StorageError
from compcache.processes.detached import has_ended
from compcache.remote.breaker import Breaker
from compcache.remote.connection import SOCKET, ask
from compcache.remote.directory import outbox_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.fault
pytest.importorskip("obstore")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Helper processes of this test end with it."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def web() -> Iterator[WebStore]:
    with WebStore() as server:
        yield server
        server.shutdown()


def compiled(cache: Cache, name: Identity, value: int) -> int:
    result: int = cache.get_or_compile(name, lambda: constant(name.label, value))()
    return result


def never() -> str:
    raise AssertionError("it is compiled, though the store has it")


def stored(web: WebStore, place: Path, *names: Identity) -> None:
    """Have these functions in the store; function n returns n."""
    with Cache(place, remote=web.url, remote_mode="write") as cache:
        for number, name in enumerate(names):
            compiled(cache, name, number)
        cache.push(names)
        assert cache.flush_uploads(60)


def helper_of(cache: Cache) -> int:
    question = ask(cache.remote.settings, "status")  # type: ignore[union-attr]
    assert question.wait(30)
    return int(question.answer[0]["pid"])


def until(holds: Callable[[], Any], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(held)


def recover(web: WebStore) -> bool:
    web.behave = lambda *_: ""
    return True


def is_there(cache: Cache, name: Identity) -> bool:
    try:
        cache.get_target(name)
    except NotCachedError:
        return False
    return True


WAYS = ("forbid", "fail", "stall", "show_login_page", "redirect", "promise_much", "drip", "hang_up")


#: Those whose answers to an upload say that it was taken.
SAY_YES = ("show_login_page", "redirect", "promise_much", "drip")


@pytest.mark.parametrize("way", WAYS)
def test_whatever_the_store_does_calls_get_their_code(web: WebStore, tmp_path: Path, way: str) -> None:
    names = [Identity("f", number=number) for number in range(8)]
    stored(web, tmp_path / "a", *names)
    web.behave = lambda *_: way
    with Cache(tmp_path / "b", remote=web.url, remote_mode="write") as cache, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        started = time.monotonic()
        assert [compiled(cache, name, number) for number, name in enumerate(names)] == list(range(8))
        assert time.monotonic() - started < 20
        cache.push(names)  # on a busy machine, fetching takes longer than compiling
        assert not cache.flush_uploads(3) or way in SAY_YES
        assert len(warned) <= 1
        assert cache.check()


@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_recovers_is_used_again(web: WebStore, tmp_path: Path, way: str) -> None:
    """After one failure, slow or quick."""
    names = [Identity("f", number=number) for number in range(3)]
    stored(web, tmp_path / "a", *names)
    with Cache(tmp_path / "b", remote=web.url) as cache:
        web.behave = lambda *_: way
        assert not is_there(cache, names[1])
        web.behave = lambda *_: ""
        assert until(lambda: is_there(cache, names[1]))
        assert Breaker(os.path.join(cache.remote.directory(), "breaker")).state() == (0, 0.0)  # type: ignore[union-attr]


def test_a_silent_store_costs_the_first_process_one_look_up_and_the_next_one_none(web: WebStore, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom compcache import Cache, Identity, ModuleSource, NotCachedError\n"
        "with Cache(sys.argv[1], remote=sys.argv[2]) as cache:\n"
        "    cache.add_module(ModuleSource('define i64 @g() {\\n ret i64 1\\n}\\n'))\n"  # makes the directory, and its statistics
        "    for number in range(100):\n"
        "        try:\n            cache.get_target(Identity('f', number=number))\n        except NotCachedError:\n            pass\n"
        "    remote = cache.stats().remote\n    print(remote.answers, remote.skipped)\n"
    )
    web.behave = lambda *_: "stall"
    command = [sys.executable, "-c", script]
    seen = []
    for number in range(3):
        done = subprocess.run([*command, str(tmp_path / f"c{number}"), web.url], capture_output=True, text=True, check=True)
        seen.append(tuple(map(int, map(float, done.stdout.split()))))
    assert seen == [(1, 99), (0, 100), (0, 100)]


def test_a_store_that_takes_no_uploads_is_read(web: WebStore, tmp_path: Path) -> None:
    there, *others = [Identity("f", number=number) for number in range(6)]
    stored(web, tmp_path / "a", there)
    web.behave = lambda method, _: "forbid" if method == "PUT" else ""
    with Cache(tmp_path / "b", remote=web.url, remote_mode="write") as cache:
        for number, name in enumerate(others, 1):
            compiled(cache, name, number)
        cache.push(others)
        assert not cache.flush_uploads(20)
        status = cache.remote.status()[0]  # type: ignore[union-attr]
        assert status["failures"] == 0
        assert status["waiting_uploads"] >= 5
        assert status["uploads_rest_seconds"] > 0
        assert "403" in status["last_error"]
        assert cache.get_or_compile(there, never)() == 0
        web.behave = lambda *_: ""
        assert cache.flush_uploads(30)


def test_uploads_that_are_waited_for_outlast_a_doubt(web: WebStore, tmp_path: Path) -> None:
    """A look-up that timed out just before does not end the wait, nor does a probe that fails."""
    name = Identity("f", code="waits")
    with Cache(tmp_path / "b", remote=web.url, remote_mode="write") as cache:
        (breaker,) = cache.remote.breakers()  # type: ignore[union-attr]
        web.behave = lambda method, _: "stall" if method == "GET" else ""
        recovery = threading.Thread(target=until, args=(lambda: breaker.state()[0] >= 2 and recover(web),), daemon=True)
        recovery.start()
        assert not is_there(cache, Identity("f", code="absent"))
        compiled(cache, name, 1)
        cache.push([name])
        assert cache.flush_uploads(60)
        recovery.join()
        assert cache.has_many([name]) == (True,)


def test_a_module_that_the_store_does_not_take_hinders_no_other(web: WebStore, tmp_path: Path) -> None:
    web.behave = lambda method, _: "refuse_large" if method == "PUT" else ""
    table = ", ".join(f"i64 {n * 0x9E3779B97F4A7C15 % 2**63}" for n in range(6000))
    large = f"@t = constant [6000 x i64] [{table}]\ndefine ptr @f() {{\n ret ptr @t\n}}\n"
    big, *others = [Identity("f", number=number) for number in range(4)]
    with Cache(tmp_path / "b", remote=web.url, remote_mode="write") as cache:
        cache.get_or_compile(big, lambda: large)
        for number, name in enumerate(others, 1):
            compiled(cache, name, number)
        cache.push([big, *others])
        assert until(lambda: cache.flush_uploads(10) or cache.remote.status()[0]["waiting_uploads"] <= 2)  # type: ignore[union-attr]
        assert cache.has_many(others) == (True,) * 3
    with Cache(tmp_path / "c", remote=web.url) as cache:
        assert cache.prefetch(others) != ()


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_helper_that_is_killed_in_the_middle_loses_nothing(web: WebStore, tmp_path: Path, method: str) -> None:
    name, other = Identity("f", code="first"), Identity("f", code="other")
    stored(web, tmp_path / "a", name)
    with warnings.catch_warnings(record=True) as warned, Cache(tmp_path / "b", remote=web.url, remote_mode="write") as cache:
        warnings.simplefilter("always")
        pid = helper_of(cache)
        web.requests.clear()
        web.behave = lambda asked, _: "stall" if asked == method else ""
        if method == "PUT":
            compiled(cache, other, 1)
            cache.push([other])
            assert until(lambda: any(asked == "PUT" for asked, _ in web.requests))
            os.kill(pid, signal.SIGKILL)
        else:
            killer = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.5); os.kill({pid}, 9)"])
            assert not is_there(cache, name)
            killer.wait()
        web.behave = lambda *_: ""
        assert until(lambda: is_there(cache, name))
        if method == "PUT":
            assert cache.flush_uploads(60)
            assert cache.has_many([other]) == (True,)
    assert len([each for each in warned if each.category is CacheWarning]) <= 1


def test_an_interrupt_while_the_store_is_waited_for_ends_the_wait(web: WebStore, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom compcache import Cache, Identity\n"
        "with Cache(sys.argv[1], remote=sys.argv[2]) as cache:\n"
        "    print('asks', flush=True)\n"
        "    try:\n        cache.prefetch([Identity('f', number=1)])\n"
        "    except KeyboardInterrupt:\n        print('interrupted', flush=True)\n"
    )
    web.behave = lambda *_: "stall"
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "c"), web.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "asks\n"
    assert until(lambda: web.requests)
    process.send_signal(signal.SIGINT)
    assert process.communicate()[0] == "interrupted\n"


# --------------------------------------------------------------------------------------- directories and versions


def place(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the runtime directory, and the home, what this test is about."""
    if kind == "no variable":
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.delenv("HOME", raising=False)
    elif kind == "missing":
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    elif kind == "a file":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    elif kind == "of others":
        (tmp_path / "others").mkdir()
        (tmp_path / "others").chmod(0o777)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "others"))
    else:
        long = tmp_path / ("run-" + "x" * 120) / ("y" * 120)
        long.mkdir(parents=True, mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))


@pytest.mark.parametrize("kind", ["no variable", "missing", "a file", "of others", "long"])
def test_a_runtime_directory_that_cannot_be_used_is_passed_over(
    web: WebStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place(kind, tmp_path, monkeypatch)
    monkeypatch.setattr("compcache.remote.directory._TEMPORARY", str(tmp_path))
    name = Identity("f", code=kind)
    stored(web, tmp_path / "a", name)
    with Cache(tmp_path / "b", remote=web.url) as cache:
        assert cache.get_or_compile(name, never)() == 0
        directory = Path(cache.remote.directory())  # type: ignore[union-attr]
    assert (directory / SOCKET).is_socket()
    assert directory.stat().st_mode & 0o077 == 0
    shutil.rmtree(directory)


def test_where_no_directory_can_be_had_there_is_one_warning(web: WebStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr("compcache.remote.directory._TEMPORARY", str(tmp_path / "missing"))
    names = [Identity("f", number=number) for number in range(4)]
    with Cache(tmp_path / "b", remote=web.url, remote_mode="write") as cache, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert [compiled(cache, name, number) for number, name in enumerate(names)] == list(range(4))
    assert len([each for each in warned if each.category is CacheWarning]) == 1
    assert web.requests == []


def test_helpers_of_two_users_have_directories_of_their_own(web: WebStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a socket in a directory that another user owns is not talked to."""
    if os.geteuid():
        pytest.skip("only the superuser can become another user")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("compcache.remote.directory._TEMPORARY", str(tmp_path))
    tmp_path.chmod(0o755)
    theirs = tmp_path / "compcache-0"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    with Cache(tmp_path / "b", remote=web.url, remote_mode="write") as cache, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert compiled(cache, Identity("f", code=1), 5) == 5
    assert len([each for each in warned if each.category is CacheWarning]) == 1
    assert web.requests == []


def test_a_socket_of_an_older_version_is_left_alone(web: WebStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its helper still runs and answers in its own way; what waits for it is not touched."""
    name = Identity("f", code=1)
    with Cache(tmp_path / "b", remote=web.url, remote_mode="write") as cache:
        directory = Path(cache.remote.directory())  # type: ignore[union-attr]
        old = Path(outbox_directory(web.url, os.environ)) / "00000000000000000001-old.upload"
        old.write_bytes(b"of another version")
        monkeypatch.chdir(directory)  # a socket's path has at most 107 bytes
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            listener.listen()
            compiled(cache, name, 1)
            cache.push([name])
            assert cache.flush_uploads(60)
    assert old.exists()
    with Cache(tmp_path / "c", remote=web.url) as cache:
        assert cache.get_or_compile(name, never)() == 1


def test_a_helper_whose_code_was_exchanged_makes_room_for_the_new_one(web: WebStore, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    shutil.copytree(PACKAGE_ROOT / "compcache", installed / "compcache", ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "import sys; sys.path.insert(0, sys.argv[3])\nfrom compcache import Cache, Identity\n"
        "with Cache(sys.argv[1], remote=sys.argv[2], remote_mode='write') as cache:\n"
        "    cache.prefetch([Identity('f', number=1)])\n    print(cache.remote.status()[0]['pid'])\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(tmp_path / "b"), web.url, str(installed)]
    pids = []
    for _ in range(2):
        pids.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        os.utime(installed / "compcache" / "remote" / "helper" / "server.py", (1, 1 + len(pids)))
        assert until(lambda: not Path(f"/proc/{pids[-1]}").exists())
    assert pids[0] != pids[1]


def test_a_helper_brings_no_directory_back_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever removes a temporary directory must not find it there again, with the breaker, the queue or the store in it."""
    place = tmp_path / "x"
    (place / "run").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "run"))
    name, other = Identity("f", number=1), Identity("f", number=2)
    with Cache(tmp_path / "a", remote=(place / "store").as_uri(), remote_mode="write") as cache:
        compiled(cache, name, 1)
        cache.push([name])
        assert cache.flush_uploads(60)
        process, box = helper_of(cache), cache.remote.outboxes()[0]  # type: ignore[union-attr]
        shutil.rmtree(place / "store")
        compiled(cache, other, 2)
        cache.push([other])
        assert not cache.flush_uploads(10)
        waiting = box.read(box.names()[0])
        breaker = cache.remote.breakers()[0]  # type: ignore[union-attr]
        shutil.rmtree(place)
        breaker.record_failure()
        with pytest.raises(FileNotFoundError):
            box.put(waiting)
        assert until(lambda: has_ended(process))
        assert not place.exists()


def test_a_store_whose_directory_was_removed_is_named(tmp_path: Path) -> None:
    with Cache(tmp_path / "a", remote=(tmp_path / "store").as_uri(), remote_mode="write") as cache:
        compiled(cache, Identity("f"), 1)
        cache.push([Identity("f")])
        assert cache.flush_uploads(60)
        shutil.rmtree(tmp_path / "store")
        with pytest.raises(StorageError) as caught:
            cache.remote.collect_garbage()  # type: ignore[union-attr]
    assert f"No such file or directory: '{tmp_path / 'store'}'; `compcache remote status` shows its state" in str(caught.value)
