"""Pickled globals, kinds of a program's own, and the bytes of definitions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from encoded import known_kinds
from helpers import run_fresh
from hypothesis import given
from hypothesis import strategies as st
from read_globals import object_at, read, source_of

from compcache import Cache, GlobalValidationError, ModuleSource, PickleNotAllowedError
from compcache.globals import (
    Boolean,
    Buffer,
    Bytes,
    DictMember,
    Float,
    GlobalDefinition,
    Integer,
    NativeSymbol,
    Pickled,
    PythonObject,
    Storage,
    Text,
    decode_definition,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# ------------------------------------------------------------------------------------ pickle


def test_a_pickled_object_needs_permission(cache: Cache) -> None:
    cache.add_module(source_of(Pickled.of({"a": [1, 2]}), "pointer"))
    with pytest.raises(PickleNotAllowedError, match=r"global 'g' of function 'f'.*allow_pickle=True"):
        cache.get_target("f")
    with Cache(cache.path, allow_pickle=True) as allowed:
        target = allowed.get_target("f")
        assert object_at(target()) == {"a": [1, 2]}
        with pytest.raises(PickleNotAllowedError):
            cache.get_target("f")
        assert object_at(target()) == {"a": [1, 2]}


def test_a_value_in_place_of_a_pickle_is_told_how_to_pickle_it() -> None:
    for value in ({"a": 1}, object(), "text", 5):
        with pytest.raises(TypeError, match=rf"must be a pickle as bytes, not {type(value).__name__}; use Pickled\.of"):
            Pickled(value)  # type: ignore[arg-type]


def test_a_pickle_is_not_read_without_permission(cache: Cache, directory: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    text = "@g = external global ptr\ndefine i64 @other() {\nret i64 1\n}\ndefine ptr @f() {\n%p = load ptr, ptr @g\nret ptr %p\n}"
    cache.add_module(ModuleSource(text, globals={"g": Pickled.of(_Writes(str(witness)))}))
    witness.rmdir()  # adding looks whether the object unpickles
    assert cache.get_target("other")() == 1
    with pytest.raises(PickleNotAllowedError):
        cache.get_target("f")
    assert not witness.exists()
    with Cache(directory, allow_pickle=True) as allowed:
        allowed.get_target("f")
    assert witness.exists()


class _Writes:
    """Leaves a directory where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def iter_nothing() -> Iterator[int]:
    yield from ()


def test_what_cannot_be_pickled_is_told() -> None:
    with pytest.raises(GlobalValidationError, match="an object of type generator cannot be pickled"):
        Pickled.of(iter_nothing())


# ------------------------------------------------------------------------------------ own kinds


class Scaled(GlobalDefinition):
    """A number times a factor that this process knows."""

    __slots__ = ("number",)
    number: int
    kind = "test-scaled"
    factor: ClassVar[int] = 10

    def encode(self) -> bytes:
        return str(self.number).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Scaled:
        return cls(int(payload))

    def load(self, storage: Storage, context: object) -> tuple[bytes, object]:  # noqa: ARG002 - the interface
        if Scaled.factor == 0:
            raise GlobalValidationError(reason := "the factor is zero", reason=reason)
        return (self.number * Scaled.factor).to_bytes(storage.size, "little"), None


register(Scaled)


def test_a_kind_of_ones_own(cache: Cache, directory: Path) -> None:
    assert read(cache, Scaled(4), "i64") == 40
    script = """
    from compcache import Cache, GlobalValidationError
    try:
        Cache(directory).get_target("f")
    except GlobalValidationError as error:
        result = str(error)
    """
    message = run_fresh(directory, script)
    assert "'test-scaled' is not registered" in message
    assert "'g'" in message


def test_a_kind_that_says_no_is_quoted(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(source_of(Scaled(4), "i64"))
    monkeypatch.setattr(Scaled, "factor", 0)
    with pytest.raises(GlobalValidationError, match="the factor is zero") as caught:
        cache.get_target("f")
    assert caught.value.reason == "the factor is zero"
    assert caught.value.global_name == "g"


@pytest.mark.parametrize(
    ("method", "gives", "message"),
    [
        ("load", lambda: 1 // 0, "failed: ZeroDivisionError"),
        ("load", lambda: None, "failed: TypeError"),
        ("load", lambda: ("12345678", None), "failed: TypeError"),
        ("load", lambda: (b"1234", None), "returned 4 bytes for a variable of 8 bytes"),
        ("encode", lambda: 1 // 0, "failed: ZeroDivisionError"),
        ("encode", lambda: "4", "must return bytes, not str"),
        ("decode", lambda: 1 // 0, "cannot be decoded"),
        ("decode", lambda: 4, "must return a GlobalDefinition, not int"),
    ],
)
def test_a_kind_that_fails_is_told_and_what_was_cached_is_built_anew(
    cache: Cache, method: str, gives: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> ModuleSource:
        monkeypatch.undo()
        return source_of(Scaled(4), "i64")

    cache.add_module(build())
    monkeypatch.setattr(Scaled, method, lambda *_: gives())
    with pytest.raises(GlobalValidationError, match=message):
        (cache.get_target if method != "encode" else lambda _: cache.compile(source_of(Scaled(5), "i64"))["f"])("f")
    if method != "encode":
        assert cache.get_or_compile("f", build)() == 40


def test_a_class_that_is_defined_again_has_its_kind() -> None:
    def define_again(**names: Any) -> type[GlobalDefinition]:
        return register(type("Again", (GlobalDefinition,), {"kind": "test-again", "__slots__": (), **names}))

    define_again()
    second = define_again(decode=classmethod(lambda cls, _: cls()))
    assert type(decode_definition("test-again", b"")) is second


def test_a_kind_of_the_package_cannot_be_taken_before_it_is_used(directory: Path) -> None:
    script = """
    from compcache.globals import GlobalDefinition, register
    try:
        register(type("Mine", (GlobalDefinition,), {"kind": "text", "__slots__": ()}))
    except ValueError as error:
        result = str(error)
    """
    assert "in use by another class" in run_fresh(directory, script)


def test_a_kind_belongs_to_one_class() -> None:
    with pytest.raises(ValueError, match="in use by another class"):
        register(type("Other", (GlobalDefinition,), {"kind": "integer", "__slots__": ()}))
    with pytest.raises(ValueError, match="has no `kind`"):
        register(type("Other", (GlobalDefinition,), {"__slots__": ()}))
    assert register(Scaled) is Scaled


# ------------------------------------------------------------------------------------ encodings


@pytest.mark.slow
@given(
    st.one_of(
        st.builds(Integer, st.integers()),
        st.builds(Boolean, st.booleans()),
        st.builds(Float, st.floats(allow_nan=False)),
        st.builds(Bytes, st.binary()),
        st.builds(Text, st.text(st.characters())),
        st.builds(Buffer, st.binary(), st.sampled_from(["B", "<d", "=q"])),
        st.builds(PythonObject, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.just("a.b")),
        st.builds(
            DictMember,
            st.just("m"),
            st.just("q"),
            st.one_of(st.integers(), st.binary(), st.text(st.characters(exclude_categories=["Cs"]))),
            st.just("a:b"),
        ),
        st.builds(NativeSymbol, st.just("sym"), st.sampled_from([None, "lib.so"])),
    )
)
def test_a_definition_comes_back_from_its_bytes(definition: GlobalDefinition) -> None:
    assert decode_definition(definition.kind, definition.encode()) == definition


@pytest.mark.slow
@given(st.sampled_from([kind for kind in known_kinds() if not kind.startswith(("numba", "test"))]), st.binary(max_size=40))
def test_a_malformed_definition_raises_its_own_error_only(kind: str, payload: bytes) -> None:
    try:
        decode_definition(kind, payload)
    except GlobalValidationError as error:
        assert kind in str(error)  # noqa: PT017 - hypothesis: most examples raise, some do not
