"""Entry points that are put together of patterns do what LLVM makes of their assembly. (On AArch64: `tests/peer/test_aarch64.py`.)"""

from __future__ import annotations

import platform
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from entry_programs import differences
from llvmlite import binding as llvm

from compcache import Cache, ModuleSource
from compcache.build.entry_code import made
from compcache.build.entry_points import EntryPoint
from compcache.images.elf.parts import read_header
from compcache.translation import emission

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="LLVM compiles all entry points")

#: How deep the stack is, as an unwinder sees it.
DEPTH = """
declare i32 @backtrace(ptr, i32)
define i32 @depth(i32 %a, double %b) {
  %room = alloca [512 x ptr]
  %count = call i32 @backtrace(ptr %room, i32 512)
  ret i32 %count
}
"""


def plain(*types: str, signature: str = "", convention: str = "") -> EntryPoint:
    names = [{"double": "f64", "float": "f32", "i1": "bool", "ptr": "object"}.get(t, t) for t in types]
    return EntryPoint(signature or f"i64({', '.join(names)})", types, "i64", (False,) * len(types), convention, nogil=False)


@pytest.mark.parametrize("seed", [36, 71])
def test_calls_end_as_where_llvm_has_compiled_the_entry_point(tmp_path: Path, seed: int) -> None:
    """Results, errors and references that are kept, of right and wrong arguments of all types."""
    good, unequal = differences(str(tmp_path), seed, count=40, calls=12)
    assert good > 100
    assert not unequal, (seed, unequal[:3])


def test_unwinding_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depths = []
    for number, way in enumerate((made.entry_object, lambda points: (b"", tuple(points)))):
        monkeypatch.setattr(made, "entry_object", way)
        emission._objects_of.cache_clear()
        with Cache(tmp_path / str(number)) as cache:
            cache.add_module(ModuleSource(DEPTH))
            depths.append(cache.get_target("depth")(1, 2.0))
    emission._objects_of.cache_clear()
    assert depths[0] == depths[1]
    assert depths[0] > 4


@pytest.mark.parametrize("machine", [62, 183])
def test_the_object_is_what_tools_expect(tmp_path: Path, machine: int) -> None:
    """Disassembled it is code without a gap, and its frames cover it."""
    points = [plain("i64"), plain("i8", "double", "i1"), plain(*["float"] * 12, *["i16"] * 12)]
    data, others = made.entry_object(points, machine)
    assert not others
    assert read_header(data).machine == machine
    (tmp_path / "o").write_bytes(data)
    try:
        shown = subprocess.run(["readelf", "-sW", "--debug-dump=frames", tmp_path / "o"], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no readelf")
    sizes = sorted(int(line.split()[2]) for line in shown.stdout.splitlines() if "compcache.entry." in line)
    ranges = [line.rpartition("pc=")[2].split("..") for line in shown.stdout.splitlines() if "FDE" in line]
    assert sorted(int(end, 16) - int(start, 16) for start, end in ranges) == sizes
    assert "arning" not in shown.stderr


def test_what_is_not_made_here_is_left_to_llvm() -> None:
    """Calling conventions of their own, frames of more than 2,032 bytes, other architectures."""
    own, many, ordinary = plain("i64", convention="fastcc"), plain(*["i64"] * 300), plain("i64")
    data, others = made.entry_object([own, ordinary, many])
    assert others == (own, many)
    assert data
    assert made.entry_object([ordinary], 243) == (b"", (ordinary,))


@pytest.mark.parametrize("machine", [62, 183])
def test_the_longest_code_has_jumps_that_reach(machine: int) -> None:
    """As many arguments of a kind as there is room for."""
    for kind in ("i64", "i8", "double", "float", "i1", "ptr"):
        counts = [count for count in range(120, 132) if made.entry_object([plain(*[kind] * count)], machine)[0]]
        assert 120 in counts
        assert 131 not in counts


def test_llvm_is_not_asked_for_what_is_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It emits the module, and no entry point."""
    emitted: list[Any] = []
    real = llvm.TargetMachine.emit_object

    def emit_object(machine: Any, module: Any) -> Any:
        emitted.append(module)
        return real(machine, module)

    monkeypatch.setattr(llvm.TargetMachine, "emit_object", emit_object)
    emission._objects_of.cache_clear()
    with Cache(tmp_path / "c") as cache:
        cache.add_module(ModuleSource("define i64 @f(i64 %x, i16 %y, float %z) {\n  ret i64 %x\n}\n"))
        assert cache.get_target("f")(5, 1, 2.0) == 5
    assert len(emitted) == 1
