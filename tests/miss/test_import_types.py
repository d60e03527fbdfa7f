"""What is added is compared with what the cache has of its imports: what contradicts all of it is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller

from compcache import Cache, CacheWarning, Function, Identity, ModulesNotAddedError, ModuleSource, SignatureMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

OF_NUMBERS = "define double @f(double %x) {\n  %y = fadd double %x, 5.000000e-01\n  ret double %y\n}\n"
USES_INTEGERS = caller("g", "f")


def _nothing(_: Cache) -> None:
    return None


@pytest.mark.parametrize("imports", [_nothing, lambda _: ["f"], lambda cache: {"f": cache.get_target("f")}])
def test_an_import_of_another_type_is_an_error(cache: Cache, imports: Callable[[Cache], Any]) -> None:
    module_id = cache.add_module(ModuleSource(OF_NUMBERS))
    with pytest.raises(SignatureMismatchError, match=rf"'f' is f64\(f64\) in module {module_id}.* i64\(i64\) in 'g'") as raised:
        cache.add_module(ModuleSource(USES_INTEGERS, imports=imports(cache)))
    assert (raised.value.func_name, raised.value.module_id) == ("f", module_id)
    assert not cache.has("g")
    with pytest.raises(SignatureMismatchError):
        cache.get_or_compile("g", lambda: ModuleSource(USES_INTEGERS))


def test_an_import_by_identity_is_compared(cache: Cache) -> None:
    identity = Identity("f", version=1)
    cache.add_module(ModuleSource(OF_NUMBERS, functions={identity.func_name: Function(symbol="f")}))
    with pytest.raises(SignatureMismatchError, match=r"f64\(f64\)"):
        cache.add_module(ModuleSource(USES_INTEGERS, imports={"f": identity}))


@pytest.mark.parametrize("number", [0, 1])
def test_sources_that_are_added_together_are_compared(cache: Cache, number: int) -> None:
    sources = [ModuleSource(OF_NUMBERS), ModuleSource(USES_INTEGERS)]
    with pytest.raises(ModulesNotAddedError, match=r"is f64\(f64\) in source") as raised:
        cache.add_modules(sources[::-1] if number else sources)
    (failure,) = raised.value.failures.values()
    assert isinstance(failure, SignatureMismatchError)
    assert cache.has("f")
    assert not cache.has("g")


def test_one_realization_that_fits_is_enough(cache: Cache) -> None:
    cache.add_module(ModuleSource(OF_NUMBERS))
    with pytest.warns(CacheWarning, match="the cache already has different code"):
        cache.add_module(ModuleSource(adder("f", 1)))
    cache.add_module(ModuleSource(USES_INTEGERS))
    assert cache.get_target("g")(1) == 2


def test_a_type_counts_as_call_sites_use_it(cache: Cache) -> None:
    cache.add_module(ModuleSource("define i64 @f(i64 %x, i64 %y) {\n  ret i64 %y\n}\n"))
    cache.add_module(ModuleSource("""
declare i32 @f(...)
define i64 @g() {
  %y = call i64 (i64, i64, ...) @f(i64 1, i64 7)
  ret i64 %y
}
"""))  # fmt: skip
    assert cache.get_target("g")() == 7
    with pytest.raises(SignatureMismatchError, match=r"more arguments \(2\) than its user passes \(1\)"):
        cache.add_module(ModuleSource("declare i64 @f(...)\ndefine i64 @h() {\n  %y = call i64 (i64, ...) @f(i64 1)\n  ret i64 %y\n}\n"))


def test_a_prototype_does_not_count_where_there_are_call_sites(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    code = "declare i64 @f(i64)\ndefine i64 @g() {\n  %y = call i64 @f(double 1.0)\n  ret i64 %y\n}\n"
    with pytest.raises(SignatureMismatchError, match="parameter 1 is i64, and its user passes f64"):
        cache.add_module(ModuleSource(code))


def test_a_result_that_nobody_looks_at_does_not_matter(cache: Cache) -> None:
    cache.add_module(ModuleSource(OF_NUMBERS))
    code = "declare i64 @f(double)\ndefine i64 @g() {\n  %y = call i64 @f(double 1.0)\n  ret i64 3\n}\n"
    cache.add_module(ModuleSource(code))
    assert cache.get_target("g")() == 3


def test_an_integer_of_128_bits_is_its_halves(cache: Cache) -> None:
    """C front ends write two integers for it, Rust's writes one."""
    cache.add_module(ModuleSource("define i128 @f(i128 %x) {\n  %y = shl i128 %x, 1\n  ret i128 %y\n}\n"))
    cache.add_module(ModuleSource("""
declare { i64, i64 } @f(i64, i64)
define i64 @g() {
  %y = call { i64, i64 } @f(i64 0, i64 21)
  %high = extractvalue { i64, i64 } %y, 1
  ret i64 %high
}
"""))  # fmt: skip
    assert cache.get_target("g")() == 42


def test_extensions_that_differ_are_a_warning(cache: Cache) -> None:
    cache.add_module(ModuleSource("define i64 @f(i8 signext %x) {\n  %y = sext i8 %x to i64\n  ret i64 %y\n}\n"))
    code = "declare i64 @f(i8)\ndefine i64 @g(i64 %x) {\n  %s = trunc i64 %x to i8\n  %y = call i64 @f(i8 %s)\n  ret i64 %y\n}\n"
    with pytest.warns(CacheWarning, match="i8 signext, and its user passes i8"):
        cache.add_module(ModuleSource(code))


@pytest.mark.parametrize(
    ("defined", "declared", "use", "message"),
    [
        ("global i32 3", "external global [64 x i64]", "load i64, ptr @v", "it has 4 bytes, and its user expects 512"),
        ("constant i64 3", "external global i64", "load i64, ptr @v\n  store i64 1, ptr @v", "it is constant, and its user writes to it"),
        ("global i64 3", "", "call i64 @v()", "it is a variable, and its user calls it"),
    ],
)
def test_variables_that_do_not_fit_are_an_error(cache: Cache, defined: str, declared: str, use: str, message: str) -> None:
    cache.add_module(ModuleSource(f"@v = {defined}\n"))
    head = f"@v = {declared}" if declared else "declare i64 @v()"
    with pytest.raises(SignatureMismatchError, match=message):
        cache.add_module(ModuleSource(f"{head}\ndefine i64 @g() {{\n  %y = {use}\n  ret i64 %y\n}}\n"))


def test_arrays_of_unknown_length_fit(cache: Cache) -> None:
    cache.add_module(ModuleSource("@v = global [4 x i64] [i64 1, i64 2, i64 3, i64 4]\n"))
    cache.add_module(ModuleSource("@v = external global [0 x i64]\ndefine i64 @g() {\n  %y = load i64, ptr @v\n  ret i64 %y\n}\n"))
    assert cache.get_target("g")() == 1


@pytest.mark.parametrize("other", ["", "thread_local "])
def test_thread_local_variables_are_no_others(cache: Cache, other: str) -> None:
    mine = "" if other else "thread_local "
    cache.add_module(ModuleSource(f"@v = {mine}global i64 3\ndefine void @q() {{\n  ret void\n}}\n"))
    code = f"@v = external {other}global i64\ndefine i64 @g() {{\n  %y = load i64, ptr @v\n  ret i64 %y\n}}\n"
    with pytest.raises(SignatureMismatchError, match="thread-local"):
        cache.add_module(ModuleSource(code))


#: Names that LLVM prints in quotes, or without them; names of Rust and Swift contain "$".
_NAMES = ["plain.-_0", "-first", "0first", "$s1f", "_ZN1f17h$u7b$E", "a b", "\\C3\\A9", "\\22\\5C", "a, ptr b", "a = b"]


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize(
    ("defined", "use"),
    [
        ('@"{}" = constant i64 4\n', '@"{0}" = external global i64\ndefine i64 @use() {{\n  store i64 3, ptr @"{0}"\n  ret i64 0\n}}\n'),
        (
            'define i64 @"{}"(double %x) {{\n  ret i64 1\n}}\n',
            'declare i64 @"{0}"(...)\ndefine i64 @use() {{\n  %r = call i64 (i64, ...) @"{0}"(i64 4)\n  ret i64 %r\n}}\n',
        ),
    ],
)
def test_uses_are_compared_whatever_the_name(cache: Cache, name: str, defined: str, use: str) -> None:
    cache.add_module(ModuleSource(defined.format(name)))
    with pytest.raises(SignatureMismatchError):
        cache.add_module(ModuleSource(use.format(name)))


@pytest.mark.parametrize("name", [*_NAMES, "\\01labelled"])
def test_thread_local_variables_are_shared_whatever_the_name(cache: Cache, name: str) -> None:
    use = f'@"{name}" = external thread_local global i64\ndefine i64 @use() {{\n  %r = load i64, ptr @"{name}"\n  ret i64 %r\n}}\n'
    cache.add_modules([ModuleSource(f'@"{name}" = thread_local global i64 4\n'), ModuleSource(use)])
    assert cache.get_target("use")() == 4


def test_strings_are_no_uses_of_thread_local_variables(cache: Cache) -> None:
    use = (
        '@text = constant [6 x i8] c"a@v =\\00"\n@v = external thread_local global i64\ndefine i64 @use() {\n  %p = alloca [3 x i8]\n'
        '  store [3 x i8] c"@v\\00", ptr %p\n  %c = load i8, ptr %p\n  %z = zext i8 %c to i64\n  %y = load i64, ptr @v\n'
        "  %r = add i64 %y, %z\n  ret i64 %r\n}\n"
    )
    cache.add_modules([ModuleSource("@v = thread_local global i64 4\n"), ModuleSource(use, optimize=0)])
    assert cache.get_target("use")() == 4 + ord("@")
