"""Lists of all functions and modules of a cache, for people and tools: no module is read that the roster knows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from compcache import host
from compcache.folding import read_ledger
from compcache.reports import FunctionSummary, ModuleSummary
from compcache.roster import Platform, Row, list_modules, load_rows, read_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.roster import Progress
    from compcache.store import Store

__all__ = ["describe_module", "functions", "modules"]


def modules(store: Store, progress: Progress | None = None) -> list[ModuleSummary]:
    """Every module that is there and can be read, in the order of their ids."""
    present = list_modules(store)
    rows = load_rows(store, present, read_ledger(store).rows, progress)
    problem_of = _problems(store)
    return [
        _summary(rows[module_id], status.st_size, status.st_mtime, problem_of)
        for module_id, status in sorted(present.items())
        if module_id in rows
    ]


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
    return _summary(row, status.st_size, status.st_mtime, _problems(store))


def functions(store: Store, progress: Progress | None = None) -> list[FunctionSummary]:
    """Every function that a module realizes, in the order of their names."""
    copies: dict[str, list[tuple[ModuleSummary, str]]] = {}
    for module in modules(store, progress):
        for name, signature in module.functions:
            copies.setdefault(name, []).append((module, signature))
    return [_function(name, copies[name]) for name in sorted(copies)]


def _function(name: str, copies: list[tuple[ModuleSummary, str]]) -> FunctionSummary:
    usable = [copy for copy in copies if not copy[0].problem] or copies
    return FunctionSummary(
        func_name=name,
        signature=usable[0][1],
        realizations=len(copies),
        size=sum(module.size for module, _ in copies),
        created=max(module.created for module, _ in copies),
        problem=usable[0][0].problem,
        modules=tuple([module.module_id for module, _ in copies]),
    )


def _summary(row: Row, size: int, created: float, problem_of: Callable[[Platform], str]) -> ModuleSummary:
    return ModuleSummary(
        module_id=row.module_id.hex(),
        functions=tuple(zip(row.names, row.signatures, strict=True)),
        imports=row.imports,
        size=size,
        created=min(created, time.time()),
        seconds=row.seconds,
        cpu=row.platform.cpu,
        features=row.platform.features,
        llvm_version=row.platform.llvm_version,
        image_kind=row.platform.image_kind,
        problem=problem_of(row.platform),
    )


def _problems(store: Store) -> Callable[[Platform], str]:
    """Why this host cannot run the code of a platform, worked out once for each."""
    known: dict[Platform, str] = {}

    def problem_of(platform: Platform) -> str:
        if platform not in known:
            known[platform] = _problem(store, platform)
        return known[platform]

    return problem_of


def _problem(store: Store, platform: Platform) -> str:
    if platform.abi != host.ABI_VERSION or platform.triple != host.platform_name():
        return f"for {platform.triple} (ABI {platform.abi})"
    missing = store.host().missing(platform.features)
    return f"needs {', '.join(missing[:8])}" if missing else ""
