"""Small functions of content are inlined: it is as if all were one module, and their modules are not needed any more."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from faulty_makers import set_faults
from helpers import adder, caller, run_fresh, sum_of
from inlined_programs import FOLLOWED, HEAD, apart, bits, follow, inlined, together

from compcache import Cache, Function, Identity, ModuleSource, NotCachedError
from compcache.build.inlining import offers
from compcache.errors import FormatError
from compcache.formats.bodies import Body, encode_bodies, read_bodies
from compcache.miss.offers import find_bodies
from compcache.miss.retarget import tune
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from pathlib import Path

ADD = adder("add", 2)
KERNEL = caller("kernel", "add").partition("\n")[2]
#: How many programs are drawn by default, and by the long test.
FEW, MANY = 12, int(os.environ.get("COMPCACHE_TEST_SEEDS", "200"))


def kernel_of(cache: Cache, helper: str, **options: Any) -> Any:
    """A kernel i64(i64) that calls the helper `add` of this code once."""
    return apart(cache, {"add": helper, "kernel": HEAD.format("kernel") + "%r = call i64 @add(i64 %x)\nret i64 %r\n}\n"}, **options)[
        "kernel"
    ]


def test_the_provider_is_not_needed_any_more(cache: Cache, directory: Path) -> None:
    kernel = kernel_of(cache, ADD)
    assert inlined(cache, kernel) == ["add"]
    assert "call" not in cache.ir(kernel.func_name)
    name = kernel.func_name
    (add,) = cache.dependencies(name)
    cache.remove(add, force=True)
    assert not cache.has(add)
    script = f"from compcache import Cache\nwith Cache({os.fspath(directory)!r}) as cache: result = cache.get_target({name!r})(40)"
    assert run_fresh(directory, script) == 42
    assert not cache.check(recompile=True).findings


def test_the_graph_says_from_which_realization(cache: Cache) -> None:
    functions = apart(cache, {"add": ADD, "kernel": HEAD.format("kernel") + "%r = call i64 @add(i64 %x)\nret i64 %r\n}\n"})
    graph = cache.graph([functions["kernel"].func_name])
    node = next(node for node in graph.nodes if node.kind == "inlined")
    assert (node.name, node.module_id) == (functions["add"].func_name, functions["add"].module_id)
    users = cache.graph([functions["add"].func_name], reverse=True)
    assert functions["kernel"].func_name in [node.name for node in users.nodes]


@pytest.mark.slow
def test_of_a_long_chain_the_nearest_come_in(cache: Cache) -> None:
    """All of them would make each addition cost what is there already."""
    functions = {"f0": HEAD.format("f0") + "%r = add i64 %x, 1\nret i64 %r\n}\n"}
    for number in range(1, 30):
        functions[f"f{number}"] = HEAD.format(f"f{number}") + f"%v = call i64 @f{number - 1}(i64 %x)\n%r = add i64 %v, 1\nret i64 %r\n}}\n"
    last = apart(cache, functions)["f29"]
    assert last(12) == 42
    graph = cache.graph([last.func_name])
    assert 3 <= len([node for node in graph.nodes if node.kind == "inlined" and (0, graph.nodes.index(node)) in graph.edges]) <= 14


DEEP = {
    "scale": "define double @scale(double %x) {\n%r = fmul double %x, 1.25\nret double %r\n}\n",
    "branch": """define double @branch(double %x) {
%c = fcmp olt double %x, 3.0
br i1 %c, label %small, label %large
small:
%s = call double @scale(double %x)
ret double %s
large:
%l = fadd double %x, 1.5
ret double %l
}
""",
    "pair": """define { double, double } @pair(double %x) {
%a = call double @branch(double %x)
%b = fsub double %a, %x
%p = insertvalue { double, double } poison, double %a, 0
%q = insertvalue { double, double } %p, double %b, 1
ret { double, double } %q
}
""",
    "total": """define double @total(ptr %p, i64 %n) {
entry:
br label %loop
loop:
%i = phi i64 [0, %entry], [%j, %loop]
%s = phi double [0.0, %entry], [%t, %loop]
%q = getelementptr double, ptr %p, i64 %i
%x = load double, ptr %q
%pair = call { double, double } @pair(double %x)
%a = extractvalue { double, double } %pair, 0
%b = extractvalue { double, double } %pair, 1
%ab = fadd double %a, %b
%t = fadd double %s, %ab
%j = add i64 %i, 1
%c = icmp slt i64 %j, %n
br i1 %c, label %loop, label %done
done:
ret double %t
}
""",
    "kernel": """define double @kernel(i64 %n) {
entry:
%m = alloca [4 x double]
br label %loop
loop:
%i = phi i64 [0, %entry], [%j, %loop]
%s = phi double [0.0, %entry], [%t, %loop]
%x = sitofp i64 %i to double
store double %x, ptr %m
%m1 = getelementptr double, ptr %m, i64 1
store double 2.0, ptr %m1
%m2 = getelementptr double, ptr %m, i64 2
store double %s, ptr %m2
%m3 = getelementptr double, ptr %m, i64 3
store double 3.5, ptr %m3
%v = call double @total(ptr %m, i64 4)
%t = fadd double %s, %v
%j = add i64 %i, 1
%c = icmp slt i64 %j, %n
br i1 %c, label %loop, label %done
done:
ret double %t
}
""",
}


def test_helpers_of_helpers_are_as_in_one_module(cache: Cache) -> None:
    kernel = apart(cache, DEEP)["kernel"]
    assert inlined(cache, kernel) == ["total", "pair", "branch", "scale"]
    code = cache.ir(kernel.func_name)
    assert not any(f"@{name}" in code.partition("@kernel(")[2] for name in DEEP)
    one = together(cache, DEEP)["kernel"]
    assert [bits(kernel(n)) for n in range(1, 9)] == [bits(one(n)) for n in range(1, 9)]


SLOT = "define i64 @add(i64 %x) "
RETURN = "%r = add i64 %x, 2\nret i64 %r\n}\n"
#: Too many instructions; the values are such that the result is x + 2.
LONG = "%y0 = add i64 %x, 2\n" + "".join(f"%y{n + 1} = xor i64 %y{n}, %x\n" for n in range(100))
WITHOUT = {
    "noinline": SLOT + "noinline {\n" + RETURN,
    "optnone": SLOT + "noinline optnone {\n" + RETURN,
    "returns-twice": "declare i32 @_setjmp(ptr) returns_twice\n@b = internal global [64 x i64] zeroinitializer\n"
    + SLOT + "{\n%s = call i32 @_setjmp(ptr @b) returns_twice\n" + RETURN,
    "strict-floats": SLOT + "strictfp {\n" + RETURN,
    "denormals": SLOT + '"denormal-fp-math"="preserve-sign,preserve-sign" {\n' + RETURN,
    "weak": "define weak i64 @add(i64 %x) {\n" + RETURN,
    "convention": "define fastcc i64 @add(i64 %x) {\n" + RETURN,
    "static": "@s = internal global i64 2\n" + SLOT
    + "{\n%t = load i64, ptr @s\n%u = add i64 %t, 0\nstore i64 %u, ptr @s\n%r = add i64 %x, %u\nret i64 %r\n}\n",
    "static-of-a-helper": "@s = internal global i64 2\ndefine internal i64 @two() {\n%t = load volatile i64, ptr @s\nret i64 %t\n}\n"
    + SLOT + "{\n%t = call i64 @two()\n%r = add i64 %x, %t\nret i64 %r\n}\n",
    "thread-local": "@s = internal thread_local global i64 2\n" + SLOT
    + "{\n%p = call ptr @llvm.threadlocal.address.p0(ptr @s)\n%t = load volatile i64, ptr %p\n%r = add i64 %x, %t\nret i64 %r\n}\n"
    + "declare ptr @llvm.threadlocal.address.p0(ptr)\n",
    "address-of-a-constant": "@s = internal constant i64 2\ndeclare i32 @memcmp(ptr, ptr, i64)\n" + SLOT
    + "{\n%p = ptrtoint ptr @s to i64\n%c = icmp eq i64 %p, %x\n%t = select i1 %c, i64 3, i64 2\n%r = add i64 %x, %t\nret i64 %r\n}\n",
    "address-of-a-function": SLOT
    + "{\n%p = ptrtoint ptr @add to i64\n%c = icmp eq i64 %p, %x\n%t = select i1 %c, i64 3, i64 2\n%r = add i64 %x, %t\nret i64 %r\n}\n",
    "assembly": SLOT + '{\n%y = call i64 asm "", "=r,0"(i64 %x)\n%r = add i64 %y, 2\nret i64 %r\n}\n',
    "indirect-branch": SLOT + "{\nindirectbr ptr blockaddress(@add, %a), [label %a]\na:\n" + RETURN,
    "personality": "declare i32 @__gxx_personality_v0(...)\ndeclare i32 @rand()\n" + SLOT + "personality ptr @__gxx_personality_v0 {\n"
    + "%y = invoke i32 @rand() to label %a unwind label %b\na:\n%r = add i64 %x, 2\nret i64 %r\nb:\n"
    + "%p = landingpad { ptr, i32 } cleanup\nresume { ptr, i32 } %p\n}\n",
    "return-address": "declare ptr @llvm.returnaddress(i32)\n" + SLOT
    + "{\n%p = call ptr @llvm.returnaddress(i32 0)\n%i = ptrtoint ptr %p to i64\n%c = icmp eq i64 %i, 0\n"
    + "%t = select i1 %c, i64 3, i64 2\n%r = add i64 %x, %t\nret i64 %r\n}\n",
    "many-instructions": SLOT + "{\n" + LONG + "ret i64 %y100\n}\n",
    "atomic": SLOT
    + "{\n%p = alloca i64\nstore i64 2, ptr %p\n%t = atomicrmw add ptr %p, i64 %x seq_cst\n%r = add i64 %x, %t\nret i64 %r\n}\n",
    "loose-floats": SLOT + '"unsafe-fp-math"="true" {\n' + RETURN,
}  # fmt: skip


@pytest.mark.parametrize("kind", WITHOUT)
@pytest.mark.filterwarnings("ignore")
def test_what_has_more_than_content_is_called(cache: Cache, kind: str) -> None:
    code = WITHOUT[kind]
    call = "call fastcc i64" if kind == "convention" else "call i64"
    kernel = apart(cache, {"add": code, "kernel": HEAD.format("kernel") + f"%r = {call} @add(i64 %x)\nret i64 %r\n}}\n"})["kernel"]
    assert kernel(40) == 42
    assert inlined(cache, kernel) == []
    assert len(cache.dependencies(kernel.func_name)) == 1


def test_functions_with_variable_arguments_are_called(cache: Cache) -> None:
    functions = {
        "add": "define i64 @add(i64 %x, ...) {\n" + RETURN,
        "kernel": HEAD.format("kernel") + "%r = call i64 (i64, ...) @add(i64 %x)\nret i64 %r\n}\n",
    }
    found = {"add": f"add-{'0' * 32}"}
    cache.add_module(ModuleSource(functions["add"], {found["add"]: Function(None, "add")}))
    code = "declare i64 @add(i64, ...)\n" + functions["kernel"]
    kernel = cache.compile(ModuleSource(code, imports=found)).kernel
    assert kernel(40) == 42
    assert inlined(cache, kernel) == []


@pytest.mark.parametrize("mode", ['"denormal-fp-math"="preserve-sign,preserve-sign"', "strictfp"])
def test_nothing_is_inlined_into_code_of_another_mode(cache: Cache, mode: str) -> None:
    add = cache.compile(ADD).add
    code = f"declare i64 @add(i64)\ndefine i64 @kernel(i64 %x) {mode} {{\n%r = call i64 @add(i64 %x)\nret i64 %r\n}}\n"
    kernel = cache.compile(ModuleSource(code, imports={"add": add})).kernel
    assert kernel(40) == 42
    assert inlined(cache, kernel) == []


@pytest.mark.parametrize("declared", ["i64 @add(i32)", "i64 @add(i64 signext)", "i64 @add(i64, i64)"])
@pytest.mark.filterwarnings("ignore")
def test_a_body_of_another_type_does_not_take_the_place_of_a_declaration(cache: Cache, declared: str) -> None:
    add = cache.compile(ADD).add
    code = f"declare {declared}\ndefine i64 @kernel(i64 %x) {{\n%r = call i64 @add(i64 %x)\nret i64 %r\n}}\n"
    kernel = cache.compile(ModuleSource(code, imports={"add": add})).kernel
    assert kernel(40) == 42
    assert inlined(cache, kernel) == []


def test_private_functions_and_constants_come_along(cache: Cache) -> None:
    helper = (
        "@table = private unnamed_addr constant [2 x i64] [i64 1, i64 2]\n"
        "define internal i64 @second(i64 %x) {\n%p = getelementptr [2 x i64], ptr @table, i64 0, i64 1\n"
        "%r = load i64, ptr %p\nret i64 %r\n}\n"
        + SLOT + "{\n%t = call i64 @second(i64 %x)\n%r = add i64 %x, %t\nret i64 %r\n}\n"
    )  # fmt: skip
    kernel = kernel_of(cache, helper)
    assert kernel(40) == 42
    assert inlined(cache, kernel) == ["add"]


def test_arguments_that_do_not_alias_in_a_call_may_alias_in_the_next(cache: Cache) -> None:
    kernel = apart(cache, FOLLOWED)["kernel"]
    assert inlined(cache, kernel) == ["follow"]
    assert follow(kernel) == 3


_PROMISES = [("", "nounwind", True), ("", "nounwind willreturn memory(none)", False), ("range(i64 0, 30) ", "", False)]


@pytest.mark.parametrize(("result", "promise", "is_inlined"), _PROMISES)
def test_a_module_that_promises_more_of_a_function_inlines_no_calls_of_it(
    cache: Cache, result: str, promise: str, is_inlined: bool
) -> None:
    work = "@seen = global i64 0\ndefine i64 @work(i64 %x) noinline {\n%s = load i64, ptr @seen\n%r = add i64 %s, %x\n"
    own = cache.compile(ModuleSource(work + "store i64 %r, ptr @seen\nret i64 %r\n}\n")).work
    careful = "declare i64 @work(i64)\n" + HEAD.format("careful") + "%a = call i64 @work(i64 %x) nounwind\n"
    careful += "%r = call i64 @work(i64 %x) nounwind\nret i64 %r\n}\n"
    caller_of_it = cache.compile(ModuleSource(careful, {"careful": None}, imports={"work": own})).careful
    code = f"declare {result}i64 @work(i64) {promise}\ndeclare i64 @careful(i64)\n" + HEAD.format("kernel")
    code += "%a = call i64 @careful(i64 %x)\n%b = call i64 @work(i64 0)\nret i64 %a\n}\n"
    kernel = cache.compile(ModuleSource(code, {"kernel": None}, imports={"work": own, "careful": caller_of_it})).kernel
    assert inlined(cache, kernel) == (["careful"] if is_inlined else [])
    assert kernel(20) == 40


def test_plain_names_stay_slots(cache: Cache) -> None:
    cache.add_module(ModuleSource(ADD))
    cache.add_module(ModuleSource(caller("kernel", "add"), {"kernel": None}))
    assert cache.explain("kernel").verdicts[0].inlined == ()
    cache.replace(ModuleSource(adder("add", 5)))
    with Cache(cache.path) as again:
        assert again.get_target("kernel")(40) == 45


def test_identities_are_content(cache: Cache) -> None:
    name = Identity("add", version="1")
    cache.get_or_compile(name, lambda: ADD)
    cache.add_module(ModuleSource(caller("kernel", "add"), {"kernel": None}, imports={"add": name}))
    assert cache.get_target("kernel")(40) == 42
    assert len(cache.explain("kernel").verdicts[0].inlined) == 1


def test_a_switch_turns_it_off(cache: Cache) -> None:
    add = cache.compile(ADD).add
    code = "declare i64 @add(i64)\n" + HEAD.format("kernel") + "%r = call i64 @add(i64 %x)\nret i64 %r\n}\n"
    with_calls = cache.compile(ModuleSource(code, imports={"add": add}, inline=False)).kernel
    assert with_calls(40) == 42
    assert inlined(cache, with_calls) == []
    assert cache.compile(ModuleSource(code, imports={"add": add})).kernel is with_calls, "it is the same function"


def test_nothing_is_offered_where_no_code_is_kept(cache: Cache) -> None:
    add = cache.compile(ModuleSource(ADD, keep_bitcode=False)).add
    code = "declare i64 @add(i64)\n" + HEAD.format("kernel") + "%r = call i64 @add(i64 %x)\nret i64 %r\n}\n"
    kernel = cache.compile(ModuleSource(code, imports={"add": add})).kernel
    assert kernel(40) == 42
    assert inlined(cache, kernel) == []


POWER = "declare double @j0(double)\ndefine double @square(double %x) {\n%r = call double @j0(double %x)\nret double %r\n}\n"


def test_what_a_body_calls_of_the_platform_stays_that(cache: Cache) -> None:
    square = cache.compile(POWER).square
    own = "define double @j0(double %x) {\n%r = fadd double %x, 1.0\nret double %r\n}\n"
    use = "declare double @square(double)\ndefine double @kernel(double %x) {\n%r = call double @square(double %x)\nret double %r\n}\n"
    kernel = cache.compile(ModuleSource(use + own, {"kernel": None}, imports={"square": square})).kernel
    assert kernel(0.0) == 1.0
    assert inlined(cache, kernel) == []
    plain = cache.compile(ModuleSource(use.replace("@kernel", "@plain"), imports={"square": square})).plain
    assert plain(0.0) == 1.0
    assert inlined(cache, plain) == ["square"]


def test_a_body_is_not_bound_to_what_is_imported_under_a_name_of_the_platform(cache: Cache) -> None:
    square = cache.compile(POWER).square
    other = cache.compile("define double @j0(double %x) {\n%r = fadd double %x, 1.0\nret double %r\n}\n")["j0"]
    code = (
        "declare double @square(double)\ndeclare double @j0(double)\ndefine double @kernel(double %x) {\n"
        "%a = call double @square(double %x)\n%r = call double @j0(double %a)\nret double %r\n}\n"
    )
    kernel = cache.compile(ModuleSource(code, imports={"square": square, "j0": other})).kernel
    assert kernel(0.0) == 2.0


def test_what_the_source_says_of_calls_stays_with_them(cache: Cache) -> None:
    """That one source says that `j0` reads nothing is nothing that another one has said."""
    quiet = POWER.replace("declare double @j0(double)", "declare double @j0(double) memory(none)")
    square = cache.compile(quiet).square
    code = (
        "declare double @square(double)\ndeclare double @j0(double)\ndefine double @kernel(double %x) {\n"
        "%a = call double @square(double %x)\n%r = call double @j0(double %a)\nret double %r\n}\n"
    )
    kernel = cache.compile(ModuleSource(code, imports={"square": square})).kernel
    assert inlined(cache, kernel) == ["square"]
    calls = [line for line in cache.ir(kernel.func_name).split("\n") if "@j0(" in line]
    assert [" #" in line for line in calls] == [True, False]


@pytest.mark.usefixtures("undecoded")
def test_code_is_made_for_other_processors_without_the_provider(directory: Path) -> None:
    with Cache(directory) as cache:
        add = cache.compile(ModuleSource(ADD, targets=("x86-64-v2",))).add
        code = "declare i64 @add(i64)\n" + HEAD.format("kernel") + "%r = call i64 @add(i64 %x)\nret i64 %r\n}\n"
        name = cache.compile(ModuleSource(code, imports={"add": add}, targets=("x86-64-v2",))).kernel.func_name
        cache.remove(add.func_name, force=True)
    with Cache(directory) as cache:
        assert tune(cache._session(), name)
        assert len(cache.explain(name).verdicts) == 2
        assert all(len(verdict.inlined) == 1 and not verdict.reason for verdict in cache.explain(name).verdicts)
        assert not cache.check().findings
        again = code.replace("@kernel", "@other").replace("@add", "@kernel").replace("ret i64 %r", "%s = mul i64 %r, 2\nret i64 %s")
        other = cache.compile(ModuleSource(again, imports={"kernel": name})).other
        assert other(40) == 84
        assert inlined(cache, other) == [], "the body of the kernel needs what is gone, and its module does not"
        cache.compile(ModuleSource(ADD, targets=("x86-64-v2",)))
        other = cache.compile(ModuleSource(again.replace("mul", "shl"), imports={"kernel": name})).other
        assert other(40) == 168
        assert inlined(cache, other) == ["kernel", "add"], "what was made of kept code offers what that offered"


@pytest.mark.slow
@pytest.mark.usefixtures("undecoded")
def test_what_is_made_of_kept_code_needs_nothing_more(cache: Cache) -> None:
    """LLVM inlines nothing of this length: the code for another processor has the body in it."""
    long = SLOT + "{\n%y0 = add i64 %x, 2\n" + "".join(f"%y{n + 1} = mul i64 %y{n}, %y{n}\n" for n in range(90)) + "ret i64 %y90\n}\n"
    add = cache.compile(ModuleSource(long, targets=("x86-64-v2",))).add
    code = "declare i64 @add(i64)\n" + HEAD.format("kernel") + "%r = call i64 @add(i64 %x)\nret i64 %r\n}\n"
    code = code.replace("ret", "%s = call i64 @add(i64 %r)\nret")
    kernel = cache.compile(ModuleSource(code, imports={"add": add}, targets=("x86-64-v2",)))
    name, value = kernel.kernel.func_name, kernel.kernel(3)
    with Cache(cache.path) as other:
        assert tune(other._session(), name)
        other.remove(add.func_name, force=True)
        assert [verdict.reason for verdict in other.explain(name).verdicts].count("") == 1
        assert other.get_target(name)(3) == value


def test_a_maker_of_what_was_inlined_is_a_maker(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(directory) as cache:
        add = cache.compile(ModuleSource(ADD, makers={"numba": "0.66.0"})).add
        code = "declare i64 @add(i64)\n" + HEAD.format("kernel") + "%r = call i64 @add(i64 %x)\nret i64 %r\n}\n"
        name = cache.compile(ModuleSource(code, imports={"add": add})).kernel.func_name
    set_faults(monkeypatch, "numba<0.66.1")
    with Cache(directory) as cache, pytest.raises(NotCachedError, match=r"numba 0\.66\.0"):
        cache.get_target(name)


def test_what_is_signed_has_code_of_what_is_signed_alone(directory: Path) -> None:
    key = generate_key("us")
    code = "declare i64 @add(i64)\n" + HEAD.format("kernel") + "%r = call i64 @add(i64 %x)\nret i64 %r\n}\n"
    with Cache(directory) as cache:
        add = cache.compile(ADD).add.func_name
    with Cache(directory, publish_key=str(key)) as cache:
        kernel = cache.compile(ModuleSource(code, imports={"add": add})).kernel
        assert kernel(40) == 42
        assert inlined(cache, kernel) == []
        own = cache.compile(ADD.replace("@add", "@own")).own
        kernel = cache.compile(ModuleSource(code.replace("@kernel", "@other"), imports={"add": own})).other
        assert inlined(cache, kernel) == ["own"]


def test_damaged_bodies_are_none(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from compcache.miss import offers

    def damaged(*_: object) -> None:
        raise FormatError("damaged")

    monkeypatch.setattr(offers, "read_bodies", damaged)
    kernel = kernel_of(cache, ADD)
    assert kernel(40) == 42
    assert inlined(cache, kernel) == []


@pytest.mark.parametrize("code", ["what no LLVM reads", "define i64 @f() {\nret i32 1\n}\n"])
def test_bodies_that_this_llvm_does_not_read_are_none(cache: Cache, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    from compcache.miss import offers

    real = read_bodies
    monkeypatch.setattr(offers, "read_bodies", lambda *given: {name: body._replace(code=code) for name, body in real(*given).items()})
    kernel = kernel_of(cache, ADD)
    assert kernel(40) == 42
    assert inlined(cache, kernel) == []


def test_long_bodies_are_not_kept(cache: Cache) -> None:
    short, long = (cache.compile(code)["add"].func_name for code in (ADD, WITHOUT["many-instructions"]))
    assert list(find_bodies(cache._session(), (short, long))) == [short]


def test_bodies_of_a_newer_llvm_are_not_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from compcache.miss import offers

    monkeypatch.setattr(offers, "llvm_version", lambda: "15.0.7")
    kernel = kernel_of(cache, ADD)
    assert kernel(40) == 42
    assert inlined(cache, kernel) == []


def test_bodies_are_read_as_they_were_written() -> None:
    bodies = [Body("f-1", 3, "define", ("pow",), ("g-1", "h-1")), Body("g-1", 0, "", (), ())]
    section = b"before" + encode_bodies(bodies)
    assert list(read_bodies(lambda at, size: section[at : at + size], len(section)).values()) == bodies
    assert encode_bodies([]) == b""
    assert read_bodies(lambda at, size: b"other"[at : at + size], 5) == {}
    for at in range(6, len(section) - 12):
        changed = section[:at] + bytes([section[at] ^ 255]) + section[at + 1 :]
        with pytest.raises(FormatError):
            read_bodies(lambda at, size, changed=changed: changed[at : at + size], len(changed))  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------------- random programs

OPERATIONS = ("add", "sub", "mul", "xor", "and", "or", "shl", "lshr")
FLOATS = ("fadd", "fsub", "fmul", "fdiv")


def random_program(seed: int) -> dict[str, str]:
    """Functions i64(i64, double) with branches, loops, memory and calls of those before them."""
    chance = random.Random(seed)
    functions: dict[str, str] = {}
    for number in range(chance.randint(2, 7)):
        lines, integers, floats = [], ["%x", str(chance.randint(-9, 9))], ["%y", "1.5"]
        for at in range(chance.randint(2, 12)):
            kind = chance.randrange(6)
            a, b = chance.choice(integers), chance.choice(integers)
            f, g = chance.choice(floats), chance.choice(floats)
            if kind == 0 and functions:
                lines.append(f"%v{at} = call i64 @{chance.choice(list(functions))}(i64 {a}, double {f})")
                integers.append(f"%v{at}")
            elif kind == 1:
                lines.append(f"%v{at} = {chance.choice(FLOATS)} double {f}, {g}")
                floats.append(f"%v{at}")
            elif kind == 2:
                lines += [f"%c{at} = fcmp olt double {f}, {g}", f"%v{at} = select i1 %c{at}, i64 {a}, i64 {b}"]
                integers.append(f"%v{at}")
            elif kind == 3:
                lines += [f"%p{at} = alloca i64", f"store i64 {a}, ptr %p{at}", f"%v{at} = load i64, ptr %p{at}"]
                integers.append(f"%v{at}")
            elif kind == 4:
                lines += [f"%m{at} = and i64 {a}, 255", f"%v{at} = sitofp i64 %m{at} to double"]
                floats.append(f"%v{at}")
            else:
                operation = chance.choice(OPERATIONS)
                b = str(chance.randint(0, 63)) if operation in ("shl", "lshr") else b
                lines.append(f"%v{at} = {operation} i64 {a}, {b}")
                integers.append(f"%v{at}")
        last = [f"%bits = bitcast double {floats[-1]} to i64", f"%nan = fcmp uno double {floats[-1]}, 0.0"]
        last += ["%number = select i1 %nan, i64 0, i64 %bits", f"%r = xor i64 %number, {integers[-1]}", "ret i64 %r"]  # a NaN has any sign
        if chance.random() < 0.5:
            lines = [
                "%odd = and i64 %x, 1",
                "%is = icmp eq i64 %odd, 0",
                "br i1 %is, label %end, label %go",
                "end:",
                "ret i64 %x",
                "go:",
                *lines,
            ]
        attribute = chance.choice(["", "", "noinline ", "nounwind ", "alwaysinline "])
        functions[f"f{number}"] = f"define i64 @f{number}(i64 %x, double %y) {attribute}{{\n" + "\n".join([*lines, *last, "}", ""])
    return functions


@pytest.mark.slow
@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=[pytest.mark.stress, pytest.mark.timeout(900)])])
def test_random_programs_give_the_same_bits(tmp_path: Path, number: int) -> None:
    brought = 0
    arguments = [(0, 0.5), (7, -3.25), (-12, 1e300), (255, 0.0)]
    for seed in range(number):
        program = random_program(seed)
        with Cache(tmp_path / f"{seed}") as cache, Cache(tmp_path / f"{seed} off") as other, Cache(tmp_path / f"{seed} one") as third:
            kinds = [apart(cache, program), apart(other, program, inline=False), together(third, program)]
            brought += sum(len(inlined(cache, target)) for target in kinds[0].values())
            for name in program:
                results = [[kind[name](*pair) for pair in arguments] for kind in kinds]
                assert results[0] == results[1] == results[2], (seed, name)
    assert brought > number


def test_a_body_may_write_names_as_an_earlier_version_wrote_them(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is too large for the module is imported under the module's name for it, also by what another body calls."""
    steps = "".join(f"  %x{number + 1} = mul i64 %x{number}, %x{number}\n" for number in range(150))
    large = f'define i64 @"a\\\\b"(i64 %x0) {{\n{steps}  ret i64 %x150\n}}\n'
    with monkeypatch.context() as patch:
        patch.setattr(offers, "quoted", lambda name: f'@"{name}"'.replace("\\", "\\5C"))
        (work,) = cache.compile(large).values()
        calling = cache.compile(ModuleSource(caller("calling", "work", plus=1), imports={"work": work})).calling
    code = sum_of("kernel", ["calling", "work"])
    assert cache.compile(ModuleSource(code, imports={"calling": calling, "work": work})).kernel(1) == 3


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("group", [None, "g"])
def test_what_is_imported_under_a_name_of_the_platform_is_not_taken_for_it(cache: Cache, inline: bool, group: str | None) -> None:
    """LLVM knows what functions of C's library do by their names, and computes them where their arguments are constants."""
    made = cache.compile(
        "define double @sqrt(double %x) {\n  %y = fadd double %x, 7.0\n  ret double %y\n}\ndefine i64 @strlen(ptr %x) {\n  ret i64 42\n}\n"
    )
    imports = {name: made[name].func_name for name in ("sqrt", "strlen")}
    code = """\
@text = private constant [4 x i8] c"abc\\00"
declare double @sqrt(double)
declare i64 @strlen(ptr)
define double @root() {
  %r = call double @sqrt(double 4.0)
  ret double %r
}
define i64 @length() {
  %r = call i64 @strlen(ptr @text)
  ret i64 %r
}
"""
    cache.add_modules([ModuleSource(code, imports=imports, inline=inline, optimize=3)], group=group)
    assert (cache.get_target("root")(), cache.get_target("length")()) == (11.0, 42)
