"""Code that is kept of other CPUs' realizations, compiled for this host: on demand, and in the background."""

from __future__ import annotations

import time
import warnings
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from helpers import caller, frees_callers, run_fresh
from hosts import LOOP, NEEDS_AVX2, SUM, host_like, on_host
from processes import Crowd

from compcache import Cache, Function, ModuleSource, NotCachedError, UndefinedSymbolError, frontend
from compcache.formats.graph import decode_notes
from compcache.formats.host import platform_name
from compcache.miss import claim, compile_once
from compcache.targets import used_features

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")

VALUES = array("d", range(100))
USES_ALL = """\
@scale = external global i64
@table = constant [2 x ptr] [ptr @inner, ptr @inner]
declare i64 @leaf(i64)
define i64 @inner(i64 %x) noinline {
  %s = load i64, ptr @scale
  %y = mul i64 %x, %s
  ret i64 %y
}
define i64 @top(i64 %x, i64 %n) {
  %slot = getelementptr ptr, ptr @table, i64 %n
  %f = load ptr, ptr %slot
  %y = call i64 %f(i64 %x)
  %z = call i64 @leaf(i64 %y)
  ret i64 %z
}
"""

#: To call the other function for a CPU of another width would look for its vector in other registers.
WIDE_CALL = """\
define <8 x float> @shuffle(ptr %f, <8 x float> %x) {
  %y = call <8 x float> %f(<8 x float> %x)
  ret <8 x float> %y
}
"""


def older(directory: Path, cpu: str = "nehalem", **options: bool) -> Cache:
    return on_host(Cache(directory, **options), host_like(cpu))  # type: ignore[arg-type]


@pytest.mark.parametrize("cpu", ["x86-64-v4", None], ids=["named", "native"])
def test_code_for_other_cpus_is_compiled_for_this_one(cache: Cache, directory: Path, cpu: str | None) -> None:
    if cpu is None:
        on_host(cache, host_like("skylake-avx512"))
    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}, cpu=cpu, identity={"made of": "a test"}))
    with older(directory) as nehalem:
        assert not nehalem.has("sum")
        target = nehalem.get_target("sum")
        assert target(VALUES) == sum(VALUES)
        assert nehalem.has("sum")
        module_id = target.module_id
        mine = {r.module_id: r for r in nehalem.realizations("sum")}
        assert mine[module_id].cpu == "nehalem"
        assert "avx" not in mine[module_id].features
        with nehalem._store.open_module(bytes.fromhex(module_id)) as module:
            assert decode_notes(module.read(module.footer().content, module.footer().notes))["identity"] == {"made of": "a test"}
        assert nehalem.check(recompile=True).findings == ()
    with older(directory, retarget=False) as again:
        assert again.get_target("sum").module_id == module_id
    with older(directory) as third:
        assert len(third.realizations("sum")) == 2


def test_code_for_this_cpu_knows_the_source_it_was_made_of(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source(text: str) -> ModuleSource:
        return ModuleSource(text, {"sum": "f64(f64[:])"}, cpu="x86-64-v4")

    monkeypatch.setenv("COMPCACHE_CHECK", "1")
    cache.add_module(source(SUM))
    with older(directory) as nehalem:
        assert nehalem.get_target("sum")(VALUES) == sum(VALUES)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            nehalem.get_or_compile("sum", lambda: source(SUM))
        with pytest.warns(UserWarning, match="'sum' was compiled from different code"):
            nehalem.get_or_compile("sum", lambda: source(SUM.replace("fadd", "fsub")))


def test_code_that_was_not_optimized_yet_gets_the_width_of_the_host(cache: Cache, directory: Path) -> None:
    from compcache.build.kept_code import read_code

    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}, cpu="x86-64-v4"))
    with older(directory) as nehalem:
        module_id = nehalem.get_target("sum").module_id
        assert "ymm" not in read_code(nehalem._store, module_id).assembly(2)


@pytest.mark.parametrize(
    ("attribute", "cpu", "changes"),
    [('"target-cpu"="x86-64"', "nehalem", "+avx"), ('"target-features"="+sse3"', "haswell", "-avx2")],
)
def test_code_of_earlier_versions_does_not_take_half_of_its_cpu_from_this_one(
    cache: Cache, directory: Path, attribute: str, cpu: str, changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their stored code may name a CPU without features, or features without a CPU. A hypervisor may hide features of this CPU."""
    from compcache.build.kept_code import read_code

    own = LOOP.replace("@scale(ptr noalias %a, i64 %n)", f"@own(ptr noalias %a, i64 %n) {attribute}")
    for_any_cpu = LOOP.replace("double", "i64").replace("fmul", "mul").replace("3.0", "3")
    with monkeypatch.context() as patch:
        patch.setattr(used_features, "with_complete_attributes", lambda text, *_: text)
        cache.add_module(ModuleSource(for_any_cpu + own, cpu="x86-64-v4"))
    with on_host(Cache(directory), host_like(cpu, changes)) as host:
        code = read_code(host._store, host.get_target("scale").module_id)
        assert "mulpd" in code.assembly(2)
        assert "vmulpd" not in code.assembly(2)
        assert "avx" not in host.realizations("own")[0].features


def test_imports_globals_and_tables_are_what_they_were(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource("define i64 @leaf(i64 %x) {\n  %y = add i64 %x, 1\n  ret i64 %y\n}\n", cpu="x86-64-v3"))
    functions = {"top": Function("i64(x: i64, n: i64)", nogil=True)}
    cache.add_module(ModuleSource(USES_ALL, functions, {"scale": 7}, imports=["leaf"], cpu="x86-64-v3"))
    expected = cache.get_target("top").signature
    with older(directory) as nehalem:
        target = nehalem.get_target("top")
        assert target(6, 1) == 43
        assert target.signature == expected
        assert nehalem.dependencies("top", transitive=True) == cache.dependencies("top", transitive=True)


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize("cpus", [["x86-64"], ["x86-64", "x86-64"], ["x86-64-v3", "x86-64", "x86-64-v3"]], ids=len)
def test_what_a_usable_function_needs_is_retargeted(cache: Cache, directory: Path, cpus: list[str]) -> None:
    leaf = "define i64 @f0(i64 %x) noinline {\n  %y = add i64 %x, 1\n  ret i64 %y\n}\n"
    cache.add_module(ModuleSource(leaf, cpu="x86-64-v3"))
    for number, cpu in enumerate(cpus):
        code = caller(f"f{number + 1}", f"f{number}", plus=2).replace(") {", ") noinline {")
        cache.add_module(ModuleSource(code, cpu=cpu))
    with older(directory, retarget=False) as nehalem, pytest.raises((NotCachedError, UndefinedSymbolError)):
        nehalem.get_target(f"f{len(cpus)}")
    with older(directory) as nehalem:
        assert nehalem.get_target(f"f{len(cpus)}")(1) == 2 + 2 * len(cpus)


@pytest.mark.usefixtures("undecoded")
def test_what_is_stored_while_a_miss_begins_is_retargeted_with_its_imports(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def single_flight(*arguments: Any, **more: Any) -> Any:
        cache.add_module(ModuleSource("define i64 @leaf(i64 %x) noinline {\n  ret i64 %x\n}\n", cpu="x86-64-v3"))
        cache.add_module(ModuleSource(caller("top", "leaf", plus=2), cpu="x86-64"))
        return claim.single_flight(*arguments, **more)

    monkeypatch.setattr(compile_once, "single_flight", single_flight)
    with older(directory) as nehalem:
        assert nehalem.get_or_compile("top", lambda: pytest.fail("the function is stored"))(1) == 3


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize(
    "source",
    [
        ModuleSource(NEEDS_AVX2, {"shuffle": None}, cpu="x86-64-v3"),
        ModuleSource('define i64 @shuffle() {\n  call void asm "vzeroupper", ""()\n  ret i64 1\n}\n', cpu="x86-64-v3"),
        ModuleSource("define i64 @shuffle() {\n  ret i64 1\n}\n", cpu="x86-64-v3", keep_bitcode=False),
        ModuleSource(WIDE_CALL, {"shuffle": None}, cpu="x86-64-v3"),
        ModuleSource('define i64 @shuffle() "target-features"="+avx2" {\n  ret i64 1\n}\n', cpu="x86-64-v3"),
    ],
    ids=["intrinsics", "assembly", "no-code", "vectors", "attributes"],
)
def test_code_that_may_need_what_the_host_lacks_stays_a_miss(cache: Cache, directory: Path, source: ModuleSource) -> None:
    cache.add_module(source)
    with older(directory) as nehalem, pytest.raises(NotCachedError, match="this nehalem does not have"):
        nehalem.get_target("shuffle")


@pytest.mark.usefixtures("undecoded")
def test_without_retarget_it_is_a_miss(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}, cpu="x86-64-v4"))
    with older(directory, retarget=False) as nehalem, pytest.raises(NotCachedError, match="avx512"):
        nehalem.get_target("sum")


def test_a_read_only_cache_keeps_what_it_compiled_in_memory(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}, cpu="x86-64-v4"))
    with older(directory, readonly=True) as nehalem:
        assert nehalem.get_target("sum")(VALUES) == sum(VALUES)
    assert len(cache.realizations("sum")) == 1


def test_it_counts_as_a_miss_that_was_compiled(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}, cpu="x86-64-v4"))
    before = cache.stats()
    with older(directory) as nehalem:
        nehalem.get_target("sum")
    after = cache.stats()
    assert (after.misses - before.misses, after.compilations - before.compilations) == (1, 1)


# ------------------------------------------------------------------- tuning


def test_code_without_targets_gets_the_width_of_a_richer_host(cache: Cache, directory: Path) -> None:
    from compcache.build.kept_code import read_code
    from compcache.miss.retarget import tune

    on_host(cache, host_like("x86-64-v2"))
    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}))
    with on_host(Cache(directory), host_like("haswell")) as haswell:
        assert tune(haswell._session(), "sum")
        found = {r.cpu: r.module_id for r in haswell.realizations("sum")}
        assert "ymm" in read_code(haswell._store, found["haswell"]).assembly(2)
        assert "ymm" not in read_code(haswell._store, found["x86-64-v2"]).assembly(2)

_STATE = """\
@state = {linkage}global i64 0
define i64 @add(i64 %x) {{
  %p = {place}
  %a = load i64, ptr %p
  %b = add i64 %a, %x
  store i64 %b, ptr %p
  ret i64 %b
}}
define i64 @read() {{
  %p = {place}
  %a = load i64, ptr %p
  ret i64 %a
}}
declare ptr @llvm.threadlocal.address.p0(ptr)
"""
_READER = """\
@state = external thread_local global i64
declare ptr @llvm.threadlocal.address.p0(ptr)
define i64 @read_elsewhere() {
  %p = call ptr @llvm.threadlocal.address.p0(ptr @state)
  %a = load i64, ptr %p
  ret i64 %a
}
"""


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("linkage", ["internal ", "thread_local "])
def test_code_that_is_tuned_meanwhile_does_not_divide_the_state(directory: Path, group: str | None, linkage: str) -> None:
    from compcache.miss.retarget import tune

    is_thread_local = linkage == "thread_local "
    place = "call ptr @llvm.threadlocal.address.p0(ptr @state)" if is_thread_local else "getelementptr i8, ptr @state, i64 0"
    on_host(cache := Cache(directory), host_like("x86-64-v2"))
    cache.add_modules([ModuleSource(_STATE.format(linkage=linkage, place=place))], group)
    if is_thread_local:
        cache.add_module(ModuleSource(_READER))
    with on_host(Cache(directory), host_like("haswell")) as haswell:
        add = haswell.get_target("add")
        assert add(5) == 5
        assert tune(haswell._session(), "add")
        names = ["read", "read_elsewhere"] if is_thread_local else ["read"]
        assert [haswell.get_target(name)() for name in names] == [5] * len(names)
        assert len(haswell.realizations("add")) == 2


def test_code_beside_a_thread_local_variable_does_not_divide_it(directory: Path) -> None:
    code = _STATE.format(linkage="thread_local ", place="call ptr @llvm.threadlocal.address.p0(ptr @state)")
    with Cache(directory) as cache:
        cache.add_modules([ModuleSource(code), ModuleSource(_READER)])
        add = cache.get_target("add")
        assert add(5) == 5
        Cache(directory).add_module(ModuleSource(code + "define i64 @more(i64 %x) {\n  ret i64 %x\n}\n"))
        assert (cache.get_target("read")(), cache.get_target("read_elsewhere")()) == (5, 5)


TUNING = """
import array, time
from compcache import Cache
barrier()
with Cache(directory, tune=True) as cache:
    result = cache.get_target("sum")(array.array("d", range(100))), cache.realizations("sum")[0].cpu
"""


@pytest.mark.slow
def test_a_host_that_got_less_makes_its_own_in_the_background(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}, targets=["x86-64"]))
    with Crowd(directory, [TUNING] * 8) as crowd:
        crowd.release()
        answers = crowd.results()
    assert {value for value, _ in answers} == {float(sum(VALUES))}
    cpu = cache._store.host().cpu
    deadline = time.monotonic() + 60
    while cpu not in {r.cpu for r in cache.realizations("sum")} and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sorted(r.cpu for r in cache.realizations("sum")) == sorted([cpu, "x86-64"])
    script = "from compcache import Cache\nc = Cache(directory, tune=True)\nt = c.get_target('sum')\nresult = t.module_id, c._tuners"
    module_id, tuners = run_fresh(directory, script)
    assert module_id == next(r.module_id for r in cache.realizations("sum") if r.cpu == cpu)
    assert tuners == {"sum": 0}


@pytest.mark.parametrize("way", [Cache.get_target, frontend.find])
def test_code_for_other_cpus_only_keeps_no_object_of_those_who_look_it_up(
    cache: Cache, directory: Path, way: Callable[[Cache, str], object]
) -> None:
    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}, cpu="x86-64-v4", keep_bitcode=False))
    with older(directory) as nehalem:
        assert frees_callers(lambda: way(nehalem, "sum"), NotCachedError)
