"""Lists of all functions and modules of a cache, for people and tools: no module is read that the roster knows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from compcache import host
from compcache.folding import read_ledger
from compcache.reports import FunctionSummary, ModuleSummary
from compcache.roster import Platform, Row, list_modules, load_rows, read_row

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from compcache.roster import Progress
    from compcache.store import Store

    #: One realization: signature, size, time, why this host cannot use it, module_id.
    _Copy = tuple[str, int, float, str, str]

__all__ = ["describe_module", "functions", "modules"]


def modules(store: Store, progress: Progress | None = None) -> list[ModuleSummary]:
    """Every module that is there and can be read, in the order of their ids."""
    now = time.time()
    return [
        _summary(row, status.st_size, min(status.st_mtime, now), problem)
        for row, status, problem in _found(store, progress)
    ]


def _found(store: Store, progress: Progress | None) -> Iterator[tuple[Row, os.stat_result, str]]:
    """Every module in the order of their ids: its row, its file's status, why this host cannot use it."""
    present = list_modules(store)
    rows = load_rows(store, present, read_ledger(store).rows, progress)
    problems: dict[Platform, str] = {}
    for module_id, status in sorted(present.items()):
        row = rows.get(module_id)
        if row is not None:
            problem = problems.get(row.platform)
            if problem is None:
                problem = problems[row.platform] = _problem(store, row.platform)
            yield row, status, problem


def describe_module(store: Store, module_id: str) -> ModuleSummary:
    """One module.

    Raises:
        FileNotFoundError: it is not there, or cannot be read.
    """
    key = bytes.fromhex(module_id)
    status = store.files.stat(store.module_path(key))
    row = read_row(store, key)
    if row is None:
        raise FileNotFoundError(f"module {module_id} cannot be read from {store.root}")
    return _summary(row, status.st_size, status.st_mtime, _problem(store, row.platform))


def functions(store: Store, progress: Progress | None = None) -> list[FunctionSummary]:
    """Every function that a module realizes, in the order of their names."""
    copies: dict[str, list[_Copy]] = {}
    now = time.time()
    for row, status, problem in _found(store, progress):
        module_id, size, created = row.module_id.hex(), status.st_size, min(status.st_mtime, now)
        for name, signature in zip(row.names, row.signatures, strict=True):
            copy = (signature, size, created, problem, module_id)
            known = copies.get(name)
            if known is None:
                copies[name] = [copy]
            else:
                known.append(copy)
    return [_function(name, found) for name, found in sorted(copies.items())]


def _function(name: str, copies: list[_Copy]) -> FunctionSummary:
    if len(copies) == 1:  # nearly always: a hundred thousand of these must not take seconds
        signature, size, created, problem, module_id = copies[0]
        return FunctionSummary(name, signature, 1, size, created, problem, (module_id,))
    signatures, sizes, times, problems, modules_ = zip(*copies, strict=True)
    best = problems.index("") if "" in problems else 0
    return FunctionSummary(
        name, signatures[best], len(copies), sum(sizes), max(times), problems[best], modules_
    )


def _summary(row: Row, size: int, created: float, problem: str) -> ModuleSummary:
    platform = row.platform
    return ModuleSummary(
        row.module_id.hex(), tuple(zip(row.names, row.signatures, strict=True)), row.imports, size, created,
        row.seconds, platform.cpu, platform.features, platform.llvm_version, platform.image_kind, problem,
    )  # fmt: skip


def _problem(store: Store, platform: Platform) -> str:
    if platform.abi != host.ABI_VERSION or platform.triple != host.platform_name():
        return f"for {platform.triple} (ABI {platform.abi})"
    missing = store.host().missing(platform.features)
    return f"needs {', '.join(missing[:8])}" if missing else ""
