"""Shelves: a remote store separates modules by platform and by the CPU level that their code requires.

The cards of a function for all shelves are one object. A host requests this object, and chooses the best card that it can use.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture
from compcache.digest import digest, name_key
from compcache.formats.host import ABI_VERSION, platform_name
from compcache.targets.cpu_table import cpu_table
from compcache.targets.processor_words import processor_with, words_of

if TYPE_CHECKING:
    from compcache.formats.host import Processor

__all__ = ["card_key", "lease_of", "module_key", "pack_key", "platform_part_of", "runs_also", "shelf_of", "usable_shelves"]

#: The layout of the store. A change of it, or of the format of cards, starts a new layout beside the old one.
LAYOUT = "ccr3"
_PROCESSOR = "cpu-"  # precedes the identity of a processor
_TABLE_VERSION = 22  # the version of LLVM's tables: levels must mean the same on every host of a fleet


def platform_part_of(platform: str | None = None, abi: int = ABI_VERSION) -> str:
    """Return the part of keys that identifies a platform (None: this process's) and the interface version of images."""
    return f"{platform or platform_name()}-abi{abi}"


def shelf_of(requirement: str) -> str:
    """Return the shelf for code with this requirement.

    It is the lowest CPU level that can run the code. Without such a level, it is the shelf of the processor that compiled the code, or, if
    that is not recorded, of the processor for which the code was compiled.
    """
    _, platform, _, _, made_for, made_on, features = requirement.split("\0")
    for level in _cpu_levels(platform):
        if level.processor.meets(features):
            return level.name
    return _PROCESSOR + (made_on or digest([made_for.encode()], size=8).hex())


def usable_shelves(processor: Processor) -> tuple[str, ...]:
    """Return the shelves whose code a processor can run, the best first."""
    levels = [level.name for level in _cpu_levels(platform_name()) if processor.meets(level.words)]
    return (_PROCESSOR + processor.identity, *reversed(levels))


def runs_also(shelf: str, other: str, platform: str | None = None) -> bool:
    """Return whether every processor of a shelf can run the code on `other`, as far as CPU levels show.

    For shelves of single processors, the result is False unless both are the same. Without `platform`, the levels are this platform's.
    """
    levels = [level.name for level in _cpu_levels(platform or platform_name())]
    return shelf == other or (shelf in levels and other in levels[: levels.index(shelf)])


def card_key(platform_part: str, func_name: str) -> str:
    """Return the key of a function's cards: ``ccr3/f/<platform part>/<kk>/<key of the name>``."""
    return f"{LAYOUT}/f/{platform_part}/{_key_path(func_name)}"


def lease_of(key: str) -> str:
    """Return the key of a function's lease, given the key of its cards: ``ccr3/l/<platform part>/<kk>/<key of the name>``."""
    return key.replace("/f/", "/l/", 1)


def pack_key(platform_part: str, shelf: str, first_name: str) -> str:
    """Return the key of a start-up's pack: ``ccr3/p/<platform part>/<shelf>/<kk>/<key of the first name>``.

    `first_name` is the alphabetically first function in the first question of the start-up.
    """
    return f"{LAYOUT}/p/{platform_part}/{shelf}/{_key_path(first_name)}"


def _key_path(func_name: str) -> str:
    """Return the last two parts of a function's keys: the first byte of its name key, and the name key, in hexadecimal."""
    key = name_key(func_name).hex()
    return f"{key[:2]}/{key}"


def module_key(module_id: bytes) -> str:
    """Return the key of a module that is an object of its own: ``ccr3/m/<aa>/<module_id>.ccm``."""
    name = module_id.hex()
    return f"{LAYOUT}/m/{name[:2]}/{name}.ccm"


class _Level(NamedTuple):
    """A CPU level: its name, its features as words (`words_of`), and a processor with exactly these features."""

    name: str
    words: str
    processor: Processor


@cache
def _cpu_levels(platform: str) -> tuple[_Level, ...]:
    """Return the CPU levels of a platform, the lowest first; none if there is no table of its CPUs."""
    arch = platform.partition("-")[0]
    table = cpu_table(arch, _TABLE_VERSION)
    levels = [(level, table.expand(level)) for level in architecture(arch).levels] if table else []
    return tuple([_Level(level, words_of(features, arch)[0], processor_with(features, platform, level)) for level, features in levels])
