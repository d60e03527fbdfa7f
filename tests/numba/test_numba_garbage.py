"""When Python collects garbage while Numba is imported or compiles: seldom, and afterwards as the program wants it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from compcache.numba.lazy import garbage
from compcache.numba.lazy.garbage import few_collections, freeze_start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, ...]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def collections_of(number: int) -> int:
    """How many collections making some objects takes."""
    before = [generation["collections"] for generation in gc.get_stats()]
    kept: list[list[object]] = [[] for _ in range(number)]
    del kept
    after = [generation["collections"] for generation in gc.get_stats()]
    return int(sum(after) - sum(before))


@pytest.mark.parametrize("lasting", [False, True])
def test_new_objects_start_no_collections_in_a_block(*, lasting: bool) -> None:
    assert collections_of(20_000)
    with few_collections(lasting=lasting):
        assert not collections_of(20_000)
    assert collections_of(20_000)


def test_blocks_in_blocks_and_threads_restore_what_was_there(thresholds: tuple[int, ...]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with few_collections(lasting=True):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with few_collections():
        compiling = gc.get_threshold()
        thread.start()
        entered.wait(10)
        with few_collections(), pytest.raises(KeyError), few_collections(lasting=True):
            raise KeyError
    assert gc.get_threshold() > compiling > thresholds
    leave.set()
    thread.join()
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("own", [(0, 10, 10), (2_000_000, 5, 5)])
def test_a_program_that_collects_as_seldom_or_never_is_left_alone(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    mine = gc.get_threshold()
    with few_collections(lasting=True), few_collections():
        assert gc.get_threshold() == mine
    assert gc.get_threshold() == mine


def test_thresholds_that_are_set_in_a_block_stay() -> None:
    with few_collections(lasting=True):
        gc.set_threshold(800, 11, 12)
        mine = gc.get_threshold()
        with few_collections():
            assert gc.get_threshold()[0] > mine[0]
    assert gc.get_threshold() == mine


def test_what_lasts_is_found_when_it_is_garbage_later() -> None:
    class Node:
        pass

    freed: list[object] = []

    with few_collections(lasting=True):
        node = Node()
        node.self = node  # type: ignore[attr-defined]
        reference = weakref.ref(node, freed.append)
    del node
    gc.collect()
    assert reference() is None
    assert freed


def test_what_a_program_has_frozen_stays_frozen() -> None:
    had_frozen = gc.get_freeze_count()
    gc.freeze()
    before = gc.get_freeze_count()
    with few_collections(lasting=True):
        pass
    assert gc.get_freeze_count() == before
    if not had_frozen:
        gc.unfreeze()


def test_a_frozen_start_does_not_keep_later_objects_from_their_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba's objects join the oldest generation in a process whose start is frozen. A program that freezes more keeps it so."""
    monkeypatch.setattr(garbage, "_frozen_count", 0)
    gc.unfreeze()
    freeze_start()
    kept = [[] for _ in range(1_000)]  # type: ignore[var-annotated]
    try:
        with few_collections(lasting=True):
            pass
        assert not gc.get_freeze_count()
        freeze_start()
        kept += [[] for _ in range(1_000)]
        gc.freeze()
        with few_collections(lasting=True):
            pass
        assert gc.get_freeze_count() > 1_000
    finally:
        gc.unfreeze()


PROGRAM = """
import gc
class Node:
    def __del__(self):
        print("freed", self.name)
def node(name):
    found = Node()
    found.name, found.self = name, found
    return found
print(gc.get_freeze_count() > 1_000)
node("early")
print(gc.collect() > 0)
last = node("late")
"""


def test_run_freezes_its_start_and_no_object_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "compcache.numba", "run", "--dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["True", "freed early", "True", "freed late", ""]
