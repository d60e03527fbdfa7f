"""Linked closures: when they are used, when they are passed over, and what they go with."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest
from cli_process import compcache
from helpers import FreshProcessError, adder, caller, flip_byte, module_file, run_fresh, sum_of
from inlined_programs import FOLLOWED, follow

from compcache import Cache, Function, ModuleSource, NotCachedError, PrunePolicy
from compcache.build import codegen
from compcache.directory.places import CLOSURES
from compcache.hit.closures import MAGIC, seal
from compcache.images.linkers.find import find_linker
from compcache.publish.module_reader import linked_closures
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from pathlib import Path

_LOAD = """\
from compcache import Cache
with Cache(directory, **{options!r}) as cache:
    targets = [cache.get_target(name) for name in {names!r}]
    result = [(target.module_id, target(1)) for target in targets], len(cache._loader.loaded_modules())
"""


def load(directory: Path, *names: str, **options: Any) -> Any:
    """What a fresh process gets: the module and the result of each function, and how many modules it has mapped."""
    return run_fresh(directory, _LOAD.format(names=names, options=options))


@pytest.fixture
def chain(cache: Cache) -> Cache:
    """Three modules: `first` calls `second`, which calls `third`."""
    cache.add_modules([
        ModuleSource(caller("first", "second", plus=1)), ModuleSource(caller("second", "third", plus=2)), ModuleSource(adder("third", 3)),
    ])  # fmt: skip
    return cache


def test_a_fresh_process_takes_the_linked_image(chain: Cache, directory: Path) -> None:
    (closure,) = chain.link(["first"]).linked
    assert (closure.functions, len(closure.parts)) == (("first",), 3)
    assert load(directory, "first") == ([(closure.module_id, 7)], 1)
    assert [r.module_id for r in chain.realizations("first")][-1] == closure.module_id
    assert load(directory, "first", "second")[1] > 1  # `second` was not asked for


def test_a_set_is_one_image_for_all_of_its_functions(chain: Cache, directory: Path) -> None:
    (closure,) = chain.link(["first", "third"], into="both").linked
    found, modules = load(directory, "third", "first")
    assert (found, modules) == ([(closure.module_id, 4), (closure.module_id, 7)], 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first", "second", "third"])
def test_what_is_newer_is_used_whatever_it_is(chain: Cache, directory: Path, name: str) -> None:
    (closure,) = chain.link(["first"]).linked
    callee = {"first": "second", "second": "third"}.get(name)
    chain.add_module(ModuleSource(caller(name, callee, plus=50) if callee else adder(name, 50)))
    wanted = 7 + 50 - {"first": 1, "second": 2, "third": 3}[name]
    found, _ = load(directory, "first")
    assert found[0][1] == wanted
    assert found[0][0] != closure.module_id
    (again,) = chain.link(["first"]).linked
    assert load(directory, "first") == ([(again.module_id, wanted)], 1)
    assert closure.module_id not in [module.module_id for module in chain.modules()]


def test_a_process_that_has_the_cache_open_sees_what_is_newer_as_it_does_without_closures(chain: Cache, directory: Path) -> None:
    chain.link(["first", "second", "third"], into="all")
    with Cache(directory) as reader:
        held = [reader.get_target(name) for name in ("third", "second")]
        chain.add_module(ModuleSource(adder("third", 50)))
        assert reader.get_target("first")(1) == 7  # it calls the `second` that is in memory
        assert [target(1) for target in held] == [4, 6]
        del held
        assert [reader.get_target(name)(1) for name in ("third", "second", "first")] == [51, 53, 54]


@pytest.mark.slow
def test_a_process_that_has_a_set_in_memory_sees_what_is_newer(cache: Cache, directory: Path) -> None:
    names = [f"f{number}" for number in range(12)]
    cache.add_modules([ModuleSource(adder(name, 1)) for name in names])
    cache.link(names, into="all")
    with Cache(directory) as reader:
        assert reader.info().modules  # no hit is plain
        held = [reader.get_target(name) for name in names[:-1]]
        cache.add_module(ModuleSource(adder("f11", 50)))
        assert reader.get_target("f11")(1) == 51
        assert {target(1) for target in held} == {2}


def test_other_additions_leave_it_as_it_is(chain: Cache, directory: Path) -> None:
    (closure,) = chain.link(["first"]).linked
    chain.add_module(ModuleSource(adder("other", 1)))
    assert load(directory, "first") == ([(closure.module_id, 7)], 1)
    chain.add_module(ModuleSource(adder("third", 3)))  # what is there already
    assert load(directory, "first") == ([(closure.module_id, 7)], 1)


def test_a_removed_part_takes_it_along(chain: Cache) -> None:
    (closure,) = chain.link(["first"]).linked
    chain.remove("third", force=True)
    assert closure.module_id not in [module.module_id for module in chain.modules()]
    with pytest.raises(NotCachedError):
        chain.get_target("third")


def test_a_part_that_is_gone_without_notice_ends_it(chain: Cache, directory: Path) -> None:
    chain.link(["first"])
    module_file(directory, chain.realizations("second")[0].module_id).unlink()
    chain.add_module(ModuleSource(adder("other", 1)))  # another state of the index
    with pytest.raises(FreshProcessError, match="'second'"):
        load(directory, "first")


def test_a_damaged_image_is_passed_over(chain: Cache, directory: Path) -> None:
    (closure,) = chain.link(["first"]).linked
    flip_byte(module_file(directory, closure.module_id), 700)
    with pytest.warns(match="quarantine"):
        target = Cache(directory).get_target("first")
    assert target(1) == 7
    assert target.module_id != closure.module_id


def test_what_is_kept_about_it_is_not_believed_when_it_is_damaged(chain: Cache, directory: Path) -> None:
    chain.link(["first"])
    chain.add_module(ModuleSource(adder("third", 50)))
    assert load(directory, "first")[0][0][1] == 54
    kept = [path for path in (directory / CLOSURES.directory).iterdir() if path.stat().st_size < 200]
    for path in kept:
        data = bytearray(path.read_bytes())
        data[8 + 16 + 32] ^= 1  # behind magic and seal: whether it holds
        path.write_bytes(data)
    assert len(kept) == 1
    assert load(directory, "first")[0][0][1] == 54


@pytest.mark.slow
def test_what_is_kept_about_it_is_believed_of_who_may_say_so(directory: Path) -> None:
    """That a closure holds which does not: as it was told without the key, of another closure, or by another user."""
    key = b"the key of the owner"
    for options in ({"signing_key": key}, {}):
        place = directory / str(len(options))
        with Cache(place, **options) as cache:  # type: ignore[arg-type]
            for callee in ("third", "fourth"):
                cache.add_module(ModuleSource(adder(callee, 3)))
            for name, callee in (("first", "third"), ("other", "fourth")):
                cache.add_module(ModuleSource(caller(name, callee, plus=1)))
            linked = [cache.link([name]).linked[0].module_id for name in ("first", "other")]
            cache.add_module(ModuleSource(adder("third", 50)))
        assert load(place, "first", "other", **options)[0] == [(ANY, 52), (linked[1], 5)]
        kept = {path.read_bytes()[24:40].hex(): path for path in (place / CLOSURES.directory).iterdir()}
        stale, right = kept[linked[0]], kept[linked[1]].read_bytes()
        said = bytearray(stale.read_bytes())
        said[56] = 1
        content = bytes(said[24:])
        for forged in (right, MAGIC + seal(content, stale.name, None if options else key) + content):
            stale.write_bytes(forged)
            assert load(place, "first", **options)[0] == [(ANY, 52)]
        if os.geteuid() == 0 and not options:
            stale.write_bytes(MAGIC + seal(content, stale.name, None) + content)
            os.chown(stale, 54321, 54321)
            assert load(place, "first")[0] == [(ANY, 52)]


@pytest.mark.slow
def test_what_is_kept_about_it_goes_with_it(chain: Cache, directory: Path) -> None:
    (closure,) = chain.link(["first"]).linked
    assert load(directory, "first")[0] == [(closure.module_id, 7)]
    former = directory / CLOSURES.directory / f"{'0' * 32}.closure"
    former.write_bytes(b"CCCLOSE5" + bytes(200))
    assert load(directory, "first")[0] == [(closure.module_id, 7)]
    chain.remove("third", force=True)
    assert list((directory / CLOSURES.directory).iterdir()) == []


def test_tools_see_the_modules_that_it_is_made_of(chain: Cache) -> None:
    before = chain.functions(), chain.dependencies("first", transitive=True), chain.ir("first")
    chain.link(["first", "second", "third"], into="all")
    assert (chain.dependencies("first", transitive=True), chain.ir("first")) == before[1:]
    assert [summary.func_name for summary in chain.functions()] == [summary.func_name for summary in before[0]]
    assert chain.check().findings == ()


def test_an_addition_again_is_no_newer_one(chain: Cache, directory: Path) -> None:
    chain.link(["first"])
    before = {path: path.stat().st_mtime_ns for path in directory.glob("modules-v1/*/*.ccm")}
    chain.add_module(ModuleSource(caller("first", "second", plus=1)))
    assert {path: path.stat().st_mtime_ns for path in directory.glob("modules-v1/*/*.ccm")} == before


def test_it_goes_first_where_a_limit_is_exceeded(chain: Cache) -> None:
    (closure,) = chain.link(["first"]).linked
    size = sum(module.size for module in chain.modules())
    report = chain.prune(PrunePolicy(max_bytes=size - 1))
    assert [module.module_id for module in report.removed] == [closure.module_id]


def test_it_goes_with_what_a_prune_removes(chain: Cache) -> None:
    (closure,) = chain.link(["first"]).linked
    chain.add_module(ModuleSource(adder("other", 1)))
    report = chain.prune(PrunePolicy(match=("first", "second", "third")))
    assert (closure.module_id, "derived") in [(module.module_id, module.reason) for module in report.removed]
    assert [summary.func_name for summary in chain.functions()] == ["other"]


@pytest.mark.slow
def test_its_use_is_that_of_its_parts(chain: Cache, directory: Path) -> None:
    chain.link(["first"])
    load(directory, "first")
    report = chain.prune(PrunePolicy(max_modules=3), dry_run=True)
    assert len(report.removed) == 1
    chain.add_module(ModuleSource(adder("other", 1)))
    load(directory, "first")
    report = chain.prune(PrunePolicy(max_modules=3))
    assert {module.functions for module in report.removed} == {(), ("other",)}


@pytest.mark.slow
def test_all_of_them_have_a_quarter_of_the_limit(directory: Path) -> None:
    with Cache(directory, max_size=160_000) as cache:
        cache.add_modules([ModuleSource(adder("last", 1)), *[ModuleSource(caller(f"f{number}", "last")) for number in range(12)]])
        cache.link()
        ids = [module_id.hex() for module_id in linked_closures(cache._store)]
        linked = [module for module in cache.modules() if module.module_id in ids]
        assert 0 < sum(module.size for module in linked) <= 40_000
        assert len(linked) < 12


def test_they_can_be_removed_alone(chain: Cache, directory: Path) -> None:
    (one,) = chain.link(["first"]).linked
    (two,) = chain.link(["first", "second"], into="set").linked
    assert chain.remove("set", derived=True) == (two.module_id,)
    assert chain.remove(derived=True) == (one.module_id,)
    assert load(directory, "first")[1] == 3
    with pytest.raises(TypeError, match="name"):
        chain.remove()


def test_names_of_content_are_linked_as_well(cache: Cache, directory: Path) -> None:
    inner = cache.compile(adder("inner", 3).replace(") {", ") noinline {")).func_names["inner"]
    source = ModuleSource(caller("outer", "inner", plus=1), imports={"inner": inner})
    outer = cache.compile(source).func_names["outer"]
    (closure,) = cache.link([outer]).linked
    assert len(closure.parts) == 2
    assert load(directory, outer)[0][0][1] == 5


def test_state_is_one_for_linked_and_unlinked_code(cache: Cache, directory: Path) -> None:
    counter = """\
@n = internal global i64 0
define i64 @next(i64 %x) {
  %a = load i64, ptr @n
  %b = add i64 %a, %x
  store i64 %b, ptr @n
  ret i64 %b
}
"""
    cache.add_modules([
        ModuleSource(counter), ModuleSource(adder("plus", 1)), ModuleSource(sum_of("both", ["next", "plus"])),
        ModuleSource(caller("also", "next")),
    ])  # fmt: skip
    (closure,) = cache.link(["both"]).linked
    found, _ = load(directory, "both", "also", "next")
    assert found[0] == (closure.module_id, 1 + 2)
    assert [value for _, value in found[1:]] == [2, 3]


def test_functions_without_code_of_others_are_left_and_it_says_why(chain: Cache) -> None:
    report = chain.link(["third", "unknown"])
    assert report.linked == ()
    assert set(report.left) == {"third", "unknown"}
    assert "not in the cache" in report.left["unknown"]


@pytest.mark.filterwarnings("ignore::compcache.ShadowWarning")
def test_functions_that_pass_over_the_newest_code_are_left_and_it_says_why(chain: Cache, directory: Path) -> None:
    chain.add_module(ModuleSource(caller("second", "gone"), imports={"gone": "gone"}))  # no load can use it
    assert load(directory, "first")[0][0][1] == 7
    report = chain.link(["first"])
    assert report.linked == ()
    assert "newest code of 'second'" in report.left["first"]


def test_modules_without_kept_code_are_called_where_they_are(cache: Cache, directory: Path) -> None:
    cache.add_modules([
        ModuleSource(adder("third", 3), keep_bitcode=False), ModuleSource(caller("second", "third")),
        ModuleSource(caller("first", "second")),
    ])  # fmt: skip
    (closure,) = cache.link(["first"]).linked
    assert len(closure.parts) == 2
    assert load(directory, "first") == ([(closure.module_id, 4)], 2)


@pytest.mark.slow
def test_it_is_signed_where_all_of_its_parts_are(directory: Path) -> None:
    pytest.importorskip("nacl")
    key = generate_key("own-1")
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(adder("third", 3)), ModuleSource(adder("fourth", 4))])
    with Cache(directory, publish_key=str(key)) as cache:
        cache.add_modules([ModuleSource(caller("second", "third")), ModuleSource(adder("fifth", 5))])
        cache.add_module(ModuleSource(caller("sixth", "fifth")))
        half, whole = [cache.link([name]).linked[0].module_id for name in ("second", "sixth")]
    signed = [path.stem for path in directory.glob("signatures-v1/*.ed25519")]
    assert (half in signed, whole in signed) == (False, True)
    found, _ = load(directory, "sixth", trusted_keys=[str(key.public())])
    assert found == [(whole, 6)]


@pytest.mark.slow
def test_modules_with_constructors_are_called_where_they_are(cache: Cache, directory: Path) -> None:
    counter = """\
@seen = internal global i64 0
define i64 @bump(i64 %x) {
  store i64 %x, ptr @seen
  ret i64 %x
}
define i64 @peek(i64 %x) {
  %y = load i64, ptr @seen
  ret i64 %y
}
"""
    entry = "{ i32, ptr, ptr }"
    waiting = f"""\
declare i64 @bump(i64)
@llvm.global_ctors = appending global [1 x {entry}] [{entry} {{ i32 65535, ptr @start, ptr null }}]
define internal void @start() {{
  %x = call i64 @bump(i64 40)
  ret void
}}
define i64 @second(i64 %x) {{
  %y = add i64 %x, 1
  ret i64 %y
}}
"""
    user = sum_of("first", ["second", "peek"])
    cache.add_modules([ModuleSource(counter), ModuleSource(waiting), ModuleSource(user), ModuleSource(caller("zero", "first"))])
    (closure,) = cache.link(["zero"]).linked
    assert load(directory, "zero") == ([(closure.module_id, 2 + 40)], 2)  # the state is in the closure


@pytest.mark.slow
@pytest.mark.parametrize("moves", [True, False])
def test_addresses_are_those_of_the_home(cache: Cache, directory: Path, moves: bool) -> None:
    """It is one for what moves into the closure, and for what stays and is also copied, as a part of what calls it."""
    giver = """\
@seen = internal global i64 0
declare i64 @named(i64)
define ptr @address() {
  store volatile i64 1, ptr @seen
  ret ptr @named
}
"""
    user = """\
declare ptr @address()
declare i64 @named(i64)
define i64 @same(i64 %x) {
  %a = call ptr @address()
  %e = icmp eq ptr %a, @named
  %z = zext i1 %e to i64
  %c = call i64 @named(i64 %x)
  %r = add i64 %z, %c
  ret i64 %r
}
"""
    named = adder("named", 1).replace(" {", " noinline {")
    named += "define i64 @other(i64 %x) {\n  %r = call i64 @named(i64 %x)\n  ret i64 %r\n}\n"
    data = {} if moves else {"program.data": b"read of the module's own file"}
    cache.add_modules([ModuleSource(source, entries=data) for source in (giver, named)])
    cache.add_modules([ModuleSource(source) for source in (user, adder("plus", 3), sum_of("top", ["same", "plus", "other"]))])
    (closure,) = cache.link(["top"]).linked
    assert load(directory, "top")[0] == [(closure.module_id, 1 + 2 + 4 + 2)]


@pytest.mark.parametrize("shares", ["an alias", "a second name"])
def test_two_names_of_one_function_have_one_address(cache: Cache, directory: Path, shares: str) -> None:
    home = """\
@seen = internal global i64 0
define i64 @named(i64 %x) {
  %old = atomicrmw add ptr @seen, i64 1 seq_cst
  ret i64 %x
}
define i64 @is_named(ptr %p) {
  %e = icmp eq ptr %p, @named
  %z = zext i1 %e to i64
  ret i64 %z
}
"""
    source = ModuleSource(home + "@other = alias i64 (i64), ptr @named\n")
    if shares == "a second name":
        functions = {name: Function(symbol=name.replace("other", "named")) for name in ("other", "named", "is_named")}
        source = ModuleSource(home, functions, entries={"program.data": b"read of the module's own file"})
    user = """\
declare i64 @other(i64)
declare i64 @is_named(ptr)
define i64 @same(i64 %x) {
  %e = call i64 @is_named(ptr @other)
  %c = call i64 @other(i64 %x)
  %r = add i64 %e, %c
  ret i64 %r
}
"""
    cache.add_modules([source])
    cache.add_modules([ModuleSource(text) for text in (user, adder("plus", 3), sum_of("top", ["same", "plus"]))])
    (closure,) = cache.link(["top"]).linked
    assert load(directory, "top")[0] == [(closure.module_id, 1 + 1 + 4)]


def test_a_function_is_loaded_where_its_closures_exclude_each_other(cache: Cache, directory: Path) -> None:
    """One closure has a copy of the function, another has the function's whole module, which the function reaches again."""
    home = sum_of("copied", ["plus", "reads", "calls"]) + """\
@amount = global i64 5
@seen = internal global i64 2
define i64 @bump(i64 %x) {
  %old = atomicrmw add ptr @seen, i64 %x seq_cst
  ret i64 %old
}
"""
    stays = """\
@seen = internal global i64 0
@other.NAME = alias i64 (i64), ptr @NAME
define i64 @NAME(i64 %x) {
  %r = VALUE
  store volatile i64 %r, ptr @seen
  ret i64 %r
}
"""
    reads = "@amount = external global i64\n" + stays.replace("NAME", "reads").replace("VALUE", "load i64, ptr @amount")
    calls = "declare i64 @bump(i64)\n" + stays.replace("NAME", "calls").replace("VALUE", "call i64 @bump(i64 %x)")
    sources = [home, reads, calls, adder("plus", 3), sum_of("moves", ["bump", "plus"]), sum_of("late", ["plus"])]
    cache.add_modules([ModuleSource(text) for text in sources])
    closures = [cache.link(names, into=names[0]).linked[0] for names in (["moves"], ["copied", "late"])]
    answers = load(directory, "copied", "moves", "late")[0]
    assert [answer for _, answer in answers] == [4 + 5 + 2, 3 + 4, 4]
    assert answers[2][0] == closures[1].module_id  # the failed load of another function does not matter


def test_arguments_that_do_not_alias_in_a_call_may_alias_in_the_next(cache: Cache, directory: Path) -> None:
    declared = "declare void @follow(ptr, ptr)\n"
    cache.add_modules([ModuleSource(FOLLOWED["follow"]), ModuleSource(declared + FOLLOWED["kernel"])])
    (closure,) = cache.link(["kernel"]).linked
    with Cache(directory) as reader:
        kernel = reader.get_target("kernel")
        assert kernel.module_id == closure.module_id
        assert follow(kernel) == 3


_QUICK = [
    ("declare i64 @work(i64) memory(none) nounwind willreturn", "%r = call i64 @work(i64 0)", 0),
    ("declare nofpclass(nan) double @ratio(double)", "%q = call double @ratio(double 1.0)\n  %r = fptosi double %q to i64", 1),
    ("declare nonnull ptr @place(i64)", "%p = call ptr @place(i64 1)\n  %r = load i64, ptr @unchanged", 4),
]


@pytest.mark.parametrize(("declared", "use", "answer"), _QUICK, ids=["memory", "nan", "null"])
def test_what_one_module_promises_of_a_function_is_not_valid_for_calls_of_others(
    cache: Cache, directory: Path, declared: str, use: str, answer: int
) -> None:
    """`-fno-math-errno` and `-ffast-math` of one file are no flags of others."""
    home = """\
@seen = internal global i64 0
define i64 @work(i64 %x) {
  %old = load i64, ptr @seen
  %new = add i64 %old, %x
  store i64 %new, ptr @seen
  ret i64 %new
}
define ptr @place(i64 %x) {
  %old = load volatile i64, ptr @seen
  %zero = icmp eq i64 %x, 0
  %r = select i1 %zero, ptr null, ptr @seen
  ret ptr %r
}
define double @ratio(double %x) {
  %old = load volatile i64, ptr @seen
  %r = fdiv double %x, %x
  ret double %r
}
"""
    careful = """\
declare i64 @work(i64)
declare double @ratio(double)
declare ptr @place(i64)
define i64 @careful(i64 %x) {
  %d = sitofp i64 %x to double
  %zero = fsub double %d, %d
  %q = call double @ratio(double %zero)
  %p = call double @ratio(double %q)
  %n = fcmp uno double %p, 0.0
  %z = select i1 %n, i64 10, i64 0
  %a = call i64 @work(i64 %x)
  %b = call i64 @work(i64 %x)
  %s = add i64 %b, %z
  %o = call ptr @place(i64 0)
  %w = icmp eq ptr %o, null
  %v = select i1 %w, i64 100, i64 0
  %r = add i64 %s, %v
  ret i64 %r
}
"""
    quick = f"@unchanged = constant i64 4\n{declared}\ndefine i64 @quick(i64 %x) {{\n  {use}\n  ret i64 %r\n}}\n"
    cache.add_module(ModuleSource(home, entries={"program.data": b"read of the module's own file"}))  # stays where it is
    cache.add_modules([ModuleSource(source) for source in (quick, careful, sum_of("top", ["quick", "careful"]))])
    (closure,) = cache.link(["quick", "careful", "top"], into="all").linked
    assert load(directory, "top")[0] == [(closure.module_id, answer + 2 + 110)]


@pytest.mark.parametrize("order", [["twice", "once"], ["once", "twice"]])
def test_what_a_declaration_forbids_is_forbidden_in_linked_code(cache: Cache, monkeypatch: pytest.MonkeyPatch, order: list[str]) -> None:
    """Whichever of the modules has the declaration."""
    user = "declare i64 @random() {}\ndefine i64 @{}(i64 %x) {{\n  %r = call i64 @random()\n  ret i64 %r\n}}\n"
    users = [user.format("returns_twice", "twice"), user.format("", "once"), sum_of("top", order)]
    cache.add_modules([ModuleSource(text) for text in users])
    linked = []
    monkeypatch.setattr(codegen, "optimize", lambda module, *_: linked.append(str(module)))
    assert cache.link(["top"]).linked
    assert "returns_twice" in linked[0].partition("attributes #")[2]


def test_strings_and_names_may_contain_words_of_llvm(cache: Cache, directory: Path) -> None:
    text = "a comdat"
    home = f"""\
@"{text}" = internal unnamed_addr constant [{len(text) + 1} x i8] c"{text}\\00"
define i64 @"the, comdat($k)"(i64 %x) {{
  %p = getelementptr i8, ptr @"{text}", i64 %x
  %c = load i8, ptr %p
  %r = zext i8 %c to i64
  ret i64 %r
}}
"""
    user = sum_of("top", ["plus", "called"]).replace("@called", '@"the, comdat($k)"')
    cache.add_modules([ModuleSource(code) for code in (home, adder("plus", 3), user)])
    (closure,) = cache.link(["top"]).linked
    assert load(directory, "top")[0] == [(closure.module_id, 4 + ord(" "))]


def test_a_body_that_is_offered_and_a_second_name_are_linked(cache: Cache, directory: Path) -> None:
    """The stored code of vectorized functions contains the bodies of its imports: these are no declarations."""
    content = "0" * 32
    state = "@seen = internal global i64 0\ndefine i64 @stays(ptr %p) {\n  %old = atomicrmw add ptr @seen, i64 1 seq_cst\n"
    home = adder("plus", 2) + state + "  %e = icmp eq ptr %p, @plus\n  %z = zext i1 %e to i64\n  ret i64 %z\n}\n"
    user = """\
declare i64 @plus(i64)
declare i64 @stays(ptr)
define i64 @user(i64 %x, ptr %data) {
  %v = load volatile <4 x i64>, ptr %data
  %e = extractelement <4 x i64> %v, i32 0
  %r = call i64 @plus(i64 %x)
  %s = call i64 @stays(ptr @plus)
  %t = add i64 %r, %s
  %u = add i64 %t, %e
  ret i64 %u
}
"""
    top = """\
@data = internal global <4 x i64> <i64 1000, i64 0, i64 0, i64 0>
declare i64 @user(i64, ptr)
define i64 @top(i64 %x) {
  %r = call i64 @user(i64 %x, ptr @data)
  ret i64 %r
}
"""
    names = {f"plus-{content}": Function(symbol="plus"), "second": Function(symbol="plus"), "stays": Function(symbol="stays")}
    cache.add_module(ModuleSource(home, names, entries={"program.data": b"read of the module's own file"}))
    cache.add_module(ModuleSource(user, {"user": Function(symbol="user")}, imports={"plus": f"plus-{content}"}))
    cache.add_module(ModuleSource(top))
    script = "from compcache import Cache; result = [closure.module_id for closure in Cache(directory).link(['top']).linked]"
    (module_id,) = run_fresh(directory, script)  # LLVM may end its process
    assert load(directory, "top")[0] == [(module_id, 1 + 2 + 1 + 1000)]


def test_graphs_are_of_the_modules_that_it_is_made_of(chain: Cache) -> None:
    before = chain.graph()
    chain.link(["first", "second"], into="set")
    assert chain.graph() == before


@pytest.mark.slow
def test_a_batch_links_what_it_has_compiled(directory: Path, tmp_path: Path) -> None:
    files = {"inner.ll": adder("inner", 3), "outer.ll": caller("outer", "inner", plus=1)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = compcache("--dir", directory, "batch", *[tmp_path / name for name in files], "--workers", "1", "--link", "both", "--quiet")
    assert done.status == 0
    found, modules = load(directory, "outer", "inner")
    assert ([value for _, value in found], modules) == ([5, 4], 1)


@pytest.mark.slow
def test_the_command_says_what_it_links(chain: Cache, directory: Path) -> None:
    assert compcache("--dir", directory, "link", "f*", "--into", "set").out == "linked first with code of 3 modules\n"
    failed = compcache("--dir", directory, "link", "third")
    assert (failed.status, "third was not linked" in failed.err) == (1, True)
    assert compcache("--dir", directory, "link").status == 2
    assert compcache("--dir", directory, "rm", "first", "--derived").out == "removed first\n"
    assert len(chain.realizations("first")) == 1


def test_an_index_that_is_made_again_knows_it(chain: Cache, directory: Path) -> None:
    (closure,) = chain.link(["first"]).linked
    shutil.rmtree(directory / "index-v1")
    assert load(directory, "first") == ([(closure.module_id, 7)], 1)
    with Cache(directory) as cache:
        assert cache.check().findings == ()
        assert cache.get_target("second").module_id != closure.module_id


def test_bundles_leave_it_out(chain: Cache, tmp_path: Path) -> None:
    chain.link(["first"])
    chain.export(["first"], tmp_path / "first.ccb")
    with Cache(tmp_path / "other") as other:
        assert set(other.import_bundle(tmp_path / "first.ccb")) == {"first", "second", "third"}
        assert len(other.modules()) == 3


def test_bundles_carry_it_on_request(chain: Cache, tmp_path: Path) -> None:
    """It comes with all of its parts, is used at once, and gives way to what is newer; without one of its parts it is left out."""
    (closure,) = chain.link(["first"]).linked
    chain.export(["first"], tmp_path / "first.ccb", linked=True)
    chain.export(["second"], tmp_path / "second.ccb", linked=True)
    with Cache(tmp_path / "other") as other:
        assert set(other.import_bundle(tmp_path / "first.ccb")) == {"first", "second", "third"}
        assert other.get_target("first").module_id == closure.module_id
        assert other.check().findings == ()
    with Cache(tmp_path / "above", layers=[tmp_path / "first.ccb"]) as above:
        assert above.get_target("first")(1) == 7
        assert above.get_target("first").module_id == closure.module_id
    with Cache(tmp_path / "newer") as newer:
        newer.import_bundle(tmp_path / "first.ccb")
        newer.add_module(ModuleSource(adder("third", 30)))
        assert newer.get_target("first")(1) == 34
    with Cache(tmp_path / "parts") as parts:
        assert set(parts.import_bundle(tmp_path / "second.ccb")) == {"second", "third"}
        assert len(parts.modules()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("where", "processes"), [("directory", 1), ("above", 2)])
def test_caches_with_layers_use_it(chain: Cache, directory: Path, tmp_path: Path, where: str, processes: int) -> None:
    """One of the layer, and one that is linked above it, for as long as nothing newer is found there or above."""
    layers = [str(directory)]
    with Cache(tmp_path / "above", layers=layers) as above:
        (closure,) = (chain if where == "directory" else above).link(["first"]).linked
        for _ in range(processes):  # the second one has all layers in one index
            assert load(tmp_path / "above", "first", layers=layers) == ([(closure.module_id, 7)], 1)
        chain.add_module(ModuleSource(adder("second", 70)))
        assert [value for _, value in load(tmp_path / "above", "first", layers=layers)[0]] == [72]
        above.add_module(ModuleSource(adder("second", 90)))
        assert [value for _, value in load(tmp_path / "above", "first", layers=layers)[0]] == [92]


def test_a_closure_does_not_decide_which_content_is_the_newest(chain: Cache, directory: Path, tmp_path: Path) -> None:
    """A look-up prefers the directory above, where the closure is. The newest addition is in the layer."""
    with Cache(tmp_path / "above", layers=[directory]) as above:
        above.link(["first", "third"], into="set")
    chain.add_module(ModuleSource(adder("third", 30)))
    for _ in range(2):  # the second cache has all layers in one index
        with Cache(tmp_path / "above", layers=[directory]) as above:
            assert above.get_target("third")(1) == 31
            assert above.get_target("first")(1) == 34


@pytest.mark.parametrize("own", [False, True])
def test_functions_whose_code_is_in_a_missing_layer_are_not_listed(chain: Cache, tmp_path: Path, *, own: bool) -> None:
    with Cache(tmp_path / "above", layers=[chain.path]) as above:
        above.link(["first"])
        assert list(above) == list(chain)
    with Cache(tmp_path / "above") as alone:
        if own:
            alone.add_module(ModuleSource(adder("first", 5)))
        assert [name for name in ("first", "second", "third") if alone.has(name)] == list(alone) == ["first"] * own


#: `top` calls a copy of `other`. The body of `middle`, which `top` keeps for inlining, calls `leaf`, which nothing that is copied mentions.
_BODIES = (
    """
define i64 @leaf(i64 %x) noinline {
  %r = mul i64 %x, 3
  ret i64 %r
}
define i64 @other(i64 %x) noinline {
  %r = add i64 %x, 100
  ret i64 %r
}
""",
    """
declare i64 @leaf(i64)
define i64 @middle(i64 %x) {
  %y = call i64 @leaf(i64 %x)
  %r = add i64 %y, 1
  ret i64 %r
}
""",
    """
declare i64 @middle(i64)
declare i64 @other(i64)
define i64 @top(i64 %x) {
  %lanes = alloca <4 x i64>
  store volatile <4 x i64> zeroinitializer, ptr %lanes
  %place = alloca ptr
  store volatile ptr @middle, ptr %place
  %function = load volatile ptr, ptr %place
  %a = call i64 @middle(i64 %x)
  %b = call i64 %function(i64 %a)
  %c = call i64 @other(i64 %b)
  ret i64 %c
}
""",
)


def test_bodies_that_were_kept_for_inlining_use_what_is_not_copied(cache: Cache, directory: Path) -> None:
    leaves = cache.compile(_BODIES[0])
    middle = cache.compile(ModuleSource(_BODIES[1], imports={"leaf": leaves.leaf}, entries={"notes": b"it does not move"})).middle
    top = cache.compile(ModuleSource(_BODIES[2], imports={"middle": middle, "other": leaves.other})).top
    (closure,) = cache.link([top.func_name]).linked
    assert load(directory, top.func_name)[0] == [(closure.module_id, top(1))]


def test_content_names_use_it_whatever_its_id(cache: Cache, directory: Path, tmp_path: Path) -> None:
    """An id decides nothing: half of eight are smaller than those of the modules."""
    names = []
    for number in range(8):
        leaf = cache.compile(adder("leaf", number).replace(") {", ") noinline {")).leaf
        names.append(cache.compile(ModuleSource(caller("top", "leaf"), imports={"leaf": leaf})).func_names["top"])
    wanted = [(closure.functions, closure.module_id) for closure in cache.link(names).linked]
    assert sorted(functions for functions, _ in wanted) == sorted((name,) for name in names)
    ids = [dict(wanted)[(name,)] for name in names]
    assert [module_id for module_id, _ in load(directory, *names, lock_timeout=5)[0]] == ids
    assert [module_id for module_id, _ in load(tmp_path / "above", *names, layers=[str(directory)])[0]] == ids


_FLAGS = '!llvm.module.flags = !{{!0}}\n!0 = !{{i32 1, !"wchar_size", i32 {}}}\n'


def test_modules_that_contradict_each_other_are_named(cache: Cache) -> None:
    inner = cache.add_module(ModuleSource(adder("inner", 1) + _FLAGS.format(2)))
    cache.add_module(ModuleSource(caller("outer", "inner") + _FLAGS.format(4)))
    left = cache.link(["outer"]).left["outer"]
    assert left.startswith(f"module {inner} cannot be linked with the modules before it: linking module flags 'wchar_size'")


@pytest.mark.filterwarnings("ignore:the module's image was written without the linker")
def test_an_image_that_cannot_be_made_costs_the_others_nothing(
    cache: Cache, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a linker makes images with a section whose name it may know."""
    if find_linker() is None:
        pytest.skip("no linker on this machine")
    in_section = adder("inner", 1).replace(") {", ') noinline section ".odd" {')
    cache.add_modules(map(ModuleSource, (in_section, caller("outer", "inner"), caller("top", "leaf"), adder("leaf", 1))))
    failing = tmp_path / "ld"
    failing.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo "GNU ld 2.40"\nexit 1\n')
    failing.chmod(0o755)
    monkeypatch.setenv("COMPCACHE_LINKER", str(failing))
    with Cache(directory) as linking:
        report = linking.link()
    assert [closure.functions for closure in report.linked] == [("top",)]
    assert "COMPCACHE_LINKER" in report.left["outer"]
