"""A remote store in a directory that others can write to: no link leads out of it, and nobody waits for what is not a file."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest

from compcache.remote.address import RemoteSettings, Stores
from compcache.remote.helper.backends import Backend, TooLargeError, open_backend
from compcache.remote.maintenance import RemoteObject, collect_garbage
from compcache.remote.shelves import LAYOUT

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 1 << 20
KEY = f"{LAYOUT}/f/x/y/ab/object"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(store: Path) -> Backend:
    return open_backend(RemoteSettings(f"file://{store}", "write"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What must not change: a directory with as many levels as the store's have."""
    for depth in range(1, 7):
        place = tmp_path / "outside" / "/".join(KEY.split("/")[-depth:])
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.write_bytes(b"theirs")
    return tmp_path / "outside"


def content(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


async def listed(backend: Backend, prefix: str) -> list[RemoteObject]:
    return [item async for item in backend.list(prefix)]


def test_objects_are_created_once_replaced_listed_and_removed(backend: Backend, store: Path) -> None:
    async def run() -> None:
        assert await backend.get(KEY, LARGEST) is None
        assert await listed(backend, f"{LAYOUT}/f/") == []
        assert await backend.create(KEY, b"one")
        assert not await backend.create(KEY, b"two")
        assert await backend.get(KEY, LARGEST) == b"one"
        await backend.replace(KEY, b"three")
        assert await backend.get(KEY, LARGEST) == b"three"
        assert [item[:2] for item in await listed(backend, f"{LAYOUT}/f/")] == [(KEY, 5)]
        await backend.delete(KEY)
        await backend.delete(KEY)
        assert await backend.get(KEY, LARGEST) is None

    asyncio.run(run())
    assert content(store) == {}


@pytest.mark.parametrize("part", range(len(KEY.split("/"))))
def test_nothing_is_read_written_or_removed_through_a_link(backend: Backend, store: Path, outside: Path, part: int) -> None:
    names = KEY.split("/")
    place = store.joinpath(*names[: part + 1])
    place.parent.mkdir(parents=True)
    target = outside.joinpath(*names[part + 1 :]) if part + 1 < len(names) else outside / "object"
    place.symlink_to(outside if part + 1 < len(names) else target)
    assert target.read_bytes() == b"theirs"
    before = content(outside)

    async def attempt(operation: Any) -> Any:
        try:
            return await operation
        except OSError as error:
            return error

    async def run() -> list[Any]:
        found = [await attempt(backend.get(KEY, LARGEST)), await listed(backend, f"{LAYOUT}/f/")]
        for operation in (backend.create(KEY, b"new"), backend.delete(KEY), backend.replace(KEY, b"new")):
            await attempt(operation)
        return found

    assert asyncio.run(run()) == [None, []]
    assert content(outside) == before


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "directory"])
def test_what_is_not_a_file_is_not_an_object_and_is_replaced(backend: Backend, store: Path, kind: str) -> None:
    place = store / KEY
    place.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        listener = socket.socket(socket.AF_UNIX)
        where = os.open(place.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{where}/object")
        os.close(where)
        listener.close()
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()

    async def run() -> list[Any]:
        first = await asyncio.wait_for(backend.get(KEY, LARGEST), 20)
        if kind != "directory":
            await backend.replace(KEY, b"right")
            return [first, await backend.get(KEY, LARGEST)]
        return [first, b"right"]

    assert asyncio.run(run()) == [None, b"right"]


def test_an_object_of_a_terabyte_is_not_read(backend: Backend, store: Path) -> None:
    (store / KEY).parent.mkdir(parents=True)
    (store / KEY).touch()
    os.truncate(store / KEY, 1 << 40)
    with pytest.raises(TooLargeError):
        asyncio.run(backend.get(KEY, LARGEST))


def test_collecting_garbage_removes_nothing_elsewhere(store: Path, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file there would be a card that does not decode."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (store / LAYOUT).mkdir(parents=True)
    (store / LAYOUT / "f").symlink_to(outside)
    before = content(outside)
    stores = Stores((RemoteSettings(f"file://{store}", "write"),))
    found = [collect_garbage(stores, grace=0.0) for _ in range(2)]
    shutil.rmtree(tmp_path / "run")  # the helper process ends
    assert found == [((), ())] * 2
    assert content(outside) == before
