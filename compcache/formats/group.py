"""The codec for the description of a group: entries of the kinds `GROUP` and `MEMBER` in the group's file.

A group is one module (decision 49). The entry of the kind `GROUP` has the group's name. Its data is a msgpack array ``[digest, members]``.
The digest covers all sources and their targets. A member is ``[label, digest of its code, exported names]``. The optimized code of a member
is an entry of the kind `MEMBER` with the digest as its name: a zlib-compressed msgpack array of the fields of
`compcache.translation.members.Member`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError
from compcache.interrupts import as_format_error
from compcache.messagepack import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GROUP", "MEMBER", "Group", "GroupMember", "decode_group", "encode_group"]

#: The kinds of entries.
GROUP, MEMBER = "group", "member"


class GroupMember(NamedTuple):
    """A source of a group: its label, the digest of its code (hexadecimal digits), and the names that it exports."""

    label: str
    digest: str
    names: tuple[str, ...]


class Group(NamedTuple):
    """The description of a group: a digest of its sources and targets, and its members."""

    digest: str
    members: tuple[GroupMember, ...]


def encode_group(digest: str, members: Iterable[GroupMember]) -> bytes:
    """Encode the data of a `GROUP` entry."""
    rows = [[label, code, list(names)] for label, code, names in members]
    return pack([digest, rows])


def decode_group(data: bytes) -> Group:
    """Decode the data of a `GROUP` entry. Raise `FormatError` if the data is damaged."""
    with as_format_error("the entry of a group is damaged"):
        digest, rows = unpack(data)
        members = tuple([GroupMember(label, code, tuple(names)) for label, code, names in rows])
    texts = [digest, *(text for member in members for text in (member.label, member.digest, *member.names))]
    wrong_type = next((type(text).__name__ for text in texts if not isinstance(text, str)), "")
    if wrong_type:
        raise FormatError(f"the entry of a group is damaged: a digest, a label or a name is of type {wrong_type}, not str")
    return Group(digest, members)
