"""The directories of a store on this host: the helper's socket and the breaker, and the uploads that wait. Imports nothing slow."""

from __future__ import annotations

import os
import stat

from compcache.digest import blake2b
from compcache.files import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["outbox_directory", "private_directory", "state_directory"]

_WRITE = 0o022  # for group and others
_TEMPORARY = "/tmp"  # noqa: S108 - what is made there is private, and checked


def private_directory(path: str) -> str:
    """A directory that this user owns and others cannot enter; it is created if missing.

    Raises:
        OSError: it belongs to another user, others can write to it, or it cannot be made.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError as error:
        reraise_interrupt(error)
        if not _is_own(path, 0o077):
            raise OSError(
                f"{path} is not a directory of this user alone: remove it, or set XDG_RUNTIME_DIR to a private directory"
            ) from None
    return path


def _is_own(path: str, denied: int) -> bool:
    """Whether a directory is this user's, and its mode gives others none of these rights."""
    try:
        status = os.lstat(path)
    except OSError as error:
        reraise_interrupt(error)
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & denied


#: Variables that name accounts and endpoints: processes with others of them do not share a helper.
_ACCOUNT = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy")


#: Variables that name a store's address, and not credentials.
_PLACE = (
    "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_USE_EMULATOR",
)  # fmt: skip


def state_directory(url: str, environment: Mapping[str, str]) -> str:
    """The directory of a store's socket and breaker: one for each user, store and set of credentials.

    Raises:
        OSError: it cannot be made private.
    """
    account = sorted((k, v) for k, v in environment.items() if k.startswith(_ACCOUNT))
    return _directory(repr((url, account)), environment)


def outbox_directory(url: str, environment: Mapping[str, str]) -> str:
    """The directory of the uploads that wait for a store: one for each user and store, whatever the credentials.

    What was queued under a token that has expired goes out under the next one.

    Raises:
        OSError: it cannot be made private.
    """
    place = sorted((k, v) for k, v in environment.items() if k in _PLACE)
    return _directory(repr(("outbox", _address(url), place)), environment)


def _address(url: str) -> str:
    """A URL without user, password and query."""
    scheme, _, rest = url.partition("://")
    rest, _, fragment = rest.partition("#")
    host, slash, path = rest.partition("?")[0].partition("/")
    if not scheme.startswith("abfs"):  # where a container stands before the @
        host = host.rpartition("@")[2]
    return f"{scheme}://{host}{slash}{path}#{fragment if 'redis' in scheme else ''}"  # where it is a prefix


def _directory(what: str, environment: Mapping[str, str]) -> str:
    """A private directory for this.

    A runtime directory that is not this user's alone (that of the user who called sudo, for one) is passed over: who owns a
    directory can exchange what is in it.
    """
    base = environment.get("XDG_RUNTIME_DIR", "")
    if not _is_own(base, _WRITE):
        base = f"{_TEMPORARY}/compcache-{os.geteuid()}"
        if not _is_own(base, _WRITE):
            private_directory(base)
    name = blake2b(what.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return private_directory(os.path.join(private_directory(os.path.join(base, "compcache")), name))
