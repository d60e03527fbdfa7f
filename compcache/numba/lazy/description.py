"""Defines the description of an entry, which is stored beside its code.

A description contains the conditions under which the entry is valid, and Numba's metadata.
"""

from __future__ import annotations

from compcache.digest import digest
from compcache.interrupts import reraise_interrupt
from compcache.numba.lazy import has_numba
from compcache.numba.lazy.marshalled import decode_fields, encode_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.errors import GlobalValidationError

__all__ = ["DESCRIPTION", "KIND_IMAGE", "KIND_OBJECT", "LINKED", "LOOP", "RESULT", "Description", "Request"]

#: The kind of the entries of data that contain descriptions (`compcache.frontend`).
DESCRIPTION = "pickle:numba"
#: The prefix of a dependency's content if the dependency is an overload that is linked into the code. No such dependency is compared.
LINKED = "linked "
#: The prefix of a dependency's content if the dependency is a loop that the compiler has added to a ufunc. No such dependency is compared.
LOOP = "loop "
#: The prefix of a dependency's content if the dependency is what an implementation returned for some types (`identity.kept_results`).
RESULT = "result "
#: The kinds of code: machine code in the image, or object code as Numba serializes it.
KIND_IMAGE, KIND_OBJECT = 1, 2
#: The number of bytes in which the size of a part is encoded.
_SIZE = 4
#: The shape of the conditions: CPU, digest of lines, dependencies, names that were looked up, and implementations that matched these names.
_CONDITIONS = "(uu[(uu)]b[u])"


class Request:
    """A look-up of an entry by the process that wants to use it. `compcache.frontend.find` calls `accepts` for each candidate.

    Attributes:
        lines: the digest of the present source lines.
        cpu: the CPU and features that the user has chosen, as `requested_cpu` returns them, or "".
        only: the only description to accept, which the process has just stored; None to check the conditions.
        implementations: the digest of implementations that this process is known to have, or "".
        outdated_reason: returns why this process has other implementations than a description, or "". A call needs Numba.
        found: the description that was accepted last, or None.
    """

    __slots__ = ("cpu", "found", "implementations", "lines", "only", "outdated_reason")

    def __init__(
        self, lines: str, cpu: str = "", only: Description | None = None, *, implementations: str = "",
        outdated_reason: Callable[[Description], str] | None = None,
    ) -> None:  # fmt: skip
        self.implementations = implementations
        self.outdated_reason = outdated_reason
        self.lines = lines
        self.cpu = cpu
        self.only = only
        self.found: Description | None = None

    def accepts(self, data: bytes) -> bool:
        """Return True if the described entry is valid in this process, and set `found` to its description.

        Raise `GlobalValidationError` if the entry is not valid. The message says why.
        """
        try:
            description = Description.decode(data)
        except ValueError as error:
            reraise_interrupt(error)
            raise _invalid_entry_error(f"the description of the entry cannot be decoded: {error}") from error
        if self.only is None:
            description.check(self)
        elif self.only.encode() != data:
            raise _invalid_entry_error("this process has just stored another entry under this name")
        self.found = description
        return True


def _invalid_entry_error(reason: str) -> GlobalValidationError:
    """Return the exception for an entry that cannot be used for a reason."""
    from compcache.errors import GlobalValidationError

    return GlobalValidationError(reason, reason=reason)


class Description:
    """The metadata that Numba needs for an entry in addition to the machine code.

    The conditions are checked at every load, before anything is unpickled. An entry that does not meet them is skipped.

    Attributes:
        cpu: the CPU and features that the user had chosen, or "".
        lines: the digests of the source lines and of the paths of their files, in this order, as far as the code reports them.
        dependencies: the name and the content of each implementation that the compiler used and the key does not cover; also the entries of
            the overloads that are linked into the code (`LINKED`), loops of ufuncs (`LOOP`), and what implementations returned (`RESULT`).
        asked: the names by which the compiler looked up implementations (`encode_names`).
        answered: all of the user's implementations that matched these names.
        pickled: Numba's metadata.
        bitcode: the compressed bitcode for linking into other functions.
    """

    __slots__ = ("answered", "asked", "bitcode", "cpu", "dependencies", "lines", "pickled")

    def __init__(
        self, cpu: str, lines: str, dependencies: tuple[tuple[str, str], ...], asked: bytes, answered: tuple[str, ...], pickled: bytes,
        bitcode: bytes,
    ) -> None:  # fmt: skip
        self.cpu = cpu
        self.lines = lines
        self.dependencies = dependencies
        self.asked = asked
        self.answered = answered
        self.pickled = pickled
        self.bitcode = bitcode

    def encode(self) -> bytes:
        """Encode the description: the sizes of three parts, the conditions, the pickle and the bitcode."""
        conditions = encode_fields((self.cpu, self.lines, list(map(tuple, self.dependencies)), self.asked, self.answered))
        sizes = b"".join([len(part).to_bytes(_SIZE, "little") for part in (conditions, self.pickled, self.bitcode)])
        return b"".join([sizes, conditions, self.pickled, self.bitcode])

    @classmethod
    def decode(cls, payload: bytes) -> Description:
        """Decode a payload that the store has verified. Raise `ValueError` if the payload is malformed."""
        at = 3 * _SIZE
        first, second, third = (int.from_bytes(payload[start : start + _SIZE], "little") for start in range(0, at, _SIZE))
        if len(payload) != at + first + second + third:
            raise ValueError("the sizes of the parts do not add up to the size of the description")
        cpu, lines, rows, asked, answered = decode_fields(payload[at : at + first], _CONDITIONS)
        if len(asked) % 4:
            raise ValueError("the size of the list of names is not a multiple of 4")
        end = at + first + second
        return cls(cpu, lines, tuple(map(tuple, rows)), asked, tuple(answered), payload[at + first : end], payload[end:])

    def __repr__(self) -> str:
        parts = [f"description of Numba code: {len(self.pickled)} bytes of metadata", f"{len(self.bitcode)} bytes of code to link"]
        parts += ["reports source lines"] * bool(self.lines)
        parts += [f"used {name}" for name, _ in self.used]
        return f"<{', '.join(parts)}>"

    @property
    def is_machine_code(self) -> bool:
        """Whether the code exists for one CPU only, without bitcode from which to compile it for another CPU."""
        return not self.bitcode

    @property
    def used(self) -> list[tuple[str, str]]:
        """The dependencies that are implementations."""
        return [(name, content) for name, content in self.dependencies if not content.startswith((LINKED, LOOP, RESULT))]

    @property
    def implementations(self) -> str:
        """A digest of the implementations that the compiler used or that matched a name; "" if there are no such implementations."""
        used = self.used
        return digest([encode_fields((used, self.answered))]).hex() if used or self.answered else ""

    def check(self, request: Request) -> None:
        """Check the conditions of the entry. Raise `GlobalValidationError`, which says why, if the entry is not valid in this process."""
        if request.cpu and self.cpu != request.cpu:
            raise _invalid_entry_error(
                "the entry was not compiled for the CPU that NUMBA_CPU_NAME, NUMBA_CPU_FEATURES and NUMBA_ENABLE_AVX choose"
            )
        if not request.lines.startswith(self.lines):
            raise _invalid_entry_error("the code of the entry contains source lines or paths of source files that have changed")
        # Numba may have got implementations since an entry without any was stored, so "" proves nothing in a process with Numba.
        if request.implementations == self.implementations and (request.implementations or not has_numba()):
            return
        if request.outdated_reason is None or not has_numba():
            raise _invalid_entry_error("this process needs Numba to compare the implementations with which the entry was compiled")
        reason = request.outdated_reason(self)
        if reason:
            raise _invalid_entry_error(reason)
