"""Stores and helper processes that do not answer: warnings, the breaker, forks."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
import warnings
from errno import EMFILE
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from helpers import constant, run_fresh
from shared_store import objects, open_cache_fixture, store_fixture, upload  # noqa: F401 - fixtures

from compcache import Cache, CacheWarning, Identity, ModuleSource, NotCachedError
from compcache.remote.address import read_settings
from compcache.remote.breaker import Breaker, Patience
from compcache.remote.connection import SOCKET, Question, encode
from compcache.remote.directory import state_directory
from compcache.remote.helper.reads import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.usefixtures("store")
def test_a_store_is_created_again_if_its_parent_was_replaced(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for number in range(2):  # one helper process serves both caches
        place.mkdir()
        name = Identity("f", number=number)
        with Cache(tmp_path / f"cache {number}", remote=(place / "store").as_uri(), remote_mode="write") as cache:
            cache.get_or_compile(name, lambda: constant("f", 1))
            upload(cache, name)
        assert len(objects(place / "store", "f")) == 1
        shutil.rmtree(place)


def test_a_directory_that_is_not_private_is_a_warning(open_cache: Callable[..., Cache], tmp_path: Path) -> None:
    (tmp_path / "run" / "compcache").mkdir(mode=0o777)
    (tmp_path / "run" / "compcache").chmod(0o777)
    with open_cache("a") as cache, pytest.warns(CacheWarning, match="not private"):
        assert cache.has_many(["f"]) == (False,)
    with open_cache("a") as cache, pytest.warns(CacheWarning, match="not private"):
        assert not cache.flush_uploads(1)


def test_a_process_without_free_descriptors_compiles(open_cache: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[object, ...]] = []

    def open_socket(*arguments: object) -> socket.socket:
        if opened:
            raise OSError(EMFILE, os.strerror(EMFILE))
        opened.append(arguments)
        return socket.socket(*arguments)  # type: ignore[arg-type]

    with open_cache("a") as cache:
        monkeypatch.setattr("compcache.remote.connection.socket", SimpleNamespace(**{**vars(socket), "socket": open_socket}))
        with pytest.warns(CacheWarning, match="no socket can be opened: Too many open files"):
            assert cache.get_or_compile(Identity("f", number=1), lambda: constant("f", 1))() == 1


def test_a_refused_certificate_is_what_is_told() -> None:
    """As obstore writes it, cut: the reason stands in the innermost of its causes."""
    causes = (
        "HttpError { kind: Connect, source: hyper_util::client::legacy::Error( Connect, Custom { kind: Other, error: Custom { kind: "
        "InvalidData,"
    )
    text = f"Error performing GET https://store/f\n\nDebug source:\n{causes} error: InvalidCertificate(\n    Expired,\n), }} }} )"
    assert describe_error(OSError(text)) == "Error performing GET https://store/f: the certificate is not valid (Expired)"


@pytest.mark.usefixtures("store")
def test_explain_tells_that_the_store_is_left_alone(tmp_path: Path) -> None:
    with Cache(tmp_path / "a", remote="redis://127.0.0.1:1/0") as cache:
        breaker = Breaker(str(Path(cache.remote.directory()) / "breaker"))  # type: ignore[union-attr]
        for _ in range(3):
            breaker.record_failure()
        answer = cache.explain("f").remote
    assert answer is not None
    assert answer.outcome == "skipped"
    assert re.search(r"gets no requests for another \d+ s; consecutive failures: 3", answer.message)


@pytest.mark.filterwarnings("ignore::compcache.CacheWarning")
def test_a_helper_whose_directory_is_not_private_breaks_no_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The breakers are readable, and say that the stores must be probed by the helper, which cannot be reached."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    stores = [(tmp_path / name).as_uri() for name in ("near", "far")]
    with Cache(tmp_path / "a", remote=stores) as cache:
        for url in stores:
            (Path(state_directory(url, os.environ)) / "breaker").write_text("3 1.0 30.0", encoding="ascii")
        directory = Path(cache.remote.directory())  # type: ignore[union-attr]
        directory.rmdir()
        directory.write_bytes(b"")
        assert cache.explain("f").remote is not None
        assert cache.has_many(["f"]) == (False,)


def test_misses_while_the_store_is_left_alone_are_skipped(store: Path, tmp_path: Path) -> None:
    with Cache(tmp_path / "a", remote=store.as_uri()) as cache:
        breaker = Breaker(str(Path(cache.remote.directory()) / "breaker"))  # type: ignore[union-attr]
        cache.add_module(ModuleSource(constant("g", 1)))
    for _ in range(3):
        breaker.record_failure()
    script = f"""
    import os
    os.environ["COMPCACHE_REMOTE"] = {store.as_uri()!r}
    from compcache import Cache, Identity, NotCachedError
    with Cache(directory) as cache:
        for number in range(5):
            try:
                cache.get_target(Identity("f", number=number).func_name)
            except NotCachedError:
                pass
        result = cache.stats().remote.skipped
    """
    assert run_fresh(tmp_path / "a", script) == 5


def test_patience_ends_before_the_breaker_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("compcache.remote.breaker.time.monotonic", lambda: now)
    patience = Patience()
    for _ in range(3):
        assert patience.allows_waiting()
        patience.record_wait(0.15)
    assert [patience.should_ask() for _ in range(6)] == [True] * 4 + [False] * 2  # without waiting
    now += 1.5
    assert patience.allows_waiting()
    patience.record_wait(0.15)
    now += 1.5
    assert not patience.allows_waiting()
    patience.record_answer()
    assert patience.allows_waiting()


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_a_store_that_does_not_answer_is_left_alone(tmp_path: Path) -> None:
    """Nothing listens on this port: three failures, and no process of this host asks for a while."""
    url = "redis://127.0.0.1:1/0"
    pytest.importorskip("redis")
    with Cache(tmp_path / "a", remote=url) as cache:
        started = time.monotonic()
        while not (counters := cache.stats().counters).get("remote_skipped") and time.monotonic() < started + 20:
            with pytest.raises(NotCachedError):
                cache.get_target(Identity("f", code=time.monotonic_ns()).func_name)
        assert (counters["remote_errors"], counters["remote_skipped"]) >= (1, 1)
        assert cache.get_or_compile(Identity("f", code=7), lambda: constant("f", 3))() == 3


@pytest.mark.usefixtures("store")
def test_a_helper_that_cannot_work_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's library is hidden from the helper."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "obstore.py").write_text("raise ImportError('hidden')")
    monkeypatch.syspath_prepend(str(hidden))
    with Cache(tmp_path / "a", remote="s3://bucket/prefix") as cache, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number in range(3):
            with pytest.raises(NotCachedError):
                cache.get_target(Identity("f", code=number).func_name)
    (message,) = [str(each.message) for each in warned if each.category is CacheWarning]
    assert re.search(r"s3://bucket/prefix is not used: .*pip install 'compcache\[remote\]'", message)


def test_where_others_can_write_to_the_directory_of_the_socket_there_is_one_warning(
    open_cache: Callable[..., Cache], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("compcache.remote.directory._TEMPORARY", str(tmp_path))
    planted = tmp_path / f"compcache-{os.geteuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    cache = open_cache("a")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number in range(3):
            assert cache.get_or_compile(Identity("f", number=number), partial(constant, "f", number))() == number
    (message,) = [str(each.message) for each in warned if each.category is CacheWarning]
    assert f"{planted} is not private to this user" in message


def test_no_file_of_the_program_reaches_the_helper(
    open_cache: Callable[..., Cache], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from the current directory, nor by `PYTHONPATH`, nor from beside the script."""
    planted = tmp_path / "program"
    planted.mkdir()
    for name in ("json", "socket", "msgpack", "sitecustomize", "usercustomize"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'reached')!r}, 'a').write(__name__)\nraise ImportError(__name__)\n")
    monkeypatch.chdir(planted)
    monkeypatch.setenv("PYTHONPATH", str(planted))
    monkeypatch.setenv("PYTHONSTARTUP", str(planted / "json.py"))
    monkeypatch.setattr("sys.path", ["", *sys.path, str(planted)])
    wanted = Identity("f", code="isolated")
    cache = open_cache("a")
    cache.get_or_compile(wanted, lambda: constant("f", 7))
    upload(cache, wanted)
    assert not (tmp_path / "reached").exists()


@pytest.mark.slow
def test_a_child_of_a_fork_asks_as_well(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code=8)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 9))
    upload(first, name)
    second = open_cache("b", "read")
    with pytest.raises(NotCachedError):
        second.get_target(Identity("f", code="absent").func_name)
    child = os.fork()
    if not child:
        os._exit(second.get_target(name.func_name)())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_child_asks_again_by_a_connection_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not read the answer that its parent waits for."""
    monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 bytes
    Cache(tmp_path / "cache").close()  # the fork is prepared in processes that have opened a cache
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(SOCKET)
        server.listen()
        server.settimeout(20)
        settings = read_settings("https://example.org/store", None)
        assert settings is not None
        question = Question(str(tmp_path), settings, ["find"])
        question.wait(0.0)
        child = os.fork()
        if not child:
            os._exit(0 if question.wait(10) and question.answer == 2 else 1)
        first, second = server.accept()[0], server.accept()[0]
        with first, second:
            second.sendall(encode(2))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            first.sendall(encode(1))
            assert question.wait(10)
            assert question.answer == 1


def test_the_breaker_opens_after_three_failures_until_a_probe_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("compcache.remote.breaker.time.time", lambda: now)
    breaker, other = Breaker(str(tmp_path / "breaker")), Breaker(str(tmp_path / "breaker"))
    for _ in range(2):
        breaker.record_failure()
        assert breaker.allows_lookups()
    breaker.record_failure()
    assert other.is_open()
    assert not breaker.allows_lookups()
    assert breaker.state() == (3, 30.0)
    now += 30.0
    assert (other.is_open(), other.is_half_open(), breaker.allows_lookups()) == (False, True, False)
    breaker.record_failure()  # a look-up that was on its way: it is the probe that counts
    assert breaker.is_half_open()
    breaker.record_failure(is_probe=True)
    assert breaker.state() == (4, 60.0)
    now += 60.0
    breaker.record_success()
    assert breaker.allows_lookups()
    assert breaker.state() == (0, 0.0)
    (tmp_path / "breaker").write_text("nonsense")
    assert not breaker.is_open()


def test_a_clock_that_was_set_back_leaves_no_store_alone_for_long(tmp_path: Path) -> None:
    breaker = Breaker(str(tmp_path / "breaker"))
    for seconds, is_open in ((300.0, True), (1e6, False)):
        (tmp_path / "breaker").write_text(f"3 {time.time() + seconds} 30.0")
        assert breaker.is_open() == is_open


def test_a_look_up_that_failed_casts_doubt_on_the_store_at_once(tmp_path: Path) -> None:
    breaker, other = Breaker(str(tmp_path / "breaker")), Breaker(str(tmp_path / "breaker"))
    breaker.record_failure(is_doubtful=True)
    assert (other.is_open(), other.is_doubtful(), other.allows_lookups()) == (True, True, False)
    breaker.record_success()  # it failed once, says the probe
    assert other.allows_lookups()
    breaker.record_failure(is_doubtful=True)
    for _ in range(2):
        breaker.record_failure(is_probe=True)
    assert (other.is_open(), other.is_doubtful()) == (True, False)
    assert breaker.state()[1] > 20
