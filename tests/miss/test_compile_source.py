"""Sources that are edited: what is stored already is used, what is new is compiled, and a state is not split between the two."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT, adder, run_fresh
from mock_directory import FaultyFiles, cache_on, full_disk

from compcache import Cache, CacheWarning, CompileError, Function, Identity, ModuleSource, UndefinedSymbolError, frontend
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from pathlib import Path

F, G, G2 = adder("f", 1), adder("g", 2), adder("g", 3)
COUNTER = "@counter = internal global i64 0\n"
INC = "define i64 @inc() {\n%v = load i64, ptr @counter\n%w = add i64 %v, 1\nstore i64 %w, ptr @counter\nret i64 %w\n}\n"
GET = "define i64 @get() {\n%v = load i64, ptr @counter\nret i64 %v\n}\n"
DATA = '@data = global [2000000 x i8] c"' + "a" * 2_000_000 + '"\n'


def exported(cache: Cache) -> list[list[str]]:
    """The plain names of the functions in each module, the oldest first."""
    rows = sorted(cache.modules(), key=lambda row: row.created)
    return [sorted(function.func_name.partition("-")[0] for function in row.functions) for row in rows if row.functions]


def test_an_edit_compiles_what_reaches_it(directory: Path) -> None:
    with Cache(directory) as cache:
        before = cache.compile(F + G)
        assert (before.f(1), before.g(1)) == (2, 3)
    with Cache(directory) as cache:
        after = cache.compile("; better\n" + F + G2)
        assert (after.f(1), after.g(1)) == (2, 4)
        assert after.func_names["f"] == before.func_names["f"]
        assert exported(cache) == [["f", "g"], ["g"]]
        assert cache.compile(F + G).g(1) == 3


def test_importers_keep_what_they_import(cache: Cache) -> None:
    caller = "declare i64 @f(i64)\ndefine i64 @top(i64 %x) {\n%y = call i64 @f(i64 %x)\nret i64 %y\n}\n"
    first = cache.compile(ModuleSource(caller, imports={"f": cache.compile(F + G).f})).func_names
    assert cache.compile(ModuleSource(caller, imports={"f": cache.compile(F + G2).f})).func_names == first
    assert cache.compile(ModuleSource(caller, imports={"f": cache.compile(adder("f", 7)).f})).func_names != first


HIT = """
from compcache import Cache
with Cache(directory, **{options!r}) as cache:
    kernels = cache.compile({code!r})
    result = [kernels.f(1), kernels.g(1), "llvmlite" in sys.modules, cache.stats().counters.get("compilations", 0)]
"""


def hit(directory: Path, code: str, **options: Any) -> Any:
    return run_fresh(directory, HIT.format(code=code, options=options))


@pytest.mark.slow
def test_a_source_of_stored_functions_is_read_once(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.compile(F + G)
        cache.compile(G2)
    assert hit(directory, F + G2) == [2, 4, True, 2]
    assert hit(directory, F + G2) == [2, 4, False, 2]
    with Cache(directory) as cache:
        assert exported(cache) == [["f", "g"], ["g"]]
        assert [row.kind for row in frontend.list_entries(cache)] == ["names"] * 3


def test_bitcode_is_the_same_code(cache: Cache) -> None:
    import llvmlite.binding as llvm

    with llvm.parse_assembly(F + G) as module:
        code = module.as_bitcode()
    assert cache.compile(F + G).func_names == cache.compile(code).func_names
    assert exported(cache) == [["f", "g"]]


# ---------------------------------------------------------------------------------------------------------- state


def test_functions_that_share_a_variable_go_on_sharing_it(cache: Cache) -> None:
    first = cache.compile(COUNTER + INC + GET + F)
    assert first.inc() == 1
    second = cache.compile(COUNTER + INC + GET + adder("f", 5))
    assert (second["get"](), second.inc(), first["get"]()) == (1, 2, 2)
    assert exported(cache) == [["f", "get", "inc"], ["f"]]


def test_who_joins_a_variable_makes_it_another_one(cache: Cache) -> None:
    first = cache.compile(COUNTER + INC + GET)
    assert first.inc() == 1
    second = cache.compile(COUNTER + INC + GET + INC.replace("@inc", "@more"))
    assert (second.inc(), second.more(), second["get"](), first["get"]()) == (1, 2, 2, 1)


def test_functions_that_share_a_variable_are_compiled_together(directory: Path) -> None:
    """One is there alone, in a directory that was put together from others."""
    with Cache(directory) as cache:
        names = cache.compile(COUNTER + INC + GET).func_names
        cache.clear()
        cache.get_or_compile(names["inc"], lambda: ModuleSource(COUNTER + INC, {names["inc"]: Function(symbol="inc")}))
    with Cache(directory) as cache:
        kernels = cache.compile(COUNTER + INC + GET + F)
        assert exported(cache) == [["inc"], ["f", "get", "inc"]]
        assert kernels["get"]() == 0


# ------------------------------------------------------------------------------------------------ what cannot be stored


def test_what_cannot_be_stored_is_in_memory(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.compile(F + G)
    before = sorted(os.listdir(directory / "modules-v1"))
    for code, value in ((F + G2, 4), (G + F, 3)):
        with Cache(directory, readonly=True) as cache:
            for _ in range(2):
                kernels = cache.compile(code)
                assert (kernels.f(1), kernels.g(1)) == (2, value)
    assert sorted(os.listdir(directory / "modules-v1")) == before


def test_names_that_cannot_be_stored_are_one_warning(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.compile(F + G)
    files = FaultyFiles(str(directory))
    with cache_on(files) as cache:
        files.plan = full_disk()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert cache.compile(G + F).g(1) == 3
        files.plan = None
    assert len([warning for warning in caught if issubclass(warning.category, CacheWarning)]) == 1


def test_errors_of_a_source_are_those_of_its_functions(cache: Cache) -> None:
    with pytest.raises(UndefinedSymbolError, match="missing"):
        cache.compile("declare i64 @missing_(i64)\n" + adder("f", 1).replace("add i64 %x, 1", "call i64 @missing_(i64 %x)"))
    with pytest.raises(UndefinedSymbolError, match="functions= names 'h'"):
        cache.compile(ModuleSource(F, {"h": None}))
    with pytest.raises(CompileError, match="a vector of 100000 elements"):
        cache.compile("define <100000 x i8> @f(<100000 x i8> %x) {\nret <100000 x i8> %x\n}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["untrusted", "data"])
def test_code_that_is_not_read_has_one_name(cache: Cache, kind: str) -> None:
    def source(code: str) -> ModuleSource:
        return ModuleSource(code, untrusted=True) if kind == "untrusted" else ModuleSource(DATA + code, optimize=0)

    names = cache.compile(source(F + G)).func_names
    assert names["f"].partition("-")[2] == names["g"].partition("-")[2]
    assert cache.compile(source(F + G2)).func_names["f"] != names["f"]


# ----------------------------------------------------------------------------------------------- several at a time, hosts


def test_threads_compile_a_source_once(cache: Cache) -> None:
    start = threading.Barrier(4)
    values = []

    def work() -> None:
        start.wait()
        values.append(cache.compile(F + G).f(1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [2] * 4
    assert cache.stats().counters["compilations"] == 1


RACE = """
import sys
sys.path.insert(0, {root!r})
from compcache import Cache
sys.stdin.readline()
number = int(sys.argv[1])
with Cache({directory!r}) as cache:
    kernels = cache.compile({f!r} + {g!r}.replace("2", str(number)))
    print(kernels.f(1), kernels.g(1))
"""


@pytest.mark.slow
def test_processes_with_different_edits_get_their_own(directory: Path) -> None:
    program = RACE.format(root=str(PACKAGE_ROOT), directory=str(directory), f=F, g=G)
    command = [sys.executable, "-I", "-c", program]
    processes = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for number in (2, 3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0].split() for process in processes] == [["2", "3"], ["2", "4"]]
    with Cache(directory) as cache:
        assert cache.check().errors == ()


@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
def test_an_edit_is_compiled_for_all_targets(cache: Cache) -> None:
    def source(code: str) -> ModuleSource:
        return ModuleSource(code, targets=["x86-64", "native"])

    assert cache.compile(source(F + G)).g(1) == 3
    assert cache.compile(source(F + G2)).g(1) == 4
    assert exported(cache) == [["f", "g"]] * 2 + [["g"]] * 2


def test_what_was_pruned_is_compiled_again(directory: Path) -> None:
    with Cache(directory) as cache:
        first = cache.compile(F + G).func_names
        second = cache.compile(F + G2).func_names
        cache.remove(second["g"])
    with Cache(directory) as cache:
        assert cache.compile(F + G2).g(1) == 4
        assert cache.compile(F + G).func_names == first
        assert exported(cache) == [["f", "g"], ["g"]]


def test_names_outlive_functions(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.compile(F + G)
        (module,) = cache.modules()
        cache.compile(F + G2)
        cache.remove_module(module.module_id)
    with Cache(directory) as cache:
        kernels = cache.compile(F + G2)
        assert (kernels.f(1), kernels.g(1)) == (2, 4)
        assert exported(cache) == [["g"], ["f", "g"]]


# ------------------------------------------------------------------------------------------------------- what travels


@pytest.mark.slow
@pytest.mark.parametrize(("way", "kind"), [("layer", "found"), ("bundle", "compiled"), ("bundle", "found"), ("unpacked", "compiled")])
def test_names_travel(directory: Path, tmp_path: Path, way: str, kind: str) -> None:
    with Cache(directory) as cache:
        kernels = cache.compile(F + G)
        if kind == "found":
            kernels = cache.compile(G2)
            kernels = cache.compile(F + G2)
        bundle = tmp_path / "functions.ccb"
        cache.export(kernels.func_names.values(), bundle)
        expected = [2, kernels.g(1), False, 0]
    code = F + (G2 if kind == "found" else G)
    if way == "bundle":
        with Cache(tmp_path / "other") as other:
            other.import_bundle(bundle)
    layers = [] if way == "bundle" else [str(directory if way == "layer" else bundle)]
    assert hit(tmp_path / "other", code, layers=layers) == expected


def test_a_check_of_names_leaves_names_of_content_alone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_CHECK", "1")
    with Cache(directory) as cache, warnings.catch_warnings():
        warnings.simplefilter("error")
        for code in (F + G, F + G2, F + G2):
            assert cache.compile(code).f(1) == 2


def test_explain_shows_the_edit(cache: Cache) -> None:
    cache.compile(F + G)
    name = cache.compile(F + G2).func_names["g"]
    (variant,) = cache.explain(name).variants
    (difference,) = variant.differences or ()
    assert difference.component == "code"
    assert "i64 %x, 2" in str(difference)


def test_code_that_llvm_refuses_names_the_function_that_was_asked_for(cache: Cache) -> None:
    with pytest.raises(CompileError, match=r"^the code of 'kernels\.one-[0-9a-f]{32}' cannot be compiled: LLVM"):
        cache.get_or_compile(Identity("kernels.one", options={"a": 1}), lambda: ModuleSource("define double @x( {"))
    with pytest.raises(CompileError, match=r"^the code of 'f-[0-9a-f]{32}' cannot be compiled: optimize must be 0, 1, 2 or 3, not 4"):
        cache.compile(ModuleSource(F, optimize=4))
