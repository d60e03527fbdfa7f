"""Computes fingerprints in a process with Numba: of functions, of values, and of functions that run while code is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprints import RUN
from compcache.numba.fingerprints.content import find_old_code
from compcache.numba.fingerprints.fixed_code import unknown_code_reason
from compcache.numba.fingerprints.walk import Walk
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable, examines_program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.implementations import Implementation
    from compcache.numba.fingerprints.walk import Fingerprint

__all__ = ["Limits", "content_of_present_code", "fingerprint", "fingerprint_of_implementations", "walk_value"]


@examines_program(Unidentifiable)
def fingerprint(function: Any) -> Fingerprint:
    """Return the fingerprint of a function that Numba compiles.

    Raises:
        Unidentifiable: the function reads a value that has no identity by content, or too many values.
        Unrepeatable: code that runs while the function is compiled, for example an intrinsic, reads such a value.
    """
    walk = Walk()
    try:
        walk.refer_to_function(function, "")
        return _finish(walk)
    except Unidentifiable as error:
        raise (Unrepeatable(*error.args) if walk.mode == RUN else error) from error.__cause__


@examines_program(Unidentifiable)
def _finish(walk: Walk) -> Fingerprint:
    """Finish a walk. An exception of the program becomes `Unidentifiable` here, while `walk.mode` says which code was examined."""
    return walk.finish()


@examines_program(Unidentifiable)
def walk_value(value: object, where: str) -> Fingerprint:
    """Return the fingerprint of a value that compiled code could read. `where` describes the value in error messages.

    Raise `Unidentifiable` if the value has no identity by content.
    """
    walk = Walk()
    walk.feed_value(value, where)
    return walk.finish()


class Limits(NamedTuple):
    """The limits of a walk.

    Attributes:
        values: the maximum number of values.
        unnamed: the maximum number of values that no code names.
    """

    values: int
    unnamed: int


@examines_program(Unidentifiable)
def fingerprint_of_implementations(
    implementations: Iterable[Implementation], *, overlook_members: bool = False, read_all: bool = False, limits: Limits | None = None
) -> Fingerprint:
    """Return the fingerprint of functions that run while code is generated. Its parts are what they compile, and the program's classes.

    Args:
        implementations: the functions, with their options.
        overlook_members: whether values without an identity count only by their types, if the functions can read these values only as
            members of objects.
        read_all: whether attributes that no function names count, too.
        limits: the limits of the walk; None for the usual limits.

    Raises:
        Unidentifiable: a value has no identity by content.
        TooLarge: the walk reaches more values than the limits allow.
    """
    walk = Walk()
    walk.mode = RUN
    if limits is not None:
        walk.max_values, walk.max_unnamed = limits.values, limits.unnamed
    walk.overlook_members = overlook_members
    if read_all:
        walk.reach().record_names((), everything=True)
    for implementation in implementations:
        walk.refer_to_implementation(implementation)
    return walk.finish()


def content_of_present_code(fingerprint: Fingerprint) -> str:
    """Return the digest of a fingerprint.

    Raise `Unidentifiable` if this process has compiled a function of the fingerprint from other or unknown values, or cannot compare the
    values. Callers would contain that code.
    """
    reason = find_old_code(fingerprint.parts) or unknown_code_reason(fingerprint.parts)
    if reason:
        raise Unidentifiable(reason)
    return fingerprint.content
