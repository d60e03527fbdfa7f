"""Texts in messages: lists that are cut say so, and no message repeats its beginning."""

from __future__ import annotations

import ast
import shutil
from typing import TYPE_CHECKING

import msgpack
import pytest
from helpers import PACKAGE_ROOT, constant

from compcache import Cache, ModuleSource
from compcache.digest import DIGEST_SIZE, check
from compcache.errors import FormatError, StorageError
from compcache.formats.footer import encode_container, intact_footer, sections_of
from compcache.interrupts import as_format_error
from compcache.remote.card import Card, decode_cards, encode_cards
from compcache.wording import join_first, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("texts", "separator", "expected"),
    [
        ((), ", ", ""),
        (("a", "b"), ", ", "a, b"),
        (("a", "b", "c"), ", ", "a, b and 1 more"),
        (iter("abcd"), "; ", "a; b; and 2 more"),
        (list("abcd"), "\n  ", "a\n  b\n  and 2 more"),
    ],
)
def test_cut_lists_end_with_the_number_of_further_texts(texts: Iterator[str], separator: str, expected: str) -> None:
    assert join_first(texts, 2, separator) == expected


def test_cut_texts_end_with_dots() -> None:
    assert (shorten("abc", 3), shorten("abcd", 3)) == ("abc", "abc...")


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((PACKAGE_ROOT / "compcache").rglob("*.py")):
        yield str(path.relative_to(PACKAGE_ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def _cuts_silently(node: ast.AST) -> bool:
    """Return whether a node joins the beginning of a list as a list in a sentence."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("', '.join", "'; '.join", "'\\n  '.join"):
        return False
    slices = [part for argument in node.args for part in ast.walk(argument) if isinstance(part, ast.Slice)]
    return any(part.lower is None and part.upper is not None for part in slices)


def test_lists_in_messages_are_not_cut_silently() -> None:
    cuts = [f"{path}:{node.lineno}" for path, tree in _trees() for node in ast.walk(tree) if _cuts_silently(node)]  # type: ignore[attr-defined]
    assert not cuts, "compcache.wording.join_first says how many texts are left out"


def _wraps_itself(node: ast.AST) -> bool:
    """Return whether an exception handler puts the text of a caught error, which may be a `FormatError`, into a new `FormatError`."""
    if not isinstance(node, ast.ExceptHandler) or node.type is None:
        return False
    caught = {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
    raised = [part.exc for part in ast.walk(node) if isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call)]
    repeats = any(ast.unparse(call.func) == "FormatError" and f"{{{node.name}}}" in ast.unparse(call) for call in raised)
    return repeats and not caught.isdisjoint(("Exception", "ValueError", "CompcacheError"))


def _stuttering(node: ast.AST) -> Iterator[int]:
    """Yield the lines of the handlers of a ``try`` that wrap an error like themselves, unless an earlier handler catches `FormatError`."""
    for handler in getattr(node, "handlers", ()):
        if handler.type is not None and ast.unparse(handler.type) == "FormatError":
            return
        if _wraps_itself(handler):
            yield handler.lineno


def test_format_errors_are_not_wrapped_in_format_errors() -> None:
    lines = [f"{path}:{line}" for path, tree in _trees() for node in ast.walk(tree) for line in _stuttering(node)]
    # What a block of msgpack raises is never a FormatError, and a hit does not import the class that replaces exceptions.
    allowed = [line for line in lines if line.startswith("compcache/formats/sorted_keys.py:")]
    assert lines == allowed, "use compcache.interrupts.as_format_error"


def test_the_message_about_a_malformed_card_begins_once() -> None:
    data = encode_cards({"shelf": Card("f", bytes(DIGEST_SIZE), 0, 0.0, b"", b"", ())})
    magic, (name, rows) = data[:8], msgpack.unpackb(data[8:-8])
    rows[0][1] = b"short"
    body = magic + msgpack.packb([name, rows])
    with pytest.raises(FormatError) as caught:
        decode_cards(body + check(body))
    assert str(caught.value) == f"the card of 'f' is malformed: module_id has 5 bytes, not {DIGEST_SIZE}"


@pytest.mark.parametrize("error", [FormatError("already said"), OSError(5, "disk"), MemoryError(), StorageError("full")])
def test_errors_that_do_not_come_from_the_bytes_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, as_format_error("the part is damaged"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("k"), ZeroDivisionError("by zero"), RecursionError("deep")])
def test_other_errors_become_format_errors(error: Exception) -> None:
    with pytest.raises(FormatError, match=r"^the part is damaged: ") as caught, as_format_error("the part is damaged"):
        raise error
    assert caught.value.__cause__ is error


def test_an_error_without_a_text_is_named_by_its_class() -> None:
    with pytest.raises(FormatError, match=r"^the part is damaged: ExtraData$"), as_format_error("the part is damaged"):
        raise type("ExtraData", (ValueError,), {})


def with_section(directory: Path, name: str, content: bytes) -> str:
    """Replace a section of the only module of a cache, and return the new module_id. The digests of the file are right."""
    (path,) = directory.glob("modules-v1/*/*.ccm")
    data = path.read_bytes()
    footer = intact_footer(data)
    sections = dict(zip(("image", "records", "graph", "bitcode", "notes"), sections_of(data, footer), strict=True))
    module_id, parts = encode_container(**{**sections, name: content}, signing_key=None)
    path.unlink()
    place = directory / "modules-v1" / module_id.hex()[:2] / f"{module_id.hex()}.ccm"
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.write_bytes(b"".join(parts))
    shutil.rmtree(directory / "index-v1")
    return module_id.hex()


def test_errors_about_damaged_sections_name_the_module(directory: Path, tmp_path: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant("f", 1)))
    module_id = with_section(directory, "graph", b"no graph")
    with Cache(directory) as cache, pytest.raises(FormatError, match=rf"^{directory}/.*{module_id}.ccm: the graph section of "):
        cache.function("f")
    module_id = with_section(directory, "notes", b"\xc1")
    with Cache(directory) as cache, pytest.raises(FormatError, match=f"^module {module_id} cannot be exported: the notes section "):
        cache.export(["f"], tmp_path / "f.ccb")
