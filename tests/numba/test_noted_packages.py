"""What a start has found out about installed packages holds for the next one, until any of it changes."""

from __future__ import annotations

import errno
import os
import sys
import time
import types
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from helpers import constant

from compcache import Cache, CacheWarning, ModuleSource, frontend
from compcache.numba.lazy import installation
from compcache.numba.registered import distributions, package_files, registering
from compcache.numba.registered.package_files import digest_of_package
from compcache.numba.registered.refusals import NotLazy, Unidentifiable
from compcache.publish.packs import entries_of, packs_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from compcache.formats.entry import EntryRecord

NOTHING: tuple[Any, Any] = (None, ("", ()))
ENTRY_POINTS = "[numba_extensions]\ninit = other:init\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with the compilers and another package, which is all that is on the path."""
    place = tmp_path / "site"
    for name in ("numba", "llvmlite", "numpy", "other"):
        metadata = place / f"{name}-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "RECORD").write_text(f"{name}/__init__.py,sha256=1,1\n")
    (tmp_path / "program").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "program"), str(place), str(tmp_path / "nothing")])
    return place


@pytest.fixture
def noted(cache: Cache, site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[str, int]]:
    """What a start learns of the packages, and how many files it reads for that."""
    assert site.exists()
    cache.add_module(ModuleSource(constant("one", 1)))
    read = []
    reading = distributions.read_file

    def counting(path: str) -> bytes:
        read.append(path)
        return reading(path)

    def start() -> tuple[str, int]:
        monkeypatch.setattr(installation, "_packages_on_path", NOTHING)
        read.clear()
        return installation.settings_and_packages(lambda: cache), len(read)

    monkeypatch.setattr(distributions, "read_file", counting)
    monkeypatch.setattr(registering, "read_file", counting)
    time.sleep(0.15)  # what changed just now is read again
    return start


def notes(cache: Cache) -> list[EntryRecord]:
    if cache._entries is not None:
        cache._entries.flush()
    packs = packs_in(cache._store.index.segments)
    return [entry for pack in packs for entry in entries_of(cache._store, pack) or () if entry.kind == "packages"]


def test_the_second_start_reads_no_metadata(noted: Callable[[], tuple[str, int]], cache: Cache) -> None:
    first, reads = noted()
    assert reads
    assert len(notes(cache)) == 1
    assert noted() == (first, 0)
    assert installation.are_packages_unchanged()
    assert first == installation.settings_and_packages()


def _edit_record(site: Path) -> None:
    (site / "numpy-1.dist-info" / "RECORD").write_text("numpy/__init__.py,sha256=2,1\n")


def _register(site: Path) -> None:
    (site / "other-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)


def _install_another(site: Path) -> None:
    metadata = site / "another-1.dist-info"
    metadata.mkdir()
    (metadata / "RECORD").write_text("another.py,sha256=1,1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)


def _install_above(site: Path) -> None:
    """In the directory of the program, which comes first."""
    metadata = site.parent / "program" / "numba-2.dist-info"
    metadata.mkdir()
    (metadata / "RECORD").write_text("numba/__init__.py,sha256=2,1\n")


def _install_where_nothing_was(site: Path) -> None:
    (site.parent / "nothing").mkdir()
    _install_another(site.parent / "nothing")


@pytest.mark.slow
@pytest.mark.parametrize("change", [_edit_record, _register, _install_another, _install_above, _install_where_nothing_was])
def test_a_change_of_what_is_installed_counts(
    noted: Callable[[], tuple[str, int]], site: Path, change: Callable[[Path], None]
) -> None:
    first, _ = noted()
    assert noted() == (first, 0)
    change(site)
    second, reads = noted()
    assert second != first
    assert reads
    time.sleep(0.15)
    assert noted()[0] == second
    assert noted() == (second, 0)


@pytest.mark.parametrize("place", ["nothing", "program"])
def test_an_archive_where_nothing_was_is_seen(noted: Callable[[], tuple[str, int]], site: Path, place: str) -> None:
    noted()
    assert noted()[1] == 0
    archive = site.parent / place
    if archive.exists():
        archive.rmdir()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("other-1.dist-info/entry_points.txt", ENTRY_POINTS)
    with pytest.raises(NotLazy, match="archive"):
        noted()


@pytest.mark.slow
def test_a_directory_that_had_just_changed_is_listed_until_it_has_settled(
    noted: Callable[[], tuple[str, int]], site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = site.parent / "program"
    (program / "written.txt").write_text("by the program")
    first, _ = noted()
    listed = []
    listing = distributions.names_in

    def counting(place: str, packages: Any) -> list[str] | None:
        listed.append(place)
        return listing(place, packages)

    monkeypatch.setattr(installation, "names_in", counting)
    time.sleep(0.15)
    assert (noted(), listed) == ((first, 0), [str(program)])
    assert (noted(), listed) == ((first, 0), [str(program)])
    (program / "numba-2.dist-info").mkdir()
    (program / "numba-2.dist-info" / "RECORD").write_text("numba/__init__.py,sha256=2,1\n")
    assert noted()[0] != first


def test_one_record_in_the_place_of_another_of_its_size_counts(noted: Callable[[], tuple[str, int]], site: Path) -> None:
    """Times that a tool sets do not hide it."""
    first, _ = noted()
    record = site / "numpy-1.dist-info" / "RECORD"
    status = record.stat()
    _edit_record(site)
    os.utime(record, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert record.stat().st_size == status.st_size
    assert noted()[0] != first


def test_files_that_the_program_writes_do_not_count(noted: Callable[[], tuple[str, int]], site: Path) -> None:
    first, _ = noted()
    (site.parent / "program" / "result.txt").write_text("42")
    assert noted() == (first, 0)


def test_what_has_just_changed_is_not_noted(noted: Callable[[], tuple[str, int]], site: Path, cache: Cache) -> None:
    _register(site)
    assert noted()[1]
    assert notes(cache) == []


@pytest.mark.parametrize("damage", [b"", b"CCPACKS1", b"x" * 5000])
def test_a_damaged_note_is_made_again(noted: Callable[[], tuple[str, int]], cache: Cache, damage: bytes) -> None:
    first, _ = noted()
    (entry,) = notes(cache)
    for data in (damage, entry.data[:-1]):
        frontend.put_entry(cache, entry.name, data, kind=entry.kind)
        again, reads = noted()
        assert again == first
        assert reads
        assert noted() == (first, 0)


def test_a_change_in_an_editable_package_is_seen_by_the_state_of_its_files(
    noted: Callable[[], tuple[str, int]], site: Path, tmp_path: Path
) -> None:
    source = tmp_path / "checkout"
    source.mkdir()
    (source / "other.py").write_text("FACTOR = 1\n")
    (site / "other-1.dist-info" / "direct_url.json").write_text(
        f'{{"url": "{source.as_uri()}", "dir_info": {{"editable": true}}}}'
    )
    _register(site)
    time.sleep(0.15)
    first, _ = noted()
    assert noted() == (first, 0)
    (source / "other.py").write_text("FACTOR = 2\n")
    second, _ = noted()
    assert second != first
    (source / "more.py").write_text("FACTOR = 3\n")
    assert noted()[0] not in (first, second)


def test_a_note_is_believed_of_who_has_the_key(noted: Callable[[], tuple[str, int]], cache: Cache, directory: Path) -> None:
    first, _ = noted()
    assert len(notes(cache)) == 1
    with Cache(directory, signing_key=b"key") as signed:
        installation._packages_on_path = NOTHING
        with pytest.warns(CacheWarning, match="signed with this cache's signing_key"):
            assert installation.settings_and_packages(lambda: signed) == first
        assert len(notes(signed)) == 1, "what anybody could have written is not believed"
    with Cache(directory, readonly=True) as reader:
        cache.clear()
        installation._packages_on_path = NOTHING
        assert installation.settings_and_packages(lambda: reader) == first
    assert notes(cache) == []


def test_a_compiler_that_is_gone_is_missed(noted: Callable[[], tuple[str, int]], site: Path) -> None:
    noted()
    os.rename(site / "llvmlite-1.dist-info", site / "llvmlite-1.gone")
    with pytest.raises(NotLazy, match="llvmlite"):
        noted()


def test_without_a_usable_cache_packages_are_read(noted: Callable[[], tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = noted()
    monkeypatch.setattr(installation, "_packages_on_path", NOTHING)
    assert installation.settings_and_packages(lambda: None) == first


@pytest.mark.parametrize(
    "origin", ['{"url": "file:///other", ', '{"place": "file:///other"}', '["file:///other"]', '{"url": 5, "x": "file:///other"}']
)
def test_a_package_whose_origin_cannot_be_read_needs_numba(noted: Callable[[], tuple[str, int]], site: Path, origin: str) -> None:
    metadata = site / "other-1.dist-info"
    (metadata / "RECORD").unlink()
    (metadata / "direct_url.json").write_text(origin)
    _register(site)
    with pytest.raises(NotLazy, match=r"other-1.dist-info/direct_url.json is not valid"):
        noted()


def test_a_link_to_a_checkout_that_cannot_be_read_registers_nothing(noted: Callable[[], tuple[str, int]], site: Path) -> None:
    first, _ = noted()
    (site / "gone.egg-link").symlink_to(site / "nothing")
    assert noted()[0] == first


@pytest.mark.parametrize("call", ["open", "listdir"])
def test_packages_that_cannot_be_read_for_a_moment_are_not_taken_for_missing(
    noted: Callable[[], tuple[str, int]], site: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Else the keys of the process lack a package that registers with Numba, and a note lets later processes lack it too."""
    _register(site)
    time.sleep(0.15)
    usual = getattr(os, call)

    def fail(path: str, *arguments: object, **options: object) -> object:
        if str(path).endswith(("entry_points.txt", "site")):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return usual(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(NotLazy, match="cannot be read at the moment"):
            noted()
    assert notes(cache) == []
    first, _ = noted()
    assert "other" in first
    assert noted() == (first, 0)


def test_a_package_whose_files_cannot_be_read_for_a_moment_is_identified_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("scandir", "stat"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(Unidentifiable, match="cannot be read at the moment"):
                digest_of_package("msgpack")
    assert digest_of_package("msgpack")


def test_files_that_no_import_can_use_do_not_hide_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to itself, and what this user has no permission to read, are there in every start."""
    package, usual = tmp_path / "wanted", os.stat
    package.mkdir()
    (package / "loop").symlink_to("loop")
    for name in ("__init__.py", "secret"):
        (package / name).touch()

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if os.fspath(path) == str(package / "secret"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return usual(path, *arguments, **options)

    module = types.ModuleType("wanted")
    module.__path__ = [str(package)]
    monkeypatch.setitem(sys.modules, "wanted", module)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        patch.setattr(package_files, "_process_start", lambda: time.time() + 60)
        assert digest_of_package("wanted")
    assert distributions.names_in(str(package / "loop")) == []
