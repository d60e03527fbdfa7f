"""Code by a maker that is known to be wrong is not used, wherever it comes from, and prunes remove it."""

from __future__ import annotations

import logging
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from faulty_makers import made_by, set_faults
from helpers import adder, caller, module_file

from compcache import Cache, CacheWarning, KnownFaultError, ModuleSource, NotCachedError, PrunePolicy, StorageError, frontend, linker
from compcache.formats.makers import read_makers
from compcache.formats.manifest_writer import encode_link_type
from compcache.publish import verify
from compcache.publish.additions import merge_newest
from compcache.remote.adopt import adopt_module

if TYPE_CHECKING:
    from pathlib import Path

FAULT = "numba<0.66.1"
SETTLED = 0.15  # seconds after which the times of a file say whether it has changed


def stored(place: Path, name: str = "f", number: int = 2, version: str = "0.66.0") -> str:
    with Cache(place) as cache:
        module_id = cache.add_module(made_by(name, number, numba=version))
        assert cache.get_target(name)(1) == 1 + number
    time.sleep(SETTLED)
    return module_id


def assert_passed_over(place: Path, name: str = "f", **options: Any) -> None:
    with Cache(place, **options) as cache:
        with pytest.raises(NotCachedError, match=r"it was made by numba 0\.66\.0, which adds one too many") as caught:
            cache.get_target(name)
        assert isinstance(caught.value.__cause__, KnownFaultError)
        assert not cache.has(name)  # last: it opens the store, and no hit is plain behind it


def count_verifications(patch: pytest.MonkeyPatch) -> list[int]:
    """How many files are verified from now on: the one item of the list."""
    count, verified = [0], verify.verify_module

    def counted(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        return verified(*arguments, **options)

    patch.setattr(verify, "verify_module", counted)
    return count


def test_modules_name_their_makers(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(made_by("g", 1, Numba="0.66.0"))
        makers = dict(cache.function("g").provenance[0].makers)
    assert makers.keys() >= {"compcache", "llvmlite", "llvm", "numba"}
    assert all(makers.values())
    assert makers["numba"] == "0.66.0"


def test_what_was_verified_before_it_was_known_is_not_used_any_more(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(directory)
    set_faults(monkeypatch, FAULT)
    assert_passed_over(directory)
    set_faults(monkeypatch)
    with Cache(directory) as cache:
        assert cache.get_target("f")(1) == 3


def test_what_other_versions_made_is_used_and_each_file_is_looked_at_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(directory, version="0.66.1")
    set_faults(monkeypatch, FAULT, "llvmlite<0.1")
    looked_at = count_verifications(monkeypatch)
    for _ in range(3):
        with Cache(directory) as cache:
            assert cache.get_target("f")(1) == 3
            merge_newest(cache._store)
    assert looked_at == [1]


def test_a_build_stores_what_another_version_makes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(directory)
    set_faults(monkeypatch, FAULT)
    for _ in range(2):
        with Cache(directory) as cache:
            assert cache.get_or_compile("f", lambda: made_by("f", 1, numba="0.66.1"))(1) == 2
    with Cache(directory) as cache:
        assert cache.get_target("f")(1) == 2
        assert sorted(copy.problem == "" for copy in cache.realizations("f")) == [False, True]


@pytest.mark.slow
def test_the_next_realization_is_used(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(directory, number=1, version="0.66.1")
    stored(directory, number=2)
    set_faults(monkeypatch, FAULT)
    with Cache(directory) as cache:
        assert cache.get_target("f")(1) == 2


@pytest.mark.slow
def test_a_load_of_several_modules_takes_the_next_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(directory, "f", 1, "0.66.1")
    stored(directory, "f", 2)
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(caller("h", "f"), imports=["f"]))
        assert cache.get_target("h")(1) == 3
    time.sleep(SETTLED)
    for _ in range(2):
        with Cache(directory) as cache:
            assert cache.get_target("h")(1) == 3
    set_faults(monkeypatch, FAULT)
    with Cache(directory) as cache:
        assert cache.get_target("h")(1) == 2


def test_what_makes_wrong_code_here_is_used_and_not_stored(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_faults(monkeypatch, FAULT)
    with Cache(directory) as cache:
        with pytest.raises(StorageError, match=r"made by numba 0\.66\.0.*install another version"):
            cache.add_module(made_by("g", 1, numba="0.66.0"))
        with pytest.warns(CacheWarning, match=r"'f' was not stored.*numba 0\.66\.0"):
            assert cache.get_or_compile("f", lambda: made_by("f", 1, numba="0.66.0"))(1) == 2
        assert cache.get_target("f")(1) == 2
    assert not list(directory.glob("modules-v1/*/*"))


@pytest.mark.parametrize("used_before", [False, True])
def test_layers(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, used_before: bool) -> None:
    layer = tmp_path / "layer"
    stored(layer)
    if used_before:
        for _ in range(2):
            with Cache(directory, layers=[layer]) as cache:
                assert cache.get_target("f")(1) == 3
    set_faults(monkeypatch, FAULT)
    for _ in range(2):
        assert_passed_over(directory, layers=[layer])


def test_sound_modules_of_a_layer_are_looked_at_once(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tmp_path / "layer"
    stored(layer, version="0.66.1")
    set_faults(monkeypatch, FAULT)
    looked_at = count_verifications(monkeypatch)
    for _ in range(3):
        with Cache(directory, layers=[layer]) as cache:
            assert cache.get_target("f")(1) == 3
    assert looked_at == [1]


def test_bundles_as_layers_and_imported(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, bundle = tmp_path / "source", tmp_path / "f.ccb"
    stored(source)
    with Cache(source) as cache:
        cache.export(["f"], bundle)
    set_faults(monkeypatch, FAULT)
    assert_passed_over(tmp_path / "other", layers=[bundle])
    with Cache(directory) as cache:
        cache.import_bundle(bundle)
    for _ in range(2):
        assert_passed_over(directory)


def test_what_a_remote_store_has(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module_id = stored(tmp_path / "source")
    set_faults(monkeypatch, FAULT)
    with Cache(directory) as cache:
        adopt_module(cache._store, module_file(tmp_path / "source", module_id).read_bytes(), func_name="f", signatures=b"")
    for _ in range(2):
        assert_passed_over(directory)


@pytest.mark.parametrize("options", [{"signing_key": "secret"}, {"verify": False}])
def test_keys_and_unverified_files(directory: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    with Cache(directory, **options) as cache:
        cache.add_module(made_by("f", 2, numba="0.66.0"))
    time.sleep(SETTLED)
    with Cache(directory, **options) as cache:
        assert cache.get_target("f")(1) == 3
    set_faults(monkeypatch, FAULT)
    assert_passed_over(directory, **options)
    assert_passed_over(directory, **options)


def test_a_lost_index_is_made_again_with_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(directory)
    set_faults(monkeypatch, FAULT)
    for path in directory.glob("index-v1/*"):
        path.unlink()
    assert_passed_over(directory)
    with Cache(directory) as cache:
        assert cache.explain("f").verdicts[0].reason == "maker"


def test_its_entries_are_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1), makers={"numba": "0.66.0"}, entries={"notes": b"abc"}))
        assert frontend.get_entry(cache, "f", "notes") == b"abc"
    set_faults(monkeypatch, FAULT)
    with Cache(directory) as cache:
        assert frontend.get_entry(cache, "f", "notes") is None
    set_faults(monkeypatch)
    with Cache(directory) as cache:
        assert frontend.get_entry(cache, "f", "notes") == b"abc"


def test_one_line_is_logged_and_explain_says_why(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored(directory)
    set_faults(monkeypatch, FAULT)
    with caplog.at_level(logging.DEBUG, "compcache"), Cache(directory) as cache:
        for _ in range(2):
            with pytest.raises(NotCachedError):
                cache.get_target("f")
        assert len([r for r in caplog.records if r.getMessage().startswith("refused")]) == 1
        explanation = cache.explain("f")
    assert (explanation.hit, explanation.reason) == (False, "maker")
    assert "numba 0.66.0" in explanation.message
    assert [verdict.reason for verdict in explanation.verdicts] == ["maker"]


@pytest.mark.slow
def test_check_notes_it_and_every_prune_removes_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module_id = stored(directory)
    stored(directory, "g", version="0.66.1")
    set_faults(monkeypatch, FAULT)
    with Cache(directory) as cache:
        report = cache.check()
        assert report
        assert [(f.kind, f.severity, f.subject) for f in report.findings] == [("maker", "note", module_id)]
        planned = cache.prune(PrunePolicy(), dry_run=True)
        assert [(m.module_id, m.reason) for m in planned.removed] == [(module_id, "fault")]
        assert module_file(directory, module_id).exists()
        assert cache.prune(PrunePolicy(match="nothing")).removed == planned.removed
        assert not module_file(directory, module_id).exists()
        assert cache.get_target("g")(1) == 3


def test_a_module_made_again_for_this_host_names_the_makers_of_both(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compcache.miss.retarget import _recompile

    module_id = stored(directory, version="0.66.1")
    with Cache(directory) as cache:
        built, _ = _recompile(cache._session(), bytes.fromhex(module_id))
        assert built is not None
        with cache._store.open_module(bytes.fromhex(module_id)) as module:
            assert dict(read_makers(module.read_record, module.records))["numba"] == "0.66.1"
        assert "numba 0.66.1" in built.makers.splitlines()
        set_faults(monkeypatch, "numba==0.66.1")
    with Cache(directory) as cache:
        assert _recompile(cache._session(), bytes.fromhex(module_id))[0] is None


def test_files_without_the_record_are_of_an_older_version_of_the_package(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(linker, "encode_makers", lambda _: encode_link_type("an older file has no such record"))
        stored(directory)
    shutil.rmtree(directory / "stats")  # which has what the addition said of it
    with Cache(directory) as cache:
        assert cache.function("f").provenance[0].makers[0] == ("compcache", "")
        assert cache.prune(PrunePolicy(made_by="compcache<0.1"), dry_run=True).removed
        assert not cache.prune(PrunePolicy(made_by="compcache>=0.0.1"), dry_run=True).removed
    set_faults(monkeypatch, "compcache<0.0.1")
    with Cache(directory) as cache, pytest.raises(NotCachedError, match="version not recorded"):
        cache.get_target("f")
