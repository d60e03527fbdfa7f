"""When Python collects garbage while Numba is imported or compiles: seldom, and afterwards as the program wants it."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from compcache.numba.lazy.garbage import few_collections

if TYPE_CHECKING:
    from collections.abc import Iterator


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
