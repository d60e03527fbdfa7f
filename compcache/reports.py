"""Records that the package hands out to people and tools. All are frozen."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoadedState", "Realization"]


@dataclass(frozen=True, slots=True)
class Realization:
    """One stored copy of a function.

    `size` is that of its module's file in bytes; `created` is in seconds since the epoch; `problem` says why
    this host cannot use it, and is empty where it can.
    """

    func_name: str
    link_name: str
    module_id: str
    signature: str
    cpu: str
    features: str
    llvm_version: str
    image_kind: str
    size: int
    created: float
    loaded: bool
    problem: str


@dataclass(frozen=True, slots=True)
class LoadedState:
    """What a cache object has in memory: ids of modules, names of targets, bytes of mapped images."""

    modules: tuple[str, ...]
    targets: tuple[str, ...]
    bytes_mapped: int
