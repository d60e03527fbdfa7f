"""libyaml: eight modules that import each other's functions, in circles, with handlers in their structs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from compcache import Cache

from . import libraries
from .bitcode import imports_among
from .caching import add_modules
from .freshpython import run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

DOCUMENT = b"""\
%YAML 1.1
---
plain: &anchor text
list: [1, "two", *anchor]
folded: >
  several
  lines
"""
# enum yaml_event_type_e
STREAM, END_STREAM, DOCUMENT_START, DOCUMENT_END, ALIAS, SCALAR, LIST, END_LIST, MAP, END_MAP = range(1, 11)
EVENTS = [
    (STREAM, None),
    (DOCUMENT_START, None),
    (MAP, None),
    (SCALAR, b"plain"),
    (SCALAR, b"text"),
    (SCALAR, b"list"),
    (LIST, None),
    (SCALAR, b"1"),
    (SCALAR, b"two"),
    (ALIAS, None),
    (END_LIST, None),
    (SCALAR, b"folded"),
    (SCALAR, b"several lines\n"),
    (END_MAP, None),
    (DOCUMENT_END, None),
    (END_STREAM, None),
]
# An event begins with its type; a scalar's anchor, tag, value and length follow at offset 8.
PARSE = """
    import ctypes
    parser, event = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(512)
    assert call("yaml_parser_initialize", parser) == 1
    call("yaml_parser_set_input_string", parser, text, len(text))
    result = []
    while not result or result[-1][0] != 2:
        if not call("yaml_parser_parse", parser, event):
            result = ctypes.string_at(ctypes.c_void_p.from_buffer(parser, 8).value)
            break
        kind = ctypes.c_int.from_buffer(event).value
        value = None
        if kind == 6:
            address, length = (ctypes.c_size_t * 2).from_buffer(event, 24)
            value = ctypes.string_at(address, length)
        result.append((kind, value))
        call("yaml_event_delete", event)
    call("yaml_parser_delete", parser)
"""


@pytest.fixture(scope="module")
def modules(compiler: Compiler, sdist: Callable[[str], Path]) -> dict[str, bytes]:
    return libraries.YAML.modules(sdist, compiler)


@pytest.fixture(scope="module")
def cache_dir(modules: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("yaml")
    add_modules(directory, modules, optimize=0)
    return directory


def test_the_modules_need_each_other(modules: dict[str, bytes]) -> None:
    imports = imports_among(modules)
    assert "yaml_parser_fetch_more_tokens" in imports["parser"]
    assert "yaml_parser_update_buffer" in imports["scanner"]


def test_a_document_parses_to_its_events(cache_dir: Path) -> None:
    assert run_fresh(cache_dir, PARSE, text=DOCUMENT) == EVENTS


def test_a_malformed_document_is_explained(cache_dir: Path) -> None:
    message = run_fresh(cache_dir, PARSE, text=b"a: [1, 2\nb: 3\n")
    assert message == b"did not find expected ',' or ']'"


def test_events_come_out_as_text_again(cache_dir: Path) -> None:
    script = """
        import ctypes
        emitter, event, out = (ctypes.create_string_buffer(size) for size in (4096, 512, 4096))
        written = ctypes.c_size_t()
        assert call("yaml_emitter_initialize", emitter)
        call("yaml_emitter_set_output_string", emitter, out, len(out), ctypes.byref(written))
        def emit(name, *arguments):
            assert call("yaml_" + name + "_event_initialize", event, *arguments)
            assert call("yaml_emitter_emit", emitter, event)
        emit("stream_start", 1)
        emit("document_start", None, None, None, 1)
        emit("mapping_start", None, None, 1, 1)
        for text in (b"key", b"a value"):
            emit("scalar", None, None, text, len(text), 1, 1, 1)
        emit("mapping_end")
        emit("document_end", 1)
        emit("stream_end")
        call("yaml_emitter_delete", emitter)
        result = out.raw[:written.value]
    """
    assert run_fresh(cache_dir, script) == b"key: a value\n"


def test_the_whole_circle_is_the_closure(cache_dir: Path) -> None:
    with Cache(cache_dir) as cache:
        reached = cache.dependencies("yaml_parser_load", transitive=True)
    assert {"yaml_parser_parse", "yaml_parser_fetch_more_tokens", "yaml_parser_update_buffer"} <= set(reached)
    assert "yaml_emitter_emit" not in reached
