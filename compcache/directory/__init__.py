"""The files of a cache directory: their paths, the users whose files are trusted, and the file that describes this machine."""

from __future__ import annotations

import os

from compcache import files as file_ops
from compcache.digest import key_suffix
from compcache.directory.places import BUNDLES, GONE, HOSTS, INDEX, MODULES, PINS, SIGNATURES, TEMPORARY, UNCACHED, VOLUMES, module_id_of
from compcache.errors import StorageError, UntrustedDirectoryError
from compcache.formats import host
from compcache.formats.index import Index
from compcache.interrupts import reraise_interrupt, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.directory.places import Place
    from compcache.formats.host import Processor
    from compcache.formats.host_file import HostFile
    from compcache.formats.volumes import Volumes

__all__ = ["Directory"]

_MAX_SMALL_FILE = 1 << 24  # bytes
_FAN = 2  # hexadecimal digits in the name of a directory of module files


class Directory:
    """The part of `Store` that does not read modules: paths, trusted files, small files, and the description of the host."""

    __slots__ = (
        "_owners", "_processor", "_volumes", "_warned_paths", "exposed", "files", "index", "root", "signing_key", "stamp_key", "trust",
    )  # fmt: skip

    def __init__(
        self,
        root: str,
        files: file_ops.Files | None,
        open_beneath: file_ops.OpenBeneath | None,
        *,
        trust: bool,
        signing_key: bytes | None,
        stamp_key: bytes | None,
    ) -> None:
        self.root = root
        if isinstance(files, file_ops.Tree):
            self.files = files.part(root)
        else:
            self.files = file_ops.Tree(files or file_ops.Files(), root, open_beneath)
        if not trust and not stamp_key:
            self.files.require_trusted = lambda status, link: _require_trusted(root, status, link)
        self.trust = trust
        self.signing_key = signing_key
        self.stamp_key = stamp_key
        self.index = Index(self.files, self.directory(INDEX), self.temporary, INDEX.suffix, self.processor)
        self._volumes: Volumes | None = None
        self._processor: Processor | None = None
        self._warned_paths: set[str] = set()
        self._owners: frozenset[int] | None = None  # the users whose files are used; None: all users
        self.exposed = False  # whether other users can write here, so that only signed files are used

    def check_root(self) -> bool:
        """Check the owner and the permissions of the directory, and return whether it exists and can be opened.

        Set the users whose files are used. Set `exposed` if the cache has a key, and other users can write to the directory or its
        permissions cannot be read.

        Raise `UntrustedDirectoryError` if other users can write to the directory, and the cache has neither `trust` nor a key. Raise
        `StorageError` if the directory cannot be opened at the moment, for example because this process has too many open files.
        """
        user = os.geteuid()
        self._use_files_of(user)
        try:
            status, link = self.files.status()
        except OSError as error:
            reraise_interrupt(error)
            if isinstance(error, UntrustedDirectoryError):
                raise
            if error.errno not in file_ops.UNUSABLE:  # another attempt may succeed
                message = f"cannot open the cache directory {self.root}: {error.strerror or error}"
                raise StorageError(message, path=self.root, errno=error.errno) from error
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)) and self.stamp_key and not self.trust:
                self.exposed = True  # others may be able to write to it; without a key, each opening of the root checks that
            return False  # the first use of the directory reports the error
        if self.trust:
            return True
        if _is_foreign(user, status, link):
            self.exposed = True
        else:
            self._use_files_of(user, status.st_uid)
        return True

    def keep_root(self, user: int) -> None:
        """Open the root without a check, because the caller knows that only `user` can write to it. Roots that replace it are checked."""
        self._use_files_of(user)
        with suppress(OSError):  # the first use of the root reports other errors
            self.files.status(is_trusted=True)

    def _use_files_of(self, *users: int) -> None:
        """Unless the directory is trusted, use only files of these users, signed files of other users, and derived data of these users."""
        if not self.trust:
            self._owners = self.index.vouching = frozenset(users)
            self.index.owners = None if self.stamp_key else self._owners

    def is_foreign(self, status: os.stat_result) -> bool:
        """Return whether a user whose files are not trusted can write to the file with this status."""
        return self._owners is not None and file_ops.writer(status) not in self._owners

    @property
    def source(self) -> str:
        """The path that the user specified: for an unpacked bundle, the path of the bundle, otherwise the root."""
        return self.root

    @property
    def temporary(self) -> str:
        """The path of the directory in which files are written before they are renamed."""
        return self.directory(TEMPORARY)

    def module_path(self, module_id: bytes) -> str:
        """Return the path of a module file, for example ``<root>/modules-v1/3f/3f9c...e1.ccm``."""
        name = module_id.hex()
        return f"{self.root}/{MODULES.directory}/{name[:2]}/{name}{MODULES.suffix}"

    def directory(self, place: Place) -> str:
        """Return the path of the directory of a place."""
        return f"{self.root}/{place.directory}"

    def path(self, place: Place, file_name: str = "") -> str:
        """Return the path of a file in a place. Omit `file_name` for a place with a single file."""
        directory = self.directory(place) if place.directory else self.root
        return f"{directory}/{file_name or place.name}"

    def names(self, place: Place) -> list[str]:
        """Return the sorted names of the files in a place. The list is empty if the directory cannot be read."""
        return [name for name in self.names_in(self.directory(place)) if place.includes(name)]

    def names_in(self, directory: str) -> list[str]:
        """Return the sorted names in a directory. The list is empty if the directory cannot be read."""
        with suppress(OSError):
            return sorted(self.files.listdir(directory))
        return []

    def is_cache(self) -> bool:
        """Return whether the directory has been used as a cache, even if it contains no modules. See `present_names` for the exception."""
        return any(self.present_names(self.directory(place)) for place in (MODULES, VOLUMES, INDEX, HOSTS, UNCACHED, BUNDLES, PINS))

    def module_ids(self, *fans: str) -> Iterator[bytes]:
        """Yield the ids of all modules on disk, or of those that start with one of the prefixes `fans`, in any order.

        This lists directories, so look-ups must not use it. See `present_names` for the exception.
        """
        base = self.directory(MODULES)
        existing = self.directories()
        for fan in fans or self.fans():
            names = self.present_names(f"{base}/{fan}") if fan in existing else []
            module_ids = {module_id_of(name) for name in names if name[:2] == fan}
            module_ids.update(self.volumes.of_directory(fan))  # after the files, because a compaction moves modules from files to volumes
            yield from [module_id for module_id in module_ids if module_id is not None]

    def fans(self) -> list[str]:
        """Return the possible two-digit prefixes of module_ids: those with a directory, or all if there are volumes."""
        directories = self.directories()  # before the volumes: a compaction moves modules to volumes, and then removes directories
        return [f"{number:02x}" for number in range(256)] if self.volumes.has_volumes() else directories

    def directories(self) -> list[str]:
        """Return the sorted names of the directories with module files. Each name has two digits. See `present_names` for the exception."""
        names = self.present_names(self.directory(MODULES))
        return sorted(name for name in names if len(name) == _FAN and not name.strip("0123456789abcdef"))

    @property
    def volumes(self) -> Volumes:
        """The volumes, which are searched for modules without their own file."""
        if self._volumes is None:
            from compcache.formats.volumes import Volumes

            suffixes = VOLUMES.suffix, GONE.suffix
            self._volumes = Volumes(self.files, self.directory(VOLUMES), suffixes, self._warn_about_damaged_volume, self.report_unreadable)
            self._volumes.owners, self._volumes.vouching = self.index.owners, self._owners
        return self._volumes

    def signatures_of(self, module_id: bytes) -> bytes:
        """Return the content of a module's signature file, or b"" if the module has none that can be used.

        Raise `StorageError` if it cannot be read at the moment: without its signatures, code of trusted keys would be lost.
        """
        path = self.path(SIGNATURES, SIGNATURES.file_name(module_id.hex()))
        try:
            try:
                return file_ops.read_file(self.files, path, _MAX_SMALL_FILE)
            except FileNotFoundError as error:
                reraise_interrupt(error)
                return self.volumes.signatures(module_id)
        except OSError as error:
            reraise_interrupt(error)
            if error.errno in file_ops.UNANSWERED:
                raise self.unreadable_error(path, error) from error
            return b""

    def status_of(self, module_id: bytes) -> tuple[int, float]:
        """Return the size of a module on disk in bytes, and the time when it was written, in seconds since the epoch.

        Raises:
            FileNotFoundError: the module does not exist.
            OSError: the status of its file cannot be read.
        """
        try:
            status = self.files.stat(self.module_path(module_id))
        except FileNotFoundError as error:
            reraise_interrupt(error)
            in_volume = self.volumes.status_of(module_id)
            if in_volume is None:
                raise
            return in_volume
        return status.st_size, status.st_mtime

    def _warn_about_damaged_volume(self, name: str, reason: str) -> None:
        """Issue a warning about a damaged volume, once for each path."""
        path = self.path(VOLUMES, name)
        if self.is_first_warning(path):
            from compcache.warning import warn

            warn(f"{path} cannot be used completely, and modules are compiled again: {reason}; 'compcache check --repair' repairs the file")

    def present_names(self, directory: str) -> list[str]:
        """Return the names in a directory, in any order. The list is empty if the directory does not exist.

        Raise `StorageError` if the directory cannot be read, and `report_unreadable` raises.
        """
        try:
            return self.files.listdir(directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            return []
        except OSError as error:
            reraise_interrupt(error)
            self.report_unreadable(directory, error)
            return []

    def report_unreadable(self, path: str, error: OSError) -> None:
        """Raise `StorageError` for a file or directory that cannot be read. Layers override this to issue a warning instead."""
        raise self.unreadable_error(path, error) from error

    @staticmethod
    def unreadable_error(path: str, error: OSError) -> StorageError:
        """Return the `StorageError` for a file or directory that cannot be read."""
        return StorageError(f"cannot read {path}: {error.strerror or error}", path=path, errno=error.errno)

    def read_file(self, place: Place, file_name: str = "", *, max_size: int = _MAX_SMALL_FILE, authenticated: bool = False) -> bytes | None:
        """Return the content of a small file, or None if it cannot be read, has more than `max_size` bytes or is not trusted.

        With `authenticated`, files of all users are read, because the caller verifies a signature of the content.
        """
        if self.exposed and not authenticated:
            return None
        with suppress(OSError):
            return file_ops.read_file(self.files, self.path(place, file_name), max_size, owners=None if authenticated else self._owners)
        return None

    def is_first_warning(self, path: str) -> bool:
        """Return whether no warning was issued for a path before, and record the path."""
        if path in self._warned_paths:
            return False
        self._warned_paths.add(path)
        return True

    def processor(self) -> Processor:
        """Return the description of this host's processor, from CPUID or HWCAP. It is read at the first call."""
        if self._processor is None:
            from compcache.hit.target import load_runtime

            self._processor = host.read_processor(load_runtime(), self._machine_key, self._read_cpu_name)
        return self._processor

    def host_file(self) -> tuple[str, HostFile | None]:
        """Return the name and the content of the file that describes this machine.

        The name is "" if the machine cannot be identified. The content is None if there is no trusted file.
        """
        from compcache.formats.host_file import decode_host
        from compcache.hit.target import load_runtime

        key = self._machine_key(load_runtime().processor())
        if key is None:
            return "", None
        name = HOSTS.file_name(key + key_suffix(self.signing_key))
        data = self.read_file(HOSTS, name, authenticated=self.signing_key is not None)
        return name, decode_host(data, name, self.signing_key) if data else None

    def _machine_key(self, processor: bytes) -> str | None:
        """Return a key that identifies this machine until its next boot, or None if the machine cannot be identified."""
        from compcache.formats.host_file import host_key

        return host_key(self.files, processor)

    def _read_cpu_name(self) -> str:
        """Return the name of the CPU from the file that describes this machine, or "" if there is no file."""
        _, content = self.host_file()
        return content.cpu if content else ""


def _is_foreign(user: int, status: os.stat_result, link: os.stat_result) -> bool:
    """Return whether a user other than `user` and the superuser can write to a directory with this status, or change the link to it."""
    return status.st_uid not in (user, 0) or bool(status.st_mode & file_ops.WRITABLE_BY_OTHERS) or link.st_uid not in (user, 0)


def _require_trusted(root: str, status: os.stat_result, link: os.stat_result) -> None:
    """Raise `UntrustedDirectoryError` if other users can write to a directory with this status, or change the link to it."""
    user = os.geteuid()
    if _is_foreign(user, status, link):
        from compcache.publish.verify import untrusted_directory_error

        raise untrusted_directory_error(root, status, link, user)
