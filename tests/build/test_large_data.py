"""Large constants: taken out of the code before it passes through text, and in the image as LLVM would have put them there."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from helpers import run_fresh
from hosts import host_like, on_host

from compcache import Cache, CompileError, ModuleSource
from compcache.build.ir_text import find_extreme_construct
from compcache.build.large_data.variables import abridged
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from pathlib import Path

_SIZE = 240_000  # bytes of each: less than what is set aside alone, more than that together
_RANDOM = random.Random(5)
_BYTES = {name: _RANDOM.randbytes(_SIZE) for name in ("seen", "own", "changed", "$ odd \xe9")}
_INTEGERS = [_RANDOM.getrandbits(31) for _ in range(_SIZE // 4)]


def _string(data: bytes) -> str:
    return "".join([f"\\{byte:02X}" for byte in data])


_KINDS = f"""\
%pair = type {{ i32, i8 }}
@seen = constant [{_SIZE} x i8] c"{_string(_BYTES["seen"])}", align 64
@own = private unnamed_addr constant [{_SIZE} x i8] c"{_string(_BYTES["own"])}"
@changed = internal global [{_SIZE} x i8] c"{_string(_BYTES["changed"])}"
@"$ odd \\C3\\A9" = hidden constant [{_SIZE} x i8] c"{_string(_BYTES["$ odd é"])}"
@integers = internal constant [{_SIZE // 4} x i32] [{", ".join([f"i32 {i}" for i in _INTEGERS])}], align 32
@pairs = internal constant [20000 x %pair] [{", ".join([f"%pair {{ i32 {i}, i8 7 }}" for i in range(20000)])}]
@functions = internal constant [20000 x ptr] [{", ".join(["ptr @seen_at", "ptr @own_at"] * 10000)}]
@placed = internal constant [{_SIZE} x i8] c"{"p" * _SIZE}", section "registry"
@zeros = internal global [{_SIZE} x i8] zeroinitializer
@short = internal constant [3 x i8] c"abc"
@second = alias i64 (i64), ptr @own_at

define i64 @seen_at(i64 %i) {{
  %p = getelementptr i8, ptr @seen, i64 %i
  %b = load i8, ptr %p
  %z = zext i8 %b to i64
  ret i64 %z
}}
define i64 @own_at(i64 %i) {{
  %p = getelementptr i8, ptr @own, i64 %i
  %b = load i8, ptr %p
  %z = zext i8 %b to i64
  ret i64 %z
}}
define i64 @odd_at(i64 %i) {{
  %p = getelementptr i8, ptr @"$ odd \\C3\\A9", i64 %i
  %b = load i8, ptr %p
  %z = zext i8 %b to i64
  ret i64 %z
}}
define i64 @changed_at(i64 %i) {{
  %p = getelementptr i8, ptr @changed, i64 %i
  %b = load i8, ptr %p
  %c = add i8 %b, 1
  store i8 %c, ptr %p
  %q = getelementptr i8, ptr @zeros, i64 %i
  store i8 %c, ptr %q
  %z = zext i8 %b to i64
  ret i64 %z
}}
define i64 @integer_at(i64 %i) {{
  %p = getelementptr i32, ptr @integers, i64 %i
  %b = load i32, ptr %p
  %z = zext i32 %b to i64
  ret i64 %z
}}
define i64 @pair_at(i64 %i) {{
  %p = getelementptr %pair, ptr @pairs, i64 %i
  %b = load i32, ptr %p
  %z = zext i32 %b to i64
  ret i64 %z
}}
define i64 @placed_at(i64 %i) {{
  %p = getelementptr i8, ptr @placed, i64 %i
  %b = load i8, ptr %p
  %z = zext i8 %b to i64
  ret i64 %z
}}
define i64 @by_table(i64 %i) {{
  %p = getelementptr ptr, ptr @functions, i64 %i
  %f = load ptr, ptr %p
  %r = call i64 %f(i64 %i)
  ret i64 %r
}}
define i64 @where() {{
  %p = ptrtoint ptr @seen to i64
  %q = ptrtoint ptr @integers to i64
  %a = and i64 %p, 63
  %b = and i64 %q, 31
  %r = or i64 %a, %b
  ret i64 %r
}}
"""
_ASSEMBLY = 'module asm "# nothing"\n'


def _as_bitcode(text: str) -> bytes:
    return bytes(llvm.parse_assembly(text, llvm.create_context()).as_bitcode())


def _check_values(cache: Cache) -> None:
    at = (0, 1, 17_003, 19_999)
    call = cache.get_target
    assert [call("seen_at")(i) for i in (*at, _SIZE - 1)] == [_BYTES["seen"][i] for i in (*at, _SIZE - 1)]
    assert [call("own_at")(i) for i in (*at, _SIZE - 1)] == [_BYTES["own"][i] for i in (*at, _SIZE - 1)]
    assert [call("second")(i) for i in at] == [_BYTES["own"][i] for i in at]
    assert [call("odd_at")(i) for i in (*at, _SIZE - 1)] == [_BYTES["$ odd é"][i] for i in (*at, _SIZE - 1)]
    assert [call("integer_at")(i) for i in at] == [_INTEGERS[i] for i in at]
    assert [call("pair_at")(i) for i in at] == list(at)
    assert call("placed_at")(_SIZE - 1) == ord("p")
    assert [call("by_table")(i) for i in (0, 1)] == [_BYTES["seen"][0], _BYTES["own"][1]]
    first = _BYTES["changed"][_SIZE - 1]
    changed_at = call("changed_at")  # held, for the module's variables live as long
    assert [changed_at(_SIZE - 1) for _ in range(2)] == [first, (first + 1) % 256]
    assert call("where")() == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "bitcode", "assembly"])
def test_every_kind_of_large_variable_has_its_value(cache: Cache, form: str) -> None:
    code: str | bytes = _KINDS if form == "text" else _as_bitcode(_KINDS)
    cache.add_module(ModuleSource(_ASSEMBLY + _KINDS if form == "assembly" else code))
    _check_values(cache)


@pytest.mark.slow
def test_without_a_linker(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_LINKER", "none")
    code = _KINDS.replace("@second = alias i64 (i64), ptr @own_at", "")
    cache.add_module(ModuleSource(code, {"integer_at": "i64(i64)", "own_at": None}))
    assert cache.get_target("integer_at")(17) == _INTEGERS[17]
    assert cache.get_target("own_at")(_SIZE - 1) == _BYTES["own"][-1]


@pytest.mark.slow
def test_what_is_kept_beside_the_image_is_small_and_gives_its_code(cache: Cache, directory: Path) -> None:
    code = _KINDS[: _KINDS.index("@pairs")] + _KINDS[_KINDS.index("@zeros") :].replace("%pair", "i32").replace("@pairs", "@integers")
    code = code[: code.index("define i64 @placed_at")] + code[code.index("define i64 @where") :]
    cache.add_module(ModuleSource(code))
    assert len(cache.ir("seen_at")) < 20_000
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    assert max(sizes) < 7 * _SIZE + 60_000  # the values once, and little else
    assert cache.check(recompile=True).findings == ()
    assert (
        run_fresh(directory, f"from compcache import Cache\nresult = Cache(directory).get_target('own_at')({_SIZE - 1})")
        == _BYTES["own"][-1]
    )


@pytest.mark.slow
def test_other_values_are_another_module(cache: Cache) -> None:
    code = _KINDS.replace("@second = alias i64 (i64), ptr @own_at", "")
    first = cache.add_module(ModuleSource(code, {"seen_at": None}))
    assert cache.add_module(ModuleSource(code, {"seen_at": None})) == first
    changed = code.replace(_string(_BYTES["seen"][-4:]), _string(bytes(4)), 1)
    assert cache.add_module(ModuleSource(changed, {"seen_at": None})) != first


@pytest.mark.slow
def test_another_module_sees_a_large_variable(cache: Cache) -> None:
    cache.add_module(ModuleSource(_KINDS))
    reader = "@seen = external global i8\ndefine i64 @first() {\n  %b = load i8, ptr @seen\n  %z = zext i8 %b to i64\n  ret i64 %z\n}\n"
    cache.add_module(ModuleSource(reader))
    assert cache.get_target("first")() == _BYTES["seen"][0]
    assert "seen" in cache.dependencies("first")


@pytest.mark.slow
@pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")
def test_code_for_another_host_has_the_values(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(_KINDS, cpu="x86-64-v4"))
    with on_host(Cache(directory), host_like("nehalem")) as older:
        _check_values(older)
        assert older.check(recompile=True).findings == ()


def test_long_constants_are_left_out_of_what_is_searched() -> None:
    short = abridged(_KINDS)
    assert len(short) < len(_KINDS) / 5
    assert "define i64 @where" in short
    floats = "@f = constant [200000 x float] [" + ", ".join(["float 0x3FB99999A0000000", "float -1.500000e+00"] * 100000) + "]"
    assert len(abridged(floats)) < 100
    assert find_extreme_construct(abridged(_KINDS + "@v = external global <5000 x i8>\n")) is not None


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "bitcode"])
def test_limits_hold_for_code_with_large_data(cache: Cache, form: str) -> None:
    bad = _KINDS + "define <5000 x i8> @wide(<5000 x i8> %x) {\n  ret <5000 x i8> %x\n}\n"
    with pytest.raises(CompileError, match="5000 elements"):
        cache.add_module(ModuleSource(bad if form == "text" else _as_bitcode(bad)))
