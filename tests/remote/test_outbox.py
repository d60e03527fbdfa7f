"""Uploads that wait in files."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from helpers import constant, flip_byte
from shared_store import open_cache_fixture, store_fixture  # noqa: F401 - fixtures

from compcache import CacheWarning, Identity
from compcache.errors import FormatError
from compcache.remote.connection import ask
from compcache.remote.directory import outbox_directory
from compcache.remote.outbox import Outbox, Upload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from compcache import Cache


def test_the_outbox_drops_the_oldest(tmp_path: Path) -> None:
    outbox = Outbox(str(tmp_path), limit=3000)
    for number in range(5):
        outbox.put(Upload(f"ccr3/m/{number}", bytes(900), [("key", b"card")], 0.5, always=False))
    assert [outbox.read(name).key for name in outbox.names()] == ["ccr3/m/2", "ccr3/m/3", "ccr3/m/4"]
    assert outbox.size() <= 3000


def test_a_sweep_passes_over_what_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"partial-{number}").touch()
        os.utime(tmp_path / f"partial-{number}", (0, 0))
    listed = os.listdir(tmp_path)
    (tmp_path / listed[0]).unlink()  # by another helper, after the listing
    monkeypatch.setattr("compcache.remote.outbox.os.listdir", lambda _: listed)
    Outbox(str(tmp_path)).sweep()
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


def test_directories_of_stores_that_nobody_uses_end(store: Path, open_cache: Callable[..., Cache]) -> None:
    """The store of the cache has not been used for long either, but is now. What a running helper or the user has there stays."""
    cache = open_cache("a")
    Outbox(outbox_directory(store.as_uri(), os.environ)).put(Upload("ccr3/m/1", b"module", [], 0.5, always=True))
    runtime = store.parent / "run" / "compcache"
    (own,) = runtime.iterdir()
    left, full, recent, served, of_user = (runtime / name for name in ("1" * 16, "2" * 16, "3" * 16, "4" * 16, "of the user"))
    for path in (left, full, recent, served, of_user):
        path.mkdir(mode=0o700)
    for name in ("breaker", "helper-6.lock", "used", "1.upload3"):
        (full / name).touch()
    (of_user / "file").touch()
    (runtime / ("5" * 16)).symlink_to(of_user)
    month = time.time() - 31 * 86400
    with (served / "helper-7.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in (own, left, full, served, of_user, runtime / ("5" * 16)):
            os.utime(path, (month, month), follow_symlinks=False)
        question = ask(cache.remote.settings, "status")  # type: ignore[union-attr]
        assert question.wait(60.0)
    assert all(path.exists() for path in (own, recent, served / "helper-7.lock", of_user / "file"))
    assert not any(path.exists() for path in (left, full))


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_upload_is_refused(tmp_path: Path, at: int) -> None:
    outbox = Outbox(str(tmp_path))
    outbox.put(Upload("ccr3/m/1", bytes(900), [("key", b"card")], 0.5, always=False))
    (path,) = tmp_path.iterdir()
    flip_byte(path, at)
    with pytest.raises(FormatError):
        outbox.read(path.name)


@pytest.mark.parametrize("field", range(len(Upload._fields)))
def test_an_upload_with_a_field_of_another_type_is_refused(tmp_path: Path, field: int) -> None:
    """Uploads of other programs, and of other versions that have kept the version of the format."""
    fields: list[Any] = ["ccr3/m/1", b"module", [("key", b"card")], 0.5, False, False]
    fields[field] = None
    outbox = Outbox(str(tmp_path))
    outbox.put(Upload(*fields))
    (path,) = tmp_path.iterdir()
    with pytest.raises(FormatError, match="malformed"):
        outbox.read(path.name)


def test_a_full_disk_does_not_count_as_a_failure_of_the_store(
    open_cache: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = open_cache("a")
    monkeypatch.setattr("compcache.remote.outbox.publish", fail)
    names = [Identity("f", number=number) for number in range(8)]
    with pytest.warns(CacheWarning, match=f"the remote store .* cannot be sent module .*{os.strerror(errno.ENOSPC)}"):
        targets = [cache.get_or_compile(name, lambda number=number: constant("f", number)) for number, name in enumerate(names)]  # type: ignore[misc]
    assert [target() for target in targets] == list(range(8))
    remote = cache._session().remote()
    assert remote is not None
    assert [breaker.state() for breaker in remote.breakers()] == [(0, 0.0)]
