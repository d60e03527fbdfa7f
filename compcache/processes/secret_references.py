"""Names a secret to another process without revealing it: by a variable, a file, or the memory of this process.

A reference is text: ``$VARIABLE``, an environment variable of the reader; ``@path``, a file; ``@memory:PID:NUMBER:TOKEN``, an anonymous
file that the process PID has open, for processes of the same user on the same host. Any other text is the secret itself; a secret that
begins with ``@`` or ``$`` is written with that character doubled.
"""

from __future__ import annotations

import os
import re

from compcache.files import reraise_interrupt
from compcache.settings import setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

__all__ = ["is_reference", "literal", "read_secret", "reference_to"]

_MEMORY: Final = "memory:"
_IN_MEMORY: Final = re.compile(rf"{_MEMORY}([0-9]+):([0-9]+):(.+)")
_LONGEST = 64 << 10
#: What this process holds for others, by its process id: a forked child holds its own.
_held: dict[tuple[int, str, bytes], str] = {}


def is_reference(text: object) -> bool:
    """Return whether the text names a secret rather than containing it."""
    return isinstance(text, str) and text[:1] in ("$", "@") and text[1:2] not in ("", "$", "@")


def literal(text: str) -> str:
    """Return a secret in a form that no reader mistakes for a reference."""
    return text[0] + text if text[:1] in ("$", "@") else text


def read_secret(text: str, what: str) -> str:
    """Return the secret that a setting names or contains. White space around a secret in a file is removed.

    Args:
        text: a reference, or the secret.
        what: the setting, for messages.

    Raises:
        ValueError: the named secret does not exist; the message shows the reference.
        OSError: the file cannot be read.
    """
    if not is_reference(text):
        return text[1:] if text[:2] in ("$$", "@@") else text
    if text[0] == "@":
        return _content(text[1:], what)
    value = setting(text[1:])
    if not value:
        raise ValueError(f"{what} is named by the environment variable {text[1:]}, which is not set in this process: set it on every host")
    if value[0] == "$" and is_reference(value):
        raise ValueError(f"{what}: the environment variable {text[1:]} names another one")
    return read_secret(value, what)


def reference_to(given: str | bytes | None, value: str | bytes, variable: str, what: str) -> str:
    """Return a reference by which another process finds a secret.

    Args:
        given: the argument that this process received: a reference, the secret, or None if the environment had it.
        value: the secret.
        variable: the environment variable of that setting.
        what: the setting, for messages.

    Raises:
        ValueError: it was given as a value, and this system has no files in memory.
    """
    said = setting(variable)
    if given is None and variable not in os.environ and is_reference(said):
        given = said  # by a configuration file
    if isinstance(given, str) and is_reference(given):
        return given if given[0] == "$" or given.startswith("@" + _MEMORY) else "@" + os.path.abspath(given[1:])
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if given is None or said.encode("utf-8", "surrogateescape") == data:
        return "$" + variable
    return _hold(data, what)


def _hold(data: bytes, what: str) -> str:
    """Keep a secret in memory, where processes of this user can read it for as long as this one lives."""
    key = os.getpid(), what, data
    found = _held.get(key)
    if found is None:
        if not hasattr(os, "memfd_create"):
            raise ValueError(f"{what} was given as a value, which is not sent to other processes: name it as $VARIABLE or @file")
        token = os.urandom(8).hex()
        number = os.memfd_create(_name(token), os.MFD_CLOEXEC)
        os.write(number, data)
        found = _held[key] = f"@{_MEMORY}{os.getpid()}:{number}:{token}"
    return found


def _name(token: str) -> str:
    return f"compcache-{token}"


def _content(path: str, what: str) -> str:
    place = path
    if path.startswith(_MEMORY):
        match = _IN_MEMORY.fullmatch(path)
        if match is None:
            raise ValueError(
                f"{what}: '@{path}' is not a reference to memory, which one process writes for another: name a file or a variable"
            )
        process, number, token = match.groups()
        place = f"/proc/{process}/fd/{number}"
        try:
            is_there = _name(token) in os.readlink(place)
        except OSError as error:
            reraise_interrupt(error)
            is_there = False
        if not is_there:
            raise ValueError(
                f"{what} was given to another process as a value, which this one cannot read: it is of another user, on another host, or "
                "the other one has ended. Name it as $VARIABLE or @file there, and set that on every host"
            )
    with open(place, "rb") as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ValueError(f"{what}: the file {place} is too large for a secret")
    text = data.decode("utf-8", "surrogateescape")
    return text if path.startswith(_MEMORY) else text.strip()
