"""What ``--json`` writes: the same as Python's json module would, with a line for each item."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compcache.cli.jsontext import print_json


class Point(NamedTuple):
    x: int
    label: str


@dataclass(frozen=True, slots=True)
class Single:
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Nested:
    name: str
    points: tuple[Point, ...]
    one: Single


class Kind(enum.IntEnum):
    FIRST = 1


def printed(value: Any, capsys: pytest.CaptureFixture[str]) -> str:
    print_json(value)
    return capsys.readouterr().out


def plain(value: Any) -> Any:
    """The value as `json` gives it back."""
    return json.loads(json.dumps(value))


texts = st.text(st.characters(codec=None), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(values)
def test_any_value_is_what_the_json_module_would_read(value: Any) -> None:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as output:
        print_json(value)
    assert json.loads(output.getvalue()) == plain(value)


def test_records_become_objects_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(Nested("n%s", (Point(1, "a"), Point(2, 'b"\0')), Single(())), capsys)
    assert text.splitlines() == [
        "{",
        '  "name": "n%s",',
        '  "points": [',
        '    {"x": 1, "label": "a"},',
        '    {"x": 2, "label": "b\\"\\u0000"}',
        "  ],",
        '  "one": {"values": []}',
        "}",
    ]
    assert printed([Point(1, "a"), Single((Point(2, "b"), None))], capsys).splitlines() == [
        "[",
        '  {"x": 1, "label": "a"},',
        '  {"values": [{"x": 2, "label": "b"}, null]}',
        "]",
    ]


@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 2500])
def test_every_item_has_its_line(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(tuple(Point(n, "p") for n in range(number)), capsys)
    assert [point["x"] for point in json.loads(text)] == list(range(number))
    assert len(text.splitlines()) == (number + 2 if number else 1)


def test_what_json_has_no_word_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed({"values": [float("nan"), float("-inf"), Kind.FIRST, True], 1: "x"}, capsys)
    assert json.loads(text) == {"values": ["nan", "-inf", 1, True], "1": "x"}
    assert printed({}, capsys) == "{}\n"
    assert printed(None, capsys) == "null\n"
    with pytest.raises(TypeError, match="type object is not JSON serializable"):
        print_json([object()])
