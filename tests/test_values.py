"""The small pure layers: digests, records, signatures, printed assembly, the dependency graph, exceptions."""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from helpers import constant, run_fresh
from hypothesis import given
from hypothesis import strategies as st

from compcache import Cache, ModuleSource, Signature, SignatureError, errors
from compcache.build.ir_text import parse_head, quote, read_module, split_parameters, symbol_counts, unquote
from compcache.depgraph import DependencyGraph, Need
from compcache.digest import check, digest, mac, name_key
from compcache.messagepack import pack, unpack, unpack_stream
from compcache.record import Record

if TYPE_CHECKING:
    from pathlib import Path

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)


# ------------------------------------------------------------------------------------ digests


def test_digests_are_blake2b() -> None:
    assert digest([b"ab", b"c"]) == hashlib.blake2b(b"abc", digest_size=16).digest()
    assert digest([b"abc"], size=6).hex() == hashlib.blake2b(b"abc", digest_size=6).hexdigest()
    assert check(b"abc").hex() == hashlib.blake2b(b"abc", digest_size=8).hexdigest()
    assert name_key("ü") == hashlib.blake2b("ü".encode(), digest_size=16, person=b"compcache-name").digest()


def test_purposes_places_and_keys_separate_digests() -> None:
    assert len({digest([b"x"]), digest([b"x"], person=b"a"), digest([b"x"], person=b"b")}) == 3
    assert len({check(b"x", salt) for salt in range(10)}) == 10
    keys = [b"k", b"l", b"m" * 64, b"m" * 65, b"m" * 66, b""]
    assert len({mac(b"x", key) for key in keys}) == len(keys)


# ------------------------------------------------------------------------------------ records


class Point(Record):
    __slots__ = ("x", "y")
    x: int
    y: int


class Spot(Record):
    __slots__ = ("x", "y")
    x: int
    y: int


def test_a_record_is_a_value() -> None:
    point: Any = Point(1, y=2)
    assert (point.x, point.y, repr(point)) == (1, 2, "Point(x=1, y=2)")
    assert point == Point(1, 2) != Point(1, 3)
    assert hash(point) == hash(Point(1, 2))
    assert point != Spot(1, 2)
    assert pickle.loads(pickle.dumps(point)) == point
    assert not hasattr(point, "__dict__")


def test_a_record_is_frozen() -> None:
    point: Any = Point(1, 2)
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 5
    with pytest.raises(AttributeError, match="frozen"):
        del point.x


@pytest.mark.parametrize(
    "make", [lambda: Point(1), lambda: Point(x=1), lambda: Point(1, 2, 3), lambda: Point(1, 2, z=3), lambda: Point(1, x=2, y=3)]
)
def test_a_record_takes_its_fields(make: Any) -> None:
    with pytest.raises(TypeError, match="must be called with the fields x, y"):
        make()


# ------------------------------------------------------------------------------------ signatures

TYPES = ["bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64"]
parameter_texts = st.one_of(
    st.sampled_from([*TYPES, "ptr", "cstr"]),
    st.builds(lambda const, t: f"{const}{t}[:]", st.sampled_from(["", "const "]), st.sampled_from(TYPES)),
)


@pytest.mark.slow
@given(st.sampled_from([*TYPES, "ptr", "cstr", "void"]), st.lists(parameter_texts, max_size=6))
def test_a_signature_comes_back_from_its_text(result: str, parameters: list[str]) -> None:
    text = f"{result}({', '.join(parameters)})"
    signature = Signature.parse(text)
    assert str(signature) == text
    assert Signature.parse(signature.text()) == signature
    assert pickle.loads(pickle.dumps(signature)) == signature


@pytest.mark.parametrize("text", ["i64(f 64)", "i64(const u 8[:])", "i64(x: f 64)"])
def test_a_type_has_no_blanks_in_it(text: str) -> None:
    with pytest.raises(SignatureError, match=r"has the unknown type '[fu] "):
        Signature.parse(text)


def test_names_show_but_do_not_count() -> None:
    named = Signature.parse(" f64 ( values : const f64[:] , n:i64, values: u8 ) ")
    assert named == Signature.parse("f64(const f64[:],i64,u8)")
    assert hash(named) == hash(Signature.parse("f64(const f64[:],i64,u8)"))
    assert named.text() == "f64(values: const f64[:], n: i64, values: u8)"
    assert named.parameter_names() == ("values", "n", "arg2")
    assert Signature.parse("void(class: f64, f64, arg1: f64, arg0: f64)").parameter_names() == ("arg0_", "arg1_", "arg1", "arg0")
    assert Signature.parse("void()").parameters == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f64",
        "f64(",
        "f64)",
        "(i64)",
        "f64(i64",
        "f64(i64) x",
        "int(i64)",
        "f64(i65)",
        "f64(void)",
        "f64(i64,)",
        "f64(,i64)",
        "f64(ptr[:])",
        "f64(cstr[:])",
        "f64(const i64)",
        "f64(1x: i64)",
        "f64(i64[])",
        "f64[:](i64)",
        "f64(i64[:][:])",
        "f64(f64[:, :])",
        "f64(f64[::1, :])",
        "f64(f64[::1)",
        "f64(f64[::1] x)",
        "f64(ptr[::1])",
        "f64(f64[:][::1])",
        "tuple[](i64)",
        "tuple[ptr](i64)",
        "tuple[void](i64)",
        "tuple[i64(i64)",
        "f64(tuple[i64])",
    ],
)
def test_a_malformed_signature_is_quoted(text: str) -> None:
    with pytest.raises(SignatureError) as caught:
        Signature.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("f64(void)", "only results may be void"),
        ("f64(ptr[:])", "must be numbers or bool"),
        ("f64(const i64)", "only buffers and ptr may be const"),
        ("f64(i64 n)", "write 'n: i64'"),
        ("f64(f64[::1] data, i64 n)", "write 'data: f64[::1]'"),
        ("f64(i64, const f64[:, ::1]  data)", "write 'data: const f64[:, ::1]"),
    ],
)
def test_a_parameter_that_is_not_allowed_gets_advice(text: str, advice: str) -> None:
    with pytest.raises(SignatureError) as caught:
        Signature.parse(text)
    assert advice in str(caught.value)


@pytest.mark.slow
@given(st.text("fi64u8 ptrcsvod():[],constx", max_size=30))
def test_any_text_is_a_signature_or_its_error(text: str) -> None:
    try:
        Signature.parse(text)
    except SignatureError as error:
        assert repr(text) in str(error)  # noqa: PT017 - hypothesis: some texts are signatures


# ------------------------------------------------------------------------------------ printed assembly


@pytest.mark.slow
@given(st.one_of(names, st.text('\\"@%$.azAZ09_- \n', min_size=1, max_size=12)))
def test_a_name_comes_back_from_its_quoted_form(name: str) -> None:
    quoted = quote(name)
    assert unquote(quoted.strip('"')) == name
    assert all(32 <= ord(c) < 127 for c in quoted)
    assert symbol_counts(f"call void @{quoted}()") == {name: 1}


def test_llvm_reads_and_prints_what_is_quoted() -> None:
    import llvmlite.binding as llvm

    wanted = ["plain", "with space", 'quo"te', "back\\slash", "ünï", "new\nline", "1", "a@b", "\\41", "-$._"]
    text = "\n".join(f"define void @{quote(name)}() {{\n  ret void\n}}" for name in wanted)
    assert list(read_module(str(llvm.parse_assembly(text)))) == wanted


PRINTED = """\
@variable = internal constant [2 x ptr] [ptr @"odd \\22name", ptr @other]
@words = private constant [6 x i8] c"@none\\00"
@outside = external global i32, align 4
@alias = alias void (), ptr @other

define internal i64 @"odd \\22name"(i64 %x, ptr nocapture readonly %"p q") #0 personality ptr @handler {
  call void @other()
  call void @other()
  store ptr getelementptr (i8, ptr @variable, i64 8), ptr %x
  ret i64 0
}

declare void @other()
"""


def test_a_printed_module_is_read() -> None:
    module = read_module(PRINTED)
    assert {name: d.kind for name, d in module.items()} == {
        'odd "name': "function",
        "other": "declaration",
        "variable": "variable",
        "words": "variable",
        "outside": "external",
        "alias": "variable",
    }
    assert module['odd "name'].references == ("handler", "other", "variable")
    assert module["variable"].references == ('odd "name', "other")
    assert module["words"].references == ()
    assert module["alias"].references == ("other",)


def test_heads_and_parameters_are_taken_apart() -> None:
    head = parse_head('internal fastcc {i64, ptr} @"a (b"(i64 %x, ptr byval({i8, [2 x i8]}) %p, ...) #0')
    assert head.prefix == "internal fastcc {i64, ptr}"
    assert head.parameters == ("i64 %x", "ptr byval({i8, [2 x i8]}) %p", "...")
    assert head.suffix == " #0"
    assert split_parameters("") == ()
    assert split_parameters('i8 "a,b", <2 x i8>') == ('i8 "a,b"', "<2 x i8>")
    for text in ("no name", ""):
        with pytest.raises(ValueError, match="a function without a name"):
            parse_head(text)


def test_a_head_whose_parameters_do_not_end_is_refused() -> None:
    with pytest.raises(ValueError, match="has unbalanced brackets: 'i32 @f"):
        parse_head("i32 @f(i32 %a")


# ------------------------------------------------------------------------------------ dependency graph

graphs = st.dictionaries(st.integers(0, 9).map(str), st.lists(st.integers(0, 11).map(str), max_size=4), max_size=10)


def reachable(edges: dict[str, list[str]], root: str) -> set[str]:
    """What a root reaches, in the plainest way."""
    seen = {root}
    while True:
        more = {o for n in seen for o in edges[n] if o in edges} | seen
        if more == seen:
            return seen
        seen = more


@pytest.mark.slow
@given(graphs)
def test_closures_components_and_needs_agree_with_plain_reachability(edges: dict[str, list[str]]) -> None:
    graph = DependencyGraph(edges)
    reach = {node: reachable(edges, node) for node in edges}
    for node in edges:
        closure = graph.closure([node])
        assert closure[0] == node
        assert len(closure) == len(set(closure))
        assert set(closure) == reach[node]
    components = graph.components()
    assert sorted(node for c in components for node in c) == sorted(edges)
    place = {node: number for number, c in enumerate(components) for node in c}
    for node in edges:
        for other in reach[node]:
            assert place[other] <= place[node], "a component comes after what it refers to"
            assert (place[other] == place[node]) == (node in reach[other])
    leaves = {node for node in edges if int(node) % 3 == 0}
    for node, need in graph.needs(leaves).items():
        assert leaves_of(need) == reach[node] & leaves


def leaves_of(need: Need | None) -> set[str]:
    return set() if need is None else set(need.leaves).union(*map(leaves_of, need.children))


@pytest.mark.slow
@given(graphs, st.sets(st.integers(0, 9).map(str)))
def test_transparent_nodes_are_looked_through(edges: dict[str, list[str]], transparent: set[str]) -> None:
    for root in edges:
        expected, todo, seen = set(), [root], set()
        while todo:
            for other in edges[todo.pop()]:
                if other in edges and other not in seen:
                    seen.add(other)
                    if other in transparent:
                        todo.append(other)
                    else:
                        expected.add(other)
        found = set(DependencyGraph(edges).through(root, transparent))
        assert found - {root} == expected - {root}


@pytest.mark.slow
def test_a_long_chain_is_no_problem() -> None:
    count = 20_000
    graph = DependencyGraph({str(n): [str(n + 1)] for n in range(count)} | {str(count): ["0"]})
    assert len(graph.closure(["5"])) == count + 1
    assert len(graph.components()) == 1
    chain = DependencyGraph({str(n): [str(n + 1)] for n in range(count)} | {str(count): []})
    assert len(chain.components()) == count + 1
    assert "5" in chain
    assert "x" not in chain
    assert chain.successors("5") == ("6",)
    need = chain.needs({str(count)})["0"]
    assert need is not None
    assert leaves_of(need) == {str(count)}


# ------------------------------------------------------------------------------------ exceptions

CLASSES = [getattr(errors, name) for name in errors.__all__]


def fields_of(cls: type) -> dict[str, Any]:
    hints = {name: kind for base in cls.__mro__ for name, kind in getattr(base, "__annotations__", {}).items()}
    return {name: ("a", "b") if "tuple" in str(kind) else f"{name} value" for name, kind in hints.items()}


@pytest.mark.parametrize("cls", CLASSES)
def test_an_exception_comes_back_from_its_pickle_with_its_fields(cls: Any) -> None:
    fields = {} if issubclass(cls, errors.CacheWarning) else fields_of(cls)
    if cls is errors.LinkerError:
        fields = {"output": "x"}
    if cls is errors.ModulesNotAddedError:
        fields["failures"] = {1: "reason"}
    error = cls("what happened", **fields)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error) == "what happened"
    assert {name: getattr(again, name) for name in fields} == fields


def test_exceptions_are_the_builtins_that_one_would_catch() -> None:
    assert all(issubclass(c, errors.CompcacheError) for c in CLASSES if not issubclass(c, errors.CacheWarning))
    expected = {
        "NotCachedError": KeyError, "FormatError": ValueError, "IntegrityError": OSError, "StorageError": OSError,
        "UntrustedDirectoryError": PermissionError, "UndefinedSymbolError": errors.LinkError,
        "SignatureMismatchError": TypeError, "CompileError": ValueError, "GlobalValidationError": ValueError,
        "TargetUnloadedError": RuntimeError, "ReentrantCompileError": ImportError, "ArgumentBufferError": BufferError,
        "CacheWarning": UserWarning, "ReentrantLoadError": RuntimeError,
    }  # fmt: skip
    for name, base in expected.items():
        assert issubclass(getattr(errors, name), base)
        assert getattr(errors, name).__doc__


def test_without_msgpack_bundles_say_what_is_missing(cache: Cache, tmp_path: Path) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    script = """
    sys.modules["msgpack"] = None
    from compcache import Cache, MissingPackageError
    with Cache(directory) as cache:
        value = cache.get_target("f")()
        try:
            cache.export(["f"], other)
        except MissingPackageError as error:
            result = value, error.name, str(error)
    """
    value, name, message = run_fresh(cache.path, script.replace("other", repr(str(tmp_path / "bundle.ccb"))))
    assert (value, name) == (1, "msgpack")
    assert message.endswith("needs msgpack, which is not installed: pip install compcache")


@pytest.mark.parametrize("value", ["text", "\udcff", ["a\udcff", {"\udcff": b"\xff"}], [1, [2.5, None]]], ids=ascii)
def test_any_text_is_packed_as_it_is(value: object) -> None:
    assert repr(unpack(pack(value))) == repr(value)  # a message with the text itself could not be printed
    (streamed,) = unpack_stream([pack(value)[:1], pack(value)[1:]])
    assert repr(streamed) == repr(unpack(pack(value), use_list=False))
