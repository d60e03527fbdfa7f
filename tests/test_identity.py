"""Identities: stable names made of named components."""

from __future__ import annotations

import math
import pathlib
from typing import TYPE_CHECKING

import pytest
from helpers import adder, run_fresh
from hypothesis import given
from hypothesis import strategies as st

from compcache import Cache, Function, Identity, ModuleSource, NotCachedError
from compcache.identity import compare, label_of

if TYPE_CHECKING:
    from pathlib import Path

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def test_the_name_is_the_label_and_a_digest_that_no_process_changes(directory: Path) -> None:
    script = """
    from compcache import Identity
    result = Identity("dot", source="a*b", options={"b": 1, "a": {2, 3, 1}}, callees=[Identity("mul", n=1)]).func_name
    """
    here = Identity(
        "dot", source="a*b", options={"a": {1, 2, 3}, "b": 1}, callees=(Identity("mul", n=1),)
    ).func_name
    assert run_fresh(directory, script, PYTHONHASHSEED="7") == here
    assert here.startswith("dot-")
    assert label_of(here) == "dot"
    assert label_of("dot") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, "1"), (1, 1.0), (1, True), (None, "null"), (b"a", "a"), ([1], 1), ([], {}), ({1}, [1]), (["a, b"], ["a", "b"]), ("", None),
     (math.nan, -math.nan), (complex(math.nan, 1), complex(math.nan, 2)), (10**5000, 10**5000 + 1)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_that_differ_give_names_that_differ(one: object, other: object) -> None:
    assert Identity("f", x=one).func_name != Identity("f", x=other).func_name


def test_components_need_not_be_utf_8(directory: Path) -> None:
    """Such as the path of a file: what the cache keeps of it has escapes."""
    identities = [Identity("f", {"path": "a\udcff", "\udcfe": 1}), Identity("f", {"path": "a\\udcff", "\udcfe": 1})]
    with Cache(directory) as cache:
        for number, identity in enumerate(identities):
            source = ModuleSource(adder("f", number))
            assert cache.get_or_compile(identity, lambda source=source: source)(1) == 1 + number  # type: ignore[misc]
        assert len(cache) == 2
    assert identities[0].components() == {"path": '"a\\udcff"', "\\udcfe": "1"}


def test_names_of_components_that_look_like_escapes_stay_apart() -> None:
    names = ["\udcff", "\\udcff", "\\\\udcff", "\\\udcff", "\\", "\\u", "\\\\"]
    identity = Identity("f", {name: number for number, name in enumerate(names)})
    assert list(identity.components().values()) == [str(number) for number in range(len(names))]
    assert {name: name in identity.components() for name in names[-3:]} == dict.fromkeys(names[-3:], True)


def test_names_and_order_of_components_count() -> None:
    assert Identity("f", {"a": 1, "b": 2}).func_name != Identity("f", {"b": 2, "a": 1}).func_name
    assert Identity("f", a=1).func_name != Identity("f", b=1).func_name
    assert Identity("f", a="1", b="").func_name != Identity("f", a="", b="1").func_name
    assert Identity("f", a=1).func_name != Identity("g", a=1).func_name
    assert Identity("f", {"a": 1, "b": 2}).func_name != Identity("f", {"a1b": 2}).func_name


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_equal_components_give_equal_identities(components: dict[str, object]) -> None:
    one, other = Identity("f", components), Identity("f", dict(components))
    assert one == other
    assert hash(one) == hash(other)
    assert one.func_name == other.func_name
    assert compare(one.components(), other.components()) == ()


def test_components_are_a_mapping_or_pairs_and_none_is_lost() -> None:
    pairs = [("source", "a*b"), ("level", 2)]
    assert Identity("f", pairs) == Identity("f", dict(pairs)) == Identity("f", source="a*b", level=2)
    assert Identity("f", pairs) != Identity("f", pairs[::-1])
    assert Identity("f", iter(pairs), flags=1) == Identity("f", {**dict(pairs), "flags": 1})
    with pytest.raises(ValueError, match="the identity of 'f' has two components named 'level'"):
        Identity("f", [*pairs, ("level", 3)])
    with pytest.raises(ValueError, match="two components named 'source'"):
        Identity("f", pairs, source="a+b")


def test_a_value_without_a_stable_form_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="component 'options' of an identity contains an object of type object, whose text may differ"):
        Identity("f", options=[object()])
    with pytest.raises(TypeError, match=r"component 'options' of an identity contains .* pathlib\.[\w.]+, whose text may differ"):
        Identity("f", options=pathlib.Path("a"))
    itself: list[object] = []
    itself.append(itself)
    with pytest.raises(TypeError, match="component 'options' of an identity is nested more deeply than Python's recursion limit"):
        Identity("f", options=itself)


def test_an_identity_is_a_snapshot() -> None:
    options = {"level": 1}
    identity = Identity("f", options=options)
    before = identity.func_name
    options["level"] = 2
    assert identity.func_name == before
    assert identity.extend(options=options).func_name != before
    assert identity.extend(more=1).components().keys() == {"options", "more"}


def test_a_long_component_is_kept_as_its_digest_and_still_decides() -> None:
    one, other = Identity("f", source="x" * 100_000), Identity("f", source="x" * 99_999 + "y")
    assert one.func_name != other.func_name
    (difference,) = compare(one.components(), other.components())
    assert "of 100002 characters" in str(difference)


def test_a_difference_of_long_texts_shows_where_they_part() -> None:
    one = Identity("f", source="define " * 50 + "add" + " ret" * 50)
    other = Identity("f", source="define " * 50 + "sub" + " ret" * 50)
    text = str(compare(one.components(), other.components())[0])
    assert len(text) < 200
    assert "sub" in text
    assert "add" in text


def test_the_identity_is_kept_with_the_function(cache: Cache) -> None:
    identity = Identity("f", source="x + 1", level=2)
    cache.add_module(
        ModuleSource(adder("f", 1), {identity.func_name: Function(symbol="f")}, identity=identity)
    )
    changed = identity.extend(source="x + 2")
    explanation = cache.explain(changed.func_name, changed)
    assert not explanation.hit
    assert explanation.reason == "absent"
    (variant,) = explanation.variants
    assert variant.func_name == identity.func_name
    assert variant.differences is not None
    assert [str(d) for d in variant.differences] == ['source: "x + 1" -> "x + 2"']


def test_a_function_that_was_stored_under_the_label_of_its_identity_is_named(cache: Cache) -> None:
    identity = Identity("f", v=1)
    cache.add_module(ModuleSource(adder("f", 1), identity=identity))
    with pytest.raises(NotCachedError, match="there is 'f', a plain name: to store a function under an identity"):
        cache.get_target(identity)
    cache.add_module(ModuleSource(adder("f", 1), {identity.func_name: Function(symbol="f")}, identity=identity))
    assert cache.get_target(identity)(1) == 2
