"""What CPU names stand for: the tables against the LLVM that is installed.

LLVM's inliner is asked: it inlines a function only into one that has all of its features. So a function for a CPU goes
into one for the same CPU less a feature exactly where the CPU does not have that feature.
"""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from compcache.errors import CompileError
from compcache.targets.cpu_table import CpuTable, cpu_table

CPUS = {
    "x86_64": ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "nehalem", "haswell", "skylake-avx512", "znver4"),
    "aarch64": ("generic", "cortex-a57", "neoverse-n1", "neoverse-v2", "a64fx", "apple-a9", "apple-m1", "apple-m3"),
}
#: The inliner does not ask for these, for no instruction of theirs is in code that could be inlined.
NOT_ASKED = {"64bit", "cx8", "cx16", "sahf"}
MAJOR = llvm.llvm_version_info[0]


def table(arch: str) -> CpuTable:
    found = cpu_table(arch, MAJOR)
    assert found is not None
    return found


def lost(arch: str, cpu: str, changes: str = "") -> frozenset[str]:
    """The features without which code for this CPU, changed so, is not inlined: those that it has."""
    llvm.initialize_all_targets()
    names = sorted(table(arch).required - NOT_ASKED)
    triple = f"{arch}-unknown-linux-gnu"
    own = changes + "," if changes else ""
    text = [f'target triple = "{triple}"\n']
    for number, name in enumerate(names):
        text.append(
            f'define internal i32 @callee{number}(i32 %x) "target-cpu"="{cpu}" "target-features"="{changes}" {{\n'
            "  %y = mul i32 %x, 3\n  ret i32 %y\n}\n"
            f'define i32 @caller{number}(i32 %x) "target-cpu"="{cpu}" "target-features"="{own}-{name}" {{\n'
            f"  %y = call i32 @callee{number}(i32 %x)\n  ret i32 %y\n}}\n"
        )
    module = llvm.parse_assembly("".join(text))
    machine = llvm.Target.from_triple(triple).create_target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    builder.getModulePassManager().run(module, builder)
    return frozenset([n for i, n in enumerate(names) if " call " in str(module.get_function(f"caller{i}"))])


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "cpu"), [(arch, cpu) for arch, cpus in CPUS.items() for cpu in cpus])
def test_a_cpu_has_the_features_that_llvm_gives_it(arch: str, cpu: str) -> None:
    assert lost(arch, cpu) == table(arch).expand(cpu) - NOT_ASKED


@pytest.mark.stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("arch", CPUS)
def test_every_cpu_has_the_features_that_llvm_gives_it(arch: str) -> None:
    wrong = [cpu for cpu in table(arch).cpus if lost(arch, cpu) != table(arch).expand(cpu) - NOT_ASKED]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    ["-avx", "-sse3", "+avx512bw", "+avx512bw,-avx2", "-avx2,+avx512bw", "-fma,+xop", "+gfni,-sse4.1", "-crc32"],
)
def test_changes_are_applied_as_llvm_applies_them(changes: str) -> None:
    assert lost("x86_64", "haswell", changes) == table("x86_64").expand("haswell", changes) - NOT_ASKED


def test_tuning_is_no_requirement() -> None:
    x86 = table("x86_64")
    assert x86.expand("haswell", "-slow-3ops-lea,+prefer-256-bit,+fast-gather") == x86.expand("haswell")
    assert not {"slow-3ops-lea", "prefer-256-bit", "ermsb", "vzeroupper", "retpoline"} & x86.required


def test_a_feature_that_builds_on_a_hidden_one_is_not_supported() -> None:
    x86 = table("x86_64")
    assert x86.supported(["sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "avx2"]) == {
        "sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cpu", "features", "message"),
    [
        ("haswel", "", r"'haswel', which is not a CPU of x86_64 that LLVM knows: did you mean haswell"),
        ("neoverse-n1", "", r"'neoverse-n1', which is not a CPU of x86_64 .*: use x86-64 or x86-64-v2 or .*, for example$"),
        ("i386", "", r"'i386', which is not a CPU of x86_64"),
        ("x86-64", "+avx3", r"'avx3', which is not a CPU feature of x86_64 that LLVM knows: did you mean avx"),
        ("x86-64", "+zzzz", r"LLVM knows: correct the name, or remove the feature"),
        ("x86-64", "avx2", r"the feature 'avx2' of a target must begin with \+ or -: write \+avx2 to enable it, -avx2 to disable it"),
    ],
)
def test_names_that_llvm_would_ignore_are_refused(cpu: str, features: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        table("x86_64").check(cpu, features)


def test_an_llvm_without_a_table_uses_the_next_older_one() -> None:
    later = cpu_table("x86_64", MAJOR + 50)
    assert later is not None
    assert later.expand("x86-64-v3") == table("x86_64").expand("x86-64-v3")
    assert cpu_table("riscv64", MAJOR) is None
