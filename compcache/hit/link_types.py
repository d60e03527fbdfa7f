"""Decides whether a module's use of a symbol fits its definition in another module, by the rules of `docs/linking.md`.

A link type is a text that says which values the ABI passes in which places (`docs/format.md`, "Records"). If the digests of definition and
use are equal, a load does not import this file.
"""

from __future__ import annotations

from compcache.digest import digest
from compcache.formats.records import decode_link_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Piece = tuple[str, bool]

__all__ = [
    "ADDRESS", "CONSTANT", "DIGEST_SIZE", "IGNORED", "OR", "THREAD_LOCAL", "VARIABLE", "VARIADIC", "WRITTEN", "compare_types", "extent_of",
    "read_type", "type_digest", "unite_types",
]  # fmt: skip

#: Marks after the parameters of a use: the result is not used; the function is not called, but its address is taken.
IGNORED, ADDRESS = "ignored", "address"
#: The prefix of a variable's type, and the text for an unknown size.
VARIABLE, _UNKNOWN = "variable", "?"
#: The marks of a constant variable, and of a use that changes the variable.
CONSTANT, WRITTEN = "constant", "written"
#: The mark of a thread-local variable.
THREAD_LOCAL = "thread_local"
#: The separator between types of one use, and the text for parameters that a definition does not name.
OR, VARIADIC = " | ", "..."
#: The number of bytes of the digest in a record's link type. The offset of the text follows the digest.
DIGEST_SIZE = 8
_EXTENSIONS = frozenset(("zeroext", "signext"))
_FLOAT_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f128": 128}
_REGISTER_BITS = 64
#: The types that C passes as ``int`` to a function without a prototype.
_PROMOTED = frozenset(("i1", "i8", "i16"))


def unite_types(types: Iterable[str]) -> str:
    """Return the type of a use from the types of its call sites."""
    distinct = set(types)
    return OR.join(sorted(text for text in distinct if not (text.endswith(IGNORED) and _without_mark(text, IGNORED) in distinct)))


def type_digest(text: str) -> bytes:
    """Return the digest of a type in records. A definition and a use with equal digests fit.

    The digest of a use is the digest of the definition that the use expects exactly.
    """
    alternatives = sorted({_expected_definition(part) for part in text.split(OR)})
    return digest([OR.join(alternatives).encode("utf-8", "surrogatepass")], size=DIGEST_SIZE, person=b"compcache-type")


def read_type(read_record: Callable[[int], bytes], link_type: bytes) -> str:
    """Return the text of a record's `link_type`, or "" if the type is not known.

    `read_record` returns the payload of the record at an offset. Errors of `read_record` are passed on.

    Raise `FormatError` if the record of the link type is damaged.
    """
    offset = int.from_bytes(link_type[DIGEST_SIZE:], "little")
    return decode_link_type(read_record(offset)) if offset else ""


def extent_of(variable: str) -> tuple[int, ...]:
    """Return the size and the alignment in a variable's link type, 0 for an unknown size; () for an unknown type."""
    return tuple([int(word) if word != _UNKNOWN else 0 for word in variable.split(" ")[1:4:2]])  # the second and the fourth word


def _expected_definition(use: str) -> str:
    """Return the definition that one alternative of a use matches exactly, by the rules in `docs/format.md`, "Records"."""
    if use.startswith(VARIABLE):
        return use if CONSTANT in use else _without_mark(use, WRITTEN)
    plain = _without_mark(use, IGNORED).replace("{", "").replace("}", "")
    before, variadic, _ = plain.partition(VARIADIC)
    convention = plain.rpartition(")")[2]
    return f"{before}{variadic}){convention}" if variadic else plain


def _without_mark(text: str, mark: str) -> str:
    """Return a type without a mark at its end."""
    return text.removesuffix(f" {mark}")


def compare_types(definition: str, use: str) -> tuple[bool, str]:
    """Return whether a use can be bound to a definition, and a text: the reason if it cannot, a warning if it is doubtful, or "".

    Both arguments are link types. An empty one is unknown, and fits.
    """
    warning = ""
    if definition and use:
        for part in use.split(OR):
            is_fitting, reason = _compare(definition, part)
            if not is_fitting:
                return False, reason
            warning = warning or reason
    return True, warning


def _compare(definition: str, use: str) -> tuple[bool, str]:
    """Return whether one alternative of a use fits a definition, with the reason or a warning. See `compare_types`."""
    is_variable = definition.startswith(VARIABLE)
    if use.startswith(VARIABLE):
        if is_variable:
            return _compare_variables(definition.split(" "), use.split(" "))
        return (False, "it is a function, and its user writes to it") if use.endswith(WRITTEN) else (True, "")
    called = _Function(use)
    if is_variable:
        return (True, "") if ADDRESS in called.marks else (False, "it is a variable, and its user calls it")
    return _compare_functions(_Function(definition), called)


def _compare_variables(definition: list[str], use: list[str]) -> tuple[bool, str]:
    """Return whether a use fits a variable's definition, with the reason or a warning. Both are split link types."""
    _, size, _, alignment, *_ = definition
    _, expected_size, _, expected_alignment, *_ = use
    if _UNKNOWN not in (size, expected_size) and int(expected_size) > int(size):
        return False, f"it has {size} bytes, and its user expects {expected_size}"
    if (THREAD_LOCAL in definition) != (THREAD_LOCAL in use):
        defined, expected = ("", "not ") if THREAD_LOCAL in definition else ("not ", "")
        return False, f"it is {defined}thread-local, and its user expects a variable that is {expected}thread-local"
    if CONSTANT in definition and WRITTEN in use:
        return False, "it is constant, and its user writes to it"
    if int(expected_alignment) > int(alignment):
        return True, f"it is aligned to {alignment}, and its user expects an alignment of {expected_alignment}"
    return True, ""


class _Function:
    """The parts of a function's link type. `fixed` is the number of parameters before the variable ones."""

    __slots__ = ("fixed", "marks", "parameters", "result", "text", "variadic")

    def __init__(self, text: str) -> None:
        result, _, rest = text.partition("(")
        inner, _, marks = rest.rpartition(")")
        before, variadic, behind = inner.partition(VARIADIC)
        self.text = text
        self.result = _split_values(result)
        first = _split_values(before.removesuffix(", "))
        self.parameters = first + _split_values(behind.removeprefix(", "))
        self.fixed = len(first)
        self.variadic = bool(variadic)
        self.marks = marks.split()

    @property
    def convention(self) -> str:
        """The calling convention, or "" for that of C."""
        return " ".join([mark for mark in self.marks if mark not in (IGNORED, ADDRESS)])


def _split_values(text: str) -> list[Piece]:
    """Return the passed values one by one, each with whether it is part of a structure."""
    values = []
    is_part = False
    if text and text != "void":
        for part in text.split(", "):
            is_part = is_part or part.startswith("{")
            values.append((part.strip("{}"), is_part))
            is_part = is_part and not part.endswith("}")
    return values


def _compare_functions(definition: _Function, use: _Function) -> tuple[bool, str]:
    """Return whether calls of a use fit a definition, with the reason or a warning. See `compare_types`."""
    if definition.convention != use.convention:
        conventions = [function.convention or "that of C" for function in (definition, use)]
        return False, "its calling convention is {}, and its user calls it by {}".format(*conventions)
    if ADDRESS not in use.marks and len(use.parameters) < len(definition.parameters):
        return False, f"it takes more arguments ({len(definition.parameters)}) than its user passes ({len(use.parameters)})"
    is_promoted = use.variadic and not definition.variadic  # C promotes arguments of a function without a prototype
    is_fitting, warning = _parameters_fit(definition.parameters, use.parameters, is_promoted=is_promoted)
    if not is_fitting:
        return False, warning
    if use.result and IGNORED not in use.marks:
        is_fitting, reason = _result_fits(definition.result, use.result)
        if not is_fitting:
            return False, reason
        warning = warning or reason
    if ADDRESS in use.marks:
        return True, ""
    if definition.variadic and not use.variadic:
        warning = warning or "it takes a variable number of arguments, and its user calls it with a fixed number"
    return True, warning


def _parameters_fit(expected_values: list[Piece], passed_values: list[Piece], *, is_promoted: bool) -> tuple[bool, str]:
    """Return whether the passed values fit the parameters, with the reason or a warning. See `compare_types`."""
    warning = ""
    for number, (expected, passed) in enumerate(zip(expected_values, passed_values, strict=False), 1):
        is_fitting, lacks_extension = _passes(expected, passed)
        if is_promoted and passed[0] == "i32" and expected[0].partition(" ")[0] in _PROMOTED:
            is_fitting = lacks_extension = True
        reason = f"its parameter {number} is {expected[0]}, and its user passes {passed[0]}"
        if not is_fitting:
            return False, reason
        warning = warning or (reason if lacks_extension else "")
    return True, warning


def _result_fits(returned: list[Piece], expected: list[Piece]) -> tuple[bool, str]:
    """Return whether the returned value fits what the caller expects, with the reason or a warning. See `compare_types`."""
    pairs = list(map(_passes, expected, returned))  # here the caller relies on extensions
    if len(returned) == len(expected) and all(passes and not lacks for passes, lacks in pairs):
        return True, ""
    shown = [", ".join([piece for piece, _ in pieces]) or "void" for pieces in (returned, expected)]
    is_fitting = len(returned) == len(expected) and all(passes for passes, _ in pairs)
    return is_fitting, "it returns {}, and its user expects {}".format(*shown)


def _passes(expected: Piece, passed: Piece) -> tuple[bool, bool]:
    """Return whether the ABI passes a value in the place where it is expected, and whether an expected extension is missing."""
    (expected_text, expected_in_structure), (passed_text, passed_in_structure) = expected, passed
    if expected_text == passed_text:
        return True, False
    expected_words, passed_words = expected_text.split(" "), passed_text.split(" ")
    extension = _EXTENSIONS.intersection(expected_words)
    expected_type = [word for word in expected_words if word not in _EXTENSIONS]
    passed_type = [word for word in passed_words if word not in _EXTENSIONS]
    in_structure = expected_in_structure or passed_in_structure
    if expected_type == passed_type or _is_same_place(expected_type, passed_type, in_structure=in_structure):
        return True, bool(extension) and not extension.issubset(passed_words)
    return False, False


def _is_same_place(first: list[str], second: list[str], *, in_structure: bool) -> bool:
    """Return whether the ABI passes these two different types in the same place. `in_structure` is whether they are parts of structures."""
    if first[0] == second[0] == "ptr":  # one type states the size of the memory for a returned structure
        return {len(first), len(second)} == {1, 3}
    types = {first[0], second[0]}
    if len(first) != 1 or len(second) != 1:
        return False
    if in_structure and all(map(_is_in_register, types)):  # compilers differ in how they write the parts of a structure
        return True
    has_vector = any(name.startswith("v") for name in types)
    return has_vector and _vector_bits(first[0]) == _vector_bits(second[0]) != 0


def _is_in_register(name: str) -> bool:
    """Return whether a value of the type with this name is passed in one general register."""
    return name == "ptr" or (name[0] == "i" and name[1:].isdecimal() and int(name[1:]) <= _REGISTER_BITS)


def _vector_bits(name: str) -> int:
    """Return the number of bits of a type whose values are passed in vector registers, or 0 for another type."""
    return int(name[1:]) if name[0] == "v" and name[1:].isdecimal() else _FLOAT_BITS.get(name, 0)
