"""Functions of several modules whose load needs no plan: they are what a plan would have chosen."""

from __future__ import annotations

import gc
import random
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, run_fresh, sum_of

from compcache import Cache, CompcacheError, ModuleSource
from compcache.hit.plain_imports import PlainFunction, PlainFunctions, _collect_needs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

class Offset(int):
    """The offset of a record, which counts the offsets with which it was compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Offset.compared += 1
        return super().__eq__(other)


class Records:
    """A runtime for which each record needs the next one."""

    def read_frame(self, _: int, offset: int, limit: int, *__: object) -> tuple[int, int]:
        return offset, limit

    def needs_record(self, payload: tuple[int, int]) -> tuple[tuple[()], tuple[()], tuple[()], tuple[Offset, ...]]:
        offset, limit = payload
        return (), (), (), (Offset(offset + 1), Offset(offset + 2)) if offset < limit else ()


def test_needs_are_collected_in_linear_time(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        loader = cache._plain
        opened = SimpleNamespace(number=0)
        part = PlainFunction(bytes(16), (opened, "", 0, (0, 500, 0, 0, 0, b"", b"")), ("f", "", "", b"", 0, 0, Offset(1), b""))
        assert _collect_needs(loader, Records(), part, set()) == []
    assert Offset.compared < 5_000


COUNTER = """
@counter = global i64 100
define i64 @count(i64 %x) {
  %old = load i64, ptr @counter
  %new = add i64 %old, %x
  store i64 %new, ptr @counter
  ret i64 %new
}
"""
READER = "@counter = external global i64\ndefine i64 @top(i64 %x) {\n  %v = load i64, ptr @counter\n  ret i64 %v\n}\n"
SECOND_COUNTER = COUNTER.replace("100", "500").replace("@count(", "@other(")
BOTH_OF_THEM = READER.replace("define", "declare i64 @count(i64)\ndefine")
BOTH_OF_THEM = BOTH_OF_THEM.replace("ret i64 %v", "%n = call i64 @count(i64 %v)\n  ret i64 %n")
DOWN = """
declare i64 @{other}(i64)
define i64 @{name}(i64 %x) {{
  %end = icmp sle i64 %x, 0
  br i1 %end, label %stop, label %go
go:
  %less = sub i64 %x, 1
  %y = call i64 @{other}(i64 %less)
  %z = add i64 %y, {plus}
  ret i64 %z
stop:
  ret i64 0
}}
"""
COUNTED = """
@v{number} = global i64 {number}
define internal i64 @counted() {{
  %old = load i64, ptr @v{number}
  %new = add i64 %old, 1
  store i64 %new, ptr @v{number}
  ret i64 %new
}}
"""
STARTED = """
@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @begin, ptr null }}]
define internal void @begin() {{
  %x = call i64 @f{called}(i64 1)
  ret void
}}
"""
MISFIT = "declare i64 @one(double)\ndefine i64 @top(i64 %x) {\n  %y = call i64 @one(double 1.0)\n  ret i64 %y\n}\n"
NATIVE = "declare i64 @there_is_no_such(i64)\ndefine i64 @one(i64 %x) {\n  %y = call i64 @there_is_no_such(i64 %x)\n  ret i64 %y\n}\n"
GLOBAL = "@kept = external global i64\ndefine i64 @one(i64 %x) {\n  %v = load i64, ptr @kept\n  %y = add i64 %x, %v\n  ret i64 %y\n}\n"
HELPERS = """
@helper = external global ptr
define i64 @first() {
  %p = load ptr, ptr @helper
  %v = ptrtoint ptr %p to i64
  ret i64 %v
}
define i64 @second() {
  %v = call i64 @first()
  ret i64 %v
}
"""


def load(directory: Path, names: Sequence[str], *, trust: bool) -> tuple[list[object], set[str], bool]:
    """What functions return, or the errors of their loads; which modules were loaded; whether all of it was plain."""
    found: list[object] = []
    with Cache(directory, trust=trust) as cache:
        kept = []
        for name in names:
            try:
                kept.append(cache.get_target(name))
                found.append(kept[-1](1))
            except CompcacheError as error:
                found.append((type(error), str(error)))
        is_plain = "_loader" not in vars(cache)
        modules = set(cache.loaded().modules) if kept else set()
        kept.clear()
    gc.collect()
    return found, modules, is_plain


def both(directory: Path, *names: str) -> tuple[list[object], bool]:
    """What `load` has found, which is what a plan finds; whether it was plain."""
    plain, planned = load(directory, names, trust=False), load(directory, names, trust=True)
    assert plain[:2] == planned[:2]
    assert not planned[2]
    return plain[0], plain[2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_plain_loads_choose_what_a_plan_chooses(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    end = rng.choice(["", "-" + "0" * 32])
    names = [f"f{number}{end}" for number in range(12)]
    with Cache(tmp_path) as cache:
        for number in [*range(12), *rng.choices(range(12), k=6 if not end else 0)]:
            callees = rng.sample(names, rng.randrange(4)) if number > 2 else []
            callees = [callee for callee in callees if callee != names[number] and names.index(callee) < number]
            text = sum_of(names[number], callees) if callees else adder(names[number], rng.randrange(100))
            cache.add_module(ModuleSource(text, imports=callees, optimize=0, inline=False))
    found, _ = both(tmp_path, *rng.sample(names, 5))
    assert all(isinstance(value, int) for value in found)


def test_a_function_and_those_that_it_needs_are_plain(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_modules(
            [ModuleSource(adder("one", 1)), ModuleSource(caller("two", "one", plus=1)), ModuleSource(sum_of("top", ["one", "two"]))]
        )
    script = (
        "from compcache import Cache\nwith Cache(directory) as cache:\n"
        "    result = cache.get_target('top')(1), 'compcache.store' in sys.modules\n"
    )
    assert tuple(run_fresh(tmp_path, script)) == (2 + 3, False)
    assert both(tmp_path, "top", "two", "one") == ([5, 3, 2], True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_variables_and_constructors_are_those_that_a_plan_finds(tmp_path: Path, seed: int) -> None:
    """A module counts its calls, reads the variables of others, and some call another function before theirs is called."""
    rng = random.Random(seed)
    with Cache(tmp_path) as cache:
        for number in range(8):
            read, called = rng.sample(range(number), min(number, 2)) if number > 1 else [], rng.sample(range(number), min(number, 2))
            text = COUNTED.format(number=number) + "".join(f"@v{other} = external global i64\n" for other in read)
            text += "".join(f"declare i64 @f{other}(i64)\n" for other in called)
            if called and rng.random() < 0.5:
                text += STARTED.format(called=called[0])
            text += f"define i64 @f{number}(i64 %x) {{\n  %n = call i64 @counted()\n  %s = add i64 %x, %n\n"
            steps = [f"load i64, ptr @v{other}" for other in read] + [f"call i64 @f{other}(i64 1)" for other in called]
            for at, step in enumerate(steps):
                text += f"  %y{at} = {step}\n  %s{at} = add i64 %s{at - 1 if at else ''}, %y{at}\n"
            text += f"  ret i64 %s{len(steps) - 1 if steps else ''}\n}}\n"
            names = [f"v{other}" for other in read] + [f"f{other}" for other in called]
            cache.add_module(ModuleSource(text, imports=names, optimize=0, inline=False))
    assert both(tmp_path, "f7")[1]
    both(tmp_path, *[f"f{rng.randrange(8)}" for _ in range(4)])


def test_what_another_thread_binds_meanwhile_is_left_to_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(COUNTER), ModuleSource(READER, imports=["counter"])])
    modules = PlainFunctions.modules
    with Cache(tmp_path) as cache:

        def during(parts: PlainFunctions) -> object:
            found = modules(parts)
            cache._plain.merged["of another thread"] = weakref.ref(next(iter(found.values())))
            return found

        monkeypatch.setattr(PlainFunctions, "modules", during)
        assert cache.get_target("top")(1) == 100
        assert "_loader" in vars(cache)


def test_functions_that_call_each_other_are_plain(tmp_path: Path) -> None:
    down = (
        "declare i64 @{other}(i64)\ndefine i64 @{name}(i64 %x) {{\n  %end = icmp sle i64 %x, 0\n  br i1 %end, label %stop, label %go\ngo:\n"
    )
    down += (
        "  %less = sub i64 %x, 1\n  %y = call i64 @{other}(i64 %less)\n  %z = add i64 %y, {plus}\n  ret i64 %z\nstop:\n  ret i64 0\n}}\n"
    )
    with Cache(tmp_path) as cache:
        for name, other, plus in (("even", "odd", 1), ("odd", "even", 10)):
            cache.add_module(ModuleSource(DOWN.format(name=name, other=other, plus=plus), imports=[other]))
    assert both(tmp_path, "even", "odd") == ([1, 10], True)


def test_a_slot_that_is_filled_stays_as_it_is(tmp_path: Path) -> None:
    """Who is loaded later takes what is newest, and leaves what others are bound to."""
    with Cache(tmp_path) as cache:
        cache.add_module(ModuleSource(adder("one", 1)))
        both_of_them = sum_of("two", ["one"]) + "\n" + sum_of("three", ["one"]).split("\n", 1)[1]
        cache.add_module(ModuleSource(both_of_them, optimize=0, inline=False))
        for trust in (False, True):
            cache.add_module(ModuleSource(adder("one", 10 * (1 + trust))))
            with Cache(tmp_path, trust=trust) as reader:
                two = reader.get_target("two")
                before = two(1)
                cache.add_module(ModuleSource(adder("one", 100 * (1 + trust))))
                assert (two(1), reader.get_target("three")(1), reader.get_target("one")(1)) == (before, before, 1 + 100 * (1 + trust))
                del two
            gc.collect()


def add_helpers(directory: Path) -> None:
    """Store functions that return the address of one of Numba's C helpers, in a process that has not imported Numba."""
    code = f"""
    from compcache import Cache, ModuleSource
    from compcache.numba.entries.helper_symbols import HelperSymbol
    with Cache(directory) as cache:
        cache.add_module(ModuleSource({HELPERS!r}, globals={{"helper": HelperSymbol("numba_gil_ensure")}}, optimize=0))
    result = None
    """
    run_fresh(directory, code)


def test_addresses_of_helpers_are_stored_without_a_loader(tmp_path: Path) -> None:
    add_helpers(tmp_path)
    code = """
    from compcache import Cache
    from compcache.numba.lazy import _dispatch
    cache = Cache(directory)
    first, second = cache.get_target("first"), cache.get_target("second")
    expected = _dispatch.helper_addresses()["numba_gil_ensure"]
    slow = [name for name in ("store", "hit.loader", "errors", "globals", "numba.entries") if f"compcache.{name}" in sys.modules]
    cache.has("first")  # a full cache from here on
    del first
    result = second() - expected, cache.get_target("first")() - expected, slow
    """
    assert tuple(run_fresh(tmp_path, code)) == (0, 0, [])


def test_helpers_that_this_process_lacks_are_reported(tmp_path: Path) -> None:
    add_helpers(tmp_path)
    code = """
    from compcache import Cache, GlobalValidationError
    from compcache.numba.lazy import c_helpers
    c_helpers.helper_address = lambda name: 0
    try:
        Cache(directory).get_target("first")
    except GlobalValidationError as error:
        result = str(error)
    """
    assert "numba_gil_ensure" in run_fresh(tmp_path, code)


@pytest.mark.slow
@pytest.mark.parametrize("one", ["missing", "native", "global", "other type", "two variables"])
def test_what_takes_a_plan_is_left_to_it(tmp_path: Path, one: str) -> None:
    top = ModuleSource(sum_of("top", ["one"]), imports=["one"], optimize=0, inline=False)
    sources = {
        "missing": [top],
        "native": [ModuleSource(NATIVE, imports=["there_is_no_such"], optimize=0), top],
        "global": [ModuleSource(GLOBAL, globals={"kept": 41}), top],
        "other type": [ModuleSource(MISFIT, imports=["one"], optimize=0), ModuleSource(adder("one", 1))],
        "two variables": [ModuleSource(COUNTER), ModuleSource(SECOND_COUNTER), ModuleSource(BOTH_OF_THEM, imports=["counter", "count"])],
    }[one]
    with Cache(tmp_path) as cache:
        for source in sources:
            cache.add_module(source)
    found, is_plain = both(tmp_path, "top")
    assert isinstance(found[0], int) == (one == "global")
    assert not is_plain


def test_a_closure_that_does_not_hold_is_not_imported(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        for text in (adder("third", 3), caller("first", "third", plus=1)):
            cache.add_module(ModuleSource(text))
        assert cache.link(["first"]).linked
        cache.add_module(ModuleSource(caller("top", "first", plus=0), optimize=0, inline=False))
        cache.add_module(ModuleSource(adder("third", 50)))
    assert both(tmp_path, "top")[0] == [1 + 50 + 1]


def test_a_closure_and_what_it_imports_share_their_state(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_module(ModuleSource(COUNTER))
        cache.add_module(ModuleSource(caller("home", "count"), keep_bitcode=False, optimize=0, inline=False))
        cache.add_module(ModuleSource(sum_of("first", ["home", "count"]), optimize=0, inline=False))
        (closure,) = cache.link(["first"]).linked
    found, modules, _ = load(tmp_path, ["first"], trust=False)
    assert found == [101 + 102]
    assert closure.module_id in modules


def test_a_module_is_started_before_its_users_whichever_function_is_found_first(tmp_path: Path) -> None:
    """Two functions of a module with a constructor are imported, one of them by a module whose constructor calls it."""
    started = """
declare i64 @labs(i64)
@state = global i64 0
define internal void @init() {
  %x = call i64 @labs(i64 -7)
  store i64 %x, ptr @state
  ret void
}
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @init, ptr null }]
define i64 @one(i64 %x) {
  %s = load i64, ptr @state
  %r = add i64 %s, %x
  ret i64 %r
}
define i64 @two(i64 %x) {
  %s = load i64, ptr @state
  %r = mul i64 %s, %x
  ret i64 %r
}
"""
    user = started[: started.index("define i64 @one")].replace("@labs", "@two").replace("-7", "10").replace("@state", "@kept")
    user += "define i64 @user(i64 %x) {\n  %s = load i64, ptr @kept\n  %r = add i64 %s, %x\n  ret i64 %r\n}\n"
    for names in (("one", "user"), ("user", "one")):
        top = "".join([f"declare i64 @{name}(i64)\n" for name in names]) + "define i64 @top(i64 %x) {\n"
        top += "".join([f"  %{name} = call i64 @{name}(i64 %x)\n" for name in names]) + "  %r = add i64 %one, %user\n  ret i64 %r\n}\n"
        directory = tmp_path / names[0]
        with Cache(directory) as cache:
            cache.add_modules([ModuleSource(text, inline=False, optimize=0) for text in (started, user, top)])
        assert both(directory, "top") == ([79], True)
