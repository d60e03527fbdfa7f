"""A process that has closures and modules by themselves, in any order, sees addresses, state and values as it does without closures."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, run_fresh, sum_of

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

#: How many histories are drawn by default, and by the long test.
FEW, MANY = 24, int(os.environ.get("HISTORIES", "400"))
_ADDRESS = """\
declare i64 @f(i64)
define ptr @address_{name}() {{
  ret ptr @f
}}
define i64 @is_{name}(ptr %p) {{
  %e = icmp eq ptr %p, @f
  %z = zext i1 %e to i64
  %c = call i64 %p(i64 %z)
  ret i64 %c
}}
"""
_TABLE = """\
@table = constant [2 x ptr] [ptr @f, ptr @bump]
declare i64 @f(i64)
declare i64 @bump(i64)
define ptr @address_table() {
  %p = load volatile ptr, ptr @table
  ret ptr %p
}
define i64 @through(i64 %x) {
  %p = load volatile ptr, ptr getelementptr (ptr, ptr @table, i64 1)
  %r = call i64 %p(i64 %x)
  ret i64 %r
}
"""
#: It calls what it takes the address of, so that it says what type it expects.
_BOTH = """\
declare i64 @f(i64)
define ptr @address_both() {
  %r = call i64 @f(i64 1)
  %z = sub i64 %r, %r
  %p = getelementptr i8, ptr @f, i64 %z
  ret ptr %p
}
"""
_STATE = """\
@n = internal global i64 0
define i64 @bump(i64 %x) {
  %a = load i64, ptr @n
  %b = add i64 %a, %x
  store i64 %b, ptr @n
  ret i64 %b
}
define i64 @peek(i64 %x) {
  %a = load i64, ptr @n
  ret i64 %a
}
define ptr @address_bump() {
  ret ptr @bump
}
"""
SOURCES = (
    caller("f", "g", plus=1).replace(" {", " noinline {") + adder("h", 5), adder("g", 3), _ADDRESS.format(name="a"),
    _ADDRESS.format(name="b"), _TABLE, _STATE, sum_of("k", ["f", "h"]), sum_of("user", ["bump", "f"]), adder("z", 1),
    _BOTH,
)  # fmt: skip
#: What takes a number, what takes the address of a function, and what gives one.
CALLED, ASKED, GIVING = ("f", "h", "k", "user", "bump", "peek", "through", "z"), ("is_a", "is_b"), ("a", "b", "both", "table", "bump")
NAMES = (*CALLED, *ASKED, *[f"address_{name}" for name in GIVING])
_RUN = """\
import shutil, warnings
from compcache import Cache, ModuleSource
def observed(held, first):
    found = []
    for name, target in held.items():
        if name.startswith("is_"):
            found.append([target(held[other].address) for other in ("f", "bump", "z") if other in held])
        elif name.startswith("address_"):
            found.append(first.setdefault(target(), len(first)))
        else:
            found.append(target(2))
    found += [first.setdefault(held[name].address, len(first)) for name in ("f", "bump") if name in held]
    return found
def history(root, steps, links, layers):
    held, first, seen = {{}}, {{}}, []
    with (Cache(root + "above", layers=[root]) if layers else Cache(root)) as cache, Cache(root) as other:
        for what, of, *more in steps:
            if what == "get":
                held[of] = cache.get_target(of)
            elif what == "add":
                with warnings.catch_warnings(action="ignore"):  # that it shadows another
                    (cache if layers else other).add_module(ModuleSource(of))  # what comes into a layer is not seen at once
            elif links and what == "link":
                (cache if more[0] else other).link(of, into=more[1])
            elif links:
                (cache if of else other).remove(derived=True)
            seen.append(observed(held, first))
    return seen
result = []
for number, steps in enumerate({histories!r}):
    found = []
    for links in (False, True):
        shutil.copytree({base!r}, directory + str(number) + str(links))
        where = directory + str(number) + str(links)
        found.append(history(where, steps, links, number % 3 == 2))
        for path in (where, where + "above"):
            shutil.rmtree(path, ignore_errors=True)
    result.append(found)
"""
_THREADS = """\
import threading
from compcache import Cache
result = set()
for round in range(25):
    with Cache(directory) as cache:
        cache.get_target("z")
        names, held, barrier = ["address_a", "h", "address_b", "k", "address_table", "f"], {}, threading.Barrier(6)
        def load(name):
            barrier.wait()
            held[name] = cache.get_target(name)
        threads = [threading.Thread(target=load, args=(name,)) for name in names]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        result.add(len({held["f"].address, *[held[name]() for name in names if name.startswith("address")]}))
"""
_AGAIN = """\
from compcache import Cache
result = []
for round in range(2):
    with Cache(directory) as cache:
        held = [cache.get_target(name) for name in ("address_table", "h", "address_a", "f")]
        result.append(len({held[0](), held[2](), held[3].address}))
"""


def stored(directory: Path, homes: Container[str] = ()) -> Path:
    """A cache of the modules, nothing linked. Of `homes` no code is kept, so that they stay apart from any closure."""
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(code, keep_bitcode=code not in homes) for code in SOURCES])
    return directory


def drawn(seed: int, *, is_linked_first: bool = False) -> list[tuple[Any, ...]]:
    """A history: every function is loaded and held, and between that closures are linked and removed, and modules added.

    With `is_linked_first` the closures are linked by another cache object before anything is loaded.
    """
    chance = random.Random(seed)
    names = list(NAMES)
    chance.shuffle(names)
    steps: list[tuple[Any, ...]] = [("get", name) for name in names[: chance.randint(5, len(names))]]
    for _ in range(chance.randint(1, 3)):
        roots = tuple(chance.sample(NAMES, chance.randint(1, 5)))
        into = chance.choice((None, "set", "other"))
        place = 0 if is_linked_first else chance.randrange(len(steps))
        link = ("link", (*roots, "f") if chance.random() < 0.6 else roots, chance.random() < 0.5 and not is_linked_first, into)
        steps.insert(place, link)
    if chance.random() < 0.3:
        steps.insert(chance.randrange(len(steps)), ("remove", chance.random() < 0.5))
    if chance.random() < 0.4:
        steps.insert(chance.randrange(len(steps)), ("add", adder(chance.choice(("z", "unrelated")), 9)))
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("homes", [(), (_STATE, SOURCES[2]), (SOURCES[0], _TABLE), SOURCES[1:3]], ids=["none", "state", "table", "leaves"])
@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=[pytest.mark.stress, pytest.mark.timeout(900)])])
def test_a_process_sees_what_it_sees_without_closures(tmp_path: Path, number: int, homes: tuple[str, ...]) -> None:
    base = stored(tmp_path / "base", homes)
    histories = [drawn(seed, is_linked_first=bool(homes)) for seed in range(number)]
    found = []
    for first in range(0, number, FEW):
        found += run_fresh(tmp_path, _RUN.format(histories=histories[first : first + FEW], base=str(base)))
    different = [seed for seed, (apart, linked) in enumerate(found) if apart != linked]
    assert not different, (different, histories[different[0]], *found[different[0]])


@pytest.mark.slow
@pytest.mark.parametrize("before", [[], [("link", ("user",), False, None), ("get", "user")]])
def test_a_function_has_one_address_where_modules_are_loaded_before_a_set(tmp_path: Path, before: list[tuple[Any, ...]]) -> None:
    """The set has a copy of `f`, whose module is there already; the process has met another closure, or not."""
    steps = [*before, ("get", "address_a"), ("link", ("f", "k"), False, "set"), ("get", "k"), ("get", "address_b"), ("get", "f")]
    ((apart, linked),) = run_fresh(tmp_path, _RUN.format(histories=[steps], base=str(stored(tmp_path / "base"))))
    assert linked == apart
    assert apart[-1][-1] == 0  # the address of `f` is the first that was seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loaded", "in_layer", "above", "then"),
    [("is_b", ("k", "z", "f"), ("address_table", "f"), ("k", "f")),
     ("k", ("address_bump", "f"), ("address_bump", "f"), ("address_a", "address_table"))],
)  # fmt: skip
def test_a_function_has_one_address_where_closures_of_a_layer_and_above_have_copies(
    tmp_path: Path, loaded: str, in_layer: tuple[str, ...], above: tuple[str, ...], then: tuple[str, ...]
) -> None:
    """The process has loaded the module of one function before; its index of the layer is older than the closure there."""
    steps = [("get", loaded), ("link", in_layer, False, "set"), ("link", above, True, None), *[("get", name) for name in then]]
    histories: list[list[Any]] = [[], [], steps]  # every third one has a cache above
    *_, (apart, linked) = run_fresh(tmp_path, _RUN.format(histories=histories, base=str(stored(tmp_path / "base"))))
    assert linked == apart


@pytest.mark.slow
@pytest.mark.parametrize("roots", [("address_both",), ("address_both", "f"), ("address_both", "k")])
def test_a_function_that_is_called_and_compared_has_one_address(tmp_path: Path, roots: tuple[str, ...]) -> None:
    """The link type of a use that calls says nothing of its other uses."""
    steps = [("link", roots, False, "set"), ("get", "address_both"), ("get", "address_a"), ("get", "f")]
    ((apart, linked),) = run_fresh(tmp_path, _RUN.format(histories=[steps], base=str(stored(tmp_path / "base"))))
    assert linked == apart
    assert apart[-1][-1] == 0  # one address


@pytest.mark.slow
@pytest.mark.parametrize("first", ["k", "address_table"])
def test_a_module_in_a_closure_is_not_loaded_beside_a_copy(tmp_path: Path, first: str) -> None:
    """One closure has a copy of `f`, the other one its module."""
    links: list[tuple[Any, ...]] = [("link", ("f", "k"), False, "set"), ("link", ("address_table", "f", "is_a"), False, "other")]
    steps = [links[0], ("get", "k"), ("get", "f"), links[1], ("get", "address_table"), ("get", "is_a"), ("get", "address_b")]
    if first != "k":
        steps = [*links, ("get", "address_table"), ("get", "k"), ("get", "address_b"), ("get", "f")]
    ((apart, linked),) = run_fresh(tmp_path, _RUN.format(histories=[steps], base=str(stored(tmp_path / "base"))))
    assert linked == apart


@pytest.mark.slow
@pytest.mark.parametrize(
    "event",
    [("remove", True), ("remove", False), ("link", ("h", "f"), True, "set"), ("link", ("h", "f"), False, "set"), ("add", adder("z", 9))],
)  # fmt: skip
def test_what_was_bound_in_a_closure_stays_bound_there(tmp_path: Path, event: tuple[Any, ...]) -> None:
    """`f` is used by its address alone, of a closure that is removed, replaced, or does not hold any more."""
    steps = [("link", ("f", "k", "z"), False, "set"), ("get", "k"), ("get", "address_a"), event, ("get", "address_b"), ("get", "f")]
    ((apart, linked),) = run_fresh(tmp_path, _RUN.format(histories=[steps], base=str(stored(tmp_path / "base"))))
    assert linked == apart


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f", "address_b"])
def test_what_was_bound_in_a_closure_gives_way_to_what_is_newer(tmp_path: Path, name: str) -> None:
    """A newer `f` is what the next look-up finds, also the first one after it was added."""
    steps = [("link", ("f", "k", "z"), False, "set"), ("get", "address_a"), ("get", "k"), ("add", adder("f", 70)), ("get", name)]
    steps.append(("get", "f"))
    ((apart, linked),) = run_fresh(tmp_path, _RUN.format(histories=[steps], base=str(stored(tmp_path / "base"))))
    assert linked == apart
    assert 72 in apart[-1]


def test_a_process_that_has_loaded_nothing_has_one_address(tmp_path: Path) -> None:
    with Cache(stored(tmp_path)) as cache:
        cache.link(["f", "k"], into="set")
    assert run_fresh(tmp_path, _AGAIN) == [1, 1]


@pytest.mark.slow
def test_threads_that_load_at_once_have_one_address(tmp_path: Path) -> None:
    with Cache(stored(tmp_path)) as cache:
        cache.link(["f", "k"], into="set")
    assert run_fresh(tmp_path, _THREADS) == {1}
