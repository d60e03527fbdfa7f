"""What the facade says of a cache as a whole, and how functions are removed through it."""

from __future__ import annotations

import ast
import ctypes
import inspect
import re
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from helpers import adder, caller, constant, run_fresh

from compcache import (
    Cache,
    FunctionInUseError,
    Identity,
    ModuleSource,
    NotCachedError,
    PrunePolicy,
    StorageError,
    UndefinedSymbolError,
    frontend,
)
from compcache.facade import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable

PAIR = adder("one", 1) + adder("two", 2)


@pytest.fixture
def filled(cache: Cache) -> Cache:
    """Two modules: one of two functions, and one that imports the first of these."""
    cache.add_module(ModuleSource(PAIR))
    cache.add_module(ModuleSource(caller("user", "one", plus=5)))
    return cache


def test_a_cache_iterates_over_its_functions(filled: Cache) -> None:
    assert list(filled) == ["one", "two", "user"]
    assert len(filled) == 3
    assert "two" in filled
    assert [f.func_name for f in filled.functions()] == list(filled)
    assert [f.func_name for f in filled.functions(lambda name: name.startswith("t"))] == ["two"]


def test_an_empty_path_is_not_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Cache(tmp_path) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
    for options in ({"path": ""}, {"path": "", "readonly": True}, {"path": tmp_path / "other", "layers": [""]}):
        with pytest.raises(StorageError, match="the path is empty"):
            Cache(**options)


def test_a_path_with_nul_is_refused_by_name(tmp_path: Path) -> None:
    for options in ({"path": "a\0b"}, {"path": "a\0b", "readonly": True}, {"path": tmp_path / "other", "layers": ["a\0b"]}):
        with pytest.raises(StorageError, match=r"path 'a.x00b' contains the character NUL"):
            Cache(**options)


def test_an_empty_cache_is_true(cache: Cache) -> None:
    assert cache
    assert len(cache) == 0
    assert list(cache) == []


def test_modules_tell_what_they_hold_and_import(filled: Cache) -> None:
    pair, user = sorted(filled.modules(), key=lambda module: len(module.imports))
    assert [name for name, _ in pair.functions] == ["one", "two"]
    assert (user.functions, user.imports) == ((("user", "i64(x: i64)"),), ("one",))
    assert filled.module(user.module_id) == user
    with pytest.raises(FileNotFoundError, match="has no module 0000"):
        filled.module("00" * 16)


def names(graph: object) -> set[tuple[str, str]]:
    return {(graph.nodes[a].name, graph.nodes[b].name) for a, b in graph.edges}  # type: ignore[attr-defined]


def test_a_graph_leads_either_way(filled: Cache) -> None:
    assert names(filled.graph()) == {("user", "one")}
    assert names(filled.graph(reverse=True)) == {("one", "user")}
    assert names(filled.graph(["user"])) == {("user", "one")}
    assert names(filled.graph(["one"])) == set()
    assert names(filled.graph(["one"], reverse=True)) == {("one", "user")}
    assert [node.name for node in filled.graph(["one"], reverse=True).nodes] == ["one", "user"]
    for reverse in (False, True):
        with pytest.raises(NotCachedError, match="nobody"):
            filled.graph(["nobody"], reverse)
    filled.remove("one", force=True)
    assert names(filled.graph(["one"], reverse=True)) == {("one", "user")}
    with pytest.raises(NotCachedError, match="one"):
        filled.graph(["one"])


def test_the_users_of_a_function_are_found_through_other_modules(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("base", 1)))
    for number in range(5):
        callee = f"level{number - 1}" if number else "base"
        cache.add_module(ModuleSource(caller(f"level{number}", callee)))
    found = cache.graph(["base"], reverse=True)
    assert [node.name for node in found.nodes] == ["base", *[f"level{number}" for number in range(5)]]


def test_code_is_shown_of_one_function_or_its_module(filled: Cache) -> None:
    assert "@two" in filled.ir("two")
    assert "@one" not in filled.ir("two")
    assert "@one" in filled.ir("two", whole_module=True)
    assert "two:" in filled.asm("two")
    assert filled.ir("two", module_id=filled.function("two").module_id[:6]) == filled.ir("two")
    with pytest.raises(NotCachedError, match="no realization"):
        filled.ir("two", module_id="nothing like it")
    with pytest.raises(NotCachedError):
        filled.asm("nobody")


def test_the_whole_is_described(filled: Cache) -> None:
    info = filled.info()
    assert (info.modules, info.functions, info.directory) == (2, 3, filled.path)
    assert filled.function("user").dependencies == ("one",)


def test_a_function_that_others_need_is_not_removed(filled: Cache) -> None:
    with pytest.raises(FunctionInUseError, match="its module also holds 'two'; 'user' imports it") as caught:
        filled.remove("one")
    assert (caught.value.others, caught.value.importers) == (("two",), ("user",))
    assert list(filled) == ["one", "two", "user"]
    assert filled.get_target("user")(1) == 7


def test_a_function_that_nobody_needs_is_removed(filled: Cache, directory: Path) -> None:
    module_id = filled.function("user").module_id
    assert filled.remove("user") == (module_id,)
    assert list(filled) == ["one", "two"]
    script = "from compcache import Cache; result = Cache(directory).has('user'), Cache(directory).has('one')"
    assert run_fresh(directory, script) == (False, True)
    assert filled.check().findings == ()


def test_what_is_removed_stays_loaded(filled: Cache) -> None:
    user, one = filled.get_target("user"), filled.get_target("one")
    filled.remove("user")
    assert len(filled.remove("one", force=True)) == 1
    assert (user(1), one(1)) == (7, 2)
    assert list(filled) == []


def test_every_realization_goes(cache: Cache) -> None:
    for number in range(3):
        cache.add_module(ModuleSource(constant("f", number)))
    assert len(cache.remove("f")) == 3
    assert not cache.has("f")
    with pytest.raises(NotCachedError, match="it is not in the cache"):
        cache.remove("f")


def test_a_pinned_function_is_removed_by_force_alone(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    cache.pin("f")
    with pytest.raises(FunctionInUseError, match="pinned"):
        cache.remove("f")
    assert cache.remove("f", force=True)
    assert cache.pinned() == ()


def test_a_module_is_removed_by_its_id(filled: Cache) -> None:
    module_id = filled.function("user").module_id
    assert filled.remove_module(module_id)
    assert not filled.remove_module(module_id)
    assert not filled.has("user")


def test_a_read_only_cache_removes_nothing(filled: Cache, directory: Path) -> None:
    with Cache(directory, readonly=True) as looking:
        assert looking.readonly
        with pytest.raises(StorageError, match="readonly"):
            looking.remove("user")
        with pytest.raises(StorageError, match="readonly"):
            looking.remove_module(looking.function("user").module_id)
    assert "user" in filled


def test_a_target_is_found_without_counting_a_miss(filled: Cache) -> None:
    target = frontend.find(filled, "one")
    assert target is filled.get_target("one")
    assert frontend.find(filled, "nobody") is None
    assert filled.stats().misses == 0


def test_what_is_missing_is_added_once(cache: Cache) -> None:
    built = []

    def build() -> ModuleSource:
        built.append(1)
        return ModuleSource(PAIR)

    added = frontend.add_missing(cache, ("one", "two"), build)
    assert (added.functions, added.was_cached, len(added.module_ids)) == (("one", "two"), False, 1)
    again = frontend.add_missing(cache, ("one", "two"), build)
    assert again == added._replace(was_cached=True)
    assert frontend.find_stored(cache, ["two"]) == again._replace(functions=("two",))
    assert frontend.find_stored(cache, ["one", "three"]) is None
    assert built == [1]
    with pytest.raises(UndefinedSymbolError, match="'three'"):
        frontend.add_missing(cache, ("one", "three"), build)
    with pytest.raises(ValueError, match="name of at least one function"):
        frontend.add_missing(cache, (), build)


def test_what_is_added_by_an_identity_has_its_components(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_CHECK", "1")
    for plus, functions in ((1, iter([Identity("f", plus=1)])), (2, Identity("f", plus=2)), (3, [Identity("f", plus=3)])):
        frontend.add_missing(cache, cast("Any", functions), lambda: ModuleSource(adder("f", plus)))  # noqa: B023 - called at once
        assert cache.get_or_compile(Identity("f", plus=plus), lambda: ModuleSource(adder("f", plus)))(1) == 1 + plus  # noqa: B023
    assert [difference.component for difference in cache.explain("f").variants[0].differences or ()] == ["plus"]


def test_what_a_build_adds_stays_until_the_build_ends(directory: Path) -> None:
    """The size limit is smaller than the callees, each of which calls two others."""
    built = []

    def build(cache: Cache, depth: int, number: int) -> Callable[[], ModuleSource]:
        def source() -> ModuleSource:
            built.append((depth, number))
            name = f"f{depth}.{number}"
            if not depth:
                return ModuleSource(adder(name, 1), inline=False)
            callees = [f"f{depth - 1}.{2 * number + i}" for i in range(2)]
            for i, callee in enumerate(callees):
                frontend.add_missing(cache, [callee], build(cache, depth - 1, 2 * number + i))
            calls = "".join(f"  %y{i} = call i64 @{callee}(i64 %x)\n" for i, callee in enumerate(callees))
            declarations = "".join(f"declare i64 @{callee}(i64)\n" for callee in callees)
            code = f"{declarations}define i64 @{name}(i64 %x) {{\n{calls}  %z = add i64 %y0, %y1\n  ret i64 %z\n}}\n"
            return ModuleSource(code, inline=False)

        return source

    with Cache(directory, max_size=1) as cache:
        assert cache.get_or_compile("f3.0", build(cache, 3, 0))(4) == 40
    assert len(built) == 15


@pytest.mark.parametrize("way", ["get_or_compile", "find"])
@pytest.mark.parametrize("loss", ["removed", "damaged"])
def test_what_lost_an_import_is_not_stored(directory: Path, loss: str, way: str) -> None:
    """`main` calls `pair`, which Python cannot call, and which calls `leaf`. Each `build` requests its callees."""
    script = f"""
    import warnings
    from compcache import Cache, Function, Identity, ModuleSource, frontend
    warnings.simplefilter("ignore")  # the damaged file is a warning
    LEAF = "define i64 @leaf(i64 %x) noinline {{ %y = add i64 %x, 1\\n ret i64 %y }}"
    PAIR = "declare i64 @leaf(i64)\\ndefine {{ i64, i64 }} @pair(i64 %x) noinline {{ %y = call i64 @leaf(i64 %x)\\n"
    PAIR += "%r = insertvalue {{ i64, i64 }} undef, i64 %y, 1\\n ret {{ i64, i64 }} %r }}"
    MAIN = "declare {{ i64, i64 }} @pair(i64)\\ndefine i64 @main(i64 %x) {{ %y = call {{ i64, i64 }} @pair(i64 %x)\\n"
    MAIN += "%r = extractvalue {{ i64, i64 }} %y, 1\\n ret i64 %r }}"
    leaf = Identity("leaf", code=LEAF)
    pair = Identity("pair", code=PAIR, callee=leaf)
    main = Identity("main", code=MAIN, callee=pair)
    built = []

    def build(identity, code, callee=None, *of_callee):
        def source():
            built.append(identity.label)
            if callee is not None:
                frontend.add_missing(cache, [callee], build(callee, *of_callee))
            return ModuleSource(
                code, {{identity.func_name: Function(symbol=identity.label)}}, imports=callee and {{callee.label: callee}}, inline=False
            )
        return source

    with Cache(directory) as cache:
        building = build(main, MAIN, pair, PAIR, leaf, LEAF)
        if {way!r} == "find":
            target = frontend.find(cache, main.func_name)
            if target is None:
                frontend.add_missing(cache, [main], building)
                target = cache.get_target(main)
        else:
            target = cache.get_or_compile(main, building)
        result = target(4), built, cache.function(leaf).module_id
    """
    answer, built, module_id = run_fresh(directory, script)
    assert (answer, built) == (5, ["main", "pair", "leaf"])
    if loss == "removed":
        with Cache(directory) as cache:
            cache.remove_module(module_id)
    else:
        (file,) = directory.rglob(f"{module_id}*")
        file.chmod(0o600)
        file.write_bytes(b"\0" * file.stat().st_size)
    assert run_fresh(directory, script)[:2] == (5, ["main", "pair", "leaf"])
    assert run_fresh(directory, script)[:2] == (5, [])


def test_a_cache_is_opened_again_by_its_settings(directory: Path) -> None:
    with Cache(directory, signing_key=b"key", allow_pickle=True, max_size=1 << 30, lock_timeout=2.5) as cache:
        settings = frontend.settings_of(cache)
        with Cache(**settings) as again:
            assert frontend.settings_of(again) == settings
            assert frontend.allows_pickle(again)


def test_processes_of_a_cache_without_an_oldest_llvm_have_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_MIN_LLVM", "99")
    with Cache(directory, min_llvm="") as cache, Cache(**frontend.settings_of(cache)) as again:
        assert (cache._store.min_llvm, again._store.min_llvm) == ("", "")


# ------------------------------------------------------------------------------------ what front ends use


def test_the_reference_begins_with_what_users_meet_first() -> None:
    members = [name for name in vars(Cache) if not name.startswith("_") and hasattr(Cache, name)]
    assert members[:4] == ["compile", "get_or_compile", "get_target", "has"]


@pytest.mark.parametrize("name", [name for name in list(vars(Cache)) if name[0] != "_" and callable(getattr(Cache, name, None))])
def test_the_reference_describes_each_parameter(name: str) -> None:
    member = getattr(Cache, name)
    described = re.findall(r"^    (\w+): ", inspect.getdoc(member) or "", re.MULTILINE)
    parameters = list(inspect.signature(member).parameters)[1:]
    assert described[: len(parameters)] == parameters


def test_each_member_is_defined_where_it_is_looked_for() -> None:
    for part in PARTS:
        module = import_module(f"compcache.cache.{part}".rstrip("."))
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name in {part.title(), "Cache"}]
        functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        others = {target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
        assert functions | others == set(PARTS[part])


def test_messages_name_the_class_that_users_know(cache: Cache) -> None:
    for call, name in ((cache.get_target, "get_target"), (cache.explain, "explain"), (cache.has, "has")):
        with pytest.raises(TypeError, match=rf"^Cache\.{name}\(\) missing 1"):
            call()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Cache\.__init__\(\) takes"):
        Cache("a", "b")  # type: ignore[call-arg, arg-type]


def test_the_facade_is_for_users() -> None:
    members = [name for name in vars(Cache) if not name.startswith("_") and hasattr(Cache, name)]
    assert len(members) <= 48, members


def test_front_ends_read_the_code_that_they_store() -> None:
    text = 'declare i64 @"odd name\\22"(i64)\ndefine i64 @f(i64 %x) {\n  %1 = call i64 @"odd name\\22"(i64 %x)\n  ret i64 %1\n}\n'
    assert frontend.symbol_counts(text) == {'odd name"': 2, "f": 1}
    assert [frontend.unquote_name(frontend.quote_name(name)) for name in ("f", 'odd name"')] == ["f", 'odd name"']
    assert not frontend.passes_vectors(text)
    assert frontend.passes_vectors("declare <64 x double> @wide(<64 x double>)\n")


def test_front_ends_ask_where_symbols_are() -> None:
    assert [frontend.provider_of(name) for name in ("strlen", "Py_IsInitialized", "nobody_has_this")] == ["platform", "process", ""]
    assert frontend.address_of("strlen") == ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value
    assert frontend.address_of("nobody_has_this") == 0


def test_front_ends_ask_which_targets_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPCACHE_TARGETS", raising=False)
    assert [frontend.targets_of(None), frontend.targets_of(("native",))] == [None, ("native",)]
    monkeypatch.setenv("COMPCACHE_TARGETS", "x86-64-v2,native")
    assert [frontend.targets_of(None), frontend.targets_of("native")] == ["x86-64-v2,native", "native"]


def test_front_ends_ask_whether_times_tell_a_file_from_a_later_one() -> None:
    now = time.time_ns()
    assert [frontend.has_settled(newest) for newest in (now, now - 10**9, now + 10**12)] == [False, True, True]


SOURCE = ModuleSource("define i64 @f() {\n ret i64 1\n}\n")
#: Members with arguments that an open cache accepts.
OF_OPEN_CACHES: dict[str, tuple[Any, ...]] = {
    "add_module": (SOURCE,), "add_modules": ([SOURCE],), "replace": (SOURCE,), "link": (), "has_many": (["f"],), "prefetch": (["f"],),
    "push": (["f"],), "flush_uploads": (1.0,), "function": ("f",), "dependencies": ("f",), "ir": ("f",), "asm": ("f",), "graph": (["f"],),
    "remove": ("f",), "realizations": ("f",), "functions": (), "modules": (), "stats": (), "prune": (PrunePolicy(),), "compact": (),
}  # fmt: skip


@pytest.mark.parametrize("member", OF_OPEN_CACHES)
def test_a_closed_cache_says_that_it_is_closed(cache: Cache, member: str) -> None:
    cache.close()
    with pytest.raises(StorageError, match="is closed: open it again"):
        getattr(cache, member)(*OF_OPEN_CACHES[member])
