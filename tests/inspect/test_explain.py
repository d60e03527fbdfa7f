"""Why a function is a hit or a miss, for every reason that there is."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder, caller, flip_byte, module_file, run_fresh

from compcache import Cache, Function, Identity, ModuleSource, NotCachedError
from compcache.globals import ObjectIdentity
from compcache.publish.removal import remove_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_hit_names_its_realizations(cache: Cache) -> None:
    module_id = cache.add_module(ModuleSource(adder("f", 1)))
    explanation = cache.explain("f")
    assert explanation.hit
    assert explanation.reason == explanation.message == ""
    assert [(v.realization.module_id, v.reason) for v in explanation.verdicts] == [(module_id, "")]
    assert cache.loaded().modules == ()


def test_absence(cache: Cache) -> None:
    explanation = cache.explain("nothing")
    assert (explanation.hit, explanation.reason, explanation.verdicts, explanation.variants) == (False, "absent", (), ())


def test_another_cpu(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("f", 1), features="+avx512fp16,+amx-avx512"))
    explanation = cache.explain("f")
    if explanation.hit:
        pytest.skip("this host has every feature there is")
    assert explanation.reason == "cpu"
    assert [v.reason for v in explanation.verdicts] == ["cpu"]
    assert "amx-avx512" in explanation.verdicts[0].message


def test_a_missing_dependency(cache: Cache) -> None:
    leaf = cache.add_module(ModuleSource(adder("leaf", 1)))
    cache.add_module(ModuleSource(caller("top", "leaf")))
    remove_file(cache._store, bytes.fromhex(leaf))
    explanation = cache.explain("top")
    assert explanation.reason == "dependency"
    assert "'leaf'" in explanation.verdicts[0].message


def test_one_realization_may_be_passed_over_while_another_serves(cache: Cache) -> None:
    leaf = cache.add_module(ModuleSource(adder("leaf", 1)))
    cache.add_module(ModuleSource(caller("f", "leaf")))
    cache.add_module(ModuleSource(adder("f", 5)))
    remove_file(cache._store, bytes.fromhex(leaf))
    explanation = cache.explain("f")
    assert explanation.hit
    assert sorted(v.reason for v in explanation.verdicts) == ["", "dependency"]


def test_a_function_that_python_cannot_call(cache: Cache) -> None:
    cache.add_module(ModuleSource("define <4 x i32> @f(<4 x i32> %x) {\n ret <4 x i32> %x\n}\n"))
    assert cache.explain("f").reason == "signature"


def test_damage_since_it_was_added(cache: Cache, directory: Path) -> None:
    flip_byte(module_file(directory, cache.add_module(ModuleSource(adder("f", 1)))), 100)
    with Cache(directory) as opened, pytest.warns(UserWarning, match="damaged"), pytest.raises(NotCachedError) as caught:
        opened.get_target("f")
    assert type(caught.value.__cause__).__name__ == "IntegrityError"


@pytest.mark.slow
def test_a_global_that_is_not_what_it_was(directory: Path) -> None:
    with Cache(directory) as cache:
        ir = "@g = external global ptr\ndefine ptr @f() {\n %p = load ptr, ptr @g\n ret ptr %p\n}\n"
        cache.add_module(ModuleSource(ir, globals={"g": ObjectIdentity("logging", "getLogger")}))
        assert cache.explain("f").hit
    script = """
    import logging
    from compcache import Cache
    del logging.getLogger
    found = Cache(directory).explain("f")
    result = found.hit, found.reason
    """
    assert run_fresh(directory, script) == (False, "global")


def test_variants_are_ordered_by_how_little_they_differ(cache: Cache) -> None:
    wanted = Identity("f", a=1, b=1, c=1)
    for near in ({"a": 2}, {"a": 3, "b": 3}, {"a": 4, "b": 4, "c": 4}):
        identity = wanted.extend(**near)
        cache.add_module(ModuleSource(adder("f", len(near)), {identity.func_name: Function(symbol="f")}, identity=identity))
    other = Identity("g", a=1)
    cache.add_module(ModuleSource(adder("g", 1), {other.func_name: Function(symbol="g")}, identity=other))
    counts = [len(v.differences or ()) for v in cache.explain(wanted.func_name, wanted).variants]
    assert counts == [1, 2, 3]
    # Without the identity there is nothing to compare with: the variants are named all the same.
    assert [v.differences for v in cache.explain(wanted.func_name).variants] == [None, None, None]


def test_misses_are_logged_where_somebody_listens(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="compcache"), pytest.raises(NotCachedError):
        cache.get_target("nothing")
    assert caplog.messages == [f"miss nothing (absent): function 'nothing' is not in the cache {cache.path}"]


def _run_with_debug(directory: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"{script}\nfrom compcache import Cache\ntry: Cache().get_target('nothing')\nexcept KeyError: print('missed')",
        ],
        env={"PYTHONPATH": str(PACKAGE_ROOT), "COMPCACHE_DIR": str(directory), "COMPCACHE_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_makes_misses_visible(directory: Path) -> None:
    assert _run_with_debug(directory, "").stderr.startswith("compcache: miss nothing (absent): function 'nothing'")


def test_a_program_that_has_closed_standard_error_goes_on(directory: Path) -> None:
    assert _run_with_debug(directory, "import sys; sys.stderr.close()").stdout == "missed\n"


COUNTING = """\
@counter = internal global i64 0
@table = internal constant [2 x i64] [i64 5, i64 6]
define i64 @inc(i64 %i) {{
  %p = getelementptr [2 x i64], ptr @table, i64 0, i64 %i
  %step = load i64, ptr %p
  %old = load i64, ptr @counter
  %new = add i64 %old, %step
  store i64 %new, ptr @counter
  ret i64 %new
}}
define i64 @{other}(i64 %i) {{
  %p = getelementptr [2 x i64], ptr @table, i64 0, i64 %i
  %step = load i64, ptr %p
  %v = load i64, ptr @counter
  %n = mul i64 %v, {times}
  %m = add i64 %n, %step
  ret i64 %m
}}
"""


def test_a_variable_is_shared_where_it_can_be_and_else_explained(cache: Cache) -> None:
    ids = {
        other: cache.add_module(ModuleSource(COUNTING.format(other=other, times=times), optimize=0))
        for other, times in [("get", 1), ("pad", 0)]
    }
    with Cache(cache.path) as sharing:
        get, inc = sharing.get_target("get"), sharing.get_target("inc")
        assert (inc(0), get(0)) == (5, 10)
        assert sharing.explain("get").separate == ()
    with Cache(cache.path) as apart:
        targets = [apart.get_target(name) for name in ("pad", "inc", "get")]
        assert (targets[1](0), targets[2](0)) == (5, 5)
        (separate,) = apart.explain("get").separate
        assert (separate.variable, separate.module_id) == ("counter", ids["get"])
        assert (separate.other, separate.other_module_id) == ("inc", ids["pad"])
        assert str(separate).startswith("the variable 'counter' exists twice: 'get' uses the variable of module ")
        assert apart.explain("pad").separate == ()


def _add_scale(cache: Cache, factor: float, **named: Any) -> str:
    code = f"def scale(x):\n    y = x * {factor}\n    return y\n"
    identity = Identity("scale", code=code, **named)
    ir = f"define double @scale(double %x) {{\n  %a = fmul double %x, {factor}\n  ret double %a\n}}\n"
    cache.add_module(ModuleSource(ir, {identity.func_name: Function(symbol="scale")}, identity=identity))
    return identity.func_name


def test_a_label_is_the_function_stored_last_compared_with_the_one_before(directory: Path) -> None:
    with Cache(directory) as cache:
        oldest = _add_scale(cache, 2.0, fast=False)
        time.sleep(0.02)  # times of files tell the order
        before = _add_scale(cache, 3.0, fast=False)
        time.sleep(0.02)
        newest = _add_scale(cache, 3.5, fast=True)
        found = cache.explain("scale")
    assert (found.hit, found.func_name) == (True, newest)
    assert [variant.func_name for variant in found.variants] == [before, oldest]
    assert [difference.component for difference in found.variants[0].differences or ()] == ["code", "fast"]
    done = compcache("--dir", directory, "explain", "scale")
    assert done.status == 0
    assert done.out.startswith(f"{newest}: hit\n")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "2 y = x * 3.0 | 2 y = x * 3.5" in lines
    assert "fast: false -> true" in lines
    assert "not known" not in done.out


def test_a_plain_name_is_compared_with_what_was_added_under_it_before(directory: Path) -> None:
    with Cache(directory) as cache:
        for version in (1, 2):
            cache.add_module(ModuleSource(adder("f", version), identity={"version": version, "same": "x"}))
        (variant,) = cache.explain("f").variants
    assert [str(difference) for difference in variant.differences or ()] == ["version: 1 -> 2"]
