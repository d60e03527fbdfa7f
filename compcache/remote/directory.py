"""The local directories of a remote store: one for the helper's socket and the breaker, one for the outbox.

This module imports no slow modules.
"""

from __future__ import annotations

import os
import stat
import time

from compcache.digest import blake2b
from compcache.interrupts import reraise_interrupt, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["make_private_directory", "outbox_directory", "remove_unused_directories", "state_directory"]

_UNUSED = 30 * 86400.0
_NAME_SIZE = 8  # bytes of the digest in the name of a store's directory
_WRITE = 0o022  # write permission for group and others
_TEMPORARY = "/tmp"  # noqa: S108 - directories created there are private, and checked


def make_private_directory(path: str) -> str:
    """Create a directory that only this user can enter, if it is missing, and return `path`. Its modification time is the last use.

    Raise `OSError` if the directory is not private to this user, or it cannot be created.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError as error:
        reraise_interrupt(error)
        if not _is_own(path, 0o077):
            raise OSError(f"{path} is not private to this user: remove it, or set XDG_RUNTIME_DIR to another directory") from None
        with suppress(OSError):
            os.utime(path)
    return path


def remove_unused_directories(beside: str) -> None:
    """Remove the directories beside a store's directory that no process has used for `_UNUSED` seconds, with the uploads there.

    Directories whose helper runs stay: the clock may have been set. So do a user's files, and directories that cannot be removed.
    """
    import fcntl
    from contextlib import ExitStack

    parent, names = os.path.dirname(beside), list[str]()
    with suppress(OSError):
        names = os.listdir(parent)
    for name in names:
        path = os.path.join(parent, name)
        if len(name) != 2 * _NAME_SIZE or name.strip("0123456789abcdef") or not _is_own(path, 0o077):
            continue
        with suppress(OSError), ExitStack() as locks:  # another helper has removed it, or serves
            if time.time() - os.lstat(path).st_mtime > _UNUSED:
                files = [os.path.join(path, file) for file in os.listdir(path)]
                for lock in [file for file in files if file.endswith(".lock")]:
                    fcntl.flock(locks.enter_context(open(lock, "rb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
                for file in files:
                    os.unlink(file)
                os.rmdir(path)


def _is_own(path: str, denied: int) -> bool:
    """Return whether `path` is a directory that belongs to this user and grants none of the permissions `denied`."""
    with suppress(OSError):
        status = os.lstat(path)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & denied
    return False


#: Prefixes of environment variables for accounts and endpoints. Processes that differ in such variables do not share a helper.
_ACCOUNT = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy")


#: Variables that name the address of a store rather than credentials.
_PLACE = (
    "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_USE_EMULATOR",
)  # fmt: skip


def state_directory(url: str, environment: Mapping[str, str]) -> str:
    """Return the directory for a store's socket and breaker. Each combination of user, store and credentials has its own directory.

    Raise `OSError` if the directory cannot be made private.
    """
    account = sorted((name, value) for name, value in environment.items() if name.startswith(_ACCOUNT))
    return _directory_for(repr((url, account)), environment)


def outbox_directory(url: str, environment: Mapping[str, str]) -> str:
    """Return the directory of a store's outbox. It depends on the user and the store, but not on the credentials.

    An upload that was queued with an expired token can therefore be sent with the next token.

    Raise `OSError` if the directory cannot be made private.
    """
    location = sorted((name, value) for name, value in environment.items() if name in _PLACE)
    return _directory_for(repr(("outbox", _strip_credentials(url), location)), environment)


def _strip_credentials(url: str) -> str:
    """Return a URL without user, password and query, and without a fragment unless it is the prefix of a Redis store."""
    scheme, _, address = url.partition("://")
    address, _, fragment = address.partition("#")
    address, _, _query = address.partition("?")
    host, slash, path = address.partition("/")
    if not scheme.startswith("abfs"):  # the part before the @ is a container
        _user, _, host = host.rpartition("@")
    prefix = fragment if "redis" in scheme else ""
    return f"{scheme}://{host}{slash}{path}#{prefix}"


def _directory_for(purpose: str, environment: Mapping[str, str]) -> str:
    """Return the private directory for this purpose, created if it is missing. Raise `OSError` if it cannot be made private.

    If XDG_RUNTIME_DIR belongs to another user, for example after sudo, it is not used, because that user could replace files in it.
    """
    base = environment.get("XDG_RUNTIME_DIR", "")
    if not _is_own(base, _WRITE):
        base = f"{_TEMPORARY}/compcache-{os.geteuid()}"
        if not _is_own(base, _WRITE):
            make_private_directory(base)
    name = blake2b(purpose.encode("utf-8", "surrogatepass"), digest_size=_NAME_SIZE).hexdigest()
    return make_private_directory(os.path.join(make_private_directory(os.path.join(base, "compcache")), name))
