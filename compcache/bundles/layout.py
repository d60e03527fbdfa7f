"""The layout of a bundle: an uncompressed ZIP archive with module files and signatures.

Members, in the order of their names::

    compcache-bundle-1.txt              a line with func_name, module_id and CPU for every realization
    modules/<module_id>.ccm             as in a cache directory, without data of one compilation: see `strip_compilation_data`
    signatures/<module_id>.ed25519      the Ed25519 signatures of a module

All members have the same date and mode: the same modules must give the same bytes. The names are digests of the content. The
directory of the archive is at its end, so a truncated bundle has no directory.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import stat
import tempfile
import zipfile
from contextlib import contextmanager
from errno import EINVAL
from struct import error as StructError  # noqa: N812 - it is an exception class
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from compcache.directory.places import MODULES, SIGNATURES
from compcache.errors import FormatError
from compcache.formats.footer import (
    FOOTER_SIZE,
    LARGEST_FOREIGN,
    decode_footer,
    encode_container,
    intact_footer,
    require_intact,
    sections_of,
)  # fmt: skip
from compcache.formats.graph import decode_notes, pack_notes
from compcache.formats.order import order_of, with_number
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


__all__ = [
    "LISTING", "MODULE_MEMBER", "SIGNATURE_MEMBER", "Bundle", "module_member_name", "open_bundle", "signature_member_name",
    "strip_compilation_data", "write_bundle",
]  # fmt: skip

LISTING = "compcache-bundle-1.txt"
MODULE_MEMBER = re.compile(rf"modules/([0-9a-f]{{32}}){re.escape(MODULES.suffix)}")
SIGNATURE_MEMBER = re.compile(rf"signatures/([0-9a-f]{{32}}){re.escape(SIGNATURES.suffix)}")
#: The module_id in a line of the listing. Names of functions may contain line breaks and tabs.
_LISTED_MODULE = re.compile(rb"\t([0-9a-f]{32})\t[^\t\n]*\n")
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o100644 << 16
#: The notes of a module that describe one compilation, not its content.
_COMPILATION_NOTES = ("created", "seconds")
#: The largest file of signatures, and the largest listing, in bytes.
_LARGEST_SIGNATURES, _LARGEST_LISTING = 1 << 18, 1 << 26
#: The largest module that is read into memory, in bytes. A larger module is copied to a file in parts of this size.
_IN_MEMORY = 1 << 20
#: The largest read of an archive's directory in bytes: the directory of about 100,000 members.
_LARGEST_READ = 1 << 24


def strip_compilation_data(data: bytes, number: int | None = None) -> bytes:
    """Return a module file without the time and the duration of its compilation, and without its keyed digest.

    If `number` is not None, it becomes the addition number. The module_id does not change, because it does not cover this data.

    Raise `FormatError` if the module's footer or notes are damaged.
    """
    *content, notes = sections_of(data, decode_footer(data[-FOOTER_SIZE:], len(data)))
    image, records, graph, bitcode = content
    content_notes = {name: value for name, value in decode_notes(notes).items() if name not in _COMPILATION_NOTES}
    if number is not None and number != order_of(content_notes).number:
        content_notes = with_number(content_notes, number)
    _, parts = encode_container(image, records, graph, bitcode, pack_notes(dict(sorted(content_notes.items()))), None)
    return b"".join(parts)


def module_member_name(module_id: bytes) -> str:
    """Return the name of a module's member in the archive."""
    return f"modules/{MODULES.file_name(module_id.hex())}"


def signature_member_name(module_id: bytes) -> str:
    """Return the name of the member that holds a module's signatures."""
    return f"signatures/{SIGNATURES.file_name(module_id.hex())}"


def write_bundle(path: str, members: Mapping[str, bytes]) -> None:
    """Write a bundle with these members to a new file. Raise `FileExistsError` if it exists, or `OSError` if it cannot be written."""
    with open(path, "x+b") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = _UNIX, _MODE
            archive.writestr(info, members[name])


@contextmanager
def open_bundle(path: str, file: BinaryIO | None = None) -> Iterator[Bundle]:
    """Open a bundle for reading, and close it at the end of the block.

    If `file` is not None, it is read instead, and `path` only appears in messages.

    Raises:
        FormatError: on entry or inside the block, the file is not a bundle, or is damaged or truncated.
        OSError: on entry or inside the block, the file cannot be read.
    """
    try:
        with file or open(path, "rb", opener=_open_regular_file) as opened, _open_archive(opened, path) as archive:
            names = archive.namelist()
            if LISTING not in names:
                raise FormatError(f"{path} is not a compcache bundle of a known version: it has no member {LISTING}; update compcache")
            member_names = [name for name in names if MODULE_MEMBER.fullmatch(name) or SIGNATURE_MEMBER.fullmatch(name)]
            _require_valid_members(path, [archive.getinfo(name) for name in (*member_names, LISTING)], os.fstat(opened.fileno()).st_size)
            listed = {module_id.decode() for module_id in _LISTED_MODULE.findall(archive.read(LISTING))}
            lacking = listed.difference([match[1] for match in map(MODULE_MEMBER.fullmatch, names) if match])
            if lacking:  # the archive's directory has no checksum
                raise FormatError(f"{path} is not an intact bundle: it lacks the module {min(lacking)}; export or copy it again")
            yield Bundle(archive, dict.fromkeys(member_names))
    except FormatError:
        raise
    except OSError as error:
        reraise_interrupt(error)
        if error.errno != EINVAL:  # EINVAL: the archive refers to a position that a file cannot have
            raise
        raise FormatError(f"{path} is not an intact compcache bundle: its directory is damaged; export or copy the bundle again") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, StructError) as error:
        reraise_interrupt(error)
        raise FormatError(f"{path} is not an intact compcache bundle: {error}; export or copy the bundle again") from error


def _open_archive(file: BinaryIO, path: str) -> zipfile.ZipFile:
    """Open a file as a ZIP archive and read the archive's directory.

    Raise `zipfile.BadZipFile` for another file, or `FormatError` if the directory is too large.

    A failure is tried again once, because a signal may have interrupted the read.
    """
    with suppress(zipfile.BadZipFile):
        return zipfile.ZipFile(_LimitedFile(file, path))
    return zipfile.ZipFile(_LimitedFile(file, path))  # `zipfile` reports an interrupted read as a missing directory


class Bundle:
    """The members of an open bundle. The sum of their sizes is at most the size of the file, which may be a sparse file."""

    def __init__(self, archive: zipfile.ZipFile, names: Collection[str]) -> None:
        self._archive = archive
        self.names = names

    def read(self, name: str) -> bytes:
        """Read a member into memory and return its content; b"" if the bundle has no member of this name."""
        return self._archive.read(name) if name in self.names else b""

    def read_module(self, name: str) -> bytes | memoryview:
        """Read the member of a module, and return its content after checking it against the digest in the member's name.

        A module above 1 MiB is copied to a temporary file without a name, and mapped from it.

        Raises:
            FormatError: the content does not match the digest.
            OSError: the bundle cannot be read, or the temporary file cannot be written.
        """
        match = MODULE_MEMBER.fullmatch(name)
        assert match is not None
        module_id, size = bytes.fromhex(match[1]), self._archive.getinfo(name).file_size
        if size <= _IN_MEMORY:
            data: bytes | memoryview = self._archive.read(name)
        else:
            with self._archive.open(name) as member:
                footer = decode_footer(_read_at(member, size - FOOTER_SIZE, FOOTER_SIZE), size)
                require_intact(footer, module_id, lambda offset, length: _read_at(member, offset, length))  # before the copy takes space
                member.seek(0)
                data = _map_copy(member, size)
        intact_footer(data, module_id)
        return data


def _read_at(member: IO[bytes], offset: int, size: int) -> bytes:
    """Return `size` bytes from an offset of a member, or fewer bytes at its end."""
    member.seek(offset)
    return member.read(size)


def _map_copy(member: IO[bytes], size: int) -> memoryview:
    """Copy a member to an anonymous file and map it, so that other users cannot change or truncate the returned content."""
    with tempfile.TemporaryFile(prefix="compcache-") as file:
        shutil.copyfileobj(member, file, _IN_MEMORY)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


class _LimitedFile:
    """A file with a maximum size of each read, because `zipfile` trusts the sizes in an archive. `path` appears in messages."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes, or all for a negative `size`. Raise `FormatError` if the read is larger than `_LARGEST_READ`."""
        unread_size = max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())
        length = min(size, unread_size) if size >= 0 else unread_size
        if length > _LARGEST_READ:
            raise FormatError(
                f"the directory of the bundle {self._path} has {length} bytes, but at most {_LARGEST_READ} are allowed; export the "
                "bundle again"
            )
        return self._file.read(length)


def _open_regular_file(path: str, flags: int) -> int:
    """Open a regular file and return its descriptor; an opener for `open`. Raise `FormatError` if the path is not a regular file."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # opening a pipe without a writer must not block
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path} is not a compcache bundle: it is not a regular file")
    return descriptor


def _require_valid_members(path: str, members: list[zipfile.ZipInfo], size: int) -> None:
    """Check the members of the archive at a path against the layout that `write_bundle` produces. `size` is the archive's size in bytes.

    Raise `FormatError` if a member is compressed or too large, two members have the same name, or the members exceed the archive's size.
    """
    member_names: set[str] = set()
    for info in members:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise FormatError(f"the member {info.filename} of the bundle {path} is compressed; export the bundle again")
        if info.filename in member_names:
            raise FormatError(f"two members of the bundle {path} have the name {info.filename}; export the bundle again")
        member_names.add(info.filename)
    if sum(info.file_size for info in members) > size:
        raise FormatError(f"the members of the bundle {path} are larger than its file, which has {size} bytes; export the bundle again")
    for info in members:
        is_module = MODULE_MEMBER.fullmatch(info.filename)
        max_size = LARGEST_FOREIGN if is_module else _LARGEST_LISTING if info.filename == LISTING else _LARGEST_SIGNATURES
        if info.file_size > max_size:
            raise FormatError(
                f"the member {info.filename} of the bundle {path} has {info.file_size} bytes, but at most {max_size} are allowed; export "
                "the bundle again"
            )
