"""Modules that move into a linked closure, with their variables: of these there is one, whatever is loaded first."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, run_fresh

from compcache import Cache, ModuleSource
from compcache.formats.linked import decode_closure
from compcache.frontend import find
from compcache.publish.module_reader import linked_closures

if TYPE_CHECKING:
    from pathlib import Path

COUNTER = """\
@n = internal global i64 0
@seen = global i64 100
@same = constant ptr @address
define i64 @next(i64 %x) {
  %a = load i64, ptr @n
  %b = add i64 %a, %x
  store i64 %b, ptr @n
  %c = call ptr @address()
  %d = load ptr, ptr @same
  %e = icmp eq ptr %d, @address
  %f = zext i1 %e to i64
  %g = add i64 %b, %f
  ret i64 %g
}
define i64 @peek(i64 %x) {
  %a = load i64, ptr @n
  %b = load i64, ptr @seen
  %c = add i64 %a, %b
  ret i64 %c
}
define ptr @address() {
  ret ptr @seen
}
define ptr @where() {
  ret ptr @seen
}
"""
#: Uses the variables of the counter, compares addresses of its functions, and has one of its own. It only calls `where`.
USER = """\
@seen = external global i64
@same = external constant ptr
@calls = internal thread_local global i64 0
declare i64 @next(i64)
declare i64 @plus(i64)
declare ptr @address()
declare ptr @where()
define i64 @both(i64 %x) {
  %a = call i64 @next(i64 %x)
  %b = call i64 @plus(i64 %a)
  %c = load i64, ptr @seen
  %d = add i64 %c, 1
  store i64 %d, ptr @seen
  %e = load ptr, ptr @same
  %f = icmp eq ptr %e, @address
  %g = zext i1 %f to i64
  %h = call ptr @address()
  %i = icmp eq ptr %h, @seen
  %j = zext i1 %i to i64
  %k = load i64, ptr @calls
  %l = add i64 %k, 1
  store i64 %l, ptr @calls
  %m = add i64 %b, %g
  %o = add i64 %m, %j
  %p = add i64 %o, %l
  %q = call ptr @where()
  %r = icmp eq ptr %q, @seen
  %s = zext i1 %r to i64
  %t = add i64 %p, %s
  ret i64 %t
}
"""
NAMES = ("both", "also", "next", "peek")
SOURCES = [COUNTER, USER, adder("plus", 1), caller("also", "next", plus=7)]

_ORDERS = """\
import itertools
from compcache import Cache
result = []
for order in itertools.permutations({names!r}):
    with Cache(directory) as cache:
        targets = []
        values = []
        for name in order:
            targets.append(cache.get_target(name))
            values += [target(2) for target in targets]
        result.append((values, len(cache._loader.loaded_modules())))
"""
_EVENT = """\
import subprocess, sys
from compcache import Cache, ModuleSource
def elsewhere(code):
    script = "from compcache import Cache, ModuleSource; cache = Cache(" + repr(directory) + "); " + code
    subprocess.run([sys.executable, "-c", script], check=True)
result = []
with Cache(directory) as cache:
    cache.info()  # no hit is plain
    held = [cache.get_target("both")]
    result.append(held[0](2))
    {event}
    for name in ("peek", "also", "next", "both"):
        held.append(cache.get_target(name))
        result += [target(2) for target in held]
"""
_THREADS = """\
import threading
from compcache import Cache
names, result = {names!r}, []
for round in range(25):
    with Cache(directory) as cache:
        barrier, held = threading.Barrier(8), []
        def load(number):
            barrier.wait()
            held.append(cache.get_target(names[number % len(names)]))
            held[-1](1) if names[number % len(names)] != "peek" else None
        threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        result.append(cache.get_target("peek")(0) - 100)
"""
EVENTS = {
    "none": "pass",
    "removed elsewhere": "elsewhere('cache.remove(derived=True)')",
    "removed here": "cache.remove(derived=True)",
    "linked anew elsewhere": 'elsewhere(\'cache.link(["both", "also"], into="other")\')',
    "linked anew here": "cache.link(['both', 'also'], into='other')",
    "replaced": "elsewhere('cache.add_module(ModuleSource(\"define i64 @peek(i64 %x) {\\\\n  ret i64 5\\\\n}\\\\n\"))')",
    "added": "elsewhere('cache.add_module(ModuleSource(\"define i64 @plus(i64 %x) {\\\\n  ret i64 50\\\\n}\\\\n\"))')",
}


def stored(directory: Path, *names: str) -> Path:
    """A cache of the modules, these functions linked as a set."""
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(code) for code in SOURCES])
        if names:
            (closure,) = cache.link(names, into="set").linked
            assert set(closure.functions) == set(names)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("linked", [("both",), ("both", "also"), NAMES])
def test_orders_of_loads_give_what_they_give_unlinked(tmp_path: Path, linked: tuple[str, ...]) -> None:
    apart = run_fresh(stored(tmp_path / "apart"), _ORDERS.format(names=NAMES))
    together = run_fresh(stored(tmp_path / "linked", *linked), _ORDERS.format(names=NAMES))
    assert [values for values, _ in together] == [values for values, _ in apart]
    assert min(number for _, number in apart) == 4
    orders = [order[0] for order in itertools.permutations(NAMES)]
    firsts = {name: {number for order, (_, number) in zip(orders, together, strict=True) if order == name} for name in NAMES}
    assert max(firsts["both"]) == (1 if "also" in linked else 2)  # the module of `also` stays


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_state_stays_where_it_is_whatever_happens_meanwhile(tmp_path: Path, event: str) -> None:
    script = _EVENT.format(event=EVENTS[event])
    apart = "pass" if "linked" in event or "removed" in event else EVENTS[event]
    expected = run_fresh(stored(tmp_path / "apart"), _EVENT.format(event=apart))
    assert run_fresh(stored(tmp_path / "linked", "both"), script) == expected


@pytest.mark.slow
@pytest.mark.parametrize("first", ["next", "also", "peek", "both"])
def test_what_is_linked_while_a_part_is_loaded_does_not_double_it(tmp_path: Path, first: str) -> None:
    script = _EVENT.replace('cache.get_target("both")', f'cache.get_target("{first}")')
    expected = run_fresh(stored(tmp_path / "apart"), script.format(event="pass"))
    linking = 'elsewhere(\'cache.link(["both", "also"])\')'
    assert run_fresh(stored(tmp_path / "linked"), script.format(event=linking)) == expected


@pytest.mark.slow
def test_threads_that_load_at_once_have_one_state(tmp_path: Path) -> None:
    expected = run_fresh(stored(tmp_path / "apart"), _THREADS.format(names=NAMES))
    assert set(run_fresh(stored(tmp_path / "linked", "both", "also"), _THREADS.format(names=NAMES))) == set(expected)


@pytest.mark.slow
def test_closures_that_a_module_would_move_into_are_one(cache: Cache, directory: Path) -> None:
    cache.add_modules([ModuleSource(code) for code in SOURCES])
    (first,) = cache.link(["both"]).linked
    (second,) = cache.link(["also"]).linked
    assert (first.functions, set(second.functions)) == (("both",), {"also", "both"})
    (entry,) = linked_closures(cache._store).values()
    assert decode_closure(entry.data).homes > 0
    (third,) = cache.link().linked
    assert set(third.functions) == {"both", "also", "next", "peek", "address", "where"}
    assert run_fresh(directory, _ORDERS.format(names=NAMES))[0][1] == 1


def test_a_module_that_is_not_what_a_look_up_finds_stays(cache: Cache) -> None:
    """Another module defines one of its functions since: both of them can be needed."""
    cache.add_modules([ModuleSource(code) for code in SOURCES])
    cache.add_module(ModuleSource(adder("peek", 3)))
    cache.link(["both"])
    (entry,) = linked_closures(cache._store).values() or (None,)
    counter = next(r.module_id for r in cache.realizations("next"))
    assert entry is None or bytes.fromhex(counter) not in entry.requires[: decode_closure(entry.data).homes]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "cache.remove(derived=True)"])
def test_a_part_that_is_removed_is_forgotten_with_its_state(tmp_path: Path, first: str) -> None:
    """As the module itself would be, in the process that removes it, also where the closure was removed before."""
    script = """\
from compcache import Cache, ModuleSource
with Cache(directory) as cache:
    held = cache.get_target("both")
    held(2)
    {first}
    cache.remove("peek", force=True)
    cache.add_module(ModuleSource({counter!r}))
    result = [cache.get_target("peek")(0), cache.get_target("next")(2), held(2) > 0]
"""
    for names in ((), ("both",)):
        found = run_fresh(stored(tmp_path / str(len(names)), *names), script.format(counter=COUNTER, first=first))
        assert found == [100, 3, True]


@pytest.mark.slow
def test_unloading_ends_it(tmp_path: Path) -> None:
    script = """\
from compcache import Cache, TargetUnloadedError
result = []
with Cache(directory) as cache:
    for round in range(3):
        held = [cache.get_target(name) for name in ("both", "next", "peek")]
        result.append([target(2) for target in held])
        for name in ("both", "next", "plus", "peek"):
            cache.unload(name)
        for target in held:
            try:
                target(1)
            except TargetUnloadedError:
                result[-1].append("unloaded")
        del held, target
"""
    expected: Any = run_fresh(stored(tmp_path / "apart"), script)
    assert run_fresh(stored(tmp_path / "linked", "both"), script) == expected


def test_a_module_with_data_of_a_front_end_stays(cache: Cache, directory: Path) -> None:
    """It is read of the module's own file, and decides whether that is used."""
    sources = [ModuleSource(COUNTER, entries={"mine": b"data"}), *[ModuleSource(code) for code in SOURCES[1:]]]
    cache.add_modules(sources)
    cache.link(["both"])
    counter = bytes.fromhex(next(r.module_id for r in cache.realizations("next")))
    homes = [entry.requires[: decode_closure(entry.data).homes] for entry in linked_closures(cache._store).values()]
    assert not any(counter in each for each in homes)
    with Cache(directory) as other:
        held = other.get_target("both")
        found = find(other, "next", lambda data: data == b"data", kind="mine")
        assert found is not None
        assert (held(2), found(2)) == (8, 5)


def test_linked_closures_have_the_same_ids_in_every_process(tmp_path: Path) -> None:
    """Five closures move a module each, and one that is linked later moves all of these modules."""
    script = """
    from compcache import Cache, ModuleSource
    def calling(name, callees):
        code = "".join(f"  %r{number + 1} = call i64 @{callee}(i64 %r{number})\\n" for number, callee in enumerate(callees))
        declared = "".join(f"declare i64 @{callee}(i64)\\n" for callee in callees)
        return ModuleSource(f"{declared}define i64 @{name}(i64 %r0) {{\\n{code}  ret i64 %r{len(callees)}\\n}}\\n", imports=callees)
    state = "@n = internal global i64 0\\ndefine i64 @count%d(i64 %%x) {\\n" \\
        "  %%o = atomicrmw add ptr @n, i64 %%x seq_cst\\n  ret i64 %%o\\n}\\n"
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(state % number) for number in range(5)])
        cache.add_modules([calling(f"use{number}", [f"count{number}"]) for number in range(5)])
        cache.add_module(calling("all", [f"count{number}" for number in range(5)]))
        linked = cache.link([*(f"use{number}" for number in range(5)), "all"]).linked
        result = [(closure.module_id, closure.functions) for closure in linked]
    """
    first, *others = [run_fresh(tmp_path / str(number), script) for number in range(3)]
    assert len(first) == 1
    assert others == [first, first]
