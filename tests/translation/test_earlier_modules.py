"""What a process translated earlier does not change the code of a module: not its flags, attributes or variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, run_fresh

from compcache import Cache, ModuleSource
from compcache.images.native_target import borrow_machine, note_module

if TYPE_CHECKING:
    from pathlib import Path

#: Code whose translation depends on options of the target: the alignment of the stack, and floating-point modes.
_SENSITIVE = """\
declare void @free(ptr)
define void @aligned(<4 x float> %x) {
  %a = alloca <4 x float>, align 16
  store volatile <4 x float> %x, ptr %a
  call void @free(ptr null)
  ret void
}
define double @fused(double %x, double %y, double %z) {
  %m = fmul double %x, %y
  %s = fadd double %m, %z
  ret double %s
}
"""
_FLAGGED = """\
define void @flagged() {{
  ret void
}}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"{flag}", i32 {value}}}
"""
_STARTED = "@llvm.global_ctors = appending global [{number} x {{ i32, ptr, ptr }}] [{pointers}]\n"
_KEPT = '@llvm.used = appending global [{number} x ptr] [{pointers}], section "llvm.metadata"\n'
_EARLIER = {
    "another alignment of the stack": _FLAGGED.format(flag="override-stack-alignment", value=4),
    "frame pointers": _FLAGGED.format(flag="frame-pointer", value=2),
    "unwinding tables": _FLAGGED.format(flag="uwtable", value=2),
    "fast arithmetic": 'define double @fast(double %x) "unsafe-fp-math"="true" "no-nans-fp-math"="true" {\n  ret double %x\n}\n',
    "software arithmetic": 'define i64 @soft(i64 %x) "use-soft-float"="true" {\n  ret i64 %x\n}\n',
}


@pytest.mark.parametrize("code", _EARLIER.values(), ids=_EARLIER.keys())
def test_an_earlier_module_changes_no_later_one(tmp_path: Path, code: str) -> None:
    later = run_fresh(tmp_path / "both", f"""\
from compcache import Cache, ModuleSource
from compcache.images.native_target import borrow_machine, note_module
result = [Cache(directory).add_module(ModuleSource(code)) for code in ({code!r}, {_SENSITIVE!r})][1]
""")
    assert later == Cache(tmp_path / "alone").add_module(ModuleSource(_SENSITIVE))


def test_a_module_has_its_alignment_of_the_stack_after_any_module(tmp_path: Path) -> None:
    flagged = _SENSITIVE + '!llvm.module.flags = !{!0}\n!0 = !{i32 1, !"override-stack-alignment", i32 4}\n'
    after = run_fresh(tmp_path / "both", f"""\
from compcache import Cache, ModuleSource
result = [Cache(directory).add_module(ModuleSource(code)) for code in ({adder("earlier", 1)!r}, {flagged!r})][1]
""")
    assert after == run_fresh(tmp_path / "alone", f"""\
from compcache import Cache, ModuleSource
result = Cache(directory).add_module(ModuleSource({flagged!r}))
""")


@pytest.mark.parametrize(
    ("kept_list", "pointer"), [(_KEPT, "ptr @{}"), (_STARTED, "{{ i32, ptr, ptr }} {{ i32 65535, ptr @{}, ptr null }}")]
)
def test_functions_at_the_addresses_of_kept_ones_are_ordinary(tmp_path: Path, kept_list: str, pointer: str) -> None:
    names = [f"kept{number}" for number in range(50)]
    kept = "".join(adder(name, 1) for name in names) + kept_list.format(number=len(names), pointers=", ".join(map(pointer.format, names)))
    later = ModuleSource(adder("later", 2) + "".join(f"@later{number} = global i64 {number}\n" for number in range(50)))
    ids = {Cache(tmp_path / "first").add_module(later)}
    for number in range(30):
        Cache(tmp_path / f"kept{number}").add_module(ModuleSource(kept))
        ids.add(Cache(tmp_path / f"{number}").add_module(later))
    assert len(ids) == 1


def test_a_large_module_is_not_printed_to_decide_whether_a_machine_is_reused() -> None:
    class Large:
        functions = range(100_000)

        def __str__(self) -> str:
            raise AssertionError

    with borrow_machine("", "", 2, "") as machine:
        note_module(Large(), machine)
        assert not machine.is_reusable
