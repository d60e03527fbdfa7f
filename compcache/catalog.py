"""Lists of all functions and modules of a cache, for people and tools: no module is read that the roster knows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from compcache import host
from compcache.digest import name_key
from compcache.folding import read_ledger
from compcache.reports import FunctionSummary, ModuleSummary
from compcache.roster import Platform, Row, list_modules, load_rows, read_row
from compcache.statsfile import LOADS_KEY

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from compcache.folding import Ledger
    from compcache.roster import Progress
    from compcache.store import Store

    #: One realization: signature, size, time, why this host cannot use it, module_id.
    _Copy = tuple[str, int, float, str, str]

__all__ = ["describe_module", "functions", "modules"]

_NEVER = (0, 0.0)


def modules(store: Store, progress: Progress | None = None) -> list[ModuleSummary]:
    """Every module that is there and can be read, in the order of their ids."""
    now = time.time()
    ledger = read_ledger(store)
    last = ledger.last_uses()
    return [
        _summary(
            row,
            status.st_size,
            min(status.st_mtime, now),
            problem,
            (ledger.uses.get((LOADS_KEY, row.module_id), _NEVER)[0], last.get(row.module_id, 0.0)),
        )
        for row, status, problem in _found(store, ledger, progress)
    ]


def _found(
    store: Store, ledger: Ledger, progress: Progress | None
) -> Iterator[tuple[Row, os.stat_result, str]]:
    """Every module in the order of their ids: its row, its file's status, why this host cannot use it."""
    present = list_modules(store)
    rows = load_rows(store, present, ledger.rows, progress)
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
    ledger = read_ledger(store)
    used = ledger.uses.get((LOADS_KEY, key), _NEVER)[0], ledger.last_uses().get(key, 0.0)
    return _summary(row, status.st_size, status.st_mtime, _problem(store, row.platform), used)


def functions(store: Store, progress: Progress | None = None) -> list[FunctionSummary]:
    """Every function that a module realizes, in the order of their names."""
    copies: dict[str, list[_Copy]] = {}
    now = time.time()
    ledger = read_ledger(store)
    for row, status, problem in _found(store, ledger, progress):
        module_id, size, created = row.module_id.hex(), status.st_size, min(status.st_mtime, now)
        for name, signature in zip(row.names, row.signatures, strict=True):
            copy = (signature, size, created, problem, module_id)
            known = copies.get(name)
            if known is None:
                copies[name] = [copy]
            else:
                known.append(copy)
    used = _uses_by_name(ledger)
    if not used:
        return [_function(name, found, _NEVER) for name, found in sorted(copies.items())]
    return [
        _function(name, found, used.get(name_key(name), _NEVER)) for name, found in sorted(copies.items())
    ]


def _uses_by_name(ledger: Ledger) -> dict[bytes, tuple[int, float]]:
    """How often each function was loaded, and when last, by the key of its name."""
    used: dict[bytes, tuple[int, float]] = {}
    for (key, _), (count, when) in ledger.uses.items():
        if key != LOADS_KEY:
            before = used.get(key, _NEVER)
            used[key] = before[0] + count, max(before[1], when)
    return used


def _function(name: str, copies: list[_Copy], used: tuple[int, float]) -> FunctionSummary:
    if len(copies) == 1:  # nearly always: a hundred thousand of these must not take seconds
        signature, size, created, problem, module_id = copies[0]
        return FunctionSummary(name, signature, 1, size, created, problem, (module_id,), *used)
    signatures, sizes, times, problems, modules_ = zip(*copies, strict=True)
    best = problems.index("") if "" in problems else 0
    return FunctionSummary(
        name, signatures[best], len(copies), sum(sizes), max(times), problems[best], modules_, *used
    )


def _summary(row: Row, size: int, created: float, problem: str, used: tuple[int, float]) -> ModuleSummary:
    platform = row.platform
    return ModuleSummary(
        row.module_id.hex(), tuple(zip(row.names, row.signatures, strict=True)), row.imports, size, created,
        row.seconds, platform.cpu, platform.features, platform.llvm_version, platform.image_kind, problem, *used,
    )  # fmt: skip


def _problem(store: Store, platform: Platform) -> str:
    if platform.abi != host.ABI_VERSION or platform.triple != host.platform_name():
        return f"for {platform.triple} (ABI {platform.abi})"
    missing = store.host().missing(platform.features)
    return f"needs {', '.join(missing[:8])}" if missing else ""
