"""What tools ask of some functions is answered by what concerns these, as if all modules had been read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, module_file

from compcache import Cache, Function, FunctionInUseError, Identity, ModuleSource, NotCachedError, PrunePolicy, frontend
from compcache.directory.places import MODULE_LISTS
from compcache.publish import module_lists, module_rows
from compcache.publish.index_merge import merge
from compcache.publish.module_lists import base_of
from compcache.usage import snapshot
from compcache.usage.listings import functions, listed_functions, listed_modules, modules

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["few", "listed", "merged"])
def mixed(request: pytest.FixtureRequest, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Plain names, variants of labels, parts, entries of data, a group and a chain of imports; in memory, in lists, in merged lists."""
    first, second = Identity("dot", a=1), Identity("dot", a=2)
    for number, identity in enumerate((first, second, Identity("dot-two", a=1))):
        cache.add_module(ModuleSource(adder("f", number), {identity.func_name: Function(symbol="f")}))
    cache.add_module(ModuleSource(adder("loop", 3), part_of=first))
    cache.add_module(ModuleSource(adder("alone", 4), part_of="gone"))
    cache.add_module(ModuleSource(adder("base", 1) + adder("other", 2)))
    cache.add_module(ModuleSource(caller("middle", "base"), imports=["base"]))
    cache.add_module(ModuleSource(caller("top", "middle"), imports=["middle"]))
    held = cache.add_module(ModuleSource(adder("pkg.sub.kernel", 9)))
    cache.add_modules([ModuleSource(adder("m1", 1)), ModuleSource(adder("m2", 2))], group="team")
    for number in range(2):
        frontend.put_entry(cache, first, b"%d" % number, kind="k")
    frontend.put_entry(cache, "elsewhere", b"1", kind="k", requires=(held,))
    frontend.write_entries(cache)
    assert cache.get_target("top")(1) == cache.get_target("middle")(1)
    cache._store.stats.flush()
    if request.param != "few":
        monkeypatch.setattr(module_lists, "_FEW", 0)
        monkeypatch.setattr(snapshot, "_MAX_COUNTED", 0)
    if request.param == "merged":
        merge(cache._store.index, store=cache._store)
    return cache


@pytest.mark.slow
def test_a_listing_is_that_of_all_modules_whatever_is_asked(mixed: Cache) -> None:
    store = mixed._store
    for folded in (False, True):
        whole = functions(store, folded=folded)
        assert sorted(listed_functions(store, folded=folded)) == whole
        assert len(whole) > 7
        for row in whole:
            base = base_of(row.func_name)
            found = list(listed_functions(store, folded=folded, prefix=base))
            assert found == [each for each in sorted(whole, key=lambda each: (base_of(each[0]), each)) if each in found]
            assert row in found
    assert list(listed_modules(store)) == modules(store)
    for module in modules(store):
        assert list(listed_modules(store, module.module_id[:7])) == [module]


def test_small_steps_give_what_one_step_gives(mixed: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from compcache.usage import listings

    whole = [list(listed_functions(mixed._store, folded=folded)) for folded in (False, True)]
    monkeypatch.setattr(listings, "_FIRST", 1)
    monkeypatch.setattr(listings, "_MOST_AT_ONCE", 1)
    assert [list(listed_functions(mixed._store, folded=folded)) for folded in (False, True)] == whole


def test_what_a_function_is_used_by_is_found_from_the_other_side(mixed: Cache) -> None:
    names = {node.name for node in mixed.graph(["base"], reverse=True).nodes}
    assert names == {"base", "middle", "top"}
    with pytest.raises(FunctionInUseError, match="'middle' imports it"):
        mixed.remove("base")
    mixed.remove("top")
    mixed.remove("middle")
    assert {node.name for node in mixed.graph(["base"], reverse=True).nodes} == {"base"}
    with pytest.raises(NotCachedError):
        mixed.remove("middle")
    mixed.remove("team")
    assert "m1" not in {row.func_name for row in mixed.functions()}


def test_what_is_removed_is_listed_no_more_before_the_index_is_rewritten(mixed: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from compcache.maintain import remove

    monkeypatch.setattr(remove, "_SHORT", 0)
    mixed.remove("pkg.sub.kernel")
    assert "pkg.sub.kernel" not in [row.func_name for row in listed_functions(mixed._store)]
    assert "elsewhere" not in [row.func_name for row in listed_functions(mixed._store, folded=True)]
    assert not mixed.has("pkg.sub.kernel")
    mixed.prune(PrunePolicy(max_modules=100))
    assert all(finding.severity == "note" for finding in mixed.check().findings)


@pytest.mark.slow
def test_a_damaged_list_is_made_again(mixed: Cache, directory: Path) -> None:
    before = list(listed_functions(mixed._store, folded=True))
    for path in (directory / MODULE_LISTS.directory).glob("*.list"):
        data = bytearray(path.read_bytes())
        for place in (20, len(data) // 2, len(data) - 20):
            data[place] ^= 1
            path.write_bytes(data)
            assert list(listed_functions(mixed._store, folded=True)) == before
            data[place] ^= 1


@pytest.mark.slow
def test_no_list_is_left_of_a_segment_that_is_gone(mixed: Cache, directory: Path) -> None:
    list(listed_functions(mixed._store))
    for round_ in range(20):
        mixed.add_module(ModuleSource(adder(f"more{round_}", round_)))
    merge(mixed._store.index, store=mixed._store)
    list(listed_functions(mixed._store))
    lists = {path.stem for path in (directory / MODULE_LISTS.directory).glob("*.list")}
    assert lists <= {path.stem for path in (directory / "index-v1").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "d", "dot", "dot-", "pkg.sub.k", "m", "absent"])
def test_names_are_those_of_the_listing_and_nothing_else_is_read(mixed: Cache, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = sorted(row.func_name for row in functions(mixed._store) if row.func_name.startswith(prefix))
    monkeypatch.setattr(module_lists.ModuleLists, "rows", None)
    monkeypatch.setattr(snapshot, "Uses", None)
    assert frontend.list_names(mixed, prefix, 100) == listed
    few = frontend.list_names(mixed, prefix, 2)
    assert few == sorted(few)
    assert {*few}.issubset(listed)
    assert len(few) == min(2, len(listed))


def test_the_names_of_variants_begin_with_their_label_and_digits(mixed: Cache) -> None:
    name = Identity("dot", a=1).func_name
    assert frontend.list_names(mixed, name[:8], 100) == [name]


def test_names_of_removed_modules_are_passed_over(cache: Cache, directory: Path) -> None:
    gone = cache.add_module(ModuleSource(adder("f1", 1)))
    cache.add_module(ModuleSource(adder("f2", 2)))
    assert frontend.list_names(cache, "f", 1) == ["f1"]
    module_file(directory, gone).unlink()  # the index still names the module
    assert frontend.list_names(cache, "f", 1) == ["f2"]


@pytest.mark.slow
def test_the_first_question_makes_the_list_of_a_small_segment_for_the_others(cache: Cache, directory: Path) -> None:
    """Merges make none: additions would wait. Without one each question reads the files of up to 512 modules."""
    cache.add_modules([ModuleSource(adder(f"f{number}", number), optimize=0) for number in range(40)])
    before = functions(cache._store)
    (path,) = (directory / MODULE_LISTS.directory).glob("*.list")
    with Cache(directory) as other, pytest.MonkeyPatch.context() as patched:
        patched.setattr(module_rows, "read_row_and_size", None)
        assert functions(other._store) == before
        assert path.exists()


def test_a_list_is_opened_once_by_all_questions_to_a_cache(mixed: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = module_lists._open_list

    def record(store: Any, segment: str) -> object:
        found = real(store, segment)
        opened.extend([segment] if found is not None else [])
        return found

    monkeypatch.setattr(module_lists, "_open_list", record)
    mixed.explain("nothing")
    mixed.labelled("nothing")
    list(listed_modules(mixed._store))
    assert len(opened) == len(set(opened))
