"""Listings that show each function once, with its variants, its parts and its entries of data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller

from compcache import Cache, Function, FunctionInUseError, Identity, InvalidNameError, ModuleSource, frontend
from compcache.usage.summaries import EntrySummary, FunctionSummary

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = (Identity("dot", version=number) for number in (1, 2))


def add(cache: Cache, identity: Identity, number: int = 1) -> str:
    """A variant of `dot`; its module_id."""
    return cache.get_or_compile(identity, partial(ModuleSource, adder("dot", number))).module_id


def add_part(cache: Cache, name: str, part_of: str | Identity) -> str:
    return cache.add_module(ModuleSource(adder("f", 9), {name: Function(symbol="f")}, part_of=part_of))


def folded(cache: Cache) -> dict[str, FunctionSummary]:
    flush(cache)
    return {row.func_name: row for row in cache.functions(folded=True)}


def entries(cache: Cache) -> list[tuple[str, str]]:
    flush(cache)
    return [(entry.name, entry.kind) for entry in frontend.list_entries(cache)]


def flush(cache: Cache) -> None:
    if cache._entries is not None:
        cache._entries.flush()
    cache._store.stats.flush()


def test_variants_of_a_label_are_one_row(cache: Cache) -> None:
    add(cache, FIRST, 1)
    add(cache, SECOND, 2)
    cache.add_module(ModuleSource(adder("other", 1)))
    rows = folded(cache)
    assert list(rows) == ["dot", "other"]
    variants = cache.functions(lambda name: name.startswith("dot-"))
    dot = rows["dot"]
    assert (dot.variants, dot.realizations, dot.parts, dot.entries) == (2, 2, 0, 0)
    assert dot.size == sum(row.size for row in variants)
    assert dot.uses == sum(row.uses for row in variants)
    assert dot.created == max(row.created for row in variants)
    assert set(dot.modules) == {row.modules[0] for row in variants}
    assert rows["other"] == cache.functions(lambda name: name == "other")[0]


def test_one_variant_keeps_its_name(cache: Cache) -> None:
    add(cache, FIRST)
    cache.add_module(ModuleSource(adder("dot", 1)))
    assert list(folded(cache)) == ["dot", FIRST.func_name], "a plain name is no label"


@pytest.mark.parametrize("owner", [FIRST, FIRST.func_name, "dot"])
def test_parts_belong_to_a_function_or_its_label(cache: Cache, owner: str | Identity) -> None:
    add(cache, FIRST)
    add_part(cache, "loop of it", owner)
    (row,) = folded(cache).values()
    assert (row.func_name, row.variants, row.parts) == (FIRST.func_name, 1, 1)
    assert row.size == sum(each.size for each in cache.functions())
    assert [part.func_name for part in cache.function(FIRST).parts] == ["loop of it"]


def test_a_part_of_nothing_that_is_there_is_a_row(cache: Cache) -> None:
    add_part(cache, "loop", FIRST)
    assert list(folded(cache)) == ["loop"]
    assert cache.functions()[0].part_of == FIRST.func_name


def test_a_name_does_not_make_a_part(cache: Cache) -> None:
    add(cache, FIRST)
    cache.add_module(ModuleSource(adder("f", 1), {f"{FIRST.func_name} ufunc loop-0": Function(symbol="f")}))
    assert len(folded(cache)) == 2


def test_a_use_that_loads_a_function_and_its_part_counts_once(cache: Cache, directory: Path) -> None:
    add(cache, FIRST)
    add_part(cache, "loop", FIRST)
    for _ in range(3):
        with Cache(directory) as other:
            assert other.get_target(FIRST)(1) == 2
            assert other.get_target("loop")(1) == 10
    assert folded(cache)[FIRST.func_name].uses == 3


def test_a_target_that_is_there_is_no_hit(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("f", 1), entries={"types": b"f64"}))
    targets = [frontend.find(cache, "f", lambda data: data == b"f64", kind="types") for _ in range(3)]
    assert all(target is targets[0] for target in targets)
    flush(cache)
    assert (cache.stats().hits, cache.functions()[0].uses) == (1, 1)


def test_entries_belong_to_functions_by_name_label_and_what_they_require(cache: Cache) -> None:
    module_id = add(cache, FIRST)
    add(cache, SECOND, 2)
    for name, requires in (("named otherwise", [module_id]), (FIRST.func_name, []), ("dot", []), ("alone", [])):
        frontend.put_entry(cache, name, b"12345", kind="k", requires=requires)
    before = sum(row.size for row in cache.functions())
    (row,) = folded(cache).values()
    assert row.entries == 3
    assert row.size == before + 3 * 5
    assert [entry.name for entry in cache.function(FIRST).entries] == ["dot", FIRST.func_name, "named otherwise"]
    assert [entry.name for entry in cache.function(SECOND).entries] == ["dot"]
    assert entries(cache) == [("alone", "k"), ("dot", "k"), (FIRST.func_name, "k"), ("named otherwise", "k")]


def test_an_entry_tells_its_file(cache: Cache) -> None:
    module_id = cache.add_module(ModuleSource(adder("f", 1), entries={"types": b"f64"}))
    frontend.put_entry(cache, "f", b"12345", kind="k", requires=[module_id])
    flush(cache)
    first, second = frontend.list_entries(cache)
    assert first == EntrySummary("f", "k", 5, first.created, first.module_id, True, (module_id,), cache.path)
    assert second == EntrySummary("f", "types", 3, second.created, module_id, False, (), cache.path)
    assert first.module_id != module_id


def test_of_several_packs_the_entry_that_holds_is_listed(cache: Cache) -> None:
    for data in (b"1", b"12", b"123"):
        frontend.put_entry(cache, "a name", data, kind="k")
        flush(cache)
    assert [entry.size for entry in frontend.list_entries(cache)] == [3]
    frontend.remove_entry(cache, "a name", "k")
    assert entries(cache) == []


def test_an_entry_whose_module_is_gone_is_not_listed(cache: Cache) -> None:
    module_ids = [add(cache, FIRST), add(cache, SECOND, 2)]
    for name in ("one", "two"):
        frontend.put_entry(cache, name, b"1", kind="k", requires=module_ids if name == "two" else module_ids[:1])
    frontend.put_entry(cache, "three", b"1", kind="k")
    flush(cache)
    cache.remove_module(module_ids[1])
    assert entries(cache) == [("one", "k"), ("three", "k")]


def test_a_layer_is_folded_with_what_is_above(directory: Path, tmp_path: Path) -> None:
    with Cache(tmp_path / "below") as below:
        add(below, FIRST)
        add_part(below, "loop", FIRST)
        frontend.put_entry(below, FIRST, b"1", kind="k")
    with Cache(directory, layers=[tmp_path / "below"]) as cache:
        add(cache, SECOND, 2)
        (row,) = folded(cache).values()
        assert (row.func_name, row.variants, row.parts, row.entries) == ("dot", 2, 1, 1)
        assert set(row.directories) == {str(directory), str(tmp_path / "below")}


def test_the_list_of_modules_says_the_same_as_the_modules(cache: Cache, directory: Path) -> None:
    """Rows come from additions, from the stored list and from the files."""
    add(cache, FIRST)
    add_part(cache, "loop", FIRST)
    frontend.put_entry(cache, FIRST, b"1", kind="k")
    first = folded(cache), frontend.list_entries(cache)
    assert (folded(cache), frontend.list_entries(cache)) == first, "as the list says, which was stored by now"
    for path in [*(directory / "stats").iterdir(), *directory.glob("module-lists-*/*")]:
        path.unlink()
    rows, found = folded(cache), frontend.list_entries(cache)
    assert {name: row._replace(uses=0, last_used=0.0, misses=0) for name, row in rows.items()} == {
        name: row._replace(uses=0, last_used=0.0, misses=0) for name, row in first[0].items()
    }
    assert found == first[1]


# ------------------------------------------------------------------------------------------------- removal


def test_removing_a_function_removes_its_parts_and_the_entries_of_its_name(cache: Cache) -> None:
    add(cache, FIRST)
    add(cache, SECOND, 2)
    for owner in (FIRST, SECOND):
        add_part(cache, f"loop of {owner.func_name}", owner)
        frontend.put_entry(cache, owner, b"1", kind="k")
    add_part(cache, "loop of all", "dot")
    frontend.put_entry(cache, "dot", b"1", kind="k")
    assert len(cache.remove(FIRST)) == 2
    assert frontend.get_entry(cache, FIRST, "k") is None
    assert sorted(cache) == sorted([SECOND.func_name, f"loop of {SECOND.func_name}", "loop of all"])
    assert entries(cache) == [("dot", "k"), (SECOND.func_name, "k")]
    assert len(cache.remove(SECOND)) == 3
    assert list(cache) == []
    assert entries(cache) == []
    assert cache.check().findings == ()


def test_an_entry_that_waits_is_removed_with_its_function(cache: Cache, directory: Path) -> None:
    add(cache, FIRST)
    frontend.put_entry(cache, FIRST, b"1", kind="k")
    cache.remove(FIRST)
    assert frontend.get_entry(cache, FIRST, "k") is None
    cache.close()
    with Cache(directory) as other:
        assert frontend.get_entry(other, FIRST, "k") is None


def test_a_part_that_others_need_stays(cache: Cache) -> None:
    add(cache, FIRST)
    add_part(cache, "loop", FIRST)
    add_part(cache, "pinned", FIRST)
    cache.add_module(ModuleSource(caller("uses", "loop")))
    cache.pin("pinned")
    cache.remove(FIRST)
    assert sorted(cache) == ["loop", "pinned", "uses"]
    with pytest.raises(FunctionInUseError):
        cache.remove("loop")


def test_what_a_part_belongs_to_has_a_usable_name() -> None:
    with pytest.raises(InvalidNameError):
        ModuleSource(adder("f", 1), part_of="a\0b")
    with pytest.raises(TypeError, match=r"part_of must be the name of a function"):
        ModuleSource(adder("f", 1), part_of=1)  # type: ignore[arg-type]
