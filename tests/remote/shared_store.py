"""A store that the caches of a test share, and what is in it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, Identity, ModuleSource
from compcache.remote.card import Card, decode_cards, encode_cards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


CALLER = "declare i64 @callee(i64)\ndefine i64 @caller(i64 %x) {\n %y = call i64 @callee(i64 %x)\n ret i64 %y\n}\n"
CALLEE = "define i64 @callee(i64 %x) {\n %y = add i64 %x, 100\n ret i64 %y\n}\n"


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a remote store; helper processes of this test end with it."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr("compcache.miss.compile_once.HEDGE_SECONDS", 20.0)  # the machine may be busy
    yield tmp_path / "store"
    shutil.rmtree(runtime)


@pytest.fixture(name="open_cache")
def open_cache_fixture(store: Path, tmp_path: Path) -> Iterator[Callable[..., Cache]]:
    """Opens caches by name that share the store."""
    caches: list[Cache] = []

    def open_cache(name: str, mode: str = "write", **more: object) -> Cache:
        (tmp_path / name).mkdir(mode=0o700, exist_ok=True)  # which looking up alone does not make: no statistics then
        caches.append(Cache(tmp_path / name, remote=store.as_uri(), remote_mode=mode, **more))  # type: ignore[arg-type]
        return caches[-1]

    yield open_cache
    for cache in caches:
        cache.close()


def objects(store: Path, kind: str) -> list[Path]:
    return sorted(path for path in (store / "ccr3" / kind).rglob("*") if path.is_file())


def card_of(path: Path) -> Card:
    (card,) = decode_cards(path.read_bytes()).values()
    return card


def put_card(path: Path, card: Card) -> None:
    (shelf,) = decode_cards(path.read_bytes())
    path.write_bytes(encode_cards({shelf: card}))


def upload(cache: Cache, *names: Identity | str) -> None:
    """Upload modules whether that is worth it or not: on a busy machine fetching takes longer than compiling."""
    cache.push(names)
    assert cache.flush_uploads(60)


def never() -> ModuleSource:
    raise AssertionError("it is compiled, though the store has it")


class Counting:
    """A store in memory that notes what is asked of it: keys, and the bytes that the answer may have."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.asked: list[tuple[str, int]] = []

    async def get(self, key: str, largest: int, _: object = None) -> bytes | None:
        self.asked.append((key, largest))
        return self.objects.get(key)
