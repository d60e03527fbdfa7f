"""The order in which a miss becomes a hit: the files of `compcache/miss` that a plain miss enters."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    if event == "call" and path.startswith(place) and frame.f_code.co_name != "<module>":
        entered.append(os.path.basename(path).removesuffix(".py"))
with Cache(directory) as cache:
    cache.get_or_compile("first", lambda: CODE.replace("NAME", "first"))
    sys.setprofile(look)
    value = cache.get_or_compile("second", lambda: CODE.replace("NAME", "second"))(1)
    sys.setprofile(None)
result = value, [name for number, name in enumerate(entered) if not number or entered[number - 1] != name]
"""


def test_a_plain_miss_enters_each_stage_once(directory: Path) -> None:
    """`compile_once` says the order. What it calls is not entered again, but for the claim, which is given back at the end."""
    value, entered = run_fresh(directory, SCRIPT)
    assert value == 42
    stages = [name for name in entered if name != "compile_once"]
    assert stages == ["claim", "staleness", "build", "run_times", "build", "publication", "claim"]
