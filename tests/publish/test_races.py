"""The states that races leave behind: functions in several modules, edges across modules, all at once.

Every state is put together from directories that were filled separately, and what it holds is called in fresh
processes.
"""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, run_fresh
from mock_directory import MockDirectory

from compcache import Cache, ModuleSource
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Build = Callable[..., MockDirectory]

EVEN_ODD = """\
declare i64 @{other}(i64)
define i64 @{name}(i64 %n) {{
  %done = icmp eq i64 %n, 0
  br i1 %done, label %end, label %next
next:
  %m = sub i64 %n, 1
  %r = tail call i64 @{other}(i64 %m)
  ret i64 %r
end:
  ret i64 {value}
}}
"""


@pytest.fixture(params=["linked", pytest.param("unlinked", marks=pytest.mark.stress)])
def environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of processes with a linker, or without."""
    if request.param == "linked":
        return {}
    monkeypatch.setenv("COMPCACHE_LINKER", "none")
    return {"COMPCACHE_LINKER": "none"}


@pytest.fixture
def build(directory: Path, tmp_path: Path) -> Build:
    """Fills a directory of its own with modules, starting from a state or from nothing."""
    numbers = itertools.count()

    def build(*sources: str | ModuleSource, start: MockDirectory | None = None) -> MockDirectory:
        place = tmp_path / f"filled-{next(numbers)}"
        if start is None:
            shutil.copytree(directory, place)
        else:
            start.dump(place)
        place.chmod(0o700)
        with Cache(place) as cache:
            for source in sources:
                cache.add_module(source if isinstance(source, ModuleSource) else ModuleSource(source))
        return MockDirectory.read(place)

    return build


def merged(*trees: MockDirectory) -> MockDirectory:
    """All trees in one. Two builds of one module differ in their notes, which do not count."""
    result = trees[0]
    for tree in trees[1:]:
        result = result.merge(tree, conflict="ours")
    return result


def call(place: Path, *calls: tuple[str, int], **environment: str) -> list[Any]:
    """The results of calls in a fresh process."""
    script = f"""
    from compcache import Cache
    with Cache(directory) as cache:
        result = [cache.get_target(name)(argument) for name, argument in {list(calls)!r}]
    """
    answers: list[Any] = run_fresh(place, script, **environment)
    return answers


def add(place: Path, ir: str, **environment: str) -> str:
    """Compile a module in a fresh process; its id."""
    script = f"""
    from compcache import Cache, ModuleSource
    with Cache(directory) as cache:
        result = cache.add_module(ModuleSource({ir!r}))
    """
    module_id: str = run_fresh(place, script, **environment)
    return module_id


def module_ids(place: Path, name: str) -> set[str]:
    with Cache(place) as cache:
        return {realization.module_id for realization in cache.realizations(name)}


@pytest.mark.slow
def test_triangle(build: Build, tmp_path: Path, environment: dict[str, str]) -> None:
    """One function in two modules; a third function that is compiled against it."""
    first, second = build(adder("f", 1)), build(adder("f", 1) + adder("pad", 9))
    place = merged(first, second).dump(tmp_path / "merged")
    assert len(module_ids(place, "f")) == 2
    assert call(place, ("f", 1), ("pad", 1), **environment) == [2, 10]
    add(place, caller("h", "f", plus=100), **environment)
    assert call(place, ("h", 1), ("f", 1), **environment) == [102, 2]


@pytest.mark.slow
def test_diamond(build: Build, tmp_path: Path, environment: dict[str, str]) -> None:
    """Two copies of g over one f, then h over g."""
    base = build(adder("f", 1))
    first = build(caller("g", "f", plus=10), start=base)
    second = build(caller("g", "f", plus=10) + adder("pad", 9), start=base)
    place = merged(first, second).dump(tmp_path / "merged")
    assert (len(module_ids(place, "f")), len(module_ids(place, "g"))) == (1, 2)
    add(place, caller("h", "g", plus=100), **environment)
    assert call(place, ("h", 1), ("g", 1), ("f", 1), **environment) == [112, 12, 2]


@pytest.mark.slow
def test_duplicate_edges(build: Build, tmp_path: Path, environment: dict[str, str]) -> None:
    """Two modules that hold both f and g, with h over g and over f."""
    both = adder("f", 1) + caller("g", "f", plus=10).replace("declare i64 @f(i64)\n", "")
    place = merged(build(both), build(both + adder("pad", 9))).dump(tmp_path / "merged")
    add(place, caller("h", "g", plus=100), **environment)
    add(place, caller("i", "f", plus=1000), **environment)
    assert call(place, ("h", 1), ("i", 1), ("g", 1), ("f", 1), **environment) == [112, 1002, 12, 2]


def test_the_same_module_built_twice_is_one(build: Build, tmp_path: Path) -> None:
    first, second = build(adder("f", 1)), build(adder("f", 1))
    place = merged(first, second).dump(tmp_path / "merged")
    assert len(module_ids(place, "f")) == 1
    assert call(place, ("f", 1)) == [2]


@pytest.mark.slow
def test_a_chain_across_modules(build: Build, tmp_path: Path) -> None:
    """Every link was compiled without its neighbour in sight, in one of three directories."""
    length = 24
    links = [
        ModuleSource(caller(f"f{i}", f"f{i - 1}", plus=1), imports=[f"f{i - 1}"]) for i in range(1, length)
    ]
    place = merged(build(*links[::3]), build(*links[1::3]), build(adder("f0", 5), *links[2::3])).dump(
        tmp_path / "m"
    )
    assert call(place, (f"f{length - 1}", 1), ("f0", 1)) == [length + 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 2])
def test_a_cycle_across_modules(
    build: Build, tmp_path: Path, copies: int, environment: dict[str, str]
) -> None:
    """Each half, in one or two copies, was compiled where the other one was not."""

    def half(name: str, other: str, value: int, padding: str) -> ModuleSource:
        return ModuleSource(EVEN_ODD.format(name=name, other=other, value=value) + padding, imports=[other])

    paddings = ["", adder("pad", 9)][:copies]
    evens = [build(half("even", "odd", 1, padding)) for padding in paddings]
    odds = [build(half("odd", "even", 0, padding)) for padding in paddings]
    place = merged(*evens, *odds).dump(tmp_path / "merged")
    assert call(place, ("even", 10), ("odd", 10), **environment) == [1, 0]
    assert call(place, ("odd", 7), ("even", 7), **environment) == [1, 0]
    add(place, caller("twice", "even", plus=1), **environment)
    assert call(place, ("twice", 1000), **environment) == [2]


def test_a_longer_cycle(build: Build, tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    states = [
        build(ModuleSource(EVEN_ODD.format(name=name, other=other, value=value), imports=[other]))
        for value, (name, other) in enumerate(zip(names, [*names[1:], names[0]], strict=True))
    ]
    place = merged(*states).dump(tmp_path / "merged")
    assert call(place, ("a", 6), ("b", 6), ("c", 6), ("d", 5)) == [2, 3, 0, 0]


def test_half_a_cycle_says_what_is_missing(build: Build, tmp_path: Path) -> None:
    source = ModuleSource(EVEN_ODD.format(name="even", other="odd", value=1), imports=["odd"])
    place = build(source).dump(tmp_path / "half")
    script = """
    from compcache import Cache, UndefinedSymbolError
    with Cache(directory) as cache:
        try:
            cache.get_target("even")
        except UndefinedSymbolError as error:
            result = error.symbols
    """
    assert run_fresh(place, script) == ("odd",)


def duplicates(tree: MockDirectory, count: int) -> MockDirectory:
    """The tree with `count` copies of its one module, each with another id, and no index."""
    (path,) = [path for path in tree.files if path.startswith("modules-v1")]
    data = tree.files[path]
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    sizes = [footer.image, footer.records, footer.graph, footer.bitcode, footer.notes]
    ends = list(itertools.accumulate(sizes))
    image, records, graph, _, notes = (data[end - size : end] for end, size in zip(ends, sizes, strict=True))
    copies = {}
    for number in range(count):
        module_id, parts = encode_container(image, records, graph, b"%d" % number, notes, None)
        copies[f"modules-v1/{module_id.hex()[:2]}/{module_id.hex()}.ccm"] = b"".join(parts)
    return tree.without("modules-v1", "index-v1").merge(MockDirectory(copies))


@pytest.mark.slow
def test_a_thousand_duplicates(build: Build, tmp_path: Path) -> None:
    """A thousand modules that hold one function, in a directory that lost its index."""
    place = duplicates(build(adder("f", 1)), 1000).dump(tmp_path / "many")
    add(place, caller("h", "f", plus=100))
    assert call(place, ("f", 1), ("h", 1)) == [2, 102]
    script = """
    from compcache import Cache
    from compcache.publish.removal import remove_file
    with Cache(directory) as cache:
        modules = sorted({realization.module_id for realization in cache.realizations("f")})
        for module_id in modules[1:]:
            remove_file(cache._store, bytes.fromhex(module_id))
        result = [len(modules), len(cache.realizations("f")), cache.get_target("h")(1)]
    """
    assert run_fresh(place, script) == [1000, 1, 102]
    assert call(place, ("f", 1), ("h", 1)) == [2, 102]


def test_a_dependent_outlives_the_copy_that_it_was_compiled_against(build: Build, tmp_path: Path) -> None:
    base = build(adder("f", 1))
    other = build(adder("f", 1) + adder("pad", 9))
    dependent = build(caller("h", "f", plus=100), start=base)
    (used,) = [path for path in base.files if path.startswith("modules-v1")]
    place = merged(dependent, other).without(used).dump(tmp_path / "merged")
    assert call(place, ("h", 1), ("f", 1)) == [102, 2]


@pytest.mark.stress
def test_a_thousand_duplicates_that_were_compiled(build: Build, tmp_path: Path) -> None:
    states = [
        build(*[adder("f", 1) + adder(f"pad{number}", number) for number in range(start, start + 100)])
        for start in range(0, 1000, 100)
    ]
    place = merged(*states).dump(tmp_path / "merged")
    add(place, caller("h", "f", plus=100))
    assert len(module_ids(place, "f")) == 1000
    assert call(place, ("h", 1), ("f", 1), ("pad999", 1)) == [102, 2, 1000]


@pytest.mark.stress
def test_a_chain_of_five_hundred_modules(build: Build, tmp_path: Path) -> None:
    links = [ModuleSource(caller(f"f{i}", f"f{i - 1}", plus=1), imports=[f"f{i - 1}"]) for i in range(1, 500)]
    place = merged(build(*links[::2]), build(adder("f0", 5), *links[1::2])).dump(tmp_path / "merged")
    assert call(place, ("f499", 1)) == [505]
