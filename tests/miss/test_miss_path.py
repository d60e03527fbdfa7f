"""The order in which a miss becomes a hit: the files of `compcache/miss` that a plain miss enters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import run_fresh

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = r"""
import os, sys
from compcache import Cache
CODE = "define i64 @NAME(i64 %x) {\n  %y = add i64 %x, 41\n  ret i64 %y\n}\n"
entered, place = [], os.path.join(os.path.dirname(sys.modules["compcache"].__file__), "miss", "")
def look(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and path.startswith(place) and frame.f_code.co_name not in ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>"):
        entered.append(os.path.basename(path).removesuffix(".py"))
with Cache(directory) as cache:
    cache.get_or_compile("first", lambda: CODE.replace("NAME", "first"))
    sys.setprofile(look)
    value = cache.get_or_compile("second", lambda: CODE.replace("NAME", "second"))(1)
    sys.setprofile(None)
result = value, [name for number, name in enumerate(entered) if not number or entered[number - 1] != name]
"""


@pytest.mark.slow
def test_a_plain_miss_enters_each_stage_once(directory: Path) -> None:
    """`compile_once` says the order. What it calls is not entered again, but for the claim, which is given back at the end.

    The claim notes who builds what in `builders`.
    """
    value, entered = run_fresh(directory, SCRIPT)
    assert value == 42
    stages = [name for name in entered if name not in ("compile_once", "builders")]
    assert [name for number, name in enumerate(stages) if not number or stages[number - 1] != name] == [
        "claim", "build", "run_times", "import_types", "publication", "claim",
    ]  # fmt: skip


#: From which folder a miss enters which: calls into files of another folder, apart from ground and codecs.
FOLDERS = r"""
import os, sys, threading
from compcache import Cache
CODE = "define i64 @NAME(i64 %x) {\n  %y = add i64 %x, 41\n  ret i64 %y\n}\n"
PASSED = "errors files digest record signature identity depgraph llvm formats globals __init__ store session settings".split()
PASSED += ["directory", "facade", "messagepack", "native", "cache", "interrupts"]
base = os.path.join(os.path.dirname(sys.modules["compcache"].__file__), "")
def room_of(frame):
    while frame is not None:
        path = frame.f_code.co_filename.removeprefix(base)
        room = path.partition("/")[0].removesuffix(".py")
        if path != frame.f_code.co_filename and room not in PASSED:
            return room
        frame = frame.f_back
entered = []
def look(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(base):
        to, source = room_of(frame), room_of(frame.f_back)
        if to != source and to == room_of_file(frame):
            entered.append((source, to))
def room_of_file(frame):
    return frame.f_code.co_filename.removeprefix(base).partition("/")[0].removesuffix(".py")
with Cache(directory) as cache:
    cache.get_or_compile("first", lambda: CODE.replace("NAME", "first"))
    sys.setprofile(look)
    value = cache.get_or_compile("second", lambda: CODE.replace("NAME", "second"))(1)
    sys.setprofile(None)
result = value, entered
"""


@pytest.mark.slow
def test_a_plain_miss_goes_through_the_folders_in_order(directory: Path) -> None:
    value, entered = run_fresh(directory, FOLDERS)
    assert value == 42
    stages = [to for source, to in entered if source == "miss" and to not in ("hit", "usage")]  # limits are looked up in `usage`
    # The claim is taken and given back by `publish`.
    assert [to for number, to in enumerate(stages) if not number or stages[number - 1] != to] == [
        "publish", "content", "linker", "publish", "maintain", "publish",
    ]  # fmt: skip
    inner = [to for source, to in entered if source == "linker"]
    assert inner.index("translation") < inner.index("images")
    assert {source for source, to in entered if to == "miss"} <= {None, "images"}, "what the linker asks for while it links"
    assert len(entered) < 75
