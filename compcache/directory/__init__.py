"""The files of a cache directory: where they are, whose files are used, and which of them describes this machine."""

from __future__ import annotations

import os

from compcache import files as file_ops
from compcache.digest import key_suffix
from compcache.directory.places import BUNDLES, GONE, HOSTS, INDEX, MODULES, SIGNATURES, TEMPORARY, UNCACHED, VOLUMES, module_id_of
from compcache.errors import StorageError, UntrustedDirectoryError
from compcache.files import reraise_interrupt
from compcache.formats import host
from compcache.formats.index import Index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.directory.places import Place
    from compcache.formats.host import Processor
    from compcache.formats.host_file import HostFile
    from compcache.formats.volumes import Volumes

__all__ = ["Directory"]

_MAX_SMALL_FILE = 1 << 24
_FAN = 2  # hexadecimal digits


class Directory:
    """The knowledge of `Store` about its directory without reading a module."""

    __slots__ = (
        "_owners", "_processor", "_volumes", "_warned", "exposed", "files", "index", "root", "signing_key", "stamp_key", "trust",
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
        self._warned: set[str] = set()  # the paths that a warning was given about
        self._owners: frozenset[int] | None = None  # the users whose files are used; None: of all
        self.exposed = False  # others can write here, and nothing but signatures tells what to believe

    def check_root(self) -> bool:
        """Check who owns the directory and who can write to it; return whether it exists.

        Raises:
            UntrustedDirectoryError: others can write to it, and there is neither trust nor a key.
            StorageError: its owner cannot be determined.
        """
        user = os.geteuid()
        self._use_files_of(user)
        try:
            status, link = self.files.status()
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            return False  # where none can be made, because this or a parent is a file, the first addition reports that
        except OSError as error:
            reraise_interrupt(error)
            if isinstance(error, UntrustedDirectoryError):
                raise
            message = f"cannot open the cache directory {self.root}: {error.strerror or error}"
            raise StorageError(message, path=self.root, errno=error.errno) from error
        if self.trust:
            return True
        if _is_foreign(user, status, link):
            self.exposed = True
        else:
            self._use_files_of(user, status.st_uid)
        return True

    def _use_files_of(self, *users: int) -> None:
        """Accept the files of these users, and signed files of others; accept derived data only from these users."""
        if not self.trust:
            self._owners = self.index.vouching = frozenset(users)
            self.index.owners = None if self.stamp_key else self._owners

    def is_foreign(self, status: os.stat_result) -> bool:
        """Return whether this status belongs to a file that foreign users can write to."""
        return self._owners is not None and file_ops.writer(status) not in self._owners

    # ------------------------------------------------------------------ paths

    @property
    def source(self) -> str:
        """Return the path that the user named: the bundle, if this is its unpacked directory."""
        return self.root

    @property
    def temporary(self) -> str:
        """Return the directory in which files are written before they are renamed."""
        return self.directory(TEMPORARY)

    def module_path(self, module_id: bytes) -> str:
        """Return the path of a module, for example ``<root>/modules-v1/3f/3f9c...e1.ccm``."""
        name = module_id.hex()
        return f"{self.root}/{MODULES.directory}/{name[:2]}/{name}{MODULES.suffix}"

    def directory(self, place: Place) -> str:
        """Return the directory of files of this kind."""
        return f"{self.root}/{place.directory}"

    def path(self, place: Place, file_name: str = "") -> str:
        """Return the path of a file; a kind with a single file needs no `file_name`."""
        directory = self.directory(place) if place.directory else self.root
        return f"{directory}/{file_name or place.name}"

    def names(self, place: Place) -> list[str]:
        """Return the names of the files of this kind, sorted; empty if the directory cannot be read. For tools."""
        return [name for name in self.names_in(self.directory(place)) if place.includes(name)]

    def names_in(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it does not exist or cannot be read."""
        try:
            return sorted(self.files.listdir(directory))
        except OSError as error:
            reraise_interrupt(error)
            return []

    def is_cache(self) -> bool:
        """Return whether the directory has been used as a cache. An empty cache has its directories, too."""
        return any(self.present_names(self.directory(place)) for place in (MODULES, VOLUMES, INDEX, HOSTS, UNCACHED, BUNDLES))

    def module_ids(self, *fans: str) -> Iterator[bytes]:
        """Yield the ids of all modules on disk, or in these directories, unordered. For tools, never for look-ups."""
        base = self.directory(MODULES)
        present = self.directories()
        for fan in fans or self.fans():
            found = set(self.volumes.of_directory(fan))
            for name in self.present_names(f"{base}/{fan}") if fan in present else ():
                module_id = module_id_of(name)
                if module_id is not None and name[:2] == fan:
                    found.add(module_id)
            yield from found

    def fans(self) -> list[str]:
        """Return the first two digits of module_ids: those with a directory, or all if there are volumes."""
        return [f"{number:02x}" for number in range(256)] if self.volumes.are_there() else self.directories()

    def directories(self) -> list[str]:
        """Return the names of the directories of module files, sorted."""
        names = self.present_names(self.directory(MODULES))
        return sorted(name for name in names if len(name) == _FAN and not name.strip("0123456789abcdef"))

    @property
    def volumes(self) -> Volumes:
        """The files that hold several modules. They are searched for modules without a file of their own."""
        if self._volumes is None:
            from compcache.formats.volumes import Volumes

            suffixes = VOLUMES.suffix, GONE.suffix
            self._volumes = Volumes(self.files, self.directory(VOLUMES), suffixes, self._tell_damaged, self.tell_unreadable)
            self._volumes.owners, self._volumes.vouching = self.index.owners, self._owners
        return self._volumes

    def signatures_of(self, module_id: bytes) -> bytes:
        """Return the signatures of a module; empty if none can be read."""
        known = self.read_file(SIGNATURES, SIGNATURES.file_name(module_id.hex()), authenticated=True)
        if known is not None:
            return known
        return self.volumes.signatures(module_id)

    def status_of(self, module_id: bytes) -> tuple[int, float]:
        """Return the size of a module on disk in bytes, and the time of its writing, in seconds since the epoch.

        Raises:
            FileNotFoundError: the module does not exist.
            OSError: this cannot be determined.
        """
        try:
            status = self.files.stat(self.module_path(module_id))
        except FileNotFoundError as error:
            reraise_interrupt(error)
            found = self.volumes.status_of(module_id)
            if found is None:
                raise
            return found
        return status.st_size, status.st_mtime

    def _tell_damaged(self, name: str, reason: str) -> None:
        """Warn once about a damaged volume, whose modules are made again."""
        path = self.path(VOLUMES, name)
        if self.is_first_warning(path):
            from compcache.publish.quarantine import warn

            warn(f"{path} is not used as a whole: {reason}; missing modules are compiled again; 'compcache check --repair' repairs it")

    def present_names(self, directory: str) -> list[str]:
        """Return the names in a directory, unordered; empty if it does not exist.

        Raises:
            StorageError: the directory cannot be read, so its content is unknown; see `tell_unreadable`.
        """
        try:
            return self.files.listdir(directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            return []
        except OSError as error:
            reraise_interrupt(error)
            self.tell_unreadable(directory, error)
            return []

    def tell_unreadable(self, path: str, error: OSError) -> None:
        """Report that a part of the directory cannot be read, so its content is unknown: an error, in a layer a warning."""
        raise self.unreadable(path, error) from error

    @staticmethod
    def unreadable(path: str, error: OSError) -> StorageError:
        """Return the error about a part of the directory that cannot be read."""
        return StorageError(f"cannot read {path}: {error.strerror or error}", path=path, errno=error.errno)

    def read_file(self, place: Place, file_name: str = "", *, most: int = _MAX_SMALL_FILE, authenticated: bool = False) -> bytes | None:
        """Return the content of a file of at most this size; None if it does not exist or cannot be read.

        None also if another user may have written it, unless the reader has its content `authenticated`.
        """
        if self.exposed and not authenticated:
            return None
        try:
            return file_ops.read_file(self.files, self.path(place, file_name), most, owners=None if authenticated else self._owners)
        except OSError as error:
            reraise_interrupt(error)
            return None

    def is_first_warning(self, path: str) -> bool:
        """Return whether this is the first warning about a path; each is issued once."""
        if path in self._warned:
            return False
        self._warned.add(path)
        return True

    # ------------------------------------------------------------------- host

    def processor(self) -> Processor:
        """Return this machine's processor, described by its own words."""
        if self._processor is None:
            from compcache.hit.target import load_runtime

            self._processor = host.read_processor(load_runtime(), self._until_boot, self._name_of_cpu)
        return self._processor

    def host_file(self) -> tuple[str, HostFile | None]:
        """Return the name of this machine's file (empty if the machine cannot be identified), and its trusted content."""
        from compcache.formats.host_file import decode_host
        from compcache.hit.target import load_runtime

        key = self._until_boot(load_runtime().processor())
        if key is None:
            return "", None
        name = HOSTS.file_name(key + key_suffix(self.signing_key))
        data = self.read_file(HOSTS, name, authenticated=self.signing_key is not None)
        return name, decode_host(data, name, self.signing_key) if data else None

    def _until_boot(self, processor: bytes) -> str | None:
        from compcache.formats.host_file import host_key

        return host_key(self.files, processor)

    def _name_of_cpu(self) -> str:
        _, known = self.host_file()
        return known.cpu if known else ""


def _is_foreign(user: int, status: os.stat_result, link: os.stat_result) -> bool:
    """Return whether others than this user can write to a directory with this status, or can change the link to it.

    The superuser can change what runs here in any case, as in a package that was installed for all users.
    """
    return status.st_uid not in (user, 0) or bool(status.st_mode & file_ops.WRITABLE_BY_OTHERS) or link.st_uid not in (user, 0)


def _require_trusted(root: str, status: os.stat_result, link: os.stat_result) -> None:
    """Raise `UntrustedDirectoryError` for a directory that others can write to."""
    user = os.geteuid()
    if _is_foreign(user, status, link):
        from compcache.publish.verify import distrust

        raise distrust(root, status, link, user)
