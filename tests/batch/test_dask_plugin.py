"""What a graph of Dask calls is found in it, and fetched before its tasks run. (With a cluster: `tests/peer/test_executors.py`.)"""

from __future__ import annotations

import asyncio
import pickle
import shutil
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
from helpers import constant

from compcache import Cache, CacheWarning
from compcache.dask import PrefetchPlugin, functions_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    yield (tmp_path / "store").as_uri()
    shutil.rmtree(tmp_path / "run")


class Task:
    """As those of Dask."""

    def __init__(self, func: object, *args: object) -> None:
        self.func, self.args, self.kwargs = func, args, {"more": [func]}


def test_functions_are_found_wherever_a_graph_has_them(tmp_path: Path) -> None:
    with Cache(tmp_path / "a") as cache:
        f, g, h = [cache.get_or_compile(name, lambda name=name: constant(name, 1)) for name in "fgh"]  # type: ignore[misc]
        around: list[object] = [f]
        around.append(around)  # a circle
        graph = {"x": (f, 1, [g]), "y": Task(h, "x"), "z": around, "w": 5}
        assert functions_of(graph) == (f, g, h)


class Late(Mapping[str, object]):
    """A mapping that makes its value at each look-up, as a graph that is not materialized does."""

    def __init__(self, target: object) -> None:
        self._target = target

    def __getitem__(self, _: str) -> object:
        return [self._target]

    def __iter__(self) -> Iterator[str]:
        return iter("x")

    def __len__(self) -> int:
        return 1


def test_functions_are_found_in_values_that_live_only_while_they_are_read(tmp_path: Path) -> None:
    with Cache(tmp_path / "a") as cache:
        kernels = cache.compile("".join([constant(f"f{number}", number) for number in range(8)]))
        targets = tuple([kernels[name] for name in kernels])
        assert functions_of([Late(target) for target in targets]) == targets


@pytest.mark.slow
def test_workers_fetch_before_they_work(tmp_path: Path, url: str) -> None:
    with Cache(tmp_path / "a", remote=url, remote_mode="write") as cache:
        target = cache.get_or_compile("f", lambda: constant("f", 7))
        cache.push(["f"])
        assert cache.flush_uploads(60)
        plugin = pickle.dumps(PrefetchPlugin(["f"], str(tmp_path / "worker"), url))
        of_target = PrefetchPlugin(functions_of([target]), remote=url)
    asyncio.run(pickle.loads(plugin).setup(None))
    with Cache(tmp_path / "worker") as cache:
        assert cache.get_target("f")() == 7
    shutil.rmtree(tmp_path / "a")  # as on another host
    asyncio.run(of_target.setup(None))
    with Cache(tmp_path / "a") as cache:
        assert cache.get_target("f")() == 7


def test_a_store_that_cannot_be_is_a_warning() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(PrefetchPlugin(["f"], remote="ftp://host/x").setup(None))
    assert [each.category for each in warned] == [CacheWarning]
