"""An open, verified module, from its own file or from a volume."""

from __future__ import annotations

from compcache import files as file_ops
from compcache.errors import FormatError, StorageError
from compcache.formats.manifest import read_frame
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from compcache.directory import Directory
    from compcache.formats.footer import Footer

__all__ = ["ModuleFile"]


class _Closed:
    """An `Opened` without a file."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = -1


_CLOSED = _Closed()


class ModuleFile:
    """An open, verified module, which must be closed after use.

    `opened` is the open file that contains the module. `size` is the size of the module in bytes, and `stored` the size that it takes on
    disk. `describe` sets the fields from `image` to `key`.
    """

    __slots__ = (
        "_files", "copied", "elsewhere", "flags", "image", "key", "module_id", "opened", "path", "records", "size", "stored", "target_id",
        "volume",
    )  # fmt: skip

    def __init__(self, files: file_ops.Files, path: str, module_id: bytes) -> None:
        self._files = files
        self.opened: file_ops.Opened = _CLOSED
        self.path = path
        self.module_id = module_id
        self.size = 0
        self.elsewhere = False  # whether the module is in a layer without trusted keys
        self.copied = False  # whether this is a verified copy, because other users could change the file
        self.volume: os.stat_result | None = None  # the status of its volume; None for a module with its own file
        self.stored = 0
        self.describe(0, 0, bytes(8), 0, bytes(16))

    def open(self, directory: Directory) -> os.stat_result:
        """Open the module file, or read the module from its volume. Return the status of the file or the volume.

        The file stays open until `close` is called or this object is deleted.

        Raises:
            FormatError: the module in the volume is damaged.
            FileNotFoundError: the module does not exist.
            OSError: the file or volume cannot be read.
        """
        try:
            self.adopt(self._files.open_owned(self.path, file_ops.READ_FLAGS))
        except FileNotFoundError as error:
            reraise_interrupt(error)
            in_volume = directory.volumes.read(self.module_id)
            if in_volume is None:
                raise
            from compcache.images.anonymous_file import anonymous_file

            content, self.stored, self.volume = in_volume
            self.adopt(anonymous_file(content))
            self.size = len(content)
            return self.volume
        status = self._files.fstat(self.opened.number)
        self.size = self.stored = status.st_size
        return status

    def status(self) -> os.stat_result:
        """Return the status of the open file, or of its volume."""
        return self.volume or self._files.fstat(self.opened.number)

    def adopt(self, opened: file_ops.Opened) -> None:
        """Set the open file that contains the module. This object owns the file from now on."""
        self.opened = opened

    def describe(self, image: int, records: int, target_id: bytes, flags: int, key: bytes) -> None:
        """Set the fields that describe the verified content. See `compcache.formats.index.ModuleEntry` for their meaning."""
        self.image = image
        self.records = records
        self.target_id = target_id
        self.flags = flags
        self.key = key

    def read_record(self, offset: int) -> bytes:
        """Return the payload of the record at an offset in the records section.

        Raises:
            FormatError: there is no intact record at this offset.
            StorageError: the file cannot be read.
        """
        base, opened, files, read = self.image, self.opened, self._files, file_ops.read_at
        try:
            return read_frame(lambda at, size: read(files, opened, base + at, size), offset, self.records, self.key)
        except OSError as error:
            reraise_interrupt(error)
            raise self._storage_error(error) from error

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes of the file from `offset`, or fewer at its end. Raise `StorageError` if the file cannot be read."""
        try:
            return file_ops.read_at(self._files, self.opened, offset, size)
        except OSError as error:
            reraise_interrupt(error)
            raise self._storage_error(error) from error

    def _storage_error(self, error: OSError) -> StorageError:
        """Return the `StorageError` for a module that cannot be read."""
        message = f"cannot read {self.path}: {error.strerror or error}"
        return StorageError(message, path=self.path, errno=error.errno)

    def footer(self) -> Footer:
        """Return the footer, which has the offsets and sizes of the sections.

        Raises:
            FormatError: the file has no intact footer.
            StorageError: the file cannot be read.
        """
        from compcache.formats.footer import FOOTER_SIZE, decode_footer

        if self.size < FOOTER_SIZE:
            raise FormatError(f"the module file has only {self.size} bytes, fewer than a footer")
        return decode_footer(self.read(self.size - FOOTER_SIZE, FOOTER_SIZE), self.size)

    def close(self) -> None:
        """Close the file. Further calls do nothing."""
        self.opened = _CLOSED

    def __enter__(self) -> ModuleFile:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        """Close the file. A `FormatError` that does not name the module gets the path of the file."""
        self.close()
        if isinstance(error, FormatError) and self.module_id.hex() not in str(error):
            error.args = (f"{self.path}: {error}",)
