"""Functions of linked closures that need no other module are loaded by plain hits, and those that follow know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, run_fresh, sum_of
from test_addresses import SOURCES

from compcache import Cache, ModuleSource
from compcache.directory.places import CLOSURES
from compcache.hit.closures import MAGIC, SEAL_SIZE, seal
from compcache.hit.target import load_runtime

if TYPE_CHECKING:
    from pathlib import Path

_LOAD = """\
import sys
from compcache import Cache
with Cache(directory) as cache:
    held = {{name: cache.get_target(name) for name in {names!r}}}
    result = [target(1) for target in held.values()], [target.module_id for target in held.values()], "compcache.hit.loader" in sys.modules
"""
_STATE = """\
import itertools
from compcache import Cache
result = []
for order in itertools.permutations(("bump", "peek", "user", "h")):
    with Cache(directory) as cache:
        targets, found = [], []
        for name in order:
            targets.append(cache.get_target(name))
            found += [target(2) for target in targets]
        result.append(found)
"""
#: A function that counts, in a variable that others use; a constructor begins it when what it imports is bound.
_HOME = """\
@n = global i64 0
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @begin, ptr null }]
declare i64 @start(i64)
define internal void @begin() {
  %a = call i64 @start(i64 2)
  store i64 %a, ptr @n
  ret void
}
define i64 @count(i64 %x) {
  %a = load i64, ptr @n
  %b = add i64 %a, %x
  store i64 %b, ptr @n
  ret i64 %b
}
"""
_USER = """\
@n = external global i64
declare i64 @count(i64)
declare i64 @start(i64)
define i64 @{name}(i64 %x) {{
  %a = call i64 @count(i64 %x)
  %b = load i64, ptr @n
  %c = call i64 @start(i64 %b)
  %d = sub i64 %c, 30
  ret i64 %d
}}
"""
_COUNT = """\
import itertools, sys
from compcache import Cache
result = []
if {first}:
    with Cache(directory) as cache:
        target = cache.get_target("first")
        result = [*{{"compcache.hit.loader", "compcache.formats", "__future__"}} & {{*sys.modules}}, target(3)]
else:
    for order in itertools.permutations(("first", "second", "count", "start")):
        with Cache(directory) as cache:
            held = []
            for name in order:
                held.append(cache.get_target(name))
                result += [target(2) for target in held]
"""
_GONE = """\
from compcache import Cache
with Cache(directory) as cache:
    cache.get_target("third")(1)
    other, again = cache.get_target("other"), cache.get_target("third")
    result = other.module_id == again.module_id
"""
_ADDRESS = """\
from compcache import Cache
with Cache(directory) as cache, Cache(directory) as other:
    first, second = cache.get_target("f"), cache.get_target("k")
    other.{event}
    held = [cache.get_target(name) for name in ("h", "address_a", "address_b", "z")]
    result = [first.address == held[1]() == held[2](), first.address == cache.get_target("f").address, held[-1](1)]
"""


def load(directory: Path, *names: str) -> tuple[list[int], list[str], bool]:
    """What a fresh process gets: results, modules, and whether it has read more than plain hits."""
    results, modules, whole = run_fresh(directory, _LOAD.format(names=names))
    return results, modules, whole


def test_a_closure_and_a_function_that_uses_symbols_are_plain(cache: Cache, directory: Path) -> None:
    native = "declare i64 @labs(i64)\ndeclare i64 @third(i64)\ndefine i64 @size(i64 %x) {\n  %m = sub i64 -5, %x\n"
    native += "  %a = call i64 @third(i64 %m)\n  %y = call i64 @labs(i64 %a)\n  ret i64 %y\n}\n"
    cache.add_modules([ModuleSource(native), ModuleSource(caller("first", "third", plus=1)), ModuleSource(adder("third", 3))])
    (closure,) = cache.link(["first", "size"], into="set").linked
    results, modules, whole = load(directory, "first", "size")
    assert (results, modules) == ([5, 3], [closure.module_id] * 2)
    assert not whole


def test_a_closure_of_thousands_of_modules_is_plain(cache: Cache, directory: Path) -> None:
    cache.add_modules([ModuleSource(caller("first", "third", plus=1)), ModuleSource(adder("third", 3))])
    cache.link(["first"])
    load(directory, "first")
    (record,) = (directory / CLOSURES.directory).iterdir()
    content = record.read_bytes()[len(MAGIC) + SEAL_SIZE :] + b"".join(number.to_bytes(16, "little") for number in range(8000))
    record.write_bytes(MAGIC + seal(content, record.name, None) + content)
    results, _, whole = load(directory, "first")
    assert (results, whole) == ([5], False)


@pytest.mark.parametrize("name", ["first", "third", "unrelated"])
def test_plain_hits_ask_whether_a_closure_holds(cache: Cache, directory: Path, name: str) -> None:
    cache.add_modules([ModuleSource(caller("first", "third", plus=1)), ModuleSource(adder("third", 3))])
    cache.link(["first"])
    cache.add_module(ModuleSource(adder(name, 50)))
    expected = {"first": 51, "third": 52, "unrelated": 5}[name]
    assert [load(directory, "first")[0] for _ in range(2)] == [[expected]] * 2  # the second process knows whether it holds
    assert load(directory, "first")[2] == (name != "unrelated")


@pytest.mark.slow
def test_a_closure_that_imports_from_home_modules_is_plain(cache: Cache, directory: Path) -> None:
    home = ModuleSource(adder("home", 7), keep_bitcode=False)
    sums = [ModuleSource(sum_of(name, ["home", "third"])) for name in ("first", "second")]
    cache.add_modules([home, *sums, ModuleSource(adder("third", 3))])
    (closure,) = cache.link(["first", "second"], into="set").linked
    assert load(directory, "first", "second") == ([1 + 7 + 1 + 3] * 2, [closure.module_id] * 2, False)
    results, modules, whole = load(directory, "second", "home", "first", "third")
    assert (results, modules[0], modules[2], whole) == ([12, 8, 12, 4], closure.module_id, closure.module_id, True)


def test_further_functions_of_a_closure_are_bound_to_what_they_import(cache: Cache, directory: Path) -> None:
    homes = [ModuleSource(adder(name, plus), keep_bitcode=False) for name, plus in (("home", 7), ("house", 9))]
    sums = [ModuleSource(sum_of(name, [home, "third"])) for name, home in (("first", "home"), ("second", "house"))]
    cache.add_modules([*homes, *sums, ModuleSource(adder("third", 3))])
    (closure,) = cache.link(["first", "second", "third"], into="set").linked
    assert load(directory, "third", "first", "second") == ([1 + 3, 1 + 7 + 1 + 3, 1 + 9 + 1 + 3], [closure.module_id] * 3, False)


@pytest.mark.slow
def test_functions_that_are_added_meanwhile_are_not_taken_from_a_loaded_closure(cache: Cache, directory: Path) -> None:
    cache.add_modules([ModuleSource(adder(name, plus)) for name, plus in (("one", 1), ("two", 2), ("three", 3))])
    cache.link(["one", "two", "three"], into="set")
    script = f"""
    import warnings
    from compcache import Cache, ModuleSource
    warnings.simplefilter("ignore")  # the function has other code now
    with Cache(directory) as cache, Cache(directory) as other:
        found = [cache.get_target(name) for name in ("one", "two")]
        other.add_module(ModuleSource({adder("three", 30)!r}))
        result = [target(0) for target in (*found, cache.get_target("three"), cache.get_target("one"))]
    """
    load(directory, "one")
    assert run_fresh(directory, script) == [1, 2, 30, 1]


@pytest.mark.slow
def test_functions_of_another_closure_are_not_read_from_the_loaded_one(cache: Cache, directory: Path) -> None:
    cache.add_modules([ModuleSource(adder(name, plus)) for name, plus in (("one", 1), ("two", 2), ("three", 3), ("four", 4))])
    closures = [cache.link(names, into=names[0]).linked[0].module_id for names in (["one", "two"], ["three", "four"])]
    for names in (["one", "three", "two", "four"], ["four", "three", "one"]):
        results, modules, _ = load(directory, *names)
        assert results == [1 + {"one": 1, "two": 2, "three": 3, "four": 4}[name] for name in names]
        assert set(modules) <= {*closures}


@pytest.mark.slow
def test_the_variables_and_constructors_of_home_modules_are_one(tmp_path: Path) -> None:
    """The home module counts in a variable that the closure uses, too, and begins with what a function of a third module returns."""
    home = ModuleSource(_HOME, keep_bitcode=False)
    codes = [home, *map(ModuleSource, (_USER.format(name="first"), _USER.format(name="second"), adder("start", 30)))]
    for way in ("apart", "linked"):
        with Cache(tmp_path / way) as cache:
            cache.add_modules(codes)
            if way == "linked":
                assert cache.link(["first", "second"], into="set").linked[0].functions == ("first", "second")
    assert run_fresh(tmp_path / "linked", _COUNT.format(first=True)) == [35]
    results = [run_fresh(tmp_path / way, _COUNT.format(first=False)) for way in ("apart", "linked")]
    assert results[0] == results[1]


def test_a_closure_that_is_gone_is_not_mapped_beside_its_modules(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(adder("third", 3) + adder("other", 4)), ModuleSource(caller("first", "third", plus=1))])
        assert cache.link(["first", "third"], into="set").linked
    assert run_fresh(tmp_path, _GONE) is True


@pytest.mark.slow
@pytest.mark.parametrize("linked", [("bump", "user"), ("user",), ("h", "k", "user"), ("bump", "peek")])
def test_state_is_one(tmp_path: Path, linked: tuple[str, ...]) -> None:
    for way in ("apart", "linked"):
        with Cache(tmp_path / way) as cache:
            cache.add_modules([ModuleSource(code) for code in SOURCES])
            if way == "linked":
                assert cache.link(linked, into="set").linked or linked == ("bump", "peek")
    assert run_fresh(tmp_path / "linked", _STATE) == run_fresh(tmp_path / "apart", _STATE)


@pytest.mark.slow
@pytest.mark.parametrize("event", ["remove(derived=True)", 'link(["f", "h"], into="set")', "info()"])
def test_an_address_is_one(tmp_path: Path, event: str) -> None:
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(code) for code in SOURCES])
        cache.link(["f", "k", "z"], into="set")
    assert run_fresh(tmp_path, _ADDRESS.format(event=event)) == [True, True, 2]


@pytest.mark.slow
def test_what_is_linked_later_does_not_double_what_is_loaded(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(code) for code in SOURCES])
    script = """
    from compcache import Cache
    with Cache(directory) as cache, Cache(directory) as other:
        bump = cache.get_target("bump")
        bump(5)
        linked = len(other.link(["user"]).linked)
        user = cache.get_target("user")
        user(1)
        result = [linked, bump(0)]
    """
    assert run_fresh(tmp_path, script) == [1, 6]


@pytest.mark.slow
def test_what_is_removed_does_not_double_what_is_loaded(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(code) for code in SOURCES])
        cache.link(["user"])
    script = """
    from compcache import Cache
    with Cache(directory) as cache, Cache(directory) as other:
        user = cache.get_target("user")
        user(5)
        other.remove(derived=True)
        result = cache.get_target("peek")(0)
    """
    assert run_fresh(tmp_path, script) == 5


def test_a_first_load_asks_the_processor_once(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question to the processor of a virtual machine stops the machine, and validity and requirements both need the answer."""
    cache.add_modules([ModuleSource(adder("one", 1)), ModuleSource(caller("two", "one"))])
    assert cache.link(["two"]).linked
    cache.close()
    with Cache(directory) as first:
        assert first.get_target("two")(1) == 2
    runtime = load_runtime()
    ask, asked = runtime.processor, []

    def processor() -> bytes:
        asked.append(1)
        content: bytes = ask()
        return content

    monkeypatch.setattr(runtime, "processor", processor)
    with Cache(directory) as second:
        assert second.get_target("two")(1) == 2
        assert second._plain._closure is not None
    assert len(asked) == 1
