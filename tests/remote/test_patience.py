"""What a miss waits for the store: by what is at stake, and for a helper process that is only being started."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import constant
from web_store import WebStore

from compcache import Cache, Identity
from compcache.remote import connection
from compcache.remote.address import RemoteSettings, Stores
from compcache.remote.connection import COMPILE_SECONDS, SOCKET, ask, encode
from compcache.remote.directory import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SLOW = "import time; time.sleep({seconds}); "


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Helper processes of this test end with it."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def slow_start(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Helper processes that are started take so many seconds more."""

    plain = connection._HELPER

    def slow_start(seconds: float) -> None:
        monkeypatch.setattr(connection, "_HELPER", _SLOW.format(seconds=seconds) + plain)

    return slow_start


def never() -> str:
    raise AssertionError("it is compiled, though the store has it")


@pytest.mark.slow
def test_the_first_function_of_a_host_comes_from_the_store(
    tmp_path: Path, runtime: Path, slow_start: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its helper process takes longer to start than a compile waits for an answer."""
    name, store = Identity("f", code=1), (tmp_path / "store").as_uri()
    with Cache(tmp_path / "a", remote=store, remote_mode="write") as cache:
        cache.get_or_compile(name, lambda: constant("f", 7))
        cache.push([name])
        assert cache.flush_uploads(60)

    def open_on_fresh_host(host: str, patience: float) -> Cache:
        (runtime / host).mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / host))
        monkeypatch.setattr("compcache.remote.client.START_SECONDS", patience)
        return Cache(tmp_path / host, remote=store)

    slow_start(0.4)
    with open_on_fresh_host("b", 30.0) as cache:  # the machine may be busy
        assert cache.get_or_compile(name, never)() == 7
    with open_on_fresh_host("c", 0.05) as cache:  # those who wait for long do so for a start as well
        assert cache.prefetch([name]) == (name.func_name,)


@pytest.mark.slow
def test_a_helper_that_does_not_come_is_waited_for_once(
    tmp_path: Path, slow_start: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compcache.remote.client.START_SECONDS", 0.8)
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 0.01)
    slow_start(8.0)
    waits: list[float] = []
    with Cache(tmp_path / "b", remote=(tmp_path / "store").as_uri()) as cache:
        for number in range(3):
            started = time.monotonic()
            built: list[float] = []

            def build(number: int = number, started: float = started, built: list[float] = built) -> str:
                built.append(time.monotonic() - started)
                return constant("f", number)

            assert cache.get_or_compile(Identity("f", number=number), build)() == number
            waits += built
        assert cache.stats().remote.late == 3
    assert waits[0] >= 0.8
    assert min(waits[1:]) < 0.8


@pytest.mark.slow
def test_an_answer_is_waited_for_as_long_as_compiling_its_like_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its label; others are waited for as ever."""
    pytest.importorskip("obstore")
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 0.01)
    names = [Identity(label, number=number) for label, number in itertools.product("fg", range(2))]
    with WebStore() as web:
        with Cache(tmp_path / "a", remote=web.url, remote_mode="write") as cache:
            for name in (names[1], names[3]):
                cache.get_or_compile(name, partial(constant, name.label, 5))
            cache.push([names[1], names[3]])
            assert cache.flush_uploads(60)
        web.behave = lambda *_: "delay"
        with Cache(tmp_path / "b", remote=web.url) as cache:
            remote = cache.remote
            assert remote is not None
            remote.record_compile_time([names[0].func_name], 8.0)
            assert remote.estimate_compile_time([names[1].func_name]) == 8.0
            assert remote.estimate_compile_time([names[3].func_name]) == 0.0
            assert cache.get_or_compile(names[1], never)() == 5
            assert cache.get_or_compile(names[3], partial(constant, "g", 6))() == 6
        with Cache(tmp_path / "c", remote=web.url) as cache:
            assert cache.get_or_compile(names[2], partial(constant, "g", 6))() == 6
            assert cache.remote.estimate_compile_time([names[3].func_name]) > 0  # type: ignore[union-attr]
        web.shutdown()


@pytest.mark.slow
def test_what_the_store_says_is_at_stake_is_waited_for() -> None:
    """The helper has the card of a function that took 5 s to compile, and fetches its module."""
    settings = Stores((RemoteSettings("file:///store", "read"),))
    folder = state_directory(settings.url, os.environ)

    def serve(listener: socket.socket) -> None:
        connection = listener.accept()[0]
        with connection:
            connection.recv(1 << 16)
            connection.sendall(encode({COMPILE_SECONDS: 20.0}))
            time.sleep(0.6)
            connection.sendall(encode(["found"]))

    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)  # paths of sockets have 107 bytes at most
        listener.bind(SOCKET)
        os.chdir(here)
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        question = ask(settings, "find")
        assert question.wait(0.3)
        assert question.answer == ["found"]
        thread.join()


@pytest.mark.slow
def test_time_in_which_the_helper_waits_for_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a helper answers late without being slow; how late is bounded."""
    monkeypatch.setattr(connection, "_read_wait", lambda _: 2 * time.monotonic())  # it waits for a processor all the time
    stores = Stores((RemoteSettings("file:///store", "read"),))
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(state_directory(stores.url, os.environ))  # paths of sockets have 107 bytes at most
        listener.bind(SOCKET)
        os.chdir(here)
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as accepted:
                accepted.recv(1 << 16)
                time.sleep(0.6)
                accepted.sendall(encode(["found"]))
                accepted.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        question = ask(stores, "find")
        assert question.wait(0.3)
        thread.join()
    waited = iter((0.0, 1000.0))
    monkeypatch.setattr(connection, "_read_wait", lambda _: next(waited))
    queue = connection._ProcessorWait(lambda: 1)
    assert queue.seconds() == connection._LONGEST_QUEUE
