"""What a check finds, and what it repairs."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, flip_byte, module_file, snapshot

from compcache import Cache, CheckReport, Finding, ModuleSource, PrunePolicy, StorageError
from compcache.maintain.check import check
from compcache.miss.build import build_source
from compcache.miss.publication import publish_built
from compcache.publish.removal import remove_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def module_id(cache: Cache) -> str:
    return cache.add_module(ModuleSource(adder("f", 1)))


def only(report: CheckReport) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


@pytest.mark.usefixtures("module_id")
def test_a_healthy_cache_passes_every_step(cache: Cache) -> None:
    report = cache.check()
    assert report
    assert report.findings == ()
    assert [step.name for step in report.steps] == [
        "permissions", "leftovers", "manifests", "checksums", "edges", "index", "statistics",
    ]  # fmt: skip
    assert {step.name: step.checked for step in report.steps}["checksums"] == 1
    assert all(step.seconds >= 0 for step in report.steps)


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_directory_without_a_cache_is_not_healthy(tmp_path: Path, name: str) -> None:
    with Cache(tmp_path / name) as cache:
        assert not cache.exists
        report = cache.check()
        assert not report
        assert [finding.message for finding in report.errors] == [f"there is no cache at {cache.path}: give the directory of a cache"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["image", "records", "notes", "footer", "middle"])
def test_a_flipped_bit_anywhere_is_found_and_goes_to_quarantine(
    cache: Cache, module_id: str, directory: Path, where: str
) -> None:
    path = module_file(directory, module_id)
    size = path.stat().st_size
    offset = {
        "image": 100,
        "records": size // 2,
        "notes": size - 150,
        "footer": size - 20,
        "middle": size // 3,
    }[where]
    flip_byte(path, offset)
    finding = only(cache.check())
    assert finding.kind == "damaged"
    assert finding.subject == module_id
    assert path.exists()
    report = cache.check(repair=True)
    assert report
    assert any(f.kind == "damaged" and f.repaired for f in report.findings)
    assert not path.exists()
    assert len(list((directory / "quarantine").iterdir())) == 1
    assert cache.check().findings == ()


def test_a_truncated_module_is_found(cache: Cache, module_id: str, directory: Path) -> None:
    path = module_file(directory, module_id)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])
    path.chmod(0o600)
    assert only(cache.check()).kind == "damaged"


def test_without_checksums_damage_of_the_code_is_not_looked_for(
    cache: Cache, module_id: str, directory: Path
) -> None:
    flip_byte(module_file(directory, module_id), 100)
    assert cache.check(checksums=False)
    assert not cache.check()


def test_an_image_that_is_not_the_one_of_its_records_is_found(cache: Cache, directory: Path) -> None:
    from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container

    first = module_file(directory, cache.add_module(ModuleSource(adder("a", 1)))).read_bytes()
    second = module_file(directory, cache.add_module(ModuleSource(adder("b", 2)))).read_bytes()
    one, two = (decode_footer(data[-FOOTER_SIZE:], len(data)) for data in (first, second))
    image, rest = first[: one.image], second[two.image :]
    records, notes = rest[: two.records], rest[two.records + two.graph + two.bitcode :][: two.notes]
    module_id, parts = encode_container(image, records, b"", b"", notes, None)
    path = module_file(directory, module_id.hex())
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.write_bytes(b"".join(parts))
    path.chmod(0o600)
    messages = [f.message for f in cache.check().findings if f.kind == "damaged"]
    assert len(messages) == 1
    assert "the module's image does not contain the symbols that its records name" in messages[0]


def test_a_dangling_import_names_both_ends(cache: Cache) -> None:
    leaf = cache.add_module(ModuleSource(adder("leaf", 1)))
    top = cache.add_module(ModuleSource(caller("top", "leaf")))
    remove_file(cache._store, bytes.fromhex(leaf))
    report = cache.check()
    dangling = [f for f in report.findings if f.kind == "dangling"]
    assert [f.subject for f in dangling] == ["leaf"]
    assert top in dangling[0].message
    assert report, "nothing is damaged: what needs it is a miss until it is added again"


@pytest.mark.usefixtures("module_id")
def test_a_missing_index_is_found_and_rebuilt(directory: Path) -> None:
    for path in (directory / "index-v1").iterdir():
        path.unlink()
    with Cache(directory) as opened:
        assert only(opened.check()).kind == "unindexed"
        assert opened.check(repair=True)
        assert opened.check().findings == ()
        assert opened.get_target("f")(1) == 2


@pytest.mark.usefixtures("module_id")
def test_a_damaged_index_is_found_and_rebuilt(directory: Path) -> None:
    for path in (directory / "index-v1").iterdir():
        flip_byte(path, path.stat().st_size // 2)
    with Cache(directory) as opened:
        kinds = {f.kind for f in opened.check().findings}
        assert "index" in kinds
        assert opened.check(repair=True)
    with Cache(directory) as opened:
        assert opened.check().findings == ()


def test_index_entries_of_modules_that_are_gone_are_only_a_note(
    cache: Cache, module_id: str, directory: Path
) -> None:
    module_file(directory, module_id).unlink()
    report = cache.check()
    assert report
    assert only(report).kind == "stale"
    cache.check(repair=True)
    assert cache.check().findings == ()


def test_leftovers_are_notes_and_repair_removes_them(cache: Cache, module_id: str, directory: Path) -> None:
    (directory / "tmp").mkdir(exist_ok=True)
    for name, age in (("tmp/old", 7200), ("tmp/new", 0)):
        (directory / name).write_bytes(b"x")
        os.utime(directory / name, (time.time() - age,) * 2)
    (directory / "modules-v1" / module_id[:2] / "stranger.txt").write_bytes(b"mine")
    kinds = sorted(f.kind for f in cache.check().findings)
    # The change time of a file cannot be set back: nothing is old enough yet.
    assert kinds == ["stranger"]
    cache.check(repair=True)
    assert (directory / "tmp" / "new").exists()
    assert (directory / "modules-v1" / module_id[:2] / "stranger.txt").exists()


@pytest.mark.parametrize("name", ["modules-v1", "index-v1", "."])
@pytest.mark.usefixtures("module_id")
def test_directories_that_others_can_write_to_are_found_and_closed(
    cache: Cache, directory: Path, name: str
) -> None:
    (directory / name).chmod(0o777)
    finding = only(cache.check())
    assert finding.kind == "permissions"
    assert "0777" in finding.message
    assert cache.check(repair=True)
    assert (directory / name).stat().st_mode & 0o777 == 0o700


def test_a_module_that_others_can_write_to_is_found(cache: Cache, module_id: str, directory: Path) -> None:
    module_file(directory, module_id).chmod(0o666)
    assert only(cache.check()).kind == "permissions"
    assert cache.check(repair=True)
    assert cache.check().findings == ()
    assert not module_file(directory, module_id).exists()  # with another mode it would be believed, whoever wrote it


def test_a_pin_of_nothing_is_a_note(cache: Cache) -> None:
    cache.pin("nobody")
    report = cache.check()
    assert report
    assert only(report).subject == "nobody"


def test_a_check_without_repair_changes_nothing(cache: Cache, module_id: str, directory: Path) -> None:
    cache.check()
    flip_byte(module_file(directory, module_id), 100)
    for path in (directory / "index-v1").iterdir():
        path.unlink()
    before = snapshot(directory)
    with Cache(directory) as opened:
        assert not opened.check()
    assert snapshot(directory) == before


@pytest.mark.usefixtures("module_id")
def test_a_readonly_cache_can_be_checked_but_not_repaired(directory: Path) -> None:
    before = snapshot(directory)
    with Cache(directory, readonly=True) as reader:
        assert reader.check()
        with pytest.raises(StorageError, match="readonly"):
            reader.check(repair=True)
    assert snapshot(directory) == before


@pytest.mark.usefixtures("module_id")
def test_a_module_without_the_signature_is_found_by_who_has_the_key(directory: Path) -> None:
    with Cache(directory, signing_key=b"secret") as signed:
        finding = only(signed.check())
    assert "not signed with" in finding.message


# ------------------------------------------------------------------------------------ while others are at work


@pytest.mark.parametrize("derived", [True, False], ids=["with the roster", "without"])
def test_modules_that_are_removed_during_a_check_are_no_finding(directory: Path, derived: bool) -> None:
    with Cache(directory) as cache:
        for number in range(4):
            cache.add_module(ModuleSource(adder(f"leaf{number}", number)))
            cache.add_module(ModuleSource(caller(f"top{number}", f"leaf{number}")))
        cache.pin("top1")
        if derived:
            cache.stats()
            cache.check()
    moments = []

    def meanwhile(done: int, total: int) -> None:
        moments.append((done, total))
        if len(moments) == 1:
            with Cache(directory) as other:
                other.unpin("top1")
                other.clear()
                other.add_module(ModuleSource(adder("new", 1)))

    with Cache(directory) as cache:
        report = check(cache._store, progress=meanwhile)
        assert moments
        assert [finding for finding in report.findings if finding.kind != "pin"] == []
        assert cache.check().findings == ()


@pytest.mark.slow
def test_checks_beside_additions_and_prunes_find_nothing(directory: Path) -> None:
    stop = threading.Event()
    with Cache(directory) as builder:
        sources = [build_source(builder._session(), ModuleSource(adder(f"f{number}", number), optimize=0)) for number in range(20)]

    def work() -> None:
        with Cache(directory) as cache:
            while not stop.is_set():
                for built in sources:
                    publish_built(cache._session(), [built])
                cache.prune(PrunePolicy(max_modules=2))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        end = time.monotonic() + 1.5
        reports: list[CheckReport] = []
        with Cache(directory) as cache:
            while time.monotonic() < end or len(reports) < 3:
                reports.append(cache.check())
    finally:
        stop.set()
        thread.join()
    assert [report.errors for report in reports if report.errors] == []
    half_done = {"unindexed", "stale"}  # at a moment, and no error
    assert {finding.kind for report in reports for finding in report.findings} <= half_done
