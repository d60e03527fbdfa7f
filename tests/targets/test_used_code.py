"""Code requires of a processor what its instructions use, not all that the compiler was allowed to use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from helpers import adder, constant, run_fresh
from hosts import LOOP, host_like, on_host

from compcache import Cache, Identity, ModuleSource, NotCachedError
from compcache.arch import x86_64
from compcache.formats.host import platform_name
from compcache.targets.processor_words import enabled_features

if TYPE_CHECKING:
    from pathlib import Path

    from compcache.arch.architecture import CodeReader

pytest.importorskip("iced_x86")
pytestmark = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")

COUNT = """\
declare i64 @llvm.ctpop.i64(i64)
declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.ctlz.i64(i64, i1)
define i64 @count(i64 %x) {
  %y = call i64 @llvm.ctpop.i64(i64 %x)
  ret i64 %y
}
define i64 @trailing(i64 %x) {
  %y = call i64 @llvm.cttz.i64(i64 %x, i1 true)
  ret i64 %y
}
define i64 @leading(i64 %x) {
  %y = call i64 @llvm.ctlz.i64(i64 %x, i1 false)
  ret i64 %y
}
"""
#: `through` calls `inner` directly, `by_table` through a table of constants.
REACHED = """\
declare i64 @llvm.ctpop.i64(i64)
@table = internal constant [2 x ptr] [ptr @inner, ptr @plain]
define internal i64 @inner(i64 %x) noinline {
  %y = call i64 @llvm.ctpop.i64(i64 %x)
  ret i64 %y
}
define internal i64 @plain(i64 %x) noinline {
  %y = mul i64 %x, 3
  ret i64 %y
}
define i64 @through(i64 %x) {
  %y = call i64 @inner(i64 %x)
  ret i64 %y
}
define i64 @by_table(i64 %x, i64 %n) {
  %m = and i64 %n, 1
  %p = getelementptr [2 x ptr], ptr @table, i64 0, i64 %m
  %f = load ptr, ptr %p
  %y = call i64 %f(i64 %x)
  ret i64 %y
}
define i64 @alone(i64 %x) {
  %y = call i64 @plain(i64 %x)
  ret i64 %y
}
"""


def features_of(cache: Cache, name: str) -> frozenset[str]:
    (realization,) = cache.realizations(name)
    return enabled_features(realization.features)


def test_two_integer_instructions_require_nothing_whatever_the_host_has(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1), cpu="skylake-avx512"))
    cache.add_module(ModuleSource(adder("g", 1)))
    assert features_of(cache, "f") == features_of(cache, "g") == frozenset()
    with on_host(Cache(directory, retarget=False), host_like("x86-64")) as oldest:
        assert oldest.get_target("f")(1) == oldest.get_target("g")(1) == 2


def test_functions_of_one_module_require_what_each_uses(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(LOOP + COUNT, {"scale": "void(f64[:])", "count": None, "trailing": None, "leading": None}, cpu="haswell"))
    assert features_of(cache, "count") == {"popcnt"}
    assert features_of(cache, "trailing") == {"bmi"}
    assert features_of(cache, "leading") == {"lzcnt"}
    assert {"avx"} <= features_of(cache, "scale") <= {"avx", "avx2", "sse3", "ssse3", "sse4.1", "sse4.2"}
    with on_host(Cache(directory, retarget=False), host_like("nehalem")) as nehalem:
        assert nehalem.get_target("count")(7) == 3
        for name, feature in (("scale", "avx"), ("trailing", "bmi"), ("leading", "lzcnt")):
            with pytest.raises(NotCachedError, match=rf"was compiled for haswell and uses .*{feature}.*, which this nehalem does not have"):
                nehalem.get_target(name)
    with on_host(Cache(directory, retarget=False), host_like("haswell")) as haswell:
        assert haswell.get_target("leading")(1) == 63


def test_an_encoding_that_older_processors_read_otherwise_counts_where_it_may_be_meant(cache: Cache) -> None:
    """TZCNT is BSF with a prefix to processors without it, and LLVM writes it for them where both give the same."""
    cache.add_module(ModuleSource(COUNT, {"trailing": None}, cpu="x86-64"))
    assert features_of(cache, "trailing") == frozenset()


def test_what_a_function_reaches_counts(cache: Cache) -> None:
    cache.add_module(ModuleSource(REACHED, {"through": None, "by_table": None, "alone": None}, cpu="haswell"))
    assert features_of(cache, "through") == {"popcnt"}
    assert features_of(cache, "by_table") == {"popcnt"}
    assert features_of(cache, "alone") == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("code", [
    'define i64 @f() {\n  %x = call i64 asm "movq $$1, $0", "=r"()\n  ret i64 %x\n}\n',
    f'module asm ".pushsection .text"\nmodule asm ".byte 6"\nmodule asm ".popsection"\n{constant("f", 1)}',
    'module asm ".text; .type g, @function; g: ret; .size g, . - g"\n' + constant("e", 0) + constant("f", 1),
    "define <4 x double> @v(<4 x double> %x) {\n  ret <4 x double> %x\n}\n" + constant("f", 1),
    "define private i64 @hidden(i64 %x) noinline {\n  %y = mul i64 %x, 7\n  ret i64 %y\n}\n"  # noqa: ISC004 - one module
    "define i64 @f(i64 %x) {\n  %y = call i64 @hidden(i64 %x)\n  ret i64 %y\n}\n",
], ids=["assembly", "data-in-code", "assembly-beside", "wide-vectors", "code-without-symbol"])  # fmt: skip
def test_where_something_cannot_be_told_all_is_required(cache: Cache, code: str) -> None:
    cache.add_module(ModuleSource(code, cpu="haswell"))
    assert {"avx2", "fma", "bmi2"} <= features_of(cache, "f")


def test_assembly_in_a_function_says_nothing_of_those_beside_it(cache: Cache, directory: Path) -> None:
    hiding = 'define i64 @hiding() {\n  %x = call i64 asm "movq $$1, $0", "=r"()\n  ret i64 %x\n}\n'
    calling = "define i64 @calling() {\n  %x = call i64 @hiding()\n  ret i64 %x\n}\n"
    cache.add_module(ModuleSource(hiding + calling + constant("beside", 4), cpu="haswell", optimize=0))
    assert {"avx2", "fma", "bmi2"} <= features_of(cache, "hiding") == features_of(cache, "calling")
    assert features_of(cache, "beside") == frozenset()
    with on_host(Cache(directory, retarget=False), host_like("x86-64")) as oldest:
        assert oldest.get_target("beside")() == 4


def _reader() -> CodeReader:
    reader = x86_64.ARCHITECTURE.code_reader()
    assert reader is not None
    return reader


def test_bytes_that_cannot_be_decoded_say_nothing() -> None:
    assert _reader().used_features(bytes.fromhex("0fafc7c3")) == frozenset()  # imul, ret
    assert _reader().used_features(bytes.fromhex("f30fb8c7c3")) == frozenset(("popcnt",))
    assert _reader().used_features(bytes.fromhex("0fafc706")) is None  # 06 was PUSH ES, and is nothing in 64-bit code


@pytest.mark.slow
def test_without_the_disassembler_all_is_required_and_everything_works(directory: Path) -> None:
    script = f"""
import sys
sys.modules["iced_x86"] = None
from compcache import Cache, ModuleSource
with Cache(directory) as cache:
    cache.add_module(ModuleSource({constant("f", 1)!r}, cpu="haswell"))
    result = cache.realizations("f")[0].features
"""
    assert {"avx2", "fma"} <= enabled_features(str(run_fresh(directory, script)))
    with on_host(Cache(directory), host_like("nehalem")) as nehalem:
        assert nehalem.get_target("f")() == 1  # retargeted


def test_the_disassembler_stays_off_hits(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(LOOP, {"scale": "void(f64[:])"}))
    script = (
        "import array, sys\nfrom compcache import Cache\nwith Cache(directory) as c:\n"
        "    c.get_target('scale')(array.array('d', [1.0]))\n"
    )
    script += "result = sorted({'iced_x86', 'llvmlite', 'compcache.targets'} & set(sys.modules))"
    assert run_fresh(directory, script) == []


def test_code_compiled_for_more_is_preferred_where_it_runs(cache: Cache, directory: Path) -> None:
    """Of realizations that a host can run, what each was compiled for still decides, where all do the same."""
    name = Identity("f", version=1).func_name
    for value, cpu in enumerate(("x86-64", "haswell", "skylake-avx512")):
        cache.add_module(ModuleSource(constant(name, value), cpu=cpu))
    for cpu, expected in (("x86-64", 0), ("haswell", 1), ("skylake-avx512", 2)):
        with on_host(Cache(directory, retarget=False), host_like(cpu)) as host:
            assert host.get_target(name)() == expected


def test_every_feature_of_the_disassembler_is_known_or_narrows_nothing() -> None:
    from iced_x86 import CpuidFeature

    names = {name for name in vars(CpuidFeature) if name.isupper()}
    assert not x86_64._WITHOUT_FEATURE & x86_64._NAMES.keys()
    assert names >= x86_64._WITHOUT_FEATURE | x86_64._NAMES.keys()
    from compcache.targets.processor_words import feature_words

    assert set(x86_64._NAMES.values()) <= feature_words("x86_64").keys()
    assert sys.modules["iced_x86"] is not None
