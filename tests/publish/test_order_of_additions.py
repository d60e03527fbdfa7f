"""Of a plain name the newest addition answers, whatever was merged, lost, copied, bundled or replaced meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers import adder, constant, module_file, run_fresh, sum_of
from hosts import host_like, on_host
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from mock_directory import FaultyFiles, Operation, cache_on

from compcache import (
    Cache,
    CacheWarning,
    Function,
    FunctionInUseError,
    ModulesNotAddedError,
    ModuleSource,
    NotCachedError,
    StorageError,
    UndefinedSymbolError,
    frontend,
)  # fmt: skip
from compcache.files import Tree
from compcache.formats.host import platform_name
from compcache.formats.index import Index, Stamp
from compcache.hit import Door
from compcache.miss.retarget import tune
from compcache.publish import numbering
from compcache.publish.index_merge import publish_addition
from compcache.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::compcache.ShadowWarning")
NEEDS_X86 = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
ASK = "from compcache import Cache\nwith Cache(directory) as cache:\n    result = cache.get_target({name!r})()"


def version(number: int, name: str = "f") -> ModuleSource:
    return ModuleSource(constant(name, number), optimize=0)


def answer(directory: os.PathLike[str] | str, name: str = "f") -> int:
    with Cache(directory) as cache:
        value: int = cache.get_target(name)()
        return value


def lose_the_index(directory: Path) -> None:
    shutil.rmtree(directory / "index-v1")


def lose_the_numbers(directory: Path) -> None:
    """1.0.0 notes none: the index says all."""
    shutil.rmtree(directory / "numbers-v1")


@pytest.fixture
def reverted(cache: Cache, directory: Path) -> Path:
    """Versions 1, 2 and 1 again, then something else."""
    for number in (1, 2, 1):
        cache.add_module(version(number))
    cache.add_module(version(5, "g"))
    return directory


@pytest.mark.slow
def test_what_is_added_again_is_the_newest_whatever_the_segments_are_called(tmp_path: Path) -> None:
    """The numbers of the first addition and of the second one are in two segments, which are read in the order of their names."""
    for number in range(10):
        with Cache(tmp_path / str(number)) as cache:
            for value in (number, number + 100, number):
                cache.add_module(version(value))
        assert answer(tmp_path / str(number)) == number
        with Cache(tmp_path / str(number)) as cache:
            assert cache._store  # from now on its hits are not plain
            assert cache.get_target("f")() == number


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_the_newest_answers(cache: Cache, directory: Path, order: tuple[int, ...]) -> None:
    for number in order:
        cache.add_module(version(number))
        assert answer(directory) == number
        assert cache.get_target("f")() == number
    lose_the_index(directory)
    assert answer(directory) == order[-1]


@pytest.mark.filterwarnings("ignore::compcache.ShadowWarning")
def test_the_last_of_those_that_are_added_together_is_the_newest_also_if_it_was_before(cache: Cache, directory: Path) -> None:
    cache.add_module(version(2))
    cache.add_modules([version(1), version(2)])
    assert answer(directory) == 2
    cache.add_modules([version(2), version(1), version(2), version(1)])
    assert answer(directory) == 1


def test_the_newest_answers_in_a_fresh_process_that_has_no_index(reverted: Path) -> None:
    lose_the_index(reverted)
    assert run_fresh(reverted, ASK.format(name="f")) == 1
    assert (reverted / "index-v1").exists()


def test_additions_after_the_loss_of_the_index_are_the_newest(reverted: Path) -> None:
    lose_the_index(reverted)
    lose_the_numbers(reverted)
    with Cache(reverted) as cache:
        frontend.add_realizations(cache, version(3), alone=True)  # which looks nothing up
        assert cache.get_target("f")() == 3
    lose_the_index(reverted)
    assert answer(reverted) == 3


@pytest.mark.parametrize("left", ["", "f", "g", "fg"])
def test_additions_are_the_newest_whatever_of_the_index_is_left(directory: Path, left: str) -> None:
    """Files of the index are deleted one by one, and an addition falls in between; then the rest goes."""
    index, segments = directory / "index-v1", []
    with Cache(directory) as cache:
        for source in (version(1), version(1, "g"), version(2), version(3)):
            before = {*os.listdir(index)} if index.exists() else set()
            cache.add_module(source)
            segments.append(min({*os.listdir(index)} - before))
    kept = {"f": segments[0], "g": segments[1]}
    for name in {*segments} - {kept[name] for name in left}:
        (index / name).unlink()
    with Cache(directory) as cache:
        frontend.add_realizations(cache, version(4), alone=True)  # which looks nothing up
    lose_the_index(directory)
    assert answer(directory) == 4


def test_what_is_no_number_of_this_user_counts_for_nothing(cache: Cache, directory: Path) -> None:
    """Of the numbers that are noted two are kept."""
    cache.add_module(version(1))
    noted = directory / "numbers-v1"
    for name in ("1.numbered", f"{'f' * 13}.numbered", f"{'F' * 12}.numbered", f"{'f' * 12}", ".numbered"):
        (noted / name).touch()
    (noted / f"{'e' * 12}.numbered").touch()
    (noted / f"{'e' * 12}.numbered").chmod(0o666)  # anybody may have made it
    module_id = cache.add_module(version(2))
    data = module_file(directory, module_id).read_bytes()
    assert data.count(b"\xa5order\x02") == 1
    for number in range(3, 9):
        cache.add_module(version(number))
    assert sorted(path.name for path in noted.iterdir() if path.name.startswith("0")) == [f"{7:012x}.numbered", f"{8:012x}.numbered"]


def add_without_index(directory: Path, source: ModuleSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends before the index has the module, as a killed process does."""
    with monkeypatch.context() as patch, Cache(directory) as cache:
        patch.setattr("compcache.publish.writer._publish_index", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            cache.add_module(source)


@pytest.mark.parametrize("others", [(), ("g",)], ids=["alone", "after-another"])
@pytest.mark.parametrize("former", [1, 3], ids=["new", "again"])
def test_what_was_added_after_an_interrupted_addition_stays_the_newest(
    directory: Path, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...], former: int
) -> None:
    """Versions 1 and `former`; then version 3 is interrupted. The repair of the index knows nothing of the order but numbers."""
    with Cache(directory) as cache:
        for number in (former, 1):
            cache.add_module(version(number))
    add_without_index(directory, version(3), monkeypatch)
    with Cache(directory) as cache:
        for name in others:
            cache.add_module(version(5, name))
        cache.add_module(version(1))
        assert cache.get_target("f")() == 1
        cache.check(repair=True)
    assert answer(directory) == 1


def test_an_interrupted_addition_that_was_removed_stays_removed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_without_index(directory, version(3), monkeypatch)
    for path in directory.rglob("*.ccm"):
        path.unlink()
    with Cache(directory) as cache:
        cache.add_module(version(5, "g"))
        assert cache.has("g")
        assert not cache.has("f")
        assert cache.check().findings == ()


@pytest.mark.parametrize("former", [(), (1,)], ids=["alone", "with-former"])
def test_a_removal_also_removes_interrupted_additions(directory: Path, monkeypatch: pytest.MonkeyPatch, former: tuple[int, ...]) -> None:
    with Cache(directory) as cache:
        for number in former:
            cache.add_module(version(number))
    add_without_index(directory, version(3), monkeypatch)
    with Cache(directory) as cache:
        planned, _ = frontend.remove_functions(cache, ["f"], dry_run=True)
        assert cache.remove("f") == planned["f"]
        assert len(planned["f"]) == len(former) + 1
        cache.add_module(version(5, "g"))
        cache.check(repair=True)
        assert not cache.has("f")


def two_versions(f: int, g: int) -> ModuleSource:
    """A module with functions f and g."""
    return ModuleSource(f"define i64 @f() {{\n  ret i64 {f}\n}}\ndefine i64 @g() {{\n  ret i64 {g}\n}}\n")


@pytest.mark.parametrize(("newer", "left"), [(2, False), (1, True)], ids=["other-content", "same-content"])
def test_a_forced_removal_brings_no_former_code_of_the_functions_beside_it_back(cache: Cache, newer: int, *, left: bool) -> None:
    """Function g is older, in a module with h, of which there is older code, too. Only the content of the newest code of g may stay."""
    cache.add_module(version(1, "h"))
    cache.add_modules([ModuleSource("define i64 @h() {\n  ret i64 2\n}\ndefine i64 @g() {\n  ret i64 1\n}\n")])
    cache.add_module(version(7, "k"))
    cache.add_module(two_versions(1, newer))
    with pytest.raises(FunctionInUseError):
        cache.remove("f")
    cache.remove("f", force=True)
    with Cache(cache.path) as fresh:
        assert {name: fresh.has(name) for name in "fghk"} == {"f": False, "g": left, "h": left, "k": True}


def importer(name: str, callee: str) -> ModuleSource:
    """A function that returns the result of another one."""
    body = f"declare i64 @{callee}()\ndefine i64 @{name}() {{\n  %r = call i64 @{callee}()\n  ret i64 %r\n}}\n"
    return ModuleSource(body, imports=[callee])


def answers(cache: Cache, names: str) -> dict[str, int | None]:
    """Return what functions without arguments return in a new cache object, or None if their code cannot be loaded."""
    with Cache(cache.path) as fresh:
        targets = {}
        for name in names:
            with suppress(NotCachedError, UndefinedSymbolError):
                targets[name] = fresh.get_target(name)()
        return {name: targets.get(name) for name in names}


def test_a_forced_removal_brings_no_former_code_of_importers_back(cache: Cache) -> None:
    """Look-ups pass over code that lacks an import, so older code of h and i would answer."""
    cache.add_modules([version(1, "h"), version(1, "i"), version(7)])
    cache.add_modules([importer("h", "f")])
    cache.add_modules([importer("i", "h")])
    cache.add_module(version(5, "k"))
    assert answers(cache, "fhik") == {"f": 7, "h": 7, "i": 7, "k": 5}
    planned, _ = frontend.remove_functions(cache, ["f"], force=True, dry_run=True)
    assert cache.remove("f", force=True) == planned["f"]
    assert answers(cache, "fhik") == {"f": None, "h": None, "i": None, "k": 5}
    cache.add_module(version(8))
    assert answers(cache, "fhik") == {"f": 8, "h": 8, "i": 8, "k": 5}


@pytest.mark.parametrize("removed", [2, 3])
def test_a_forced_removal_distinguishes_code_that_lacks_an_import_from_code_that_answers(cache: Cache, removed: int) -> None:
    """The third module with g lacks an import, so the second one answers. If that is removed, the first one must not answer instead."""
    lacking = importer("g", "missing")
    cache.add_module(version(1, "g"))
    cache.add_module(two_versions(2, 2) if removed == 2 else version(2, "g"))
    cache.add_module(ModuleSource(f"define i64 @f() {{\n  ret i64 3\n}}\n{lacking.ir}", imports=["missing"]) if removed == 3 else lacking)
    assert answers(cache, "g") == {"g": 2}
    cache.remove("f", force=True)
    assert answers(cache, "fg") == {"f": None, "g": None if removed == 2 else 2}


def test_half_an_addition_that_failed_is_not_indexed(directory: Path) -> None:
    """Function f is stored, and g is not. The next addition is another function."""

    def caller(number: int) -> ModuleSource:
        code = f"declare i64 @g()\ndefine i64 @f() {{\n  %g = call i64 @g()\n  %r = add i64 %g, {number}\n  ret i64 %r\n}}\n"
        return ModuleSource(code, optimize=0)

    with Cache(directory) as cache:
        cache.add_modules([caller(10), version(1, "g")])
    stored: list[str] = []

    def fail_after_first(operation: Operation) -> OSError | None:
        if operation.name == "rename" and operation.target.endswith(".ccm"):
            stored.append(operation.target)
        return OSError(errno.EIO, os.strerror(errno.EIO)) if len(stored) > 1 else None

    with cache_on(FaultyFiles(directory, fail_after_first)) as cache, pytest.raises(ModulesNotAddedError):
        cache.add_modules([caller(20), version(2, "g")])
    with Cache(directory) as cache:
        cache.add_module(version(5, "h"))
        assert cache.get_target("f")() == 11


def test_numbers_of_additions_to_a_full_disk_do_not_accumulate(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(version(1))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with cache_on(FaultyFiles(directory, lambda operation: full if operation.name == "write" else None)) as cache:
        for number in range(2, 6):
            with pytest.raises(StorageError):
                cache.add_module(version(number))
    assert len(list((directory / "numbers-v1").iterdir())) == 2


def test_what_is_added_again_stays_the_newest_in_merges(reverted: Path) -> None:
    with Cache(reverted) as cache:
        frontend.compact_index(cache)
    assert len(os.listdir(reverted / "index-v1")) == 1
    assert answer(reverted) == 1


def test_what_is_added_again_is_the_newest_in_copies_bundles_and_layers(reverted: Path, tmp_path: Path) -> None:
    copied, imported, bundle = tmp_path / "copy", tmp_path / "imported", tmp_path / "it.ccb"
    shutil.copytree(reverted, copied)
    lose_the_index(copied)
    assert answer(copied) == 1
    with Cache(reverted) as cache:
        cache.export(["f"], bundle)
    with Cache(imported) as cache:
        cache.import_bundle(bundle)
        assert cache.get_target("f")() == 1
    for layer in (reverted, bundle):
        with Cache(tmp_path / "own", layers=[layer]) as cache:
            assert cache.get_target("f")() == 1


def test_a_bundle_brings_the_number_of_what_is_there_already(cache: Cache, directory: Path, tmp_path: Path) -> None:
    other, bundle = tmp_path / "other", tmp_path / "it.ccb"
    for number in (1, 2):
        cache.add_module(version(number))
    shutil.copytree(directory, other)
    cache.add_module(version(1))
    cache.export(["f"], bundle)
    with Cache(other) as importing:
        assert importing.get_target("f")() == 2
        importing.import_bundle(bundle)
        assert importing.get_target("f")() == 1
    lose_the_index(other)
    assert answer(other) == 1


def test_what_is_the_newest_already_is_left_as_it_is(cache: Cache, directory: Path) -> None:
    module_id = cache.add_module(version(1))
    cache.add_module(version(2, "g"))
    before, segments = Stamp.of(module_file(directory, module_id).stat()), os.listdir(directory / "index-v1")
    assert cache.add_module(version(1)) == module_id
    assert Stamp.of(module_file(directory, module_id).stat()) == before
    assert os.listdir(directory / "index-v1") == segments


def test_a_module_that_is_added_again_stays_signed(directory: Path) -> None:
    with Cache(directory, signing_key=b"secret") as cache:
        for number in (1, 2, 1):
            module_id = cache.add_module(version(number))
        lose_the_index(directory)
    with Cache(directory, signing_key=b"secret") as cache:
        assert cache.get_target("f")() == 1
    path = module_file(directory, module_id)
    data = path.read_bytes()
    assert data.count(b"\xa5order\x03") == 1
    path.write_bytes(data.replace(b"\xa5order\x03", b"\xa5order\x00"))  # nobody without the key can say which is newer
    with Cache(directory, signing_key=b"secret") as cache, pytest.warns(CacheWarning, match="damaged"):
        assert cache.get_target("f")() == 2


def test_additions_that_know_nothing_of_each_other_have_one_order_everywhere(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "_greatest_recorded", lambda *_: 6)
    newest = max((cache.add_module(version(number)), number) for number in range(4))[1]
    assert answer(directory) == newest
    frontend.compact_index(cache)
    assert answer(directory) == newest
    lose_the_index(directory)
    assert answer(directory) == newest


def test_the_own_directory_stands_before_layers_and_these_in_their_order(cache: Cache, directory: Path, tmp_path: Path) -> None:
    layers = [tmp_path / name for name in ("first", "second")]
    for layer, numbers, more in zip(layers, [(1, 2), (3, 1)], [0, 3], strict=True):
        with Cache(layer) as other:
            for number in range(more):
                other.add_module(version(number, "g"))
            for number in numbers:
                other.add_module(version(number))
    for _ in range(2):
        with Cache(directory, layers=layers) as layered:
            assert layered.get_target("f")() == 2
        with Cache(tmp_path / "empty", layers=layers[::-1]) as layered:
            assert layered.get_target("f")() == 1
    cache.add_module(version(0))
    with Cache(directory, layers=layers) as layered:
        assert layered.get_target("f")() == 0
        layered.add_module(version(2))
        assert layered.get_target("f")() == 2
    assert answer(directory) == 2


def test_an_absent_name_is_looked_for_in_the_new_index_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(ModuleSource(adder("one", 1)))
    assert [*cache._store.find("one")]
    readings: list[bool] = []
    refresh = Index.refresh

    def recorded_refresh(index: Index) -> bool:
        readings.append(refresh(index))
        return readings[-1]

    monkeypatch.setattr(Index, "refresh", recorded_refresh)
    for name in ("absent", "cc1_absent-0000"):
        readings.clear()
        assert not [*cache._store.find(name)]
        assert readings == [False]


def test_an_open_cache_sees_what_others_add(cache: Cache, directory: Path) -> None:
    cache.add_module(version(1))
    assert cache.get_target("f")() == 1
    with Cache(directory) as other:
        other.add_module(version(2))
    assert cache.get_target("f")() == 2


def add_one_that_cannot_be_read(directory: Path, number: int, patch: pytest.MonkeyPatch) -> None:
    """Versions 1 and 2, the newest of which is in a segment that cannot be opened for this reason."""
    for value in (1, 2):
        with Cache(directory) as other:
            other.add_module(version(value))
    newest = max((directory / "index-v1").glob("*.idx"), key=lambda path: path.stat().st_mtime_ns)
    for kind in (Door, Tree):

        def fail(self: Any, path: str, *arguments: Any, usual: Any = kind.open_owned, **options: Any) -> Any:
            if path == str(newest):
                raise OSError(number, os.strerror(number), path)
            return usual(self, path, *arguments, **options)

        patch.setattr(kind, "open_owned", fail)


def test_no_older_addition_answers_while_a_part_of_the_index_cannot_be_read(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest addition may be in a segment that cannot be read for a moment."""
    with monkeypatch.context() as patch:
        add_one_that_cannot_be_read(directory, errno.EIO, patch)
        with pytest.raises(StorageError, match=f"cannot be read: {os.strerror(errno.EIO)}; make it readable"):
            cache.get_target("f")
        with Cache(directory) as other, pytest.warns(CacheWarning, match="was not stored"):
            assert other.get_or_compile("f", lambda: version(3))() == 3
    assert cache.get_target("f")() == 2


@pytest.mark.parametrize("is_layer", [False, True])
def test_what_a_user_may_not_read_hides_no_older_addition(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_layer: bool
) -> None:
    """A team's directory contains an addition that its owner has not given access to: starts hit as before, without a warning."""
    add_one_that_cannot_be_read(directory, errno.EACCES, monkeypatch)
    for _ in range(2):
        with Cache(tmp_path / "own", layers=[directory]) if is_layer else Cache(directory, readonly=True) as other:
            assert other.get_or_compile("f", lambda: version(3))() == other.get_target("f")() == 1


@pytest.mark.parametrize("name", ["root", "root-0123456789abcdef0123456789abcdef"])
@pytest.mark.parametrize("is_linked", [False, True])
def test_an_open_cache_imports_what_others_add(cache: Cache, directory: Path, name: str, *, is_linked: bool) -> None:
    cache.add_modules([ModuleSource(adder(leaf, 1)) for leaf in ("leaf", "second")])
    functions = {name: Function("i64(i64)", symbol="root")}
    cache.add_module(ModuleSource(sum_of("root", ["leaf", "second"]), functions, imports=["leaf", "second"]))
    if is_linked:
        cache.link([name])
    for number, other_name in enumerate(("leaf", "second", "leaf"), 2):
        before = cache.get_target(name)(0)
        with Cache(directory) as other:
            other.add_module(ModuleSource(adder(other_name, number)))
        assert cache.get_target(name)(0) > before


_ROOTS = [f"root{number}-0123456789abcdef0123456789abcdef" for number in range(2)]
_ADD = "from compcache import Cache, ModuleSource\nCache({!r}).add_module(ModuleSource({!r}))"
_LOAD_ROOTS = """\
import subprocess, sys
from compcache import Cache
cache = Cache(directory)
held = cache.get_target({names[0]!r})
result = [held(0), "compcache.hit.loader" in sys.modules]
subprocess.run([sys.executable, "-W", "ignore", "-c", {add!r}], check=True)
result.append(cache.get_target({names[1]!r})(0))
"""


def _add_roots(directory: Path, form: str) -> None:
    """Add two functions named by their content that call ``leaf``, apart or linked, and load both."""
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("leaf", 1)))
        for number, name in enumerate(_ROOTS):
            functions = {name: Function("i64(i64)", symbol=f"root{number}")}
            cache.add_module(ModuleSource(sum_of(f"root{number}", ["leaf"]), functions, imports=["leaf"]))
        if form != "apart":
            cache.link(_ROOTS, into="set" if form == "set" else None)
    with Cache(directory) as cache:  # other processes know from now on which closures are valid
        assert [cache.get_target(name)(0) for name in _ROOTS] == [1, 1]


@pytest.mark.parametrize("form", ["apart", "linked", "set"])
def test_what_is_loaded_for_the_first_time_has_what_others_have_added(directory: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    _add_roots(directory, form)
    monkeypatch.setenv("COMPCACHE_STATS", "0")  # hits are not plain
    with Cache(directory) as cache:
        assert cache.get_target(_ROOTS[0])(0) == 1
        with Cache(directory) as other:
            other.add_module(ModuleSource(adder("leaf", 2)))
        assert cache.get_target(_ROOTS[1])(0) == 2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["apart", "linked", "set"])
def test_a_plain_hit_has_what_others_have_added(directory: Path, form: str) -> None:
    _add_roots(directory, form)
    ask = _LOAD_ROOTS.format(names=_ROOTS, add=_ADD.format(str(directory), adder("leaf", 2)))
    assert run_fresh(directory, ask) == [1, False, 2]


def test_what_an_open_cache_adds_is_newer_than_what_others_have_added_meanwhile(cache: Cache, directory: Path) -> None:
    cache.add_module(version(1))
    with Cache(directory) as other:
        for number in (1, 2):
            for newer in (2, 3, 4):
                other.add_module(version(10 * number + newer))
            lose_the_numbers(directory)
            if number == 1:
                cache.add_module(version(number))
            else:
                cache.add_modules([version(number)])
            assert answer(directory) == number


def test_what_this_cache_adds_is_the_newest_while_something_older_is_held(cache: Cache) -> None:
    cache.add_module(version(1))
    cache.add_module(ModuleSource("declare i64 @f()\ndefine i64 @g() {\n  %y = call i64 @f()\n  ret i64 %y\n}\n"))
    held = cache.get_target("f")
    cache.add_module(version(2))
    newest = cache.get_target("f")
    assert (held(), newest(), cache.get_target("g")()) == (1, 2, 2)
    cache.add_module(version(2))
    assert cache.get_target("f") is newest
    cache.replace(version(1))
    assert (newest(), cache.get_target("f")()) == (2, 1)


@pytest.mark.slow
def test_dependents_use_the_newest_in_the_next_process(cache: Cache, directory: Path) -> None:
    for name in ("a", "b", "c"):
        cache.add_module(ModuleSource(adder(name, 1)))
    cache.add_module(ModuleSource(sum_of("all", ["a", "b", "c"]), imports=["a", "b", "c"]))
    ask = "from compcache import Cache\nwith Cache(directory, trust=True) as cache:\n    result = cache.get_target('all')(0)"
    assert [run_fresh(directory, ask) for _ in range(2)] == [3, 3]
    cache.add_module(ModuleSource(adder("b", 10) + constant("more", 1)))
    assert [run_fresh(directory, text) for text in (ask, ask.replace(", trust=True", ""))] == [12, 12]


@pytest.mark.parametrize("trust", [False, True], ids=["plain", "by a plan"])
def test_an_import_is_not_that_of_a_module_which_is_loaded_anyway(cache: Cache, directory: Path, *, trust: bool) -> None:
    cache.add_module(ModuleSource(adder("a", 1) + adder("b", 1)))
    cache.add_module(ModuleSource(sum_of("both", ["a", "b"]), imports=["a", "b"]))
    cache.add_module(ModuleSource(adder("b", 20)))
    with Cache(directory, trust=trust) as other:
        held = other.get_target("a")
        assert other.get_target("both")(0) == 21
        assert held(0) == 1


@NEEDS_X86
def test_what_is_made_of_an_older_module_is_as_old(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(constant("f", 1) + constant("g", 7), targets=["x86-64"]))
    cache.add_module(ModuleSource(constant("f", 2), targets=["x86-64"]))
    assert tune(cache._session(), "g")
    assert len(cache.realizations("g")) == 2
    assert answer(directory) == 2
    lose_the_index(directory)
    assert answer(directory) == 2


@NEEDS_X86
def test_of_one_addition_and_of_the_same_content_the_best_for_the_host_is_used(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("f", 0), targets=["x86-64-v3"]))
        cache.add_module(ModuleSource(constant("f", 1), targets=["x86-64-v3", "x86-64"]))
        cache.add_module(ModuleSource(constant("f", 1), targets=["x86-64-v2"]))
    for cpu, expected in [("haswell", "x86-64-v3"), ("nehalem", "x86-64-v2")]:
        with on_host(Cache(directory), host_like(cpu)) as cache:
            target = cache.get_target("f")
            assert (target(), {r.module_id: r.cpu for r in cache.realizations("f")}[target.module_id]) == (1, expected)


def test_names_of_content_have_no_order(cache: Cache, directory: Path) -> None:
    name = f"f-{'0' * 32}"
    ids = [cache.add_module(ModuleSource(constant(name, 1), optimize=level)) for level in (0, 2)]
    assert not any(b"\xa5order" in module_file(directory, module_id).read_bytes() for module_id in ids)


def test_what_is_added_after_a_merge_is_the_newest(cache: Cache, directory: Path) -> None:
    for number in (1, 2, 3):
        cache.add_module(version(number))
    frontend.compact_index(cache)
    lose_the_numbers(directory)
    with Cache(directory) as other:
        other.add_module(version(4))
    with Cache(directory) as reader:
        assert reader.get_target("f")() == 4


def test_a_number_that_no_addition_can_have_is_none(cache: Cache, directory: Path) -> None:
    first = cache.add_module(version(1))
    path = module_file(directory, first)
    assert path.read_bytes().count(b"\xa5order\x01") == 1
    publish_addition(cache._store.index, [], [], [], (1 << 48) - 3)
    for number in (2, 3, 4):  # the last two have the greatest that there is
        cache.add_module(version(number))
    assert answer(directory) in (3, 4)


# ------------------------------------------------------------------------------------------------------------ replace


def test_replace_removes_what_has_a_newer_realization(cache: Cache) -> None:
    kept = cache.add_module(ModuleSource(constant("f", 1) + constant("old", 1)))
    other = cache.add_module(version(7, "g"))
    gone = cache.add_module(version(2))
    new = cache.replace(version(3))
    assert {module.module_id for module in cache.modules()} == {kept, other, *new}
    assert gone not in new
    assert (cache.get_target("f")(), cache.get_target("old")()) == (3, 1)
    both = cache.replace([version(4), version(5, "old")])
    assert {module.module_id for module in cache.modules()} == {other, *both}
    assert cache.replace(version(4)) == both[:1]
    assert {module.module_id for module in cache.modules()} == {other, *both}


@NEEDS_X86
def test_replace_keeps_what_was_added_together(cache: Cache) -> None:
    cache.add_module(version(1))
    cache.replace(ModuleSource(constant("f", 2), targets=["x86-64", "x86-64-v2"]))
    assert {copy.cpu for copy in cache.realizations("f")} == {"x86-64", "x86-64-v2"}


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_look_up_that_a_replacement_overtakes_finds_the_new_one(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch, *, asked_before: bool
) -> None:
    cache.add_module(version(1))
    with Cache(directory) as reader:
        assert not asked_before or reader.get_target("f")() == 1
        assert reader._store  # from now on its hits are not plain
        left = [version(3), version(2)]
        open_module = Store.open_module

        def replace_and_open(store: Store, *arguments: Any, **keywords: Any) -> Any:
            """What is to be opened has been looked up in the index."""
            if left and store is reader._store:
                cache.replace(left.pop())
            return open_module(store, *arguments, **keywords)

        monkeypatch.setattr(Store, "open_module", replace_and_open)
        assert reader.get_target("f")() == 3


def test_a_plain_look_up_that_a_replacement_overtakes_finds_the_new_one(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.add_module(version(1))
    with Cache(directory) as reader:
        left = [version(2)]
        open_owned = Door.open_owned

        def replace_and_open(door: Door, path: str, *arguments: Any, **keywords: Any) -> Any:
            """What is to be opened has been looked up in the index."""
            if left and path.endswith(".ccm") and door is reader._plain._files:
                cache.replace(left.pop())
            return open_owned(door, path, *arguments, **keywords)

        monkeypatch.setattr(Door, "open_owned", replace_and_open)
        assert reader.get_target("f")() == 2
        assert not left


# ------------------------------------------------------------------------------------------------------------ a long life

Key = tuple[tuple[str, int], ...]
KEYS = st.sets(st.tuples(st.sampled_from("fg"), st.integers(0, 2)), min_size=1).map(dict)


class OrderOfAdditions(RuleBasedStateMachine):
    """`present` is the model: what modules define, with the time when they were added last."""

    @initialize()
    def begin(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="compcache-order-"))
        self.root = self.base / "0"
        self.caches = [Cache(self.root), Cache(self.root)]
        self.present: dict[Key, int] = {}
        self.ids: dict[Key, str] = {}
        self.time = 0

    def teardown(self) -> None:
        for cache in self.caches:
            cache.close()
        shutil.rmtree(self.base)

    def move(self, place: Path) -> None:
        for cache in self.caches:
            cache.close()
        self.root, self.caches = place, [Cache(place), Cache(place)]

    def newest(self, name: str) -> int | None:
        found = [(time, dict(key)[name]) for key, time in self.present.items() if name in dict(key)]
        return max(found)[1] if found else None

    @rule(key=KEYS, first=st.booleans(), replace=st.booleans())
    def add(self, key: dict[str, int], first: bool, replace: bool) -> None:
        items, cache = tuple(sorted(key.items())), self.caches[first]
        source = ModuleSource("".join(constant(*item) for item in items), optimize=0)
        self.ids[items] = cache.replace(source)[0] if replace else cache.add_module(source)
        self.time += 1
        self.present[items] = self.time
        if replace:
            last = {name: time for time, other in sorted((time, other) for other, time in self.present.items()) for name in dict(other)}
            for other, time in list(self.present.items()):
                if key.keys() & dict(other).keys() and all(time < last[name] for name in dict(other)):
                    del self.present[other]

    @rule(number=st.integers(0, 5), first=st.booleans())
    def remove(self, number: int, first: bool) -> None:
        if self.present:
            key = sorted(self.present)[number % len(self.present)]
            assert self.caches[first].remove_module(self.ids[key])
            del self.present[key]

    @rule(first=st.booleans())
    def merge(self, first: bool) -> None:
        frontend.compact_index(self.caches[first])

    @rule()
    def lose_the_index(self) -> None:
        shutil.rmtree(self.root / "index-v1", ignore_errors=True)

    @rule(with_index=st.booleans())
    def copy(self, with_index: bool) -> None:
        place = self.base / f"{int(self.root.name) + 1}"
        if self.root.exists():
            shutil.copytree(self.root, place, ignore=None if with_index else shutil.ignore_patterns("index-*"))
        self.move(place)

    @rule()
    def ship(self) -> None:
        place, names = self.base / f"{int(self.root.name) + 1}", [name for name in "fg" if self.newest(name) is not None]
        if names:
            self.caches[0].export(names, self.base / "it.ccb")
            with Cache(place) as cache:
                cache.import_bundle(self.base / "it.ccb")
            self.move(place)

    @invariant()
    def the_newest_answers(self) -> None:
        for name in "fg" if hasattr(self, "caches") else "":
            for cache in self.caches:
                try:
                    assert cache.get_target(name)() == self.newest(name)
                except NotCachedError:
                    assert self.newest(name) is None


def live(examples: int, steps: int) -> None:
    relaxed = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=relaxed,
        database=None,
        phases=(Phase.generate,),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        run_state_machine_as_test(OrderOfAdditions, settings=how)


@pytest.mark.slow
def test_a_short_life_of_additions() -> None:
    live(5, 8)


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_a_long_life_of_additions() -> None:
    live(max(5, int(float(os.environ.get("COMPCACHE_TEST_SECONDS", "300")) / 2)), 40)
