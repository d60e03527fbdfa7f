"""What code requires of a host's CPU, however its features were named; what it does not require."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from helpers import adder, constant
from hosts import LOOP, host_like, on_host

from compcache import Cache, CompileError, ModuleSource, NotCachedError
from compcache.formats.host import platform_name
from compcache.publish import host_file
from compcache.targets.cpu_table import cpu_table
from compcache.targets.host_probe import probe_host
from compcache.targets.machine import machine_for
from compcache.targets.processor_words import enabled_features

if TYPE_CHECKING:
    from pathlib import Path

    from compcache.formats.host import Processor
    from compcache.targets.host_probe import Host

pytestmark = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")

#: Internal code for AVX-512 that is called behind a question, as libraries with run-time dispatch are built.
DISPATCH = """\
declare i1 @asks()
define i64 @dispatches(i64 %x, i1 %wide) {
  br i1 %wide, label %yes, label %no
yes:
  %y = call i64 @wide(i64 %x)
  ret i64 %y
no:
  ret i64 %x
}
define i64 @wide(i64 %x) noinline "target-features"="+avx512bw" {
  %y = add i64 %x, 1
  ret i64 %y
}
"""


def features_of(cache: Cache, name: str) -> frozenset[str]:
    (realization,) = cache.realizations(name)
    return enabled_features(realization.features)


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize(
    ("cpu", "features"),
    [("x86-64-v3", None), ("x86-64", "+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe,+xsave,+popcnt,+sahf,+cx16,+crc32"), ("haswell", "-rdrnd")],
)
def test_code_requires_what_its_machine_has_however_it_was_named(cache: Cache, directory: Path, cpu: str, features: str | None) -> None:
    cache.add_module(ModuleSource(constant("f", 1), cpu=cpu, features=features))
    assert {"avx2", "avx", "fma", "sse4.2", "bmi2"} <= features_of(cache, "f")
    with (
        on_host(Cache(directory, retarget=False), host_like("nehalem")) as nehalem,
        pytest.raises(NotCachedError, match=r"uses .*avx.*, which this nehalem does not have"),
    ):
        nehalem.get_target("f")
    with on_host(Cache(directory, retarget=False), host_like("haswell")) as haswell:
        assert haswell.get_target("f")() == 1


def test_the_least_of_the_architecture_runs_everywhere(cache: Cache, directory: Path) -> None:
    for number, cpu in enumerate(("x86-64", "generic", "")):
        cache.add_module(ModuleSource(constant(f"f{number}", number), cpu=cpu))
        assert features_of(cache, f"f{number}") <= {"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"}
    with on_host(Cache(directory, retarget=False), host_like("x86-64")) as oldest:
        assert oldest.get_target("f0")() == 0


@pytest.mark.slow
@pytest.mark.usefixtures("undecoded")
def test_features_of_the_operating_system_do_not_come_with_a_name(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1), cpu="znver4"))
    assert not {"pku", "mwaitx", "invpcid", "shstk"} & features_of(cache, "f")
    cache.add_module(ModuleSource(constant("g", 1), cpu="x86-64", features="+mwaitx"))
    assert "mwaitx" in features_of(cache, "g")
    reads = """\
declare i64 @llvm.x86.rdfsbase.64()
define i64 @h() {
  %x = call i64 @llvm.x86.rdfsbase.64()
  ret i64 %x
}
"""
    cache.add_module(ModuleSource(reads, cpu="haswell"))
    assert "fsgsbase" in features_of(cache, "h")


#: What a compiler lists that was told to compile for a CPU, of which a hypervisor hides a part, and of which LLVM has forgotten a part.
LISTED = '"target-cpu"="x86-64" "target-features"="+sse4.2,+rdpru,+mwaitx,+clzero,+fsgsbase,-avx512er,-prefetchwt1"'


@pytest.mark.slow
@pytest.mark.parametrize(("body", "used"), [
    ("ret i64 1", set()),
    ('%x = call i64 asm "movq $$1, $0", "=r"()\n  ret i64 %x', set()),
    ("%x = call i64 @llvm.x86.rdfsbase.64()\n  ret i64 %x", {"fsgsbase"}),
    ('call void asm sideeffect "rdpru", "~{ax},~{dx}"()\n  ret i64 1', {"rdpru"}),
    ('call void asm sideeffect ".byte 15, 1, 253", "~{ax},~{dx}"()\n  ret i64 1', {"rdpru", "mwaitx", "clzero", "fsgsbase"}),
], ids=["plain", "assembly", "intrinsic", "instruction", "bytes"])  # fmt: skip
def test_features_of_the_operating_system_count_where_the_code_has_their_instructions(
    cache: Cache, directory: Path, body: str, used: set[str], capfd: pytest.CaptureFixture[str]
) -> None:
    code = f"declare i64 @llvm.x86.rdfsbase.64()\ndefine i64 @f() {LISTED} {{\n  {body}\n}}\n"
    code = code if "@llvm" in body else code.partition("\n")[2]
    cache.add_module(ModuleSource(code, cpu="x86-64"))
    assert capfd.readouterr().err == ""  # LLVM's complaints about what it does not know
    host = on_host(Cache(directory, retarget=False), host_like("nehalem"))
    if not used:
        assert host.get_target("f")() == 1
        return
    with pytest.raises(NotCachedError) as refused:
        host.get_target("f")
    message = str(refused.value)
    assert {name for name in ("rdpru", "mwaitx", "clzero", "fsgsbase") if name in message} == used
    # There is no other name to ask for.
    assert message.endswith("which this nehalem does not have: compile it here, or for a CPU whose features all hosts have")


def test_tuning_is_no_requirement(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("f", 1), cpu="x86-64", features="+prefer-256-bit,-slow-3ops-lea"))
    assert not {"prefer-256-bit", "slow-3ops-lea"} & features_of(cache, "f")


@pytest.mark.usefixtures("undecoded")
def test_run_time_dispatch_requires_nothing(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(DISPATCH, {"dispatches": "i64(i64, bool)", "wide": None}, cpu="x86-64"))
    with on_host(Cache(directory, retarget=False), host_like("x86-64")) as oldest:
        assert oldest.get_target("dispatches")(4, False) == 4
        with pytest.raises(NotCachedError, match=r"function 'wide' of module .* uses avx.*, which this x86-64 does not have"):
            oldest.get_target("wide")
        assert oldest.has("dispatches")
        assert not oldest.has("wide")
    with on_host(Cache(directory, retarget=False), host_like("skylake-avx512")) as later:
        assert later.has("wide")


@pytest.mark.usefixtures("undecoded")
def test_an_alias_requires_what_its_function_requires(cache: Cache, directory: Path) -> None:
    code = DISPATCH + "@other = alias i64 (i64), ptr @wide\n"
    cache.add_module(ModuleSource(code, {"other": None}, cpu="x86-64"))
    with on_host(Cache(directory, retarget=False), host_like("x86-64")) as oldest, pytest.raises(NotCachedError, match="avx512bw"):
        oldest.get_target("other")


@pytest.mark.parametrize("source", [
    ModuleSource(constant("f", 1), cpu="x86-64-v9"),
    ModuleSource(constant("f", 1), features="+avx3"),
    ModuleSource(constant("f", 1), cpu="neoverse-n1"),
    ModuleSource('define i64 @f() "target-cpu"="x86-64-v9" {\n  ret i64 1\n}\n'),
], ids=["cpu", "feature", "other-architecture", "attribute"])  # fmt: skip
def test_names_that_llvm_does_not_know_are_refused(cache: Cache, source: ModuleSource, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompileError, match=r"that LLVM knows"):
        cache.add_module(source)
    assert capfd.readouterr().err == ""  # LLVM did not get to see it


# ------------------------------------------------------------------ what hypervisors hide


def told(cpu: str, hidden: tuple[str, ...]) -> dict[str, bool]:
    table = cpu_table("x86_64", llvm.llvm_version_info[0])
    assert table is not None
    return {name: name in table.expand(cpu) and not name.startswith(hidden) for name in table.required}


def test_what_the_host_does_not_have_is_taken_away_from_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "skylake-avx512")
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: told("skylake-avx512", ("avx512", "pku")))
    host = probe_host(host_like("skylake-avx512").processor)
    assert "-avx512f" in host.adjustments.split(",")
    assert "avx2" in enabled_features(host.features)
    machine = machine_for(None, None, host, platform_name())
    assert not [name for name in machine.requires if name.startswith("avx512")]
    assert machine.cpu == "skylake-avx512"  # still tuned for it


def test_the_host_is_asked_for_where_no_handler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = []

    def asked() -> str:
        asking.append(threading.get_ident())
        return "skylake-avx512"

    monkeypatch.setattr(llvm, "get_host_cpu_name", asked)
    probe_host(host_like("skylake-avx512").processor)
    assert len(asking) == 1
    assert threading.main_thread().ident not in asking


def test_a_feature_whose_base_is_hidden_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "skylake-avx512")
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: told("skylake-avx512", ("fma",)))
    host = probe_host(host_like("skylake-avx512").processor)
    assert not {"avx512f", "avx512bw", "fma"} & enabled_features(host.features)
    machine = machine_for(None, None, host, platform_name())
    assert not {"avx512f", "avx512bw", "fma"} & machine.requires


def test_native_code_of_a_masked_host_has_no_hidden_instructions(cache: Cache) -> None:
    masked = host_like("skylake-avx512", "-avx512f")
    on_host(cache, masked)
    select = "%c = fcmp ogt double %x, 1.0\n  %z = select i1 %c, double %y, double %x\n  store double %z"
    loop = LOOP.replace("store double %y", select)
    cache.add_module(ModuleSource(loop, {"scale": "void(f64[:])"}))
    module = cache.realizations("scale")[0].module_id
    from compcache.build.kept_code import read_code

    assembly = read_code(cache._store, module).assembly(2)
    assert "ymm" in assembly
    assert "zmm" not in assembly
    assert "%k1" not in assembly


def test_a_function_with_features_of_its_own_does_not_get_the_hidden_ones_back(cache: Cache) -> None:
    # To LLVM a function's features take the place of the machine's, which is what takes the hidden ones away.
    on_host(cache, host_like("skylake-avx512", "-avx512f"))
    code = 'define i64 @f(i64 %x) "target-features"="+popcnt" {\n  ret i64 %x\n}\n'
    cache.add_module(ModuleSource(code))
    assert not [name for name in features_of(cache, "f") if name.startswith("avx512")]
    assert cache.get_target("f")(3) == 3


def test_llvm_is_asked_once_for_all_directories_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is kept of its answer keeps no processor, which refers to the directory that it was asked for."""
    asked: list[str] = []

    def probe(processor: Processor) -> Host:
        asked.append(processor.identity)
        return probe_host(processor)

    monkeypatch.setattr(host_file, "probe_host", probe)
    monkeypatch.setattr(host_file, "_probed", {})
    for number in range(3):
        with Cache(tmp_path / str(number)) as cache:
            cache.add_module(ModuleSource(adder("f", number)))
            assert cache.get_target("f")(1) == number + 1
    assert len(asked) == 1
    assert [{type(part) for part in told} for told in host_file._probed.values()] == [{str}]
