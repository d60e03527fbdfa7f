"""What a bundle is: a ZIP archive (stored, not compressed) with the files of a cache directory that others need.

Members, in the order of their names::

    compcache-bundle-1.txt              for people: func_name, module_id and CPU of every realization, a line each
    modules/<module_id>.ccm             as in a cache directory, without what is not content: see `content_only`
    signatures/<module_id>.ed25519      the Ed25519 signatures of a module

All have the same date and mode, so that the same modules give the same bytes. The names are digests of the content; the archive's
directory, which says where everything is, stands at its end: a bundle that was cut off has none.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from errno import EINVAL
from struct import error as StructError  # noqa: N812 - it is an exception class
from typing import TYPE_CHECKING, BinaryIO

import msgpack

from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container, sections_of
from compcache.formats.graph import decode_notes
from compcache.store import MODULES, SIGNATURES

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "LISTING",
    "MODULE_MEMBER",
    "SIGNATURE_MEMBER",
    "content_only",
    "module_member",
    "read_bundle",
    "signature_member",
    "write_bundle",
]

LISTING = "compcache-bundle-1.txt"
MODULE_MEMBER = re.compile(rf"modules/([0-9a-f]{{32}}){re.escape(MODULES.suffix)}")
SIGNATURE_MEMBER = re.compile(rf"signatures/([0-9a-f]{{32}}){re.escape(SIGNATURES.suffix)}")
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o100644 << 16
#: What the notes of a module say of one compilation, not of the content.
_OF_ONE_COMPILATION = ("created", "seconds")


def content_only(data: bytes) -> bytes:
    """A module file without when and in how much time it was compiled, and without the keyed digest of one directory.

    The module_id is the same: it covers none of these.
    """
    *content, notes = sections_of(data, decode_footer(data[-FOOTER_SIZE:], len(data)))
    image, records, graph, bitcode = content
    kept = {name: value for name, value in sorted(decode_notes(notes).items()) if name not in _OF_ONE_COMPILATION}
    packed: bytes = msgpack.packb(kept, use_bin_type=True)
    _, parts = encode_container(image, records, graph, bitcode, packed, None)
    return b"".join(parts)


def module_member(module_id: bytes) -> str:
    """The name of a module's member."""
    return f"modules/{MODULES.file_name(module_id.hex())}"


def signature_member(module_id: bytes) -> str:
    """The name of the member with a module's signatures."""
    return f"signatures/{SIGNATURES.file_name(module_id.hex())}"


def write_bundle(path: str, members: Mapping[str, bytes]) -> None:
    """Write an archive of these members to a new file.

    Raises:
        OSError: it could not be written.
    """
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = _UNIX, _MODE
            archive.writestr(info, members[name])


def read_bundle(path: str, file: BinaryIO | None = None) -> dict[str, bytes]:
    """The modules and signatures of a bundle, by the names of their members; of the open `file` where it is given, which is closed.

    Raises:
        FormatError: it is not a bundle, or damaged, or a part of it is missing.
        OSError: it cannot be read.
    """
    try:
        with file or open(path, "rb", opener=_open) as opened, zipfile.ZipFile(opened) as archive:
            names = archive.namelist()
            if LISTING not in names:
                raise FormatError(f"{path} is not a compcache bundle of a known version: it has no {LISTING}")
            wanted = [name for name in names if MODULE_MEMBER.fullmatch(name) or SIGNATURE_MEMBER.fullmatch(name)]
            _require_plain([archive.getinfo(name) for name in wanted], os.fstat(opened.fileno()).st_size)
            return {name: archive.read(name) for name in wanted}
    except FormatError:
        raise
    except OSError as error:
        reraise_interrupt(error)
        if error.errno != EINVAL:  # which is said of a position in the file that cannot be
            raise
        raise FormatError(f"{path} is not a compcache bundle, or a part of it is missing: {error.strerror}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, StructError) as error:
        raise FormatError(f"{path} is not a compcache bundle, or a part of it is missing: {error}") from error


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe without another end must not be waited for
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path} is not a compcache bundle: it is not a regular file")
    return descriptor


def _require_plain(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse what no bundle has and what archives can be made to do: other names for the same bytes, sizes beyond the file."""
    seen: set[str] = set()
    for info in members:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise FormatError(f"the member {info.filename} is compressed, as none in a bundle is")
        if info.filename in seen:
            raise FormatError(f"there are two members {info.filename}")
        seen.add(info.filename)
    if sum(info.file_size for info in members) > size:
        raise FormatError(f"its members are larger than the file, which has {size} bytes")
