"""Remote stores on real servers: moto's S3, Azurite, nginx with WebDAV, Redis, and what a bad network makes of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import constant

from compcache import Cache, Identity, NotCachedError
from compcache.remote.address import RemoteSettings
from compcache.remote.helper.backends import TooLargeError, open_backend

from .remote_servers import BEHAVIOURS, SERVERS, Proxy, free_port, stop, variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Helper processes of this test end with it."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield
    shutil.rmtree(directory)


@pytest.fixture(params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, str]]:
    """The port of a server, and the URL of a store on it with ``{port}`` for the port."""
    process, port, url = SERVERS[request.param](tmp_path)
    for name, value in variables(port).items():
        monkeypatch.setenv(name, value)
    yield port, url
    stop(process)


@pytest.fixture
def proxy(server: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server, and the URL of the store through it."""
    port, url = server
    between = Proxy(port)
    for name, value in variables(between.port).items():
        monkeypatch.setenv(name, value)
    yield between, url.format(port=between.port)
    between.close()


def large(number: int) -> str:
    table = ", ".join(f"i64 {(n + number) * 0x9E3779B97F4A7C15 % 2**63}" for n in range(6000))
    head = f"@t = internal constant [6000 x i64] [{table}]\ndefine i64 @f(i64 %i) {{\n %p = getelementptr i64, ptr @t, i64 %i\n"
    return head + " %v = load i64, ptr %p\n ret i64 %v\n}\n"


def test_small_and_large_modules_go_there_and_back(server: tuple[int, str], tmp_path: Path) -> None:
    url = server[1].format(port=server[0])
    small, big = Identity("f", code="small"), Identity("f", code="big")
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as first:
        first.get_or_compile(small, lambda: constant("f", 7))
        first.get_or_compile(big, lambda: large(0))
        first.push([small, big])  # whether that is worth it or not
        assert first.flush_uploads(30)
    with Cache(tmp_path / "b", remote=url) as second:
        assert second.has_many([small, big, Identity("f", code="absent")]) == (True, True, False)
        assert second.get_target(small)() == 7
        assert second.get_target(big.func_name)(1) == 0x9E3779B97F4A7C15 % 2**63
        assert second.stats().counters["remote_hits"] == 2


def test_objects_are_exchanged_and_come_in_parts(
    server: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those who exchange an object at the same moment one succeeds, where the store compares."""
    for name, value in variables(server[0]).items():
        monkeypatch.setenv(name, value)
    del tmp_path

    async def work() -> None:
        backend = open_backend(RemoteSettings(server[1].format(port=server[0]), "write"))
        assert not await backend.exchange("a/key", b"new", b"old")
        assert await backend.create("a/key", b"old")
        assert not await backend.exchange("a/key", b"new", b"other")
        done = await asyncio.gather(*[backend.exchange("a/key", b"new%d" % number, b"old") for number in range(8)])
        assert sum(done) == 1 or not backend.is_atomic
        if backend.is_atomic:
            assert await backend.get("a/key", 10) == b"new%d" % done.index(True)
        data = os.urandom(3 << 20)
        await backend.replace("a/large", data)
        assert await backend.get("a/large", len(data)) == data
        with pytest.raises(TooLargeError):
            await backend.get("a/large", len(data) - 1)
        assert await backend.get("a/absent", 10) is None

    asyncio.run(work())


def test_many_functions_come_with_one_question(server: tuple[int, str], tmp_path: Path) -> None:
    url = server[1].format(port=server[0])
    names = [Identity("f", number=number) for number in range(60)]
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as first:
        for number, name in enumerate(names):
            first.get_or_compile(name, partial(constant, "f", number))
        first.push(names)
        assert first.flush_uploads(60)
    with Cache(tmp_path / "b", remote=url) as second:
        assert len(second.prefetch(names)) == len(names)
        assert [second.get_target(name.func_name)() for name in names] == list(range(60))


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_bad_network_costs_little_and_gives_no_wrong_answer(
    proxy: tuple[Proxy, str], tmp_path: Path, behaviour: str
) -> None:
    between, url = proxy
    names = [Identity("f", number=number) for number in range(4)]
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as first:
        for number, name in enumerate(names):
            first.get_or_compile(name, partial(large, number))
        first.push(names)
        assert first.flush_uploads(60)
    between.behaviour = behaviour
    with Cache(tmp_path / "b", remote=url) as second:
        for number, name in enumerate(names):
            started = time.monotonic()
            function = second.get_or_compile(name, partial(large, number))
            assert time.monotonic() - started < 10
            assert function(3) == (3 + number) * 0x9E3779B97F4A7C15 % 2**63


MISSES = """
import sys, time
from compcache import Cache, Identity, ModuleSource, NotCachedError
path, url = sys.argv[1:]
with Cache(path, remote=url or None) as cache:
    cache.add_module(ModuleSource("define i64 @g() {\\n ret i64 1\\n}\\n"))
    started = time.monotonic()
    for number in range(1000):
        try:
            cache.get_target(Identity("f", number=number).func_name)
        except NotCachedError:
            pass
    print(time.monotonic() - started)
"""


@pytest.fixture(params=["refuses", "never answers"])
def dead(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a store on a port on which nothing listens, or that takes connections and never answers."""
    if request.param == "refuses":
        yield f"http://127.0.0.1:{free_port()}/cache"
        return
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/cache"


def lost(tmp_path: Path, url: str, processes: int) -> list[float]:
    """What 1,000 misses take in each of these processes, which run at once."""
    pytest.importorskip("obstore")
    command = [sys.executable, "-c", MISSES]
    running = [
        subprocess.Popen([*command, str(tmp_path / f"c{number}-{processes}"), url], stdout=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    return [float(process.communicate()[0]) for process in running]


def test_a_thousand_misses_lose_little_to_a_store_that_is_gone(tmp_path: Path, dead: str) -> None:
    """One look-up that fails, at most, and nothing in the next process."""
    (plain,) = lost(tmp_path / "plain", "", 1)
    (first,) = lost(tmp_path / "first", dead, 1)
    assert first < 1.5 + 4 * plain  # the machine may be busy
    (second,) = lost(tmp_path / "second", dead, 1)  # at once: it finds the breaker open, or the store in doubt
    assert second < 0.25 + 4 * plain


def test_eight_processes_lose_little_to_a_store_that_is_gone(tmp_path: Path, dead: str) -> None:
    plain = max(lost(tmp_path / "plain", "", 8))
    assert max(lost(tmp_path / "dead", dead, 8)) < 2.0 + 4 * plain


def fetched(cache: Cache, name: Identity) -> int:
    """The function's value; on a busy machine a server may take longer than a look-up waits."""
    end = time.monotonic() + 30
    while True:
        try:
            value: int = cache.get_target(name)()
        except NotCachedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return value


def test_children_of_forks_ask_whatever_their_parents_did(server: tuple[int, str], tmp_path: Path) -> None:
    url = server[1].format(port=server[0])
    names = [Identity("f", number=number) for number in range(6)]
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as first:
        for number, name in enumerate(names):
            first.get_or_compile(name, partial(constant, "f", number))
        first.push(names)
        assert first.flush_uploads(60)
    with Cache(tmp_path / "b", remote=url) as second:
        before = os.fork()  # nothing has been asked
        if not before:
            os._exit(fetched(second, names[1]))
        assert fetched(second, names[2]) == 2
        after = os.fork()
        if not after:
            os._exit(fetched(second, names[3]))
        assert fetched(second, names[4]) == 4
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in (before, after)]
    assert ends == [1, 3]


@pytest.mark.parametrize("kill", [False, True])
def test_processes_race_with_one_helper(server: tuple[int, str], tmp_path: Path, kill: bool) -> None:
    """Eight processes; with `kill` their helper is killed while they work: nothing is lost but time."""
    url = server[1].format(port=server[0])
    script = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from compcache import Cache, Identity\n"
        "path, url = sys.argv[1:]\n"
        "with Cache(path, remote=url, remote_mode='write') as cache:\n"
        "    for n in range(20):\n"
        "        ir = f'define i64 @f() {{\\n ret i64 {n}\\n}}\\n'\n"
        "        assert cache.get_or_compile(Identity('f', n=n), lambda: ir)() == n\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / f"c{number % 4}"), url]) for number in range(8)
    ]
    if kill:
        from compcache.remote.address import Stores
        from compcache.remote.connection import ask

        question = ask(Stores((RemoteSettings(url, "write"),)), "status")
        assert question.wait(20)
        os.kill(question.answer[0]["pid"], 9)
    assert [worker.wait(120) for worker in workers] == [0] * 8


def test_what_waits_is_uploaded_when_the_store_comes_back(proxy: tuple[Proxy, str], tmp_path: Path) -> None:
    between, url = proxy
    between.behaviour = "refuse"
    name = Identity("f", code="later")
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as cache:
        cache.get_or_compile(name, lambda: constant("f", 5))
        assert not cache.flush_uploads(3)
        between.behaviour = "forward"
        directory: Callable[[], str] = cache._session().remote().directory  # type: ignore[union-attr]
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(directory(), "breaker"))
        cache.push([name])
        assert cache.flush_uploads(30)
    with Cache(tmp_path / "b", remote=url) as second:
        assert second.get_target(name)() == 5
