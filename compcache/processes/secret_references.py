"""References to secrets, which can be passed to other processes without revealing the secrets.

A reference is text of one of three forms. ``$VARIABLE`` is an environment variable of the reader. ``@path`` is a file.
``@memory:PID:NUMBER:TOKEN`` is an anonymous file that the process PID has open, for processes of the same user on the same host.
Other text is the secret itself. The first character of a secret that begins with ``@`` or ``$`` is doubled.
"""

from __future__ import annotations

import os
import re

from compcache.files import WRITABLE_BY_OTHERS
from compcache.interrupts import suppress
from compcache.settings import setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

__all__ = ["is_reference", "read_secret", "reference_to"]

_MEMORY: Final = "memory:"
_MEMORY_REFERENCE: Final = re.compile(rf"{_MEMORY}([0-9]+):([0-9]+):(.+)")
_MAX_SIZE = 64 << 10  # bytes
#: References to the secrets in the memory of this process, by PID, setting and secret. A forked child has its own secrets.
_references: dict[tuple[int, str, bytes], str] = {}


def is_reference(text: object) -> bool:
    """Return whether `text` is a reference to a secret, not the secret itself."""
    return isinstance(text, str) and text[:1] in ("$", "@") and text[1:2] not in ("", "$", "@")


def read_secret(text: str, label: str) -> str:
    """Return the secret that a setting contains or refers to. Whitespace around a secret in a file is removed.

    `label` is the name of the setting, for messages.

    Raises:
        ValueError: the reference does not refer to a secret. The message contains the reference, never a secret.
        OSError: the file cannot be read.
    """
    if not is_reference(text):
        return text[1:] if text[:2] in ("$$", "@@") else text
    if text[0] == "@":
        return _read_secret_file(text[1:], label)
    value, variable = setting(text[1:]), f"the environment variable {text[1:]}"
    if not value:
        raise ValueError(f"{label} refers to {variable}, which is not set in this process: set the variable on every host")
    if value[0] == "$" and is_reference(value):
        raise ValueError(f"{label} refers to {variable}, which contains another reference: set the variable to the secret")
    return read_secret(value, label)


def reference_to(secret: str | bytes | None, value: str | bytes, variable: str, label: str) -> str:
    """Return a reference by which another process can read a secret. If necessary, the secret is stored in an anonymous file.

    Args:
        secret: the argument that this process received: a reference, the secret, or None if the secret is from the settings.
        value: the secret.
        variable: the environment variable of the setting.
        label: the name of the setting, for messages.

    Raises:
        ValueError: the secret itself was given, but this system has no anonymous files.
    """
    configured = setting(variable)
    if secret is None and variable not in os.environ and is_reference(configured):
        secret = configured  # a configuration file has the reference
    if isinstance(secret, str) and is_reference(secret):
        is_relative = secret[0] == "@" and not secret.startswith("@" + _MEMORY)  # the other process may have another working directory
        return "@" + os.path.abspath(secret[1:]) if is_relative else secret
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if secret is None or configured.encode("utf-8", "surrogateescape") == data:
        return "$" + variable
    return _keep_in_memory(data, label)


def _keep_in_memory(data: bytes, label: str) -> str:
    """Store a secret in an anonymous file, and return a reference to it. Processes of this user can read it while this process runs.

    Raise `ValueError` if this system has no anonymous files. The message contains `label`.
    """
    key = os.getpid(), label, data
    reference = _references.get(key)
    if reference is None:
        if not hasattr(os, "memfd_create"):
            raise ValueError(f"the value of {label} cannot be passed to other processes on this system: use $VARIABLE or @file instead")
        token = os.urandom(8).hex()
        number = os.memfd_create(_memory_file_name(token), os.MFD_CLOEXEC)
        os.write(number, data)
        reference = _references[key] = f"@{_MEMORY}{os.getpid()}:{number}:{token}"
    return reference


def _memory_file_name(token: str) -> str:
    """Return the name of the anonymous file of a secret, which /proc shows."""
    return f"compcache-{token}"


def _read_secret_file(path: str, label: str) -> str:
    """Return the secret in a file, without whitespace around it, or in an anonymous file of another process.

    Raises:
        ValueError: the file is too large, other users can write to it, the reference is not valid, or the anonymous file cannot be opened.
        OSError: the file cannot be read.
    """
    is_in_memory = path.startswith(_MEMORY)
    actual_path = _path_of_memory_file(path, label) if is_in_memory else path
    with open(actual_path, "rb") as file:
        status = os.fstat(file.fileno())
        if not is_in_memory and (status.st_mode & WRITABLE_BY_OTHERS or status.st_uid not in (0, os.geteuid())):
            raise ValueError(
                f"{label} refers to the file {path}, which other users can write to: change its owner, and run chmod go-w on it"
            )
        data = file.read(_MAX_SIZE + 1)
    if len(data) > _MAX_SIZE:
        raise ValueError(f"{label} refers to the file {actual_path}, which is too large for a secret: it has more than {_MAX_SIZE} bytes")
    text = data.decode("utf-8", "surrogateescape")
    return text if is_in_memory else text.strip()


def _path_of_memory_file(reference: str, label: str) -> str:
    """Return the path by which this process can open the anonymous file of another process.

    Raise `ValueError` if the reference is not valid, or the process does not have the file open.
    """
    match = _MEMORY_REFERENCE.fullmatch(reference)
    if match is None:
        raise ValueError(
            f"{label} is '@{reference}', which is not a valid reference to the memory of a process: use $VARIABLE or @file instead"
        )
    pid, number, token = match.groups()
    path = f"/proc/{pid}/fd/{number}"
    with suppress(OSError):
        if _memory_file_name(token) in os.readlink(path):
            return path
    raise ValueError(
        f"{label} cannot be read from the memory of process {pid}, which has ended, or is not a process of this user on this host: use "
        "$VARIABLE or @file instead of the value, and provide the variable or the file on every host"
    )
