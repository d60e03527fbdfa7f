"""The layout of a bundle: an uncompressed ZIP archive with the files of a cache directory that others need.

Members, in the order of their names::

    compcache-bundle-1.txt              for people: func_name, module_id and CPU of every realization, a line each
    modules/<module_id>.ccm             as in a cache directory, without what is not content: see `content_only`
    signatures/<module_id>.ed25519      the Ed25519 signatures of a module

All have the same date and mode, so that the same modules give the same bytes. The names are digests of the content; the archive's
directory, which says where everything is, stands at its end: a bundle that was cut off has none.
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

import msgpack

from compcache.directory.places import MODULES, SIGNATURES
from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.formats.footer import (
    FOOTER_SIZE,
    LARGEST_FOREIGN,
    decode_footer,
    encode_container,
    intact_footer,
    require_intact,
    sections_of,
)  # fmt: skip
from compcache.formats.graph import decode_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


__all__ = [
    "LISTING",
    "MODULE_MEMBER",
    "SIGNATURE_MEMBER",
    "Bundle",
    "content_only",
    "module_member",
    "opened_bundle",
    "signature_member",
    "write_bundle",
]

LISTING = "compcache-bundle-1.txt"
MODULE_MEMBER = re.compile(rf"modules/([0-9a-f]{{32}}){re.escape(MODULES.suffix)}")
SIGNATURE_MEMBER = re.compile(rf"signatures/([0-9a-f]{{32}}){re.escape(SIGNATURES.suffix)}")
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o100644 << 16
#: The notes of a module that concern one compilation, not the content.
_OF_ONE_COMPILATION = ("created", "seconds")
#: What a member can have; what is larger than `_IN_MEMORY` is copied to a file in parts of that size.
_LARGEST_SIGNATURES, _IN_MEMORY = 1 << 18, 1 << 20
#: The directory of some 100,000 members.
_LARGEST_READ = 1 << 24


def content_only(data: bytes) -> bytes:
    """Return a module file without the time of its compilation, its duration, and the keyed digest of its directory.

    The module_id is the same: it covers none of these.
    """
    *content, notes = sections_of(data, decode_footer(data[-FOOTER_SIZE:], len(data)))
    image, records, graph, bitcode = content
    kept = {name: value for name, value in sorted(decode_notes(notes).items()) if name not in _OF_ONE_COMPILATION}
    packed: bytes = msgpack.packb(kept, use_bin_type=True)
    _, parts = encode_container(image, records, graph, bitcode, packed, None)
    return b"".join(parts)


def module_member(module_id: bytes) -> str:
    """Return the name of a module's member."""
    return f"modules/{MODULES.file_name(module_id.hex())}"


def signature_member(module_id: bytes) -> str:
    """Return the name of the member with a module's signatures."""
    return f"signatures/{SIGNATURES.file_name(module_id.hex())}"


def write_bundle(path: str, members: Mapping[str, bytes]) -> None:
    """Write an archive with these members to a new file.

    Raises:
        OSError: it could not be written.
    """
    with open(path, "x+b") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = _UNIX, _MODE
            archive.writestr(info, members[name])


@contextmanager
def opened_bundle(path: str, file: BinaryIO | None = None) -> Iterator[Bundle]:
    """Open a bundle for reading. With an open `file`, read that and close it. Both on entry and on exit:

    Raises:
        FormatError: it is not a bundle, or damaged, or a part of it is missing.
        OSError: it cannot be read.
    """
    try:
        with file or open(path, "rb", opener=_open) as opened, _archive(opened) as archive:
            names = archive.namelist()
            if LISTING not in names:
                raise FormatError(f"{path} is not a compcache bundle of a known version: it has no {LISTING}")
            wanted = [name for name in names if MODULE_MEMBER.fullmatch(name) or SIGNATURE_MEMBER.fullmatch(name)]
            _require_plain([archive.getinfo(name) for name in wanted], os.fstat(opened.fileno()).st_size)
            yield Bundle(archive, tuple(wanted))
    except FormatError:
        raise
    except OSError as error:
        reraise_interrupt(error)
        if error.errno != EINVAL:  # the error about an impossible position in the file
            raise
        raise FormatError(f"{path} is not a compcache bundle, or a part of it is missing: {error.strerror}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, StructError) as error:
        reraise_interrupt(error)
        raise FormatError(f"{path} is not a compcache bundle, or a part of it is missing: {error}") from error


def _archive(file: BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(_Guarded(file))
    except zipfile.BadZipFile as error:
        reraise_interrupt(error)
        return zipfile.ZipFile(_Guarded(file))  # it mistakes an interrupt for an archive without a directory


class Bundle:
    """The members of an open bundle. Their sizes are those of the archive's directory, compared with the size of the file, which may have
    holes.
    """

    def __init__(self, archive: zipfile.ZipFile, names: tuple[str, ...]) -> None:
        self._archive = archive
        self.names = names

    def read(self, name: str) -> bytes:
        """Return a small member; nothing if there is none."""
        return self._archive.read(name) if name in self.names else b""

    def module(self, name: str) -> bytes | memoryview:
        """Return an intact module. A large one is returned as a file without a name, not in memory.

        Raises:
            FormatError: its content does not match its name.
        """
        match = MODULE_MEMBER.fullmatch(name)
        assert match is not None
        module_id, size = bytes.fromhex(match[1]), self._archive.getinfo(name).file_size
        if size <= _IN_MEMORY:
            data: bytes | memoryview = self._archive.read(name)
        else:
            with self._archive.open(name) as member:
                footer = decode_footer(_read_at(member, size - FOOTER_SIZE, FOOTER_SIZE), size)
                require_intact(footer, module_id, lambda at, length: _read_at(member, at, length))  # before it takes any space
                member.seek(0)
                data = _spooled(member, size)
        intact_footer(data, module_id)
        return data


def _read_at(member: IO[bytes], at: int, size: int) -> bytes:
    member.seek(at)
    return member.read(size)


def _spooled(member: IO[bytes], size: int) -> memoryview:
    """Return a copy on disk, which other users can neither change nor truncate."""
    with tempfile.TemporaryFile(prefix="compcache-") as file:
        shutil.copyfileobj(member, file, _IN_MEMORY)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


class _Guarded:
    """A file that limits each read to the size of an archive's directory, because `zipfile` trusts the sizes in the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        """Read at most this many bytes; without a number, all that are left."""
        left = max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())
        wanted = min(size, left) if size >= 0 else left
        if wanted > _LARGEST_READ:
            raise FormatError("the archive's directory is larger than any bundle's")
        return self._file.read(wanted)


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe without another end must not be waited for
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path} is not a compcache bundle: it is not a regular file")
    return descriptor


def _require_plain(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse archives that no bundle needs: two names for the same bytes, sizes beyond the file."""
    seen: set[str] = set()
    for info in members:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise FormatError(f"the member {info.filename} is compressed; members of bundles are not")
        if info.filename in seen:
            raise FormatError(f"two members are named {info.filename}")
        seen.add(info.filename)
    if sum(info.file_size for info in members) > size:
        raise FormatError(f"its members are larger than the file, which has {size} bytes")
    for info in members:
        if info.file_size > (LARGEST_FOREIGN if MODULE_MEMBER.fullmatch(info.filename) else _LARGEST_SIGNATURES):
            raise FormatError(f"the member {info.filename} has {info.file_size} bytes, more than any member of a bundle has")
