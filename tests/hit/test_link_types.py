"""Code is bound to realizations whose link types it expects; what fits what is the table of docs/linking.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, run_fresh

from compcache import Cache, ModuleSource, UndefinedSymbolError
from compcache.build.link_types import LinkTypes
from compcache.hit.link_types import compare_types, type_digest, unite_types

if TYPE_CHECKING:
    from pathlib import Path

#: ``half(x) = x + 0.5`` under the name `f`, which `adder` gives another type.
OF_NUMBERS = "define double @f(double %x) {\n  %y = fadd double %x, 5.000000e-01\n  ret double %y\n}\n"
CALLS_IT = "declare double @f(double)\ndefine double @of_numbers(double %x) {\n  %y = call double @f(double %x)\n  ret double %y\n}\n"
CALLS_BOTH = """\
declare i64 @of_integers(i64)
declare double @of_numbers(double)
define double @both(double %x) {
  %i = fptosi double %x to i64
  %a = call i64 @of_integers(i64 %i)
  %b = call double @of_numbers(double %x)
  %c = sitofp i64 %a to double
  %d = fmul double %c, 1.000000e+02
  %e = fadd double %d, %b
  ret double %e
}
"""

BINDS = [
    ("i64(i64)", "i64(i64) ignored"),
    ("i64(i64)", "void(i64)"),
    ("i64(i64)", "i64(i64, ...)"),
    ("i64(i64)", "i64(..., i64)"),
    ("i64(ptr)", "i64(ptr, i64)"),
    ("i64(i64)", "i64(i64, i64, ptr)"),
    ("i64(ptr, ...)", "i64(ptr, ..., f64, i32)"),
    ("void(i64, f64)", "void({i64, f64})"),
    ("{i64, i64}()", "{i64, i64}()"),
    ("void(ptr, i64)", "void({i64, i64})"),
    ("void(v64)", "void(f64)"),
    ("{i64, ptr}(i32, ptr)", "{i64, i64}({i64, i64})"),
    ("ptr(ptr)", "{i64}({i64})"),
    ("void(ptr sret 24)", "void(ptr)"),
    ("f64(ptr)", "void() address"),
    ("f64(ptr)", "f64(ptr) address"),
    ("f64(f64)", "f64(f64) | f64(f64, i64)"),
    ("i64(i64)", "variable 1 align 1"),
    ("variable 8 align 8", "void() address"),
    ("variable 8 align 8", "variable 4 align 4 written"),
    ("variable 80 align 16", "variable ? align 4"),
    ("variable 8 align 8", "variable 8 align 8 constant"),
    ("variable 8 align 8 constant", "variable 8 align 8"),
    ("", "i64(i64)"),
    ("i64(i64)", ""),
]
WARNS = [
    ("i64(i8 signext)", "i64(i8)"),
    ("i64(i8 signext)", "i64(i8 zeroext)"),
    ("i8()", "i8 zeroext()"),
    ("i64(ptr, ...)", "i64(ptr)"),
    ("i64(i8 signext, i16 zeroext, i1 zeroext)", "i64(i32, i32, i32, ...)"),
    ("variable 8 align 4", "variable 8 align 8"),
]
SILENT = [("i64(i8)", "i64(i8 signext)"), ("i8 zeroext()", "i8()")]
REFUSED = [
    ("i64(i8 signext)", "i64(i32)"),
    ("i64(i8 signext, ...)", "i64(i32, ...)"),
    ("i64(i8 signext)", "i64(i64, ...)"),
    ("i64(i64)", "i64(i32, ...)"),
    ("f64(f64)", "i64(i64)"),
    ("f64(f64)", "f64(f32)"),
    ("i32(i64)", "i64(i64)"),
    ("i64(ptr)", "i64(i64)"),
    ("i64(i64)", "i64(ptr)"),
    ("ptr()", "i64()"),
    ("void(i64)", "i64(i64)"),
    ("i64(i64, i64)", "i64(i64)"),
    ("i64(i64, i64)", "i64(..., i64)"),
    ("i64(i64) fastcc", "i64(i64)"),
    ("void(byval 24 8)", "void(byval 16 8)"),
    ("void(ptr sret 24)", "void(ptr sret 16)"),
    ("void(i64, i64)", "void(byval 16 8)"),
    ("{i64, f64}()", "{f64, i64}()"),
    ("{i64, i64}()", "i64()"),
    ("void(v64)", "void(v128)"),
    ("void(f32)", "void(f16)"),
    ("f64(f64)", "f64(f64) | f64(i64)"),
    ("f64(f64)", "f64(i64) address"),
    ("variable 4 align 4", "variable 512 align 8"),
    ("variable 4 align 4 constant", "variable 4 align 4 written"),
    ("variable 4 align 4", "void()"),
    ("void()", "variable 4 align 4 written"),
]


@pytest.mark.parametrize(("definition", "use"), BINDS + SILENT)
def test_what_binds(definition: str, use: str) -> None:
    assert compare_types(definition, use) == (True, "")


@pytest.mark.parametrize(("definition", "use"), WARNS)
def test_what_binds_with_a_warning(definition: str, use: str) -> None:
    binds, why = compare_types(definition, use)
    assert binds
    assert why


@pytest.mark.parametrize(("definition", "use"), REFUSED)
def test_what_is_refused(definition: str, use: str) -> None:
    binds, why = compare_types(definition, use)
    assert not binds
    assert why
    assert type_digest(definition) != type_digest(use)


@pytest.mark.parametrize("use", ["i64(i64) ignored", "i64({i64})", "i64(i64) | i64(i64) ignored"])
def test_uses_of_the_very_type_have_its_digest(use: str) -> None:
    assert type_digest(unite_types(use.split(" | "))) == type_digest("i64(i64)")


def test_the_digest_of_a_use_says_nothing_of_variable_arguments() -> None:
    assert type_digest("i32(ptr, ..., f64) | i32(ptr, ..., i32)") == type_digest("i32(ptr, ...)")
    assert type_digest("variable 4 align 4 written") == type_digest("variable 4 align 4") != type_digest("variable 4 align 4 constant")


def test_a_load_of_equal_types_compares_nothing(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    cache.add_module(ModuleSource(caller("g", "f")))
    script = "import compcache\nvalue = compcache.Cache(directory).get_target('g')(41)\n"
    value, compared = run_fresh(directory, script + "result = value, 'compcache.hit.link_types' in sys.modules")
    assert (value, compared) == (42, False)


@pytest.mark.parametrize("sources", [(OF_NUMBERS, adder("f", 2)), (adder("f", 2), OF_NUMBERS)])
@pytest.mark.parametrize("linker", ["", "none"])
@pytest.mark.filterwarnings("ignore::compcache.ShadowWarning")
def test_each_gets_the_realization_of_the_type_that_it_expects(
    directory: Path, sources: tuple[str, str], linker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if linker:
        monkeypatch.setenv("COMPCACHE_LINKER", linker)
    with Cache(directory) as cache:
        for code in (*sources, caller("of_integers", "f"), CALLS_IT, CALLS_BOTH):
            cache.add_module(ModuleSource(code))
        passed = [text for verdict in cache.explain("of_numbers").verdicts for text in verdict.passed_over]
        assert len(passed) == 1
        assert "i64(i64)" in passed[0]
        assert "f64(f64)" in passed[0]
    for _ in range(2):  # what one load plans, the next one must not get wrong
        with Cache(directory) as cache:
            assert cache.get_target("both")(5.0) == 705.5
            assert (cache.get_target("of_integers")(5), cache.get_target("of_numbers")(5.0)) == (7, 5.5)
    with Cache(directory) as cache:
        held = cache.get_target("of_integers")
        assert (held(5), cache.get_target("of_numbers")(5.0), cache.get_target("both")(5.0)) == (7, 5.5, 705.5)


def test_what_expects_a_type_that_is_gone_is_not_run(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        importer = cache.add_module(ModuleSource(caller("g", "f")))
        cache.add_module(ModuleSource(caller("top", "g")))
        assert run_fresh(directory, "import compcache\nresult = compcache.Cache(directory, trust=True).get_target('top')(1)") == 2
        assert cache.check().findings == ()
        cache.remove("f", force=True)
        other = cache.add_module(ModuleSource(OF_NUMBERS))
    with Cache(directory, trust=True) as cache:  # no hit is plain
        for name in ("g", "top"):
            with pytest.raises(UndefinedSymbolError, match=rf"{other} is f64\(f64\).*{importer} uses it as i64\(i64\)"):
                cache.get_target(name)
        found = cache.explain("g")
        assert not found.hit
        assert "f64(f64)" in found.message
        findings = cache.check().findings
        assert [(f.kind, f.subject) for f in findings] == [("dangling", "f")]
        assert importer in findings[0].message
        cache.add_module(ModuleSource(adder("f", 3)))
        assert cache.get_target("top")(1) == 4
        assert cache.check().findings == ()


def test_importers_of_what_nothing_fits_give_way_to_other_realizations(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.add_module(ModuleSource(caller("g", "f")))
        cache.remove("f", force=True)
        cache.add_module(ModuleSource(OF_NUMBERS))
        with pytest.warns(UserWarning, match="the cache already has different code"):
            cache.add_module(ModuleSource(CALLS_IT.replace("of_numbers", "g")))
    with Cache(directory) as cache:
        assert cache.get_target("g")(1.0) == 1.5


def test_modules_without_types_bind_by_name(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("compcache.translation.emission.read_link_types", lambda *_: LinkTypes({}, {}))
        with Cache(directory) as cache:
            cache.add_module(ModuleSource(adder("f", 1)))
            cache.add_module(ModuleSource(caller("old", "f")))
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(caller("new", "old", plus=10)))
        assert cache.get_target("new")(1) == 12
        report = cache.check()
        assert report.findings == ()
        assert next(step for step in report.steps if step.name == "edges").numbers == {"dangling": 0, "unchecked": 2}
