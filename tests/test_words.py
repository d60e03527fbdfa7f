"""What people are told, in their words: calls, names, sizes, code that LLVM rejects, and what the log says."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder, caller

from compcache import ArgumentBufferError, Cache, CompileError, ModuleSource, NotCachedError, frontend

if TYPE_CHECKING:
    from pathlib import Path

    from compcache import CompiledFunctions

MANY = """
define double @f(double %a, i64 %b) {
  %c = sitofp i64 %b to double
  %d = fsub double %a, %c
  ret double %d
}
define i64 @m(ptr %p, i64 %n) { ret i64 %n }
define void @heat(ptr %u, i64 %n, double %dt) { ret void }
define void @text(ptr %s) { ret void }
define i8 @small(i8 %s) { ret i8 %s }
define i64 @big(i64 %s) { ret i64 %s }
"""
SIGNATURES = {
    "f": "f64(a: f64, b: i64)", "m": "i64(ptr, i64)", "heat": "void(u: f64[:], dt: f64)", "text": "void(s: cstr)",
    "small": "i8(x: i8)", "big": "u64(x: u64)",
}  # fmt: skip


@pytest.fixture
def kernels(cache: Cache) -> CompiledFunctions:
    """Functions with parameters of all kinds, named by content: their messages show the plain name."""
    return cache.compile(ModuleSource(MANY, SIGNATURES))


WRONG: list[tuple[str, type[Exception], str]] = [
    ("heat([1.0], 0.5)", ArgumentBufferError, r"heat(): u must be a C-contiguous f64 buffer, not list"),
    ("heat(b'12345678', .5)", ArgumentBufferError, r"heat(): u must be a writable C-contiguous f64 buffer, not a read-only bytes of"),
    ("f('x', 1)", TypeError, "f(): a must be a number (f64), not str"),
    ("f(10**400, 1)", OverflowError, "f(): a must be a number that f64 can hold, not 1000"),
    ("f(1.0, 2.5)", TypeError, "f(): b must be an integer (i64), not float"),
    ("f(1.0, 2**70)", OverflowError, "f(): b must be between -9223372036854775808 and"),
    ("small(300)", OverflowError, "small(): x must be between -128 and 127 (i8), not 300"),
    ("small('x')", TypeError, "small(): x must be an integer (i8), not str"),
    ("big(-1)", OverflowError, "big(): x must be between 0 and 18446744073709551615 (u64), not -1"),
    ("big('s')", TypeError, "big(): x must be an integer (u64), not str"),
    ("text('a\\0b')", ValueError, "text(): s must be text without NUL"),
    ("text(b'a\\0b')", ValueError, "text(): s must be text without NUL"),
    ("text(5)", TypeError, "text(): s must be str or bytes, not int"),
    ("m([1], 2)", TypeError, "m(): argument 1 must be an address (int, None,"),
    ("m(2**70, 2)", OverflowError, "m(): argument 1 must be a 64-bit address (-2**63 to 2**64-1, ptr), not 11805916"),
    ("m(b'abc')", TypeError, "m() takes 2 arguments, ptr, i64; 1 given; one buffer is passed as an address and a length if"),
    ("f(1, 2, 3)", TypeError, "f() takes 2 arguments, a: f64, b: i64; 3 given"),
    ("f(5, a=1)", TypeError, "f() got multiple values for argument 'a'"),
    ("f(a=1)", TypeError, "f() is missing b"),
    ("f(1, c=2)", TypeError, "f() has no parameter 'c': it takes a: f64, b: i64"),
    ("f(1, 2, b=3)", TypeError, "f() got multiple values for argument 'b'"),
    ("f(1, 2, 3, b=3)", TypeError, "f() takes 2 arguments"),
    ("m(p=1, n=2)", TypeError, "m() takes no keyword arguments: the parameters of i64(ptr, i64) have no names"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("call", "kind", "message"), WRONG, ids=[call for call, *_ in WRONG])
def test_a_wrong_call_names_function_and_parameter(
    kernels: CompiledFunctions, call: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match="^" + re.escape(message)):
        eval(call, {name: kernels[name] for name in kernels})


def test_arguments_may_be_given_by_name(kernels: CompiledFunctions) -> None:
    f = kernels.f
    assert [f(5, 2), f(5, b=2), f(a=5, b=2), f(b=2, a=5), f(*[], b=2, a=5)] == [3.0] * 5
    assert inspect.signature(f).bind(5, b=2).arguments == {"a": 5, "b": 2}
    assert str(inspect.signature(kernels.m)) == "(arg0: 'ptr', arg1: 'i64', /) -> 'i64'"
    before = sys.getrefcount(name := "a string of its own" * 2)
    for _ in range(50):
        with pytest.raises(TypeError):
            f(a=name, b=name)
    assert sys.getrefcount(name) <= before + 1


def test_what_a_class_of_the_callers_raises_is_not_replaced(kernels: CompiledFunctions) -> None:
    class Odd:
        def __float__(self) -> float:
            raise ValueError("my own words")

        def __index__(self) -> int:
            raise TypeError("my own words")

    for name, arguments in (("f", (Odd(), 1)), ("small", (Odd(),)), ("big", (Odd(),))):
        with pytest.raises((ValueError, TypeError), match=r"^my own words$"):
            kernels[name](*arguments)
    with pytest.raises(TypeError) as caught:
        kernels.f("x", 1)
    assert "must be real number" in str(caught.value.__context__)


# ------------------------------------------------------------------------------------------------------------- names


def test_a_near_name_is_suggested_to_who_reads_the_message(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(ModuleSource(adder("norm", 1)))
    cache.compile(adder("scale", 1))
    for wanted, advice in (("nrom", "did you mean 'norm'?"), ("scale", "there is 'scale-")):
        with pytest.raises(NotCachedError) as caught:
            cache.get_target(wanted)
        assert advice in str(caught.value)
    with pytest.raises(NotCachedError) as caught:
        cache.get_target("something else")
    assert str(caught.value).endswith(cache.path)
    from compcache.inspect import names

    monkeypatch.setattr(names, "suggestion", pytest.fail)
    with pytest.raises(NotCachedError):
        cache.get_target("nrom")  # who catches it pays for no list


@pytest.mark.slow
def test_the_command_line_takes_labels_and_suggests_names(directory: Path) -> None:
    with Cache(directory) as cache:
        kernels = cache.compile(adder("increase", 1))
        name = kernels.func_names["increase"]
        cache.add_module(ModuleSource(caller("plain", "increase"), imports={"increase": kernels.increase}))
    for command in (["call", "increase", "41"], ["call", name[:-20], "41"]):
        assert compcache("--dir", directory, *command).out == "42\n"
    assert name in compcache("--dir", directory, "show", "increase").out
    assert name in compcache("--dir", directory, "graph", "plain").out
    assert "did you mean 'plain'?\n" in compcache("--dir", directory, "show", "plian").err
    with Cache(directory) as cache:
        cache.compile(adder("increase", 2))
    assert "2 functions are named 'increase': increase-" in compcache("--dir", directory, "call", "increase", "1").err


def test_refusals_of_the_command_line_name_its_options(directory: Path) -> None:
    directory.chmod(0o777)
    done = compcache("--dir", directory, "ls")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "give --trust before the command" in done.err
    assert "trust=True" not in done.err
    assert compcache("--dir", directory, "--trust", "ls").status == 0


# ------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(("size", "expected"), [("5GB", 5 << 30), ("1.5 MiB", 3 << 19), (4096, 4096), ("0", None)])
def test_a_size_may_have_a_unit(directory: Path, size: Any, expected: int | None) -> None:
    with Cache(directory, max_size=size) as cache:
        assert cache.info().max_size == expected


@pytest.mark.parametrize(
    ("size", "kind"), [("much", ValueError), ("-1", ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_what_is_not_a_size_fails_at_once(tmp_path: Path, size: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^max_size"):
        Cache(tmp_path, max_size=size)


# ------------------------------------------------------------------------------------------------- LLVM and the linker


def test_errors_of_llvm_keep_line_and_caret(cache: Cache, directory: Path, tmp_path: Path) -> None:
    code = "define i64 @f() {\n  ret i64 %nothing\n}\n"
    with pytest.raises(CompileError, match=r"(?s):2:11: error: .*ret i64 %nothing\n {10}\^"):
        cache.compile(code)
    (tmp_path / "f.ll").write_text(code)
    done = compcache("--dir", directory, "add", tmp_path / "f.ll")
    assert done.status == 2
    lines = done.err.splitlines()
    assert lines[0].startswith(f"compcache: error: {tmp_path / 'f.ll'}: ")
    assert lines[-1].strip() == "^"
    assert lines[-2][lines[-1].index("^")] == "%"


# --------------------------------------------------------------------------------------------------------------- log


def test_what_a_cache_does_is_one_line_each(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="compcache"):
        with Cache(directory) as cache:
            cache.get_or_compile("f", lambda: adder("f", 1))
        with Cache(directory) as cache:
            module_id = cache.get_target("f").module_id
    patterns = [
        r"miss f \(absent\): function 'f' is not in the cache .*",
        r"compiled f in [\d.]+ m?s",
        r"published a module of \d+ bytes",
        rf"hit f: module {module_id[:12]}, [\d.]+ ms",
    ]
    messages = [message for message in caplog.messages if not message.startswith("waited")]
    assert len(messages) == len(patterns), messages
    assert [bool(re.fullmatch(*pair)) for pair in zip(patterns, messages, strict=True)] == [True] * len(patterns), messages


@pytest.mark.slow
def test_waits_and_refusals_are_told(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    started = threading.Event()

    def slow() -> str:
        started.set()
        time.sleep(0.3)
        return adder("f", 1)

    with caplog.at_level(logging.DEBUG, logger="compcache"), Cache(directory) as first, Cache(directory) as second:
        thread = threading.Thread(target=first.get_or_compile, args=("f", slow))
        thread.start()
        started.wait()
        second.get_or_compile("f", lambda: adder("f", 1))
        thread.join()
        frontend.note_uncached(second, "kernels.g", "it reads a file")
    end = "'compile f': (acquired|another process or thread holds it)"
    assert any(re.fullmatch(rf"waited [\d.]+ m?s for the lock {end}", message) for message in caplog.messages)
    assert "refused kernels.g: it reads a file" in caplog.messages


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_environment_makes_it_visible_and_nothing_else_imports_logging(directory: Path, value: str) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r})\nfrom compcache import Cache\nCache({str(directory)!r}).get_target('f')"
    )
    environment = {"COMPCACHE_DEBUG": value} if value == "1" else {}
    program += "\nprint('logging' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{value == '1'}\n"
    assert bool(re.fullmatch(r"compcache: hit f: module \w+, [\d.]+ ms\n", done.stderr)) == (value == "1")
