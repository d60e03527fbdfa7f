"""The members of a group, in its file: entries of the kinds `GROUP` and `MEMBER`, beside the records of its functions.

A group is one module (decision 49). The entry of the kind `GROUP` has its name; the data is a msgpack array ``[digest, members]``: the
digest is that of all sources and of what they were compiled for, a member is ``[label, digest of its code, names]``, where the names are
those that it exports. The code of members, optimized and not linked yet, are entries of the kind `MEMBER` under these digests:
zlib-compressed msgpack arrays of the fields of `compcache.translation.members.Member`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError, MissingPackageError
from compcache.files import reraise_interrupt

try:
    import msgpack
except ImportError as error:
    raise MissingPackageError.of("msgpack", "reading groups") from error

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GROUP", "MEMBER", "Group", "GroupMember", "decode_group", "encode_group"]

#: The kinds of entries.
GROUP, MEMBER = "group", "member"


class GroupMember(NamedTuple):
    """One source of a group: its label, the digest of its code (hexadecimal digits), and its definitions."""

    label: str
    digest: str
    names: tuple[str, ...]


class Group(NamedTuple):
    """The description of a group in its module."""

    digest: str
    members: tuple[GroupMember, ...]


def encode_group(digest: str, members: Iterable[GroupMember]) -> bytes:
    """Return the data of a group's entry."""
    rows = [[label, code, list(names)] for label, code, names in members]
    packed: bytes = msgpack.packb([digest, rows], use_bin_type=True, unicode_errors="surrogatepass")
    return packed


def decode_group(data: bytes) -> Group:
    """Decode the entry of a group.

    Raises:
        FormatError: the entry does not decode.
    """
    try:
        digest, rows = msgpack.unpackb(data, raw=False, unicode_errors="surrogatepass")
        members = tuple([GroupMember(label, code, tuple(names)) for label, code, names in rows])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        reraise_interrupt(error)
        raise FormatError(f"the entry of a group does not decode: {error}") from error
    if not all(isinstance(text, str) for member in members for text in (digest, member.label, member.digest, *member.names)):
        raise FormatError("the entry of a group has a field that is not text")
    return Group(digest, members)
