"""Entries of data that are read without a store, and functions that are accepted by their entries."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, run_fresh

from compcache import Cache, CompcacheError, ModuleSource, PickleNotAllowedError, frontend
from compcache.formats import manifest
from compcache.formats.entry import PACK_FLAG
from compcache.hit import plain_entries
from compcache.hit.target import load_runtime

if TYPE_CHECKING:
    from pathlib import Path

KIND = "pickle:k"


def is_plain(cache: Cache) -> bool:
    return cache._plain._files is not None


def fill(directory: Path, *realizations: int) -> None:
    """Store a function f with these realizations, each with its number as an entry, and an entry a."""
    with Cache(directory, allow_pickle=True) as cache:
        for number in realizations:
            source = ModuleSource(adder("f", number), entries={KIND: str(number).encode(), "k": b"other"})
            frontend.add_realizations(cache, source, alone=True)
        frontend.put_entry(cache, "a", b"data", kind=KIND)


def test_the_plain_case_knows_the_flags_of_files() -> None:
    assert plain_entries._READABLE == (manifest.IMAGE_SHARED, PACK_FLAG)


def test_entries_and_accepted_functions_need_neither_store_nor_loader(directory: Path) -> None:
    fill(directory, 1)
    code = """
    import sys
    from compcache import Cache, frontend
    cache = Cache(directory, allow_pickle=True)
    target = frontend.find(cache, "f", lambda data: data == b"1", kind="pickle:k")
    result = [frontend.get_entry(cache, name, "pickle:k") for name in ("a", "missing", "f")], target(2)
    result = result, [name for name in ("store", "hit.loader", "cache", "formats.entry") if f"compcache.{name}" in sys.modules]
    """
    assert run_fresh(directory, code) == (([b"data", None, b"1"], 3), [])


def test_pickles_are_read_on_request_only(directory: Path) -> None:
    fill(directory, 1)
    with Cache(directory) as cache:
        assert is_plain(cache)
        with pytest.raises(PickleNotAllowedError):
            frontend.get_entry(cache, "a", KIND)
        with pytest.raises(PickleNotAllowedError):
            frontend.find(cache, "f", lambda _: True, kind=KIND)
    with Cache(directory, allow_pickle=True) as cache:
        assert cache.exists
        assert frontend.get_entry(cache, "a", KIND) == b"data", "a full cache has the option of the plain one"


def test_entries_that_other_processes_add_are_found(directory: Path) -> None:
    fill(directory, 1)
    with Cache(directory, allow_pickle=True) as cache:
        assert [frontend.get_entry(cache, name, KIND) for name in ("a", "later")] == [b"data", None]
        with Cache(directory, allow_pickle=True) as other:
            frontend.put_entry(other, "later", b"added", kind=KIND)
        assert frontend.get_entry(cache, "later", KIND) == b"added"
        assert is_plain(cache)


def test_a_removed_entry_is_none(directory: Path) -> None:
    fill(directory, 1)
    with Cache(directory, allow_pickle=True) as cache:
        frontend.remove_entry(cache, "a", KIND)
    with Cache(directory, allow_pickle=True) as cache:
        assert frontend.get_entry(cache, "a", KIND) is None


def test_a_remote_store_is_asked_for_a_missing_entry(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(directory, 1)
    name, remote = "dot-" + "0" * 32, f"file://{tmp_path / 'remote'}"
    with Cache(tmp_path / "there", remote=remote, remote_mode="write") as there:
        frontend.put_entry(there, name, b"data", kind="k")
        frontend.write_entries(there)
        assert there.flush_uploads(30)
    monkeypatch.setenv("COMPCACHE_REMOTE", remote)
    with Cache(directory, allow_pickle=True) as cache:
        assert is_plain(cache)
        assert any(frontend.get_entry(cache, name, "k") == b"data" for _ in range(50))


@pytest.mark.parametrize("raises", [False, True])
def test_what_is_not_accepted_is_not_loaded(directory: Path, raises: bool) -> None:
    fill(directory, 1)
    asked: list[bytes] = []

    def accept(data: bytes) -> bool:
        asked.append(data)
        if raises:
            raise CompcacheError("no")
        return False

    with Cache(directory, allow_pickle=True) as cache:
        assert frontend.find(cache, "f", accept, kind=KIND) is None
        assert set(asked) == {b"1"}
        assert cache.loaded().modules == ()


def test_a_function_without_an_entry_of_the_kind_is_not_loaded(directory: Path) -> None:
    fill(directory, 1)
    with Cache(directory, allow_pickle=True) as cache:
        assert frontend.find(cache, "f", lambda _: True, kind="pickle:others") is None


def test_of_several_realizations_the_accepted_one_is_loaded(directory: Path) -> None:
    fill(directory, 1, 2, 3)
    with Cache(directory, allow_pickle=True) as cache:
        targets = [frontend.find(cache, "f", lambda data, number=number: data == str(number).encode(), kind=KIND) for number in (3, 1, 2)]  # type: ignore[misc]
        assert [target(0) for target in targets if target is not None] == [3, 1, 2]


def test_an_entry_of_the_index_leads_to_no_other_entry(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(directory, 1)
    wrong = {f"\0{KIND}\0b": f"\0{KIND}\0a", "\0pickle:others\0f": f"\0{KIND}\0f"}
    runtime = load_runtime()

    class Misleading:
        def __getattr__(self, name: str) -> Any:
            return getattr(runtime, name)

        def digest(self, data: bytes, *rest: Any) -> bytes:
            found: bytes = runtime.digest(wrong.get(data.decode(), data.decode()).encode(), *rest)
            return found

    monkeypatch.setattr(plain_entries, "load_runtime", Misleading)
    with Cache(directory, allow_pickle=True) as cache:
        assert frontend.get_entry(cache, "a", KIND) == b"data"
        assert frontend.get_entry(cache, "b", KIND) is None
        assert frontend.find(cache, "f", lambda _: True, kind="pickle:others") is None


def test_a_function_is_not_accepted_by_the_entry_of_another_module(directory: Path) -> None:
    with Cache(directory, allow_pickle=True) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        frontend.put_entry(cache, "f", b"of no module", kind=KIND)
    with Cache(directory, allow_pickle=True) as cache:
        assert frontend.find(cache, "f", lambda _: True, kind=KIND) is None


def test_an_entry_whose_module_is_in_no_volume_is_not_found(directory: Path) -> None:
    with Cache(directory) as cache:
        module_id = cache.add_module(ModuleSource(adder("f", 1)))
        frontend.put_entry(cache, "a", b"data", kind="k", requires=[module_id])
    with Cache(directory) as cache:
        assert frontend.get_entry(cache, "a", "k") == b"data"
        assert is_plain(cache)
    (directory / "modules-v1" / module_id[:2] / f"{module_id}.ccm").unlink()
    (directory / "volumes-v1").mkdir(mode=0o700)
    with Cache(directory) as cache:
        assert frontend.get_entry(cache, "a", "k") is None


def test_a_closed_cache_finds_nothing(directory: Path) -> None:
    fill(directory, 1)
    cache = Cache(directory, allow_pickle=True)
    cache.close()
    with pytest.raises(CompcacheError, match="is closed"):
        frontend.find(cache, "f", lambda _: True, kind=KIND)
    with pytest.raises(CompcacheError, match="is closed"):
        frontend.get_entry(cache, "a", KIND)


def test_entries_of_files_that_were_not_verified_are_left_to_the_store(directory: Path) -> None:
    fill(directory, 1)
    for path in directory.rglob("*.ccm"):
        os.utime(path, ns=(1, 1))
    with Cache(directory, allow_pickle=True) as cache:
        assert frontend.get_entry(cache, "a", KIND) == b"data"
        assert not is_plain(cache)
