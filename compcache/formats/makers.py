"""The codec for the makers of a module: the packages and programs that made its code, with their versions.

The record of makers is the second frame of a module's records. It has a line for each maker: name, space, version. The version of LLVM is
in the module record. Files without a record of makers were written by an early release of compcache, whose unknown version is less than all
others. Packs contain entries of many writers, and have no makers.

`Versions` describes versions of makers in the syntax of Python packages: ``numba<0.66.1``, ``lld>=17,<18.1.3``, ``llvmlite==0.45.*``.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.errors import FormatError
from compcache.formats.entry import is_pack
from compcache.formats.manifest import FRAME
from compcache.formats.records import decode_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "LLVM", "MAKERS", "PACKAGE", "Maker", "Versions", "decode_makers", "encode_makers", "makers_of", "makers_text", "read_makers",
]  # fmt: skip

#: The first byte of the payload.
MAKERS = b"B"
#: The makers that every module has.
PACKAGE, LLVM = "compcache", "llvm"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_CONDITION = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*([^\s,<>=!]+)\s*")
_LINE = re.compile(rf"{_NAME.pattern} \S*")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[-_.]?(dev|a|alpha|b|beta|rc|pre|post)[-_.]?(\d*))?(?![0-9])")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_STAGES = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "rc": -1, "pre": -1, "post": 1}
#: The comparable form of an unknown version, which is less than all versions.
_UNKNOWN: tuple[tuple[int, ...], int, int] = ((), 0, 0)


class Maker(NamedTuple):
    """A package or a program that made code: its name in lower case, and its version; empty if unknown."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version or '(version not recorded)'}"


def makers_text(makers: Iterable[Maker]) -> str:
    """Return the lines of a makers record, sorted and distinct. Raise `ValueError` if a name or a version has invalid characters."""
    lines = set()
    for name, version in makers:
        line = f"{name.lower()} {version}"
        if not _LINE.fullmatch(line):
            raise ValueError(f"the maker {name!r} with the version {version!r} is invalid: use a name and a version without spaces")
        lines.add(line)
    return "\n".join(sorted(lines))


def encode_makers(text: str) -> bytes:
    """Encode lines as the payload of a makers record."""
    return MAKERS + text.encode()


def decode_makers(payload: bytes) -> str:
    """Decode the payload of a makers record, and return its lines. Raise `FormatError` if it is damaged, or no makers record."""
    if payload[:1] != MAKERS:
        raise FormatError(f"the record of makers has the type {payload[:1]!r}, not {MAKERS!r}")
    try:
        text = payload[1:].decode()
    except UnicodeDecodeError:
        raise FormatError("the record of makers contains a text that is not UTF-8") from None
    invalid = [line for line in text.split("\n") if not _LINE.fullmatch(line)]
    if invalid:
        raise FormatError(f"the record of makers is damaged: its line {invalid[0]!r} is not a name and a version")
    return text


def makers_of(image_kind: str, llvm_version: str, text: str) -> tuple[Maker, ...]:
    """Return all makers of a module, including LLVM. A pack has no makers.

    Args:
        image_kind: the image kind in the module record.
        llvm_version: the LLVM version in the module record.
        text: the lines of the makers record, or "" if the module has no such record; then compcache is its maker.
    """
    if is_pack(image_kind):
        return ()
    recorded = [Maker(*line.partition(" ")[::2]) for line in text.split("\n")] if text else [Maker(PACKAGE, "")]
    return tuple(dict.fromkeys([*recorded, Maker(LLVM, llvm_version)]))


def read_makers(read_record: Callable[[int], bytes], size: int) -> tuple[Maker, ...]:
    """Read all makers of a module, including LLVM. A pack has no makers.

    `read_record` returns the payload of the record at an offset of the records section, which has `size` bytes.

    Raise `FormatError` if a record is damaged.
    """
    header_payload = read_record(0)
    header = decode_module(header_payload)
    makers_offset = FRAME.size + len(header_payload)
    payload = read_record(makers_offset) if makers_offset < size else b""
    return makers_of(header.image_kind, header.llvm_version, decode_makers(payload) if payload[:1] == MAKERS else "")


class Versions(NamedTuple):
    """A set of versions of a maker. Without conditions, the set contains all versions."""

    name: str
    conditions: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse a specification: a name, optionally followed by conditions separated by commas.

        Raise `ValueError` if the text does not have this form.
        """
        advice = f"{text!r} does not describe versions of a maker: use a name and conditions, like 'numba<0.66.1' or 'lld>=17,<18'"
        name = _NAME.match(text.strip()) if isinstance(text, str) else None
        if name is None:
            raise ValueError(advice)
        condition_list = text.strip()[name.end() :]
        conditions = []
        if condition_list:
            for condition in condition_list.split(","):
                match = _CONDITION.fullmatch(condition)
                sign, limit = match.groups() if match is not None else ("", "")
                is_prefix = limit.endswith(".*")
                if _version_key(limit.removesuffix(".*")) is None or (is_prefix and sign not in ("==", "!=")):
                    raise ValueError(advice)
                conditions.append((sign, limit))
        return cls(name[0].lower(), tuple(conditions))

    def __str__(self) -> str:
        return self.name + ",".join(map("".join, self.conditions))

    def includes(self, maker: Maker) -> bool:
        """Return whether a maker is in the set. A version that is unknown or not a number is less than all versions."""
        return maker.name == self.name and all(_satisfies(maker.version, *condition) for condition in self.conditions)


def _satisfies(version: str, sign: str, limit: str) -> bool:
    """Return whether a version satisfies a comparison. An unknown version is the least. With == and !=, the limit may end with `.*`."""
    actual, bound = _version_key(version) or _UNKNOWN, _version_key(limit.removesuffix(".*")) or _UNKNOWN
    if limit.endswith(".*"):
        return (_version_parts(version)[: len(_version_parts(limit))] == _version_parts(limit)) == (sign == "==")
    return _OPERATORS[sign](actual, bound)


def _version_parts(version: str) -> tuple[str, ...]:
    """Return the numbers at the start of a version, as texts; () if there are none."""
    match = _VERSION.match(version)
    return tuple(match[1].split(".")) if match else ()


def _version_key(version: str) -> tuple[tuple[int, ...], int, int] | None:
    """Return a sort key for a version (its numbers without trailing zeros, and its release stage), or None for other texts."""
    match = _VERSION.match(version)
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers), _STAGES.get(match[2] or "", 0), int(match[3] or 0)
