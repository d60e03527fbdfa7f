"""The description of an entry, which is stored beside its code: the conditions for its use, and Numba's metadata."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class

from compcache.digest import digest
from compcache.errors import GlobalValidationError
from compcache.files import reraise_interrupt
from compcache.numba.lazy.awaited import has_numba
from compcache.numba.lazy.marshalled import dump_marshalled, load_marshalled
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DESCRIPTION", "KIND_IMAGE", "KIND_OBJECT", "Description", "Request"]

#: The kind of descriptions, which are entries of data (`compcache.frontend`).
DESCRIPTION = "pickle:numba"
#: The kinds of entries: machine code in the image, or object code as Numba serializes it.
KIND_IMAGE, KIND_OBJECT = 1, 2
_HEAD = Struct("<III")
#: The conditions: the CPU, the digest of the lines, dependencies, the names asked for, and those that answered.
_CHECKED = "(uu[(uu)]b[u])"


class Request:
    """A look-up of an entry by the process that wants to use it. `accepts` is passed to `compcache.frontend.find`.

    `lines` is a digest of the current source lines. `cpu` is the CPU that the user has chosen (`chosen_cpu`). `implementations` are known
    to be those of this process. `outdated` tells why the implementations of a description are not, or returns ""; it needs Numba. `found`
    is the valid description that was accepted last. With `only`, no description but that one, just created by the process, is accepted.
    """

    __slots__ = ("cpu", "found", "implementations", "lines", "only", "outdated")

    def __init__(
        self, lines: str, cpu: str = "", only: Description | None = None, *, implementations: str = "",
        outdated: Callable[[Description], str] | None = None,
    ) -> None:  # fmt: skip
        self.implementations = implementations
        self.outdated = outdated
        self.lines = lines
        self.cpu = cpu
        self.only = only
        self.found: Description | None = None

    def accepts(self, data: bytes) -> bool:
        """Return whether the described entry is valid. Raises `GlobalValidationError` with the reason if it is not."""
        try:
            description = Description.decode(data)
        except ValueError as error:
            reraise_interrupt(error)
            raise _invalid(f"its description does not decode: {error}") from error
        if self.only is None:
            description.check(self)
        elif self.only != description:
            raise _invalid("it is not the one that was just stored")
        self.found = description
        return True


def _invalid(reason: str) -> GlobalValidationError:
    return GlobalValidationError(reason, reason=reason)


class Description(Record):
    """The metadata that Numba needs for an entry in addition to the machine code.

    `lines` has the digests of the source lines and of their files, in this order, if the code reports them. `dependencies` are the
    implementations that only the compiler used, `asked` the names by which it looked for such (`encode_names`), and `answered` all of the
    user's implementations that matched these names. These are checked at every load, before unpickling; an entry that fails is skipped.
    `cpu` is the CPU that the user had chosen. `pickled` and `bitcode` (for linking into other functions) are read on demand.
    """

    __slots__ = ("cpu", "lines", "dependencies", "asked", "answered", "pickled", "bitcode")
    cpu: str
    lines: str
    dependencies: tuple[tuple[str, str], ...]
    asked: bytes
    answered: tuple[str, ...]
    pickled: bytes
    bitcode: bytes

    def encode(self) -> bytes:
        """Encode the sizes of three parts, and the parts: the conditions, the pickle, the bitcode."""
        checked = dump_marshalled((self.cpu, self.lines, [tuple(d) for d in self.dependencies], self.asked, self.answered))
        sizes = _HEAD.pack(len(checked), len(self.pickled), len(self.bitcode))
        return b"".join([sizes, checked, self.pickled, self.bitcode])

    @classmethod
    def decode(cls, payload: bytes) -> Description:
        """Decode the description in a payload that the store has verified."""
        try:
            first, second, third = _HEAD.unpack_from(payload)
        except StructError as error:
            raise ValueError("it is truncated") from error
        at = _HEAD.size
        if len(payload) != at + first + second + third:
            raise ValueError("the sizes of its parts are not valid")
        cpu, lines, rows, asked, answered = load_marshalled(payload[at : at + first], _CHECKED)
        if len(asked) % 4:
            raise ValueError("its list of requested names is malformed")
        end = at + first + second
        return cls(cpu, lines, tuple(map(tuple, rows)), asked, tuple(answered), payload[at + first : end], payload[end:])

    def __repr__(self) -> str:
        parts = [f"{len(self.pickled)} bytes of description", f"{len(self.bitcode)} bytes of code to link"]
        parts += ["reports source lines"] * bool(self.lines)
        parts += [f"used {name}" for name, _ in self.dependencies]
        return f"<{', '.join(parts)}>"

    @property
    def is_machine_code(self) -> bool:
        """Whether the entry's code exists for one CPU only, without bitcode from which to compile it for another one."""
        return not self.bitcode

    @property
    def implementations(self) -> str:
        """A digest of the implementations that the compiler used, and of the names that it asked for; "" if there are none."""
        if not self.dependencies and not self.answered:
            return ""
        return digest([dump_marshalled(([tuple(d) for d in self.dependencies], self.answered))]).hex()

    def check(self, request: Request) -> None:
        """Raise `GlobalValidationError` if the entry is not valid in this process."""
        if request.cpu and self.cpu != request.cpu:
            raise _invalid("it was not compiled for the CPU of NUMBA_CPU_NAME and NUMBA_CPU_FEATURES")
        if not request.lines.startswith(self.lines):
            raise _invalid("its code reports source lines, and these have changed")
        if request.implementations == self.implementations and (request.implementations or not has_numba()):
            return
        if request.outdated is None or not has_numba():
            raise _invalid("it was compiled with other implementations, or with some that are known only once Numba is imported")
        reason = request.outdated(self)
        if reason:
            raise _invalid(reason)
