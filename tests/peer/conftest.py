"""Fixtures of the peer tests.

`COMPCACHE_PEER_DIR` names the directory of downloads and bitcode (default: pytest's own cache directory).
`COMPCACHE_PEER_REQUIRED=1` turns "not available here" from a skip into a failure.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from .compilers import ALL, CompilerUnavailableError, make_compiler
from .sdists import SdistUnavailableError, fetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from .compilers import Compiler


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("COMPCACHE_PEER_REQUIRED", "0") != "0":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def peer_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where downloads and bitcode stay between runs."""
    chosen = os.environ.get("COMPCACHE_PEER_DIR")
    if chosen:
        return Path(chosen)
    cache: pytest.Cache | None = getattr(request.config, "cache", None)  # None with -p no:cacheprovider
    return tmp_path_factory.mktemp("peer") if cache is None else Path(cache.mkdir("compcache-peer"))


@pytest.fixture(scope="session")
def sdist(peer_dir: Path) -> Callable[[str], Path]:
    """`sdist(name)`: the root of that source distribution; skips where the registry is out of reach."""
    reasons: dict[str, str] = {}

    def unpacked(name: str) -> Path:
        if name not in reasons:
            try:
                return fetch(name, peer_dir / "sdists")
            except SdistUnavailableError as error:
                reasons[name] = str(error)
        return unavailable(reasons[name])

    return unpacked


@pytest.fixture(scope="session")
def compiler_named(peer_dir: Path) -> Callable[[str], Compiler]:
    """`compiler_named(name)`: that compiler; skips where it is not installed."""

    def named(name: str) -> Compiler:
        try:
            return make_compiler(name, peer_dir / "bitcode")
        except CompilerUnavailableError as error:
            return unavailable(str(error))

    return named


@pytest.fixture(scope="module", params=ALL)
def compiler(request: pytest.FixtureRequest, compiler_named: Callable[[str], Compiler]) -> Compiler:
    """Each compiler in turn."""
    return compiler_named(request.param)
