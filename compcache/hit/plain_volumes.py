"""Plain hits of modules in volumes."""

import os

from compcache.formats.volumes import Volumes
from compcache.hit.target import load_runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from compcache.files import Opened

__all__ = ["DIRECTORY", "SUFFIXES", "open_in_volume", "volumes_of"]

#: The values of `compcache.store.PLACES`, which a plain hit does not import.
DIRECTORY, SUFFIXES = "volumes-v1", (".volume", ".gone")
_LIST = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW


class _Files:
    """The files that a door opens, with the methods of `Tree` that volumes need."""

    __slots__ = ("fstat", "open_owned", "pread")

    def __init__(self, door: "Any") -> None:
        self.open_owned, self.fstat, self.pread = door.open_owned, door.fstat, door.pread

    def stat(self, path: str) -> os.stat_result:
        """See `Tree.stat`."""
        opened = self.open_owned(path, _LOOK)
        return os.fstat(opened.number)

    def listdir(self, path: str) -> list[str]:
        """See `Tree.listdir`."""
        opened = self.open_owned(path, _LIST)
        return os.listdir(opened.number)


def volumes_of(door: "Any", root: str) -> Volumes:
    """Return the volumes of a directory. Damage ends the plain hit. Volumes of other users have no stamp."""
    return Volumes(_Files(door), f"{root}/{DIRECTORY}", SUFFIXES, _raise_damage, _raise_damage)


def _raise_damage(name: str, reason: object) -> "NoReturn":
    """End the plain hit: raise `ValueError` for a volume that is damaged."""
    raise ValueError(f"the volume {name} cannot be used: {reason}")


def open_in_volume(volumes: Volumes, module_id: bytes) -> "tuple[Opened, tuple[int, int, int, int], int]":
    """Return a module as an anonymous file, the stamp of its volume, and its size in bytes.

    Raises:
        FileNotFoundError: no volume has the module.
        FormatError: the module is damaged.
        ValueError: a volume is damaged.
        OSError: a volume cannot be read.
    """
    member = volumes.read(module_id)
    if member is None:
        raise FileNotFoundError(f"no volume has the module {module_id.hex()}")
    content, _, status = member
    opened: Opened = load_runtime().memory_file("compcache")
    if os.write(opened.number, content) < len(content):
        raise OSError(f"the module {module_id.hex()} does not fit into memory")
    return opened, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns), len(content)
