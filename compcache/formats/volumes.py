"""The volumes of a cache directory: determines the volumes in use, and finds modules in them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.files import writer
from compcache.formats.volume import Volume
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import TypeVar

    from compcache.files import Files

    _T = TypeVar("_T")

__all__ = ["Volumes"]

#: Upper bounds for the resolution of a file system's clock, in general, and if times have fractions of a millisecond.
_TICK_NS, _FINE_TICK_NS = 2_000_000_000, 20_000_000
_MILLISECOND = 1_000_000
#: The limit of listings of a directory until no volume disappears during a listing.
_ATTEMPTS = 16


class Volumes:
    """The current volumes of a cache directory.

    `damaged` has the reasons why volumes are not readable, by name. `owners` are the users whose volumes are used; None for all users.
    Modules from owners that are not in `vouching` need signatures. The volumes of these owners are searched last, and replace no volumes.

    Args:
        files: the operations to use.
        directory: the path of the directory.
        suffixes: the suffixes of the names of volumes, and of their lists.
        tell_damaged: called with the name of a damaged volume and the reason.
        tell_unreadable: called with a path and an error, if a failure to read is not raised.
    """

    __slots__ = (
        "_begun", "_directory", "_files", "_known", "_settled", "_state", "_suffixes", "_tell_damaged", "_tell_unreadable", "damaged",
        "owners", "vouching",
    )  # fmt: skip

    def __init__(
        self,
        files: Files,
        directory: str,
        suffixes: tuple[str, str],
        tell_damaged: Callable[[str, str], object],
        tell_unreadable: Callable[[str, OSError], object],
    ) -> None:
        self._files, self._directory, self._suffixes = files, directory, suffixes
        self._tell_damaged, self._tell_unreadable = tell_damaged, tell_unreadable
        self._known: dict[str, Volume] = {}  # the readable volumes, by name
        self._begun: list[str] = []  # the lists of volumes that are being written
        self._state: tuple[int, int] = (0, 0)  # the inode and the modification time of the directory when it was listed
        self._settled = True  # whether a later change of the directory changes its modification time
        self.damaged: dict[str, str] = {}  # the reasons, by the names of volumes
        self.owners: frozenset[int] | None = None  # the users whose volumes are used; None: all users
        self.vouching: frozenset[int] | None = None  # the users whose volumes may replace others; None: all users

    def current(self) -> list[Volume]:
        """Return the volumes that no trusted volume replaces, the trusted volumes first. List the directory if it has changed.

        Raise `OSError` if the directory or a volume cannot be read.
        """
        self._list_if_changed()
        trusted = {name: volume for name, volume in self._known.items() if self.is_trusted(volume)}
        replaced = {name for volume in trusted.values() for name in volume.replaced}
        return [volume for name, volume in {**trusted, **self._known}.items() if name not in replaced]

    def replaced(self) -> list[Volume]:
        """Return the readable volumes that another volume replaces. Raise `OSError` if a volume cannot be read."""
        current = self.current()
        return [volume for volume in self._known.values() if volume not in current]

    def lists_to_mark(self, module_id: bytes) -> dict[str, bool]:
        """Return the names of the lists that must record a module's removal, and whether the volume of each list exists.

        These are the lists of volumes that contain the module, and of volumes that are being written and may contain it. The directory is
        listed again. Raise `OSError` if a volume cannot be read.
        """
        self._state = 0, 0
        holders = self._query(self._all_known, lambda volume: volume.find(module_id))
        return dict.fromkeys(self._begun, False) | dict.fromkeys([volume.gone_name for volume, _ in holders], True)

    def is_trusted(self, volume: Volume) -> bool:
        """Return whether only users in `vouching` can have written a volume. If `vouching` is None, all users are trusted."""
        return self.vouching is None or writer(volume.status) in self.vouching

    def known(self, name: str) -> Volume | None:
        """Return the open volume with a name, or None if there is no such volume or it is damaged."""
        return self._known.get(name)

    def _all_known(self) -> list[Volume]:
        """Return all readable volumes, including replaced ones."""
        self._list_if_changed()
        return list(self._known.values())

    def _list_if_changed(self) -> None:
        """List the directory if it has changed since the last listing."""
        try:
            status = self._files.stat(self._directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            self.close()
            return
        state = status.st_ino, status.st_mtime_ns
        if state != self._state or not self._settled:
            for _ in range(_ATTEMPTS):
                if self._list_directory():
                    break
            tick = _FINE_TICK_NS if status.st_mtime_ns % _MILLISECOND else _TICK_NS
            self._state, self._settled = state, status.st_mtime_ns < time.time_ns() - tick

    def _list_directory(self) -> bool:
        """List the directory, and open new volumes. Return False if a volume disappeared in the meantime, because it was replaced.

        Damaged volumes are recorded in `damaged`, and lists without a volume in `_begun`. A volume without the list that it needs is left
        out: another volume has replaced it. Raise `OSError` if the directory cannot be listed.
        """
        names = set(self._files.listdir(self._directory))
        volume_suffix, list_suffix = self._suffixes
        volumes_by_name, is_complete = {}, True
        self.damaged = {}
        for name in sorted(name for name in names if name.endswith(volume_suffix)):
            try:
                volume = self._known.get(name) or Volume(self._files, self._directory, name, self._suffixes, self.owners)
                if volume.gone_name in names or not volume.needs_list:
                    volumes_by_name[name] = volume
            except FileNotFoundError as error:
                reraise_interrupt(error)
                is_complete = False
            except FormatError as error:
                self._record_damage(name, error)
        volumes = {name.removesuffix(volume_suffix) for name in names}
        self._begun = sorted(name for name in names if name.endswith(list_suffix) and name.removesuffix(list_suffix) not in volumes)
        self._known = volumes_by_name
        return is_complete

    def _record_damage(self, name: str, error: FormatError) -> None:
        """Record the damage of a volume in `damaged`, and report it."""
        self.damaged[name] = str(error)
        self._tell_damaged(name, str(error))

    def _query(
        self, volumes: Callable[[], list[Volume]], question: Callable[[Volume], _T | None], max_answers: int = 1 << 30
    ) -> list[tuple[Volume, _T]]:
        """Call `question` with volumes; return (volume, answer) for answers other than None, at most `max_answers`.

        A damaged volume has no answer. If the list of a volume is missing, another volume has replaced the volume, so the current volumes
        are used. Raise `FileNotFoundError` if volumes are replaced again and again.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._query_all(volumes(), question, max_answers)
            except FileNotFoundError as error:
                reraise_interrupt(error)
                self._state = 0, 0  # so that the directory is listed again
        return self._query_all(volumes(), question, max_answers)

    def _query_all(self, volumes: list[Volume], question: Callable[[Volume], _T | None], max_answers: int) -> list[tuple[Volume, _T]]:
        """Return (volume, answer) as `_query` does, at most `max_answers`. Raise `FileNotFoundError` if the list of a volume is missing."""
        answers = []
        for volume in volumes:
            try:
                answer = question(volume)
            except FormatError as error:
                self._record_damage(volume.name, error)
                continue
            if answer is not None:
                answers.append((volume, answer))
            if len(answers) >= max_answers:
                break
        return answers

    def find(self, module_id: bytes) -> tuple[Volume, bytes] | None:
        """Return the volume of a module and the module's entry in its table, or None if no intact volume contains the module.

        Raise `OSError` if a volume cannot be read.
        """
        answers = self._query(self.current, lambda volume: volume.find(module_id), max_answers=1)
        return answers[0] if answers else None

    def read(self, module_id: bytes) -> tuple[bytes, int, os.stat_result] | None:
        """Return the bytes of a module file, its size in the volume, and the volume's status, or None if no volume contains it.

        Raise `FormatError` if the member is damaged, or `OSError` if the volume cannot be read.
        """
        location = self.find(module_id)
        if location is None:
            return None
        volume, member = location
        return volume.content(member)[0], volume.status_of(member)[0], volume.status

    def signatures(self, module_id: bytes) -> bytes:
        """Return the signatures of a module, or b"" if it has none or they are damaged. Raise `OSError` if they cannot be read."""
        with suppress(FormatError):
            location = self.find(module_id)
            if location is not None:
                return location[0].content(location[1])[1]
        return b""

    def status_of(self, module_id: bytes) -> tuple[int, float] | None:
        """Return the size in bytes of a module in its volume, and its modification time, or None if no volume contains the module.

        Raise `OSError` if a volume cannot be read.
        """
        location = self.find(module_id)
        return None if location is None else location[0].status_of(location[1])

    def has_volumes(self) -> bool:
        """Return whether the directory contains volumes. A failure to read calls `tell_unreadable`, and the result is False."""
        return bool(self._query_readable(lambda _: True))

    def of_directory(self, digits: str) -> dict[bytes, tuple[int, float, os.stat_result]]:
        """Return the size in bytes, the modification time, and the status of the volume of modules, by module_id.

        `digits` are the first two hexadecimal digits of their module_ids. A failure to read calls `tell_unreadable`, and no modules are
        returned.
        """
        first_byte = int(digits, 16)
        return {
            module_id: (*status, volume.status)
            for volume, statuses in self._query_readable(
                lambda volume: {module_id: volume.status_of(member) for module_id, member in volume.members(first_byte)}
            )
            for module_id, status in statuses.items()
        }

    def _query_readable(self, question: Callable[[Volume], _T]) -> list[tuple[Volume, _T]]:
        """Return (volume, answer) for the current volumes. Call `tell_unreadable` and return none if one cannot be read."""
        try:
            return self._query(self.current, question)
        except OSError as error:
            reraise_interrupt(error)
            self._tell_unreadable(self._directory, error)
            return []

    def close(self) -> None:
        """Close all volumes. The next request lists the directory again."""
        self._known = {}
        self._begun = []
        self._state = (0, 0)
