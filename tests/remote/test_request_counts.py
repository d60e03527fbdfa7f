"""How many requests a look-up takes, in a fresh process with a fresh helper: one for all CPU levels and all imports, one for a start-up."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from helpers import constant
from web_store import WebStore

from compcache import Cache, Identity, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    pytest.importorskip("obstore")
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 20.0)  # the machine may be busy
    with WebStore() as server:
        start_anew(tmp_path, monkeypatch)
        yield server
        server.shutdown()
    for runtime in tmp_path.glob("run*"):
        shutil.rmtree(runtime)  # the helper process ends with it


def start_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on another helper process serves."""
    runtime = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))


def never() -> Any:
    raise AssertionError("it is compiled, though the store has it")


def fill(web: WebStore, place: Path, sources: dict[Identity, Any]) -> None:
    with Cache(place, remote=web.url, remote_mode="write") as cache:
        for name, source in sources.items():
            cache.get_or_compile(name, partial(ModuleSource, **source))
        cache.push(sources)
        assert cache.flush_uploads(60)


def caller_of_five() -> tuple[Identity, dict[Identity, Any]]:
    """A function that imports five others, one of them by way of another one."""
    names = [*[Identity("leaf", number=number) for number in range(4)], Identity("inner", number=4)]
    sources: dict[Identity, Any] = {name: {"ir": constant("leaf", 1)} for name in names[:4]}
    inner = "declare i64 @leaf()\ndefine i64 @inner() {\n %v = call i64 @leaf()\n ret i64 %v\n}\n"
    sources[names[4]] = {"inline": False, "ir": inner, "imports": {"leaf": names[0].func_name}}
    ir = "".join(f"declare i64 @f{number}()\n" for number in range(1, 5)) + "define i64 @top() {\n"
    ir += "".join(f" %v{number} = call i64 @f{number}()\n" for number in range(1, 5))
    ir += " %a = add i64 %v1, %v2\n %b = add i64 %v3, %v4\n %c = add i64 %a, %b\n ret i64 %c\n}\n"
    top = Identity("top", number=5)
    sources[top] = {"inline": False, "ir": ir, "imports": {f"f{number}": names[number].func_name for number in range(1, 5)}}
    return top, sources


@pytest.mark.slow
def test_a_hit_with_five_imports_takes_two_requests(web: WebStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its card, with all that it imports, and a question for a pack."""
    top, sources = caller_of_five()
    fill(web, tmp_path / "a", sources)
    start_anew(tmp_path, monkeypatch)
    web.requests.clear()
    with Cache(tmp_path / "b", remote=web.url) as cache:
        assert cache.get_or_compile(top, never)() == 4
        assert cache.stats().remote.hits == 6
        paths = web.requested(cache)
    assert [path.split("/")[3] for path in paths if path.split("/")[3] != "p"] == ["f"]
    assert len(paths) <= 2


def test_a_miss_takes_one_request(web: WebStore, tmp_path: Path) -> None:
    with Cache(tmp_path / "a", remote=web.url) as cache:
        assert cache.has_many([Identity("f", number=0)]) == (False,)
        assert cache.prefetch([Identity("f", number=1)]) == ()
        assert len(web.requested(cache)) == 2


@pytest.mark.slow
def test_what_was_pushed_together_takes_two_requests(web: WebStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [Identity("f", number=number) for number in range(30)]
    fill(web, tmp_path / "a", {name: {"ir": constant("f", number)} for number, name in enumerate(names)})
    start_anew(tmp_path, monkeypatch)
    web.requests.clear()
    with Cache(tmp_path / "b", remote=web.url) as cache:
        assert len(cache.prefetch(names)) == 30
        assert [path.split("/")[3] for path in web.requested(cache)] == ["f", "p"]


@pytest.mark.slow
def test_imports_that_a_card_holds_are_verified(web: WebStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came with a card and is not what it says is asked for by its own card."""
    from compcache.remote.card import decode_cards, encode_cards

    top, sources = caller_of_five()
    fill(web, tmp_path / "a", sources)
    web.objects = {path: data for path, data in web.objects.items() if "/p/" not in path}
    for path, data in web.objects.items():
        if "/f/" in path:
            ((shelf, card),) = decode_cards(data).items()
            worse = tuple(each._replace(module=each.module[:-1] + bytes([each.module[-1] ^ 1])) for each in card.imports)
            web.objects[path] = encode_cards({shelf: card._replace(imports=worse)})
    start_anew(tmp_path, monkeypatch)
    web.requests.clear()
    with Cache(tmp_path / "b", remote=web.url) as cache:
        assert cache.get_or_compile(top, never)() == 4
        assert cache.stats().counters.get("remote_rejected", 0) == 0
        assert len([path for path in web.requested(cache) if "/f/" in path]) == 6
