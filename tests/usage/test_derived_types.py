"""Files that tools read beside the modules: whatever is in them, with a right checksum, tools say what the modules say."""

from __future__ import annotations

import math
import os
import re
import zlib
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from cli_process import compcache, on_terminal
from helpers import adder, constant

from compcache import Cache, FormatError, Function, ModuleSource, PrunePolicy
from compcache.digest import check, name_key
from compcache.directory.places import JOURNALS, MODULE_LISTS, SIZE, STATISTICS, UNCACHED, Place
from compcache.formats.graph import decode_graph, decode_notes
from compcache.formats.sorted_keys import encode_keys
from compcache.formats.statistics import decode_stats, encode_stats
from compcache.hit.recorder import encode_batch
from compcache.inspect.uncached import read_refusals
from compcache.publish.module_rows import Platform, decode_rows

if TYPE_CHECKING:
    from pathlib import Path

PLATFORM = ["shared", "x86_64-linux-elf", "znver4", "+avx2", "22.1.0", 2]
#: A row of a module: seconds, names, offsets, imports, signatures; each with a field of another type in turn.
ROW = [0, 0.5, ["f"], [58], [], ["i64(i64)"]]
WRONG: list[tuple[int, object]] = [
    *zip([1] * 6, ("soon", None, math.nan, math.inf, -1.0, []), strict=True),
    *zip([2] * 7, (None, 5, [5], ["f", None], "f", [b"f"], ["f", "g"]), strict=True),
    *zip([3] * 7, (None, 5, ["x"], [1.5], [-1], [1 << 40], [1, 2]), strict=True),
    *zip([4] * 5, (None, 5, [5], "f", [[]]), strict=True),
    *zip([5] * 5, (None, 5, [5], [None], []), strict=True),
]


@pytest.fixture
def filled(cache: Cache) -> tuple[Cache, bytes]:
    module_id = cache.add_module(ModuleSource(adder("f", 1)))
    cache.stats()
    return cache, bytes.fromhex(module_id)


def plant(cache: Cache, place: Place, name: str, data: bytes) -> None:
    path = cache._store.path(place, name)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def ask_everything(cache: Cache) -> None:
    """What every tool asks; the answers are those of the modules."""
    assert [function.func_name for function in cache.functions()] == ["f"]
    assert len(cache.modules()) == 1
    stats = cache.stats()
    assert math.isfinite(stats.saved_seconds)
    assert stats.saved_seconds >= 0
    cache.explain("g")
    cache.info()
    assert cache.check()
    cache.prune(PrunePolicy(max_modules=10, unused_for=10**9, max_bytes=10**9))
    assert cache.get_target("f")(1) == 2


def plant_list(cache: Cache, module_id: bytes, platform: object, row: list[Any]) -> None:
    """Beside the segment of the index, a list with a right checksum that has this row, and then the rest of a list."""
    packed = msgpack.packb(platform)
    digest = check(packed)
    items = [(b"a" + digest, packed), (b"m" + module_id, digest + (5000).to_bytes(8, "little") + msgpack.packb(row))]
    name = b"nf\0f\0" + module_id
    (segment,) = cache._store.index.segments
    data = b"".join(encode_keys([*items, (name, b"")], lambda: bytes(40)))
    plant(cache, MODULE_LISTS, segment.name.replace(".idx", ".list"), data)


@pytest.mark.parametrize(("field", "value"), WRONG, ids=repr)
def test_a_row_of_another_type_is_read_from_its_module_again(filled: Any, field: int, value: object) -> None:
    cache, module_id = filled
    row = [*ROW[1:field], value, *ROW[field + 1 :], [], ""]
    plant_list(cache, module_id, [*PLATFORM, ""], row)
    assert [function.func_name for function in cache.functions()] == ["f"]
    assert cache.functions()[0].signature == "i64(x: i64)"
    with pytest.raises(FormatError):
        decode_rows([(module_id, Platform("shared", "x86_64-linux-elf", "znver4", "+avx2", "22.1.0", 2, ""), msgpack.packb(row))])


@pytest.mark.parametrize("platform", [[], PLATFORM[:5], [*PLATFORM[:5], "2"], [1, *PLATFORM[1:]], "abcdef", 5, None])
def test_a_platform_of_another_type_is_read_from_its_module_again(filled: Any, platform: object) -> None:
    cache, module_id = filled
    plant_list(cache, module_id, platform, [*ROW[1:], [], ""])
    ask_everything(cache)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_numbers_that_are_none_are_not_counted(filled: Any, value: float) -> None:
    cache, module_id = filled
    uses = {(name_key("f"), module_id): (1, value), (bytes(16), module_id): (1 << 63, value)}
    data = encode_stats({(1, "saved_seconds"): value, (1, "compile_seconds"): value, (1, "hits"): value}, uses)
    assert (decode_stats(data).counters, decode_stats(data).uses) == ({}, {})
    plant(cache, STATISTICS, "planted.stats1", data)
    lines = [f"{value} hits 1 {module_id.hex()}", f"{1e9} hits {value}", f"{1e9} compile_seconds {value}"]
    plant(cache, JOURNALS, "planted.journal1", b"".join(encode_batch([line]) for line in lines))
    before = cache.stats()
    assert before.hits == 0
    assert math.isfinite(before.compile_seconds)
    refusal = msgpack.packb(["g", "reason", value])
    plant(cache, UNCACHED, UNCACHED.file_name(name_key("g").hex()), check(refusal) + refusal)
    assert all(0 <= found.created < 1e11 for found in read_refusals(cache._store))
    plant(cache, SIZE, SIZE.name, b"-5 -7\n")
    ask_everything(cache)


NOTES: list[object] = [
    {"created": "yesterday", "seconds": []}, {"created": math.nan, "seconds": math.inf}, {"created": 1e300},
    {"identity": 5}, {"identity": {"a": 5}}, {"identity": [["a", "b"]]}, {"created": None, "seconds": -1},
]  # fmt: skip


@pytest.mark.parametrize("notes", NOTES, ids=repr)
def test_notes_of_other_types_are_left_out(notes: object) -> None:
    decoded = decode_notes(msgpack.packb(notes))
    assert {"created", "seconds", "identity"}.isdisjoint(decoded)


@pytest.mark.parametrize("row", [[1, "function", None, "", []], ["f", "function", 5, "", []], ["f", "function", None, "", [5]],
                                 ["f", "function", None, None, []], ["f", "function", None, "", "abc"], ["f"]], ids=repr)  # fmt: skip
def test_nodes_of_other_types_are_a_format_error(row: list[object]) -> None:
    with pytest.raises(FormatError):
        decode_graph(zlib.compress(msgpack.packb([row])))


# ------------------------------------------------------------------------------------ terminals

ESCAPE = "\x1b]0;title\x07\x1b[31m\x9b2J"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: And what a bar moves the cursor with, which shows where the machine is slow.
COLOURS = re.compile(r"\x1b\[\??[0-9;]*[mKAhl]|\r")


def says(text: str) -> str:
    """The assembly of a function that returns a text."""
    data = "".join([f"\\{byte:02X}" for byte in (*text.encode(), 0)])
    size = len(data) // 3
    return f'@t = private constant [{size} x i8] c"{data}"\ndefine ptr @say() {{\nret ptr @t\n}}\n'


def seen(directory: Path, *arguments: object) -> str:
    """What a command writes to a terminal, without its own colours."""
    outcome = on_terminal("--dir", directory, *arguments)
    return COLOURS.sub("", outcome.out)


@pytest.mark.slow
def test_control_characters_never_reach_a_terminal(directory: Path) -> None:
    text = says(ESCAPE)
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(text, functions={f"say{ESCAPE}": Function("cstr()", symbol="say")}))
        cache.add_module(ModuleSource(constant("plain", 1), identity={"label": ESCAPE, ESCAPE: "x"}))
    for name in ("tmp", "quarantine", "modules-v1/aa", "locks"):
        (directory / name).mkdir(exist_ok=True)
        (directory / name / f"planted{ESCAPE}.x").write_bytes(b"")
    name = f"say{ESCAPE}"
    for arguments in (
        ["ls"], ["ls", "--modules"], ["show", name], ["show", name, "--ir"], ["call", name], ["graph", name],
        ["explain", name], ["explain", f"plain{ESCAPE}"], ["check"], ["prune", "--dry-run", "--max-modules", "0"], ["info"],
        ["stats"], ["pin", name], ["unpin", name], ["unpin", name], ["show", f"no{ESCAPE}"], ["call", name, ESCAPE],
        ["add", f"/no/{ESCAPE}"], ["rm", name, "--dry-run"], ["rm", f"no{ESCAPE}"],
    ):  # fmt: skip
        output = seen(directory, *arguments)
        assert output.strip() or arguments[0] in ("pin", "unpin"), arguments
        assert not CONTROL.search(output), (arguments, output)


def test_results_in_a_pipe_are_as_they_are(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(says("\x1bx"), functions={"say": Function("cstr()", symbol="say")}))
    assert compcache("--dir", directory, "call", "say").out == "\x1bx\n"
