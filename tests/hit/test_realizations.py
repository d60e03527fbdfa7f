"""Several modules that hold the same function: which one is loaded, and what happens when one cannot be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, constant, flip_byte, module_file

from compcache import Cache, CacheWarning, IncompatibleTargetError, ModuleSource, NotCachedError, UndefinedSymbolError

if TYPE_CHECKING:
    from pathlib import Path


def add_variants(cache: Cache, count: int = 3) -> list[str]:
    """`count` modules that realize ``f() -> its number``."""
    return [cache.add_module(ModuleSource(constant("f", number))) for number in range(count)]


def test_every_stored_copy_is_a_realization(cache: Cache) -> None:
    before = time.time()
    modules = add_variants(cache)
    found = cache.realizations("f")
    assert sorted(r.module_id for r in found) == sorted(modules)
    assert len({r.link_name for r in found}) == 3
    for r in found:
        assert (r.func_name, r.signature, r.problem, r.loaded) == ("f", "i64()", "", False)
        assert r.link_name == f"f@{r.module_id}"
        assert r.image_kind in ("shared", "object")
        assert r.size == module_file(cache.path, r.module_id).stat().st_size
        assert before - 1 <= r.created <= time.time()
        assert r.llvm_version.split(".")[0].isdigit()
        assert r.cpu
    assert cache.has("f")


def test_a_link_name_is_unique_among_modules(cache: Cache) -> None:
    add_variants(cache, 5)
    cache.add_module(ModuleSource(constant("f", 0) + constant("g", 1)))
    names = [r.link_name for name in ("f", "g") for r in cache.realizations(name)]
    assert len(set(names)) == len(names) == 7


def test_of_the_same_content_the_loaded_realization_is_preferred(cache: Cache) -> None:
    modules = [cache.add_module(ModuleSource(constant("f", 7) + constant(f"only{number}", number))) for number in range(4)]
    for number, module_id in enumerate(modules):
        with Cache(cache.path) as other:
            held = other.get_target(f"only{number}")
            target = other.get_target("f")
            assert (target(), target.module_id, held()) == (7, module_id, number)
            assert other._loader.opened <= 1
            assert [r.module_id for r in other.realizations("f") if r.loaded] == [module_id]


def test_an_import_prefers_the_loaded_realization(cache: Cache) -> None:
    for number in range(4):
        cache.add_module(ModuleSource(adder("callee", 5) + constant(f"only{number}", number)))
    cache.add_module(ModuleSource(caller("f", "callee")))
    for number in range(4):
        with Cache(cache.path) as other:
            held = other.get_target(f"only{number}")
            target = other.get_target("f")
            assert (target(0), held()) == (5, number)
            assert len(other.loaded().modules) == 2


@pytest.mark.parametrize("where", [0.5, 0.999, 0.02])
def test_a_damaged_realization_is_set_aside_and_the_next_one_taken(cache: Cache, directory: Path, where: float) -> None:
    modules = add_variants(cache)
    for number in (0, 2):
        path = module_file(directory, modules[number])
        flip_byte(path, int(path.stat().st_size * where))
    with Cache(directory) as later:
        with pytest.warns(CacheWarning, match="is damaged") as caught:  # noqa: PT031 - both may warn
            assert later.get_target("f")() == 1
            later.realizations("f")
        assert [r.module_id for r in later.realizations("f")] == [modules[1]]
        assert len([w for w in caught if issubclass(w.category, CacheWarning)]) == 2, "one warning for each"
        assert "quarantine" in str(caught[0].message)
    assert len(list((directory / "quarantine").iterdir())) == 2


def test_a_truncated_realization_is_set_aside(cache: Cache, directory: Path) -> None:
    modules = add_variants(cache, 1)
    path = module_file(directory, modules[0])
    path.write_bytes(path.read_bytes()[:-100])
    with Cache(directory) as later, pytest.warns(CacheWarning, match=path.name):  # noqa: SIM117
        with pytest.raises(NotCachedError, match="is damaged"):
            later.get_target("f")
    assert not path.exists()


def test_a_module_that_was_added_again_after_damage_is_whole(cache: Cache, directory: Path) -> None:
    (module_id,) = add_variants(cache, 1)
    flip_byte(module_file(directory, module_id), 200)
    with Cache(directory) as later:
        with pytest.warns(CacheWarning, match="is damaged"):
            assert later.add_module(ModuleSource(constant("f", 0))) == module_id
        assert later.get_target("f")() == 0


def test_get_or_compile_compiles_again_what_is_damaged(cache: Cache, directory: Path) -> None:
    (module_id,) = add_variants(cache, 1)
    flip_byte(module_file(directory, module_id), 200)
    with Cache(directory) as later, pytest.warns(CacheWarning, match="is damaged"):
        assert later.get_or_compile("f", lambda: ModuleSource(constant("f", 5)))() == 5


def test_a_file_under_the_name_of_another_module_is_refused(cache: Cache, directory: Path) -> None:
    first, second = add_variants(cache, 2)
    scratch = directory / "copy"
    scratch.write_bytes(module_file(directory, first).read_bytes())
    scratch.replace(module_file(directory, second))
    with Cache(directory) as later, pytest.warns(CacheWarning, match="contains a different module than"):  # noqa: PT031
        later.realizations("f")
        assert later.get_target("f")() == 0


def test_a_removed_realization_is_no_realization(cache: Cache, directory: Path) -> None:
    modules = add_variants(cache)
    for module_id in modules[:2]:
        module_file(directory, module_id).unlink()
    assert [r.module_id for r in cache.realizations("f")] == modules[2:]
    with Cache(directory) as later:
        assert later.get_target("f")() == 2
        module_file(directory, modules[2]).unlink()
        assert not later.has("f")
    with Cache(directory) as later, pytest.raises(NotCachedError):
        later.get_target("f")


def test_a_realization_that_cannot_be_satisfied_is_passed_over(cache: Cache, directory: Path) -> None:
    needy = [cache.add_module(ModuleSource(caller("f", f"missing{n}", plus=n), imports=[f"missing{n}"])) for n in range(4)]
    with Cache(directory) as later, pytest.raises(UndefinedSymbolError, match="missing"):
        later.get_target("f")
    good = cache.add_module(ModuleSource(adder("f", 70)))
    with Cache(directory) as later:
        target = later.get_target("f")
        assert (target(1), target.module_id) == (71, good)
        assert {r.problem for r in later.realizations("f")} == {""}
        assert len(later.realizations("f")) == len(needy) + 1


def test_a_dead_end_deep_in_the_closure_makes_the_plan_back_up(cache: Cache, directory: Path) -> None:
    """f -> g, and two of g's realizations need something that is not there."""
    cache.add_module(ModuleSource(caller("g", "gone", plus=1), imports=["gone"]))
    cache.add_module(ModuleSource(caller("g", "gone2", plus=2), imports=["gone2"]))
    cache.add_module(ModuleSource(caller("f", "g"), imports=["g"]))
    with Cache(directory) as later, pytest.raises(UndefinedSymbolError, match="'g'"):
        later.get_target("f")
    cache.add_module(ModuleSource(adder("g", 40)))
    with Cache(directory) as later:
        assert later.get_target("f")(2) == 42


def test_a_cycle_whose_member_cannot_be_satisfied_is_dropped_as_a_whole(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(caller("f", "g"), imports=["g"]))
    both = caller("g", "f").partition("\n")[2] + "declare i64 @gone(i64)\ndeclare i64 @f(i64)\n"
    both = both.replace("%z = add i64 %y, 0", "%w = call i64 @gone(i64 %y)\n  %z = add i64 %w, 0")
    cache.add_module(ModuleSource(both, imports=["f", "gone"]))
    with Cache(directory) as later:
        for name in ("f", "g", "f"):
            with pytest.raises(UndefinedSymbolError):
                later.get_target(name)
        cache.add_module(ModuleSource(adder("g", 1)))
        assert later.get_target("f")(1) == 2


@pytest.mark.usefixtures("undecoded")
def test_code_for_another_cpu_is_passed_over(cache: Cache, directory: Path) -> None:
    foreign = cache.add_module(ModuleSource(constant("f", 1), cpu="generic", features="+amx-avx512"))
    with Cache(directory, retarget=False) as later:
        with pytest.raises(NotCachedError, match="amx-avx512"):
            later.get_target("f")
        (r,) = later.realizations("f")
        assert (r.module_id, r.cpu) == (foreign, "generic")
        assert "amx-avx512" in r.problem
        assert not later.has("f")
        cache.add_module(ModuleSource(constant("f", 2)))
        assert later.get_target("f")() == 2
        assert len(later.realizations("f")) == 2
    assert issubclass(IncompatibleTargetError, Exception)


def test_portable_code_runs_here(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1), cpu="x86-64", features=""))
    assert cache.get_target("f")() == 1
    assert cache.realizations("f")[0].problem == ""
