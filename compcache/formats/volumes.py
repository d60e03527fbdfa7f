"""The volumes of a cache directory: which are in force, and which of them holds a module."""

# Hits read volumes: modules that only damage, removals or other users need are imported where these are met (see `compcache.hit`).
import time

from compcache.formats.volume import Volume, reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any, TypeVar

    from compcache.errors import FormatError
    from compcache.formats.volume import Member

    _T = TypeVar("_T")

__all__ = ["Volumes"]

#: Longer than any tick of a file system's clock, and of one with a resolution below a millisecond.
_TICK_NS, _FINE_TICK_NS = 2_000_000_000, 20_000_000
_MILLISECOND = 1_000_000
#: How often a directory is listed until no volume disappears during the listing.
_ATTEMPTS = 16


class Volumes:
    """The volumes of a cache directory at the time of each request.

    `damaged` has the unreadable volumes with the reasons. `tell_damaged` is called for each with its name and the reason;
    `tell_unreadable` with a path and an error if a temporary failure is not raised. `owners` are the users whose volumes are used; None
    means all. If they include users that are not `vouching`, modules must carry signatures. Volumes of those users come last, and replace
    nothing.
    """

    __slots__ = (
        "_begun", "_directory", "_files", "_known", "_settled", "_state", "_suffixes", "_tell_damaged", "_tell_unreadable", "damaged",
        "owners", "vouching",
    )  # fmt: skip

    def __init__(
        self,
        files: "Any",
        directory: str,
        suffixes: tuple[str, str],
        tell_damaged: "Callable[[str, str], object]",
        tell_unreadable: "Callable[[str, OSError], object]",
    ) -> None:
        self._files, self._directory, self._suffixes = files, directory, suffixes
        self._tell_damaged, self._tell_unreadable = tell_damaged, tell_unreadable
        self._known: dict[str, Volume] = {}
        self._begun: list[str] = []
        self._state: tuple[int, int] = (0, 0)
        self._settled = True
        self.damaged: dict[str, str] = {}
        self.owners: frozenset[int] | None = None
        self.vouching: frozenset[int] | None = None

    def current(self) -> list[Volume]:
        """Return the present volumes that no other one replaces.

        Raises:
            OSError: a volume cannot be read now.
        """
        self._look()
        own = {name: volume for name, volume in self._known.items() if self.is_own(volume)}
        replaced = {name for volume in own.values() for name in volume.replaced}
        return [volume for name, volume in {**own, **self._known}.items() if name not in replaced]

    def replaced(self) -> list[Volume]:
        """Return the replaced volumes that still exist and were readable at the last look."""
        current = self.current()
        return [volume for volume in self._known.values() if volume not in current]

    def lists_to_mark(self, module_id: bytes) -> dict[str, bool]:
        """Return the names of the lists that must record a module's removal: those of volumes that have it, and of volumes that are being
        written, which may contain it. The values say whether the volume exists. This lists the directory.

        Raises:
            OSError: a volume cannot be read now.
        """
        self._state = 0, 0
        found = self._ask(self._all, lambda volume: volume.find(module_id))
        return dict.fromkeys(self._begun, False) | dict.fromkeys([volume.gone_name for volume, _ in found], True)

    def is_own(self, volume: Volume) -> bool:
        """Return whether only this user could have written a volume."""
        if self.vouching is None:
            return True
        from compcache.files import writer

        return writer(volume.status) in self.vouching

    def known(self, name: str) -> Volume | None:
        """Return the volume of this name, if it could be opened."""
        return self._known.get(name)

    def _all(self) -> list[Volume]:
        self._look()
        return list(self._known.values())

    def _look(self) -> None:
        """List the directory, unless it is unchanged since the last listing."""
        try:
            status = self._files.stat(self._directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            self.close()
            return
        state = status.st_ino, status.st_mtime_ns
        if state != self._state or not self._settled:
            for _ in range(_ATTEMPTS):
                if self._list():
                    break
            tick = _FINE_TICK_NS if status.st_mtime_ns % _MILLISECOND else _TICK_NS
            self._state, self._settled = state, status.st_mtime_ns < time.time_ns() - tick

    def _list(self) -> bool:
        """List the directory; return whether every volume could be opened. A missing volume was replaced by another one that exists."""
        names = set(self._files.listdir(self._directory))
        volume_suffix, list_suffix = self._suffixes
        known, whole = {}, True
        self.damaged = {}
        for name in sorted(name for name in names if name.endswith(volume_suffix)):
            try:
                volume = self._known.get(name) or Volume(self._files, self._directory, name, self._suffixes, self.owners)
                if volume.gone_name in names or not volume.needs_list:
                    known[name] = volume
            except FileNotFoundError as error:
                reraise_interrupt(error)
                whole = False
            except _format_error() as error:
                self._note(name, error)
        volumes = {name.removesuffix(volume_suffix) for name in names}
        self._begun = sorted(name for name in names if name.endswith(list_suffix) and name.removesuffix(list_suffix) not in volumes)
        self._known = known
        return whole

    def _note(self, name: str, error: "FormatError") -> None:
        self.damaged[name] = str(error)
        self._tell_damaged(name, str(error))

    def _ask(
        self, volumes: "Callable[[], list[Volume]]", question: "Callable[[Volume], _T | None]", most: int = 1 << 30
    ) -> "list[tuple[Volume, _T]]":
        """Return the answers of these volumes, at most this many. A damaged part of a volume has none.

        If a volume's list is gone, another volume has replaced it, and is asked.
        """
        for attempt in range(_ATTEMPTS):
            found = []
            try:
                for volume in volumes():
                    answer = self._answer(volume, question)
                    if answer is not None:
                        found.append((volume, answer))
                    if len(found) >= most:
                        break
            except FileNotFoundError as error:
                reraise_interrupt(error)
                if attempt == _ATTEMPTS - 1:
                    raise
                self._state = 0, 0
                continue
            break
        return found

    def _answer(self, volume: Volume, question: "Callable[[Volume], _T | None]") -> "_T | None":
        try:
            return question(volume)
        except _format_error() as error:
            self._note(volume.name, error)
            return None

    def find(self, module_id: bytes) -> "tuple[Volume, Member] | None":
        """Return the place of a module; None if no volume has it. A damaged part of a volume has nothing.

        Raises:
            OSError: a volume cannot be read now.
        """
        found = self._ask(self.current, lambda volume: volume.find(module_id), most=1)
        return found[0] if found else None

    def read(self, module_id: bytes) -> "tuple[bytes, int, os.stat_result] | None":
        """Return the file of a module, its size in the volume, and the volume's status; None if no volume has it.

        Raises:
            FormatError: the member is damaged.
            OSError: the volume cannot be read.
        """
        found = self.find(module_id)
        return None if found is None else (found[0].content(found[1])[0], found[1][1] + found[0].share, found[0].status)

    def signatures(self, module_id: bytes) -> bytes:
        """Return the signatures of a module; empty if none can be read."""
        try:
            found = self.find(module_id)
            return b"" if found is None else found[0].content(found[1])[1]
        except (OSError, _format_error()) as error:
            reraise_interrupt(error)
            return b""

    def status_of(self, module_id: bytes) -> tuple[int, float] | None:
        """Return the size of a module in its volume, in bytes, and its modification time; None if no volume has it.

        Raises:
            OSError: a volume cannot be read now.
        """
        found = self.find(module_id)
        return None if found is None else (found[1][1] + found[0].share, found[1][4])

    def are_there(self) -> bool:
        """Return whether there are any. A failure to read calls `tell_unreadable`."""
        return bool(self._of_readable(lambda _: True))

    def of_directory(self, digits: str) -> "dict[bytes, tuple[int, float, os.stat_result]]":
        """Return the modules whose ids begin with these digits: their sizes in bytes, their modification times, and the status of the
        volume.

        A failure to read calls `tell_unreadable`.
        """
        first = int(digits, 16)
        return {
            module_id: (member[1] + volume.share, member[4], volume.status)
            for volume, members in self._of_readable(lambda volume: dict(volume.members(first)))
            for module_id, member in members.items()
        }

    def _of_readable(self, question: "Callable[[Volume], _T]") -> "list[tuple[Volume, _T]]":
        try:
            return self._ask(self.current, question)
        except OSError as error:
            reraise_interrupt(error)
            self._tell_unreadable(self._directory, error)
            return []

    def close(self) -> None:
        """Close the files."""
        self._known = {}
        self._begun = []
        self._state = (0, 0)


def _format_error() -> "type[FormatError]":
    from compcache.errors import FormatError

    return FormatError
