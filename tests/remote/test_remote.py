"""A remote store on a directory: what one cache compiled another one loads, and what goes wrong costs little."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import constant, run_fresh
from shared_store import CALLEE, CALLER, never, objects, open_cache_fixture, store_fixture, upload  # noqa: F401 - fixtures

from compcache import Cache, Function, Identity, ModuleSource, NotCachedError, RemoteStats, frontend
from compcache.batch import Job, compile_many

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_what_one_cache_compiled_another_one_loads(open_cache: Callable[..., Cache], store: Path) -> None:
    name = Identity("f", code=1)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 7))
    upload(first, name)
    assert len(objects(store, "f")) == 1
    second = open_cache("b", "read")
    assert second.get_or_compile(name, never)() == 7
    counters = second.stats().counters
    assert (counters["remote_hits"], counters.get("compilations", 0)) == (1, 0)
    assert second.check()


def test_uploads_can_be_awaited_without_a_limit(open_cache: Callable[..., Cache]) -> None:
    with open_cache("a") as cache:
        name = Identity("f", number=1)
        cache.get_or_compile(name, lambda: constant("f", 1))
        cache.push([name])
        assert cache.flush_uploads(float("inf"))


def test_the_path_of_a_store_need_not_be_utf8(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/\udcff"
    name = Identity("f", code=1)
    with Cache(tmp_path / "a", remote=store, remote_mode="write") as cache:
        assert cache.get_or_compile(name, lambda: constant("f", 7))() == 7
        upload(cache, name)
    with Cache(tmp_path / "b", remote=store) as cache:
        assert cache.get_or_compile(name, never)() == 7
    with Cache(tmp_path / "b") as cache:
        assert [(url, counts.hits) for url, counts in cache.stats().remote_stores.items()] == [(store.replace("\udcff", "\\udcff"), 1)]


def test_a_target_that_is_asked_for_without_a_source_is_fetched_with_its_imports(open_cache: Callable[..., Cache]) -> None:
    callee, caller = Identity("callee", code=1), Identity("caller", code=1)
    first = open_cache("a")
    first.get_or_compile(callee, lambda: CALLEE)
    first.get_or_compile(caller, lambda: ModuleSource(CALLER, imports={"callee": callee.func_name}))
    upload(first, caller)
    assert open_cache("b", "read").get_target(caller.func_name)(1) == 101


@pytest.mark.slow
def test_a_fresh_process_compiles_nothing_that_the_store_has(open_cache: Callable[..., Cache], store: Path, tmp_path: Path) -> None:
    first = open_cache("a")
    functions = first.compile(CALLEE)
    assert functions.callee(1) == 101
    upload(first, functions.callee.func_name)
    script = f"""
    from compcache import Cache
    from compcache.miss import compile_once
    compile_once.HEDGE_SECONDS = 20.0  # the machine may be busy
    with Cache(directory, remote={store.as_uri()!r}) as cache:
        value = cache.compile({CALLEE!r}).callee(2)
        counters = cache.stats().counters
        result = [value, counters.get("compilations", 0), counters.get("remote_hits", 0), "llvmlite" in sys.modules]
    """
    assert run_fresh(tmp_path / "b", script) == [102, 0, 1, False]


@pytest.mark.slow
def test_an_edited_source_finds_in_the_store_what_is_unchanged(open_cache: Callable[..., Cache]) -> None:
    first = open_cache("a")
    upload(first, first.compile(CALLEE).callee.func_name)
    second = open_cache("b", "read")
    functions = second.compile(constant("edited", 7) + CALLEE)
    assert (functions.callee(1), functions.edited()) == (101, 7)
    assert sorted(len(module.functions) for module in second.modules()) == [1, 1]


@pytest.mark.slow
def test_the_environment_names_a_store(
    open_cache: Callable[..., Cache], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = Identity("f", code=2)
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 8))
    upload(first, name)
    monkeypatch.setenv("COMPCACHE_REMOTE", store.as_uri())
    with Cache(tmp_path / "b") as cache:
        assert cache.get_or_compile(name, never)() == 8
    monkeypatch.setenv("COMPCACHE_REMOTE_MODE", "off")
    with Cache(tmp_path / "c") as cache, pytest.raises(NotCachedError):
        cache.get_target(name.func_name)


@pytest.mark.parametrize(
    ("url", "mode"), [("ftp://host/x", "read"), ("s3:///x", "read"), ("file://host/x", "read"), ("bucket", "read"), ("file:///x", "both")]
)
def test_a_store_that_cannot_be_is_refused_at_once(tmp_path: Path, url: str, mode: str) -> None:
    with pytest.raises(ValueError, match=r"remote store|remote_mode"):
        Cache(tmp_path, remote=url, remote_mode=mode)


def test_a_store_in_read_mode_gets_nothing(open_cache: Callable[..., Cache], store: Path) -> None:
    cache = open_cache("a", "read")
    cache.get_or_compile(Identity("f", code=3), lambda: constant("f", 1))
    assert cache.flush_uploads(5)
    assert objects(store, "f") == []


@pytest.mark.slow
def test_a_module_that_is_added_if_it_is_missing_comes_from_the_store(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code="added")
    first = open_cache("a")
    frontend.add_missing(first, [name.func_name], lambda: ModuleSource(constant("f", 7), {name.func_name: Function(symbol="f")}))
    upload(first, name)
    second = open_cache("b", "read")
    assert frontend.add_missing(second, [name.func_name], never).was_cached
    assert second.get_target(name)() == 7


@pytest.mark.slow
def test_a_batch_asks_for_all_its_functions_at_once(open_cache: Callable[..., Cache]) -> None:
    names = [Identity("f", number=number) for number in range(3)]
    jobs = [Job(name, ModuleSource(constant("f", number))) for number, name in enumerate(names)]
    first = open_cache("a")
    for number, name in enumerate(names[:2]):
        first.get_or_compile(name, partial(constant, "f", number))
    upload(first, *names[:2])
    second = open_cache("b")
    report = compile_many(second, jobs, workers=1)
    assert (len(report.cached), len(report.built)) == (2, 1)
    assert [second.get_target(name)() for name in names] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("add", [Cache.add_module, lambda cache, source: cache.add_modules([source])])
def test_an_import_that_only_the_store_has_is_fetched(open_cache: Callable[..., Cache], add: Callable[..., object]) -> None:
    callee = open_cache("a").compile(CALLEE).callee.func_name
    upload(open_cache("a"), callee)
    caller = CALLER.replace("@callee", f'@"{callee}"')
    second = open_cache("b", "read")
    add(second, ModuleSource(caller))
    assert second.get_target("caller")(1) == 101


def test_what_is_added_by_the_group_is_uploaded(open_cache: Callable[..., Cache], store: Path) -> None:
    first = open_cache("a")
    first.get_or_compile(Identity("slow", code=1), lambda: constant("slow", 1))
    names = [Identity("f", number=number).func_name for number in range(3)]
    first.add_modules([ModuleSource(constant("f", number), {name: Function(symbol="f")}) for number, name in enumerate(names)])
    waiting = first.remote.outboxes()[0]  # type: ignore[union-attr]
    assert first.flush_uploads(60)
    assert waiting.names() == []
    assert len(objects(store, "f")) + first.remote.status()[0].get("not_worth_uploading", 0) == 4  # type: ignore[union-attr]


def test_workers_get_the_store_that_the_environment_names(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_REMOTE", store.as_uri())
    monkeypatch.setenv("COMPCACHE_REMOTE_MODE", "write")
    with Cache(tmp_path / "a") as cache:
        settings = frontend.settings_of(cache)
    assert (settings["remote"], settings["remote_mode"]) == (store.as_uri(), "write")


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_no_message_tells_a_password(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with Cache(tmp_path / "a", remote="http://user:secret@127.0.0.1:1/x") as cache:
        answer = cache.explain(Identity("f", code=1)).remote
        status = cache.remote.status()[0]  # type: ignore[union-attr]
    assert answer is not None
    assert answer.outcome == "unavailable"
    assert "127.0.0.1" in status["last_error"]
    assert status["last_error"].endswith(": Connection refused")
    assert "secret" not in f"{answer} {status}"


def test_explain_tells_what_the_store_says(open_cache: Callable[..., Cache]) -> None:
    name, absent = Identity("f", code="explained"), Identity("f", code="absent")
    first = open_cache("a", signing_key=b"one")
    first.get_or_compile(name, lambda: constant("f", 7))
    upload(first, name)
    second = open_cache("b", "read", signing_key=b"one")
    found = second.explain(name).remote
    assert found is not None
    assert (found.outcome, found.is_asked, found.module_id) == ("found", True, first.realizations(name)[0].module_id)
    assert not second.has(name)
    missing, plain = second.explain(absent).remote, second.explain("plain").remote
    assert missing is not None
    assert (missing.outcome, "x86-64" in missing.message or "cpu-" in missing.message) == ("missing", True)
    assert plain is not None
    assert not plain.is_asked
    other = open_cache("c", "read", signing_key=b"two").explain(name).remote
    assert other is not None
    assert (other.outcome, "signed" in other.message) == ("rejected", True)
    assert open_cache("d", "off").explain(name).remote is None


def test_statistics_count_the_store_apart(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code="counted")
    first = open_cache("a")
    first.get_or_compile(name, lambda: constant("f", 7))
    upload(first, name)
    second = open_cache("b", "read")
    second.get_or_compile(name, never)
    with pytest.raises(NotCachedError):
        second.get_target(Identity("f", code="absent").func_name)
    stats = second.stats()
    size = first.stats().size  # the second also notes where the module is from
    assert stats.remote == RemoteStats(hits=1, misses=1, size=size, answers=2, seconds=stats.remote.seconds)
    assert stats.remote.latency == stats.remote.seconds / 2 > 0
    assert first.stats().remote.offered >= 1


def test_plain_names_are_shared_only_on_purpose(open_cache: Callable[..., Cache], store: Path) -> None:
    first = open_cache("a")
    first.get_or_compile("plain", lambda: ModuleSource(constant("plain", 5)))
    assert first.flush_uploads(5)
    assert objects(store, "f") == []
    assert first.push(["plain"]) == 1
    assert first.flush_uploads(20)
    second = open_cache("b", "read")
    with pytest.raises(NotCachedError):
        second.get_target("plain")
    assert second.has_many(["plain", "other"]) == (True, False)
    assert second.prefetch(["plain", "other"]) == ("plain",)
    assert second.get_target("plain")() == 5


def test_a_plain_name_beside_one_of_content_is_not_asked_for(open_cache: Callable[..., Cache]) -> None:
    name = Identity("f", code="beside")
    first = open_cache("a")
    first.get_or_compile("plain", lambda: ModuleSource(constant("plain", 5)))
    first.get_or_compile(name, lambda: constant("f", 1))
    upload(first, "plain", name)
    second = open_cache("b", "read")
    own = ModuleSource(constant("f", 2) + constant("plain", 6), {name.func_name: Function(symbol="f"), "plain": Function()})
    assert not frontend.add_missing(second, [name.func_name, "plain"], lambda: own).was_cached
    assert second.get_target("plain")() == 6


def test_a_linked_closure_is_not_pushed_instead_of_the_modules_of_its_functions(open_cache: Callable[..., Cache]) -> None:
    name = Identity("callee", code=CALLEE)
    with open_cache("a") as cache:
        cache.add_module(ModuleSource(CALLER, {"caller": "i64(i64)"}, imports={"callee": name.func_name}))
        cache.add_module(ModuleSource(CALLEE, {name.func_name: Function("i64(i64)", symbol="callee")}))
        cache.link(["caller", name], into="set")
        assert cache.push(["caller", name]) == 2
        assert cache.flush_uploads()
    with open_cache("b", "read") as cache:
        assert {*cache.prefetch([name, "caller"], plain=True)} == {"caller", name.func_name}
        assert (cache.get_target(name)(1), cache.get_target("caller")(1)) == (101, 101)


@pytest.mark.filterwarnings("ignore::compcache.CacheWarning")
def test_a_linked_closure_in_a_store_is_refused_and_replaced(open_cache: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions pushed linked closures."""
    name = Identity("callee", code=CALLEE)
    source = ModuleSource(CALLEE, {name.func_name: Function("i64(i64)", symbol="callee")})
    with open_cache("a") as cache:
        cache.add_module(ModuleSource(CALLER, {"caller": "i64(i64)"}, imports={"callee": name.func_name}))
        cache.add_module(source)
        cache.link(["caller", name], into="set")
        with monkeypatch.context() as patch:
            patch.setattr("compcache.remote.client.LINKED", 1 << 64)
            cache.push([name])
        assert cache.flush_uploads()
    with open_cache("b") as cache:
        assert not {*cache.prefetch([name])}
        assert not frontend.add_missing(cache, [name.func_name], lambda: source).was_cached
        cache.push([name])
        assert cache.flush_uploads()
    with open_cache("c", "read") as cache:
        assert {*cache.prefetch([name])} == {name.func_name}
        assert cache.get_target(name)(1) == 101
