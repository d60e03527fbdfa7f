"""``compcache ls`` and ``compcache show``."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache, fill, on_terminal
from helpers import adder, caller, constant, module_file
from made_up_modules import publish_module

from compcache import Cache, FormatError, Identity, ModuleSource, frontend

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the example kernels and a second realization of `sieve`."""
    root = tmp_path_factory.mktemp("filled") / "cache"
    fill(root)
    with Cache(root) as cache:
        cache.add_module(ModuleSource(constant("sieve", 0) + constant("zero", 0)))
    return root


def names(directory: Path, *arguments: object) -> list[str]:
    done = compcache("--dir", directory, "ls", *arguments)
    assert (done.status, done.err) == (0, "")
    return [line.split("\t")[0] for line in done.out.splitlines()]


def rows(directory: Path, *arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(compcache("--dir", directory, "ls", "--json", *arguments).out)
    return found


def test_functions_are_listed_by_name(filled: Path) -> None:
    assert names(filled) == ["crc32", "dot", "levenshtein", "norm", "sieve", "zero"]
    assert names(filled, "--reverse", "--limit", 2) == ["zero", "sieve"]


def test_globs_are_alternatives(filled: Path) -> None:
    assert names(filled, "*o*", "[c-d]*") == ["crc32", "dot", "norm", "zero"]
    assert names(filled, "nothing*") == []


def test_a_function_counts_its_realizations(filled: Path) -> None:
    (sieve,) = rows(filled, "sieve")
    assert (sieve["realizations"], len(set(sieve["modules"]))) == (2, 2)
    assert sieve["size"] == sum(module_file(filled, m).stat().st_size for m in sieve["modules"])


@pytest.mark.slow
def test_functions_are_sorted_by_size_and_age(directory: Path) -> None:
    with Cache(directory) as cache:
        for age, (name, count) in enumerate([("big", 200), ("small", 1), ("middle", 50)]):
            code = "\n".join(constant(name if i == 0 else f"{name}{i}", i) for i in range(count))
            module_id = cache.add_module(
                ModuleSource(code, {name: None, **{f"{name}{i}": None for i in range(1, count)}})
            )
            path = module_file(directory, module_id)
            os.utime(path, (1e9 - 1000 * age, 1e9 - 1000 * age))
    first = ["big", "middle", "small"]
    assert names(directory, *first, "--sort", "size") == first
    assert names(directory, *first, "--sort", "age") == ["big", "small", "middle"]


@pytest.mark.slow
def test_uses_are_counted_and_sorted_by(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("never", 1)))
        cache.add_module(ModuleSource(constant("often", 1)))
        cache.add_module(ModuleSource(constant("once", 1)))
    for name in ("often", "once", "often"):
        assert compcache("--dir", directory, "call", name).status == 0
    assert {row["func_name"]: row["uses"] for row in rows(directory)} == {"never": 0, "often": 2, "once": 1}
    assert [row["last_used"] > 0 for row in rows(directory)] == [False, True, True]
    assert names(directory, "--sort", "uses") == ["often", "once", "never"]
    assert names(directory, "--sort", "last-use") == ["often", "once", "never"]
    assert sorted(row["uses"] for row in rows(directory, "--modules")) == [0, 1, 2]
    assert ", 2 uses, usable\n" in compcache("--dir", directory, "show", "often").out


@pytest.mark.slow
def test_modules_are_listed_by_id_and_found_by_what_they_hold(filled: Path) -> None:
    listed = names(filled, "--modules")
    assert len(listed) == 6
    assert listed == sorted(listed)
    assert len(names(filled, "--modules", "sieve")) == 2
    assert names(filled, "--modules", listed[0][:10]) == [listed[0]]
    (module,) = rows(filled, "--modules", "zero")
    assert module["functions"] == [{"func_name": name, "signature": "i64()"} for name in ("sieve", "zero")]


def test_a_listing_sees_what_came_and_went(directory: Path) -> None:
    with Cache(directory) as cache:
        gone = cache.add_module(ModuleSource(constant("gone", 1)))
        assert names(directory) == ["gone"]
        cache.add_module(ModuleSource(constant("here", 1)))
        assert names(directory) == ["gone", "here"]
        module_file(directory, gone).unlink()
    assert names(directory) == ["here"]


def test_code_for_another_machine_is_listed_with_the_reason(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(
            ModuleSource(constant("alien", 1), cpu="x86-64-v4", features="+amx-fp8,+avx10.2-512")
        )
        if cache.has("alien"):
            pytest.skip("this machine has everything")
    assert "amx-fp8" in rows(directory)[0]["problem"]
    assert "amx-fp8" in on_terminal("--dir", directory, "ls", columns=160).out
    assert "amx-fp8" in compcache("--dir", directory, "show", "alien").out


def test_show_tells_signature_realizations_and_dependencies(filled: Path) -> None:
    report = json.loads(compcache("--dir", filled, "show", "norm", "--json").out)
    assert report["signature"] == "f64(x: const f64[:])"
    assert report["dependencies"] == ["dot"]
    assert [r["module_id"] for r in report["realizations"]] == [report["module_id"]]
    text = compcache("--dir", filled, "show", "norm").out
    assert "\ncalls: dot\n" in text
    assert f"\nrealization: {report['module_id']}, " in text
    assert text.endswith(", usable\n")
    assert len(json.loads(compcache("--dir", filled, "show", "sieve", "--json").out)["realizations"]) == 2


def test_a_graph_without_the_function_is_an_error_that_names_the_module(directory: Path) -> None:
    with Cache(directory) as cache:
        module_id = publish_module(cache._store, 1, ["odd"]).hex()
        with pytest.raises(FormatError, match=f"graph of module {module_id} does not contain its symbol 'f'"):
            cache.function("odd")
        with pytest.raises(FormatError, match=f"graph of module {module_id} does not contain its symbol 'f'"):
            cache.dependencies("odd")
    shown = compcache("--dir", directory, "show", "odd")
    assert shown.status == 2  # as for every file that cannot be read
    assert module_id in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out


def test_show_tells_globals_and_native_symbols(filled: Path) -> None:
    report = json.loads(compcache("--dir", filled, "show", "crc32", "--json").out)
    (table,) = report["globals"]
    assert (table["name"], table["kind"], table["form"], table["size"]) == (
        "crc_table",
        "bytes",
        "inline",
        1024,
    )
    assert "\nglobal crc_table: bytes, inline of 1.0 KiB: " in compcache("--dir", filled, "show", "crc32").out
    natives = json.loads(compcache("--dir", filled, "show", "levenshtein", "--json").out)["natives"]
    assert sorted(natives) == ["free", "malloc", "strlen"]


def test_show_prints_the_code_of_the_function_alone(filled: Path) -> None:
    ir = compcache("--dir", filled, "show", "sieve", "--ir")
    assert ir.status == 0
    assert "@sieve(" in ir.out
    assert ir.out.rstrip().endswith("}")
    whole = compcache("--dir", filled, "show", "zero", "--ir", "--whole-module").out
    assert "@zero(" in whole
    assert "@sieve(" in whole
    asm = compcache("--dir", filled, "show", "norm", "--asm").out
    assert compcache("--dir", filled, "show", "norm", "--asm", "--ir").out == compcache("--dir", filled, "show", "norm", "--ir").out + asm
    assert list(json.loads(compcache("--dir", filled, "show", "norm", "--asm", "--ir", "--json").out)) == ["func_name", "ir", "asm"]
    assert asm.startswith("norm:")
    assert "sqrt" in asm


@pytest.mark.slow
def test_show_prints_the_code_of_the_realization_that_is_named(filled: Path) -> None:
    report = json.loads(compcache("--dir", filled, "show", "sieve", "--json").out)
    texts = [
        compcache("--dir", filled, "show", "sieve", "--ir", "--module", copy["module_id"][:12]).out
        for copy in report["realizations"]
    ]
    assert sorted("ret i64 0\n}" in text and "load" not in text for text in texts) == [False, True]
    unknown = compcache("--dir", filled, "show", "sieve", "--ir", "--module", "zz")
    assert (unknown.status, unknown.out) == (2, "")
    assert "no realization" in unknown.err


def test_code_that_was_not_kept_cannot_be_shown(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "f.ll").write_text(constant("f", 1))
    assert compcache("--dir", directory, "add", tmp_path / "f.ll", "--no-bitcode").status == 0
    done = compcache("--dir", directory, "show", "f", "--ir")
    assert (done.status, done.out) == (2, "")
    assert "was stored without its code" in done.err


def test_identity_is_shown(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("f", 1), identity={"source": "f.expr", "options": "-O2"}))
    assert (
        "\nidentity source: f.expr\nidentity options: -O2\n" in compcache("--dir", directory, "show", "f").out
    )


def test_dependencies_are_looked_up_through_private_functions(directory: Path) -> None:
    private = (
        caller("private", "callee").replace("define", "define internal")
        + """
attributes #0 = { noinline }
define i64 @outer(i64 %x) {
  %y = call i64 @private(i64 %x)
  ret i64 %y
}"""
    )
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("callee", 1)))
        cache.add_module(ModuleSource(private, optimize=0))
    assert json.loads(compcache("--dir", directory, "show", "outer", "--json").out)["dependencies"] == [
        "callee"
    ]


def test_a_narrow_terminal_leaves_columns_out_before_it_cuts_names(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("a_name_of_20_letters", 1)))
    heads = {}
    for columns in (100, 60, 40):
        head, row = on_terminal("--dir", directory, "ls", columns=columns, NO_COLOR="1").out.splitlines()
        assert row.startswith("a_name_of_20_letters ")
        assert len(row) <= columns
        heads[columns] = head.split()
    assert heads[100] == ["function", "signature", "copies", "size", "age", "uses", "last", "use"]
    assert heads[40] == ["function", "size", "last", "use"]
    assert len(heads[40]) < len(heads[60]) < len(heads[100])


def test_a_terminal_is_told_that_nothing_is_there(directory: Path) -> None:
    assert on_terminal("--dir", directory, "ls").out == f"nothing is cached in {directory}\n"
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
    assert on_terminal("--dir", directory, "ls", "g*").out == f"nothing matches in {directory}\n"
    for options in ((), ("--modules",), ("f",)):
        assert on_terminal("--dir", directory, "ls", "--limit", 0, *options).out == ""  # not "nothing is cached"


@pytest.mark.slow
def test_using_a_function_uses_what_it_depends_on(directory: Path) -> None:
    with Cache(directory) as cache:
        for text in (adder("leaf", 1), caller("middle", "leaf"), caller("top", "middle"), adder("other", 2)):
            cache.add_module(ModuleSource(text))
        cache.get_target("top")
    used = {row["func_name"]: (row["uses"], row["last_used"] > 0) for row in rows(directory)}
    assert used == {"leaf": (0, True), "middle": (0, True), "other": (0, False), "top": (1, True)}
    assert names(directory, "--sort", "last-use")[-1] == "other"
    assert sorted(row["last_used"] > 0 for row in rows(directory, "--modules")) == [False, True, True, True]
    compcache("--dir", directory, "stats")  # folds what was counted
    assert {row["func_name"]: (row["uses"], row["last_used"] > 0) for row in rows(directory)} == used
    assert sum(row["uses"] for row in rows(directory, "--modules")) == 1


@pytest.fixture
def with_variants(directory: Path) -> Path:
    """A cache with two variants of `dot`, of which one has a part and an entry of data."""
    with Cache(directory) as cache:
        first, _ = (
            cache.get_or_compile(Identity("dot", version=number), partial(ModuleSource, adder("dot", number))) for number in (1, 2)
        )
        cache.add_module(ModuleSource(adder("loop", 1), part_of=first.func_name))
        frontend.put_entry(cache, first.func_name, b"data", kind="types")
    return directory


@pytest.mark.slow
def test_each_label_is_listed_once(with_variants: Path) -> None:
    assert names(with_variants) == ["dot"]
    assert names(with_variants, "do?", "--sort", "uses") == names(with_variants, "loop") == ["dot"]
    lines = on_terminal("--dir", with_variants, "ls", columns=160).out.splitlines()
    assert "2 variants" in lines[1]
    assert "1 part, 1 entry" in lines[1]
    assert (len(lines), rows(with_variants)[0]["variants"]) == (2, 2)


@pytest.mark.slow
def test_all_lists_variants_parts_and_entries_by_themselves(with_variants: Path) -> None:
    listed = [line.split("\t")[:2] for line in compcache("--dir", with_variants, "ls", "--all").out.splitlines()]
    kinds = [(name.startswith("dot-"), signature) for name, signature in listed]
    assert sorted(kinds) == [(False, "i64(x: i64)"), (True, "entry types"), (True, "i64(x: i64)"), (True, "i64(x: i64)")]
    assert names(with_variants, "--all", "loop") == ["loop"]
    described = rows(with_variants, "--all")
    assert [row["size"] for row in described if "kind" in row] == [4]
    assert "entry types" in on_terminal("--dir", with_variants, "ls", "-a", columns=160).out


def test_show_tells_what_belongs_to_a_function(with_variants: Path) -> None:
    with Cache(with_variants) as cache:
        (entry,) = frontend.list_entries(cache)
    text = compcache("--dir", with_variants, "show", entry.name).out
    assert "\npart: loop, " in text
    assert f"\nentry types: 4 B, in pack {entry.module_id}\n" in text
    report = json.loads(compcache("--dir", with_variants, "show", entry.name, "--json").out)
    assert [(each["kind"], each["module_id"]) for each in report["entries"]] == [("types", entry.module_id)]


@pytest.mark.parametrize("command", ["show", "call", "graph", "explain", "rm"])
def test_entries_of_data_are_no_functions(directory: Path, command: str) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        frontend.put_entry(cache, "types of f", b"data", kind="k")
    done = compcache("--dir", directory, command, "types of f")
    assert done.status == (1 if command == "explain" else 2)
    assert "function 'types of f' is not in the cache" in done.out + done.err


def test_entries_of_data_are_not_completed(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("fast", 1)))
        frontend.put_entry(cache, "fast types", b"data", kind="k")
    variables = {"COMP_WORDS": f"compcache --dir {directory} show fa", "COMP_CWORD": "4", "_COMPCACHE_COMPLETE": "bash_complete"}
    assert compcache(**variables).out.split() == ["plain,fast"]
