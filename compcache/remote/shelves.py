"""Shelves: modules in a remote store are kept apart by platform and by the CPU level that their code requires.

A host asks every shelf that it can use, at once, and takes the best find; no listing of the store is needed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from compcache.digest import digest, name_key
from compcache.formats.host import ABI_VERSION, SYSTEM_FEATURES, native_requirements, platform_name, required
from compcache.targets.cpu_table import cpu_table

if TYPE_CHECKING:
    from compcache.formats.host import Host

__all__ = ["card_key", "module_key", "pack_key", "platform_shelf", "shelf_of", "usable_shelves"]

#: The layout of the store; a change of it, or of the format of cards, begins a new one beside the old one.
LAYOUT = "ccr1"
_TABLE_VERSION = 22  # of LLVM's tables: levels must mean the same on every host of a fleet
_LEVELS = {
    "x86_64": ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"),
    "aarch64": ("generic",),
}


def platform_shelf(platform: str | None = None, abi: int = ABI_VERSION) -> str:
    """The part of a key that says for which platform and which interface of images its code is."""
    return f"{platform or platform_name()}-abi{abi}"


def shelf_of(platform: str, features: str) -> str:
    """The shelf of code that requires these features: the lowest level that has them all, or that of CPUs with exactly these."""
    needed = required(features) - SYSTEM_FEATURES
    for level, have in _levels(platform.partition("-")[0]):
        if needed <= have:
            return level
    return _native(features)


def usable_shelves(host: Host) -> tuple[str, ...]:
    """The shelves whose code this host can run, the best first."""
    have = required(host.features) | SYSTEM_FEATURES
    levels = [level for level, needed in _levels(platform_name().partition("-")[0]) if needed <= have]
    return (_native(host.features), *reversed(levels))


def card_key(platform: str, shelf: str, func_name: str) -> str:
    """Where the card of a function is: ``ccr1/f/<platform>/<shelf>/<kk>/<key of the name>``."""
    return f"{LAYOUT}/f/{_place(platform, shelf, func_name)}"


def pack_key(platform: str, shelf: str, first_name: str) -> str:
    """Where the pack of a start-up is: ``ccr1/p/<platform>/<shelf>/<kk>/<key of the name that it asks for first>``."""
    return f"{LAYOUT}/p/{_place(platform, shelf, first_name)}"


def _place(platform: str, shelf: str, func_name: str) -> str:
    key = name_key(func_name).hex()
    return f"{platform}/{shelf}/{key[:2]}/{key}"


def module_key(module_id: bytes) -> str:
    """Where a module is that no card holds: ``ccr1/m/<aa>/<module_id>.ccm``."""
    name = module_id.hex()
    return f"{LAYOUT}/m/{name[:2]}/{name}.ccm"


def _native(features: str) -> str:
    return "cpu-" + digest([native_requirements(features).encode()], size=8).hex()


@cache
def _levels(arch: str) -> tuple[tuple[str, frozenset[str]], ...]:
    table = cpu_table(arch, _TABLE_VERSION)
    return tuple((level, table.expand(level)) for level in _LEVELS.get(arch, ())) if table else ()
