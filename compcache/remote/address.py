"""Addresses of remote stores: which kind of store a URL names, and whether it can be used."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

__all__ = ["MODES", "OFF", "READ", "WRITE", "RemoteSettings", "read_settings"]

READ, WRITE, OFF = "read", "write", "off"
MODES = (READ, WRITE, OFF)
_KINDS = {
    "s3": "object", "s3a": "object", "gs": "object", "az": "object", "azure": "object", "abfs": "object", "abfss": "object",
    "http": "http", "https": "http", "redis": "redis", "rediss": "redis", "unix+redis": "redis", "file": "file",
}  # fmt: skip
_FORMS = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, https://host/path, redis://host/0 or file:///directory"


class RemoteSettings(NamedTuple):
    """A remote store: its URL without a slash at the end, and what may be done with it: ``read``, or ``write`` as well."""

    url: str
    mode: str

    @property
    def kind(self) -> str:
        """The backend that serves the URL: object, http, redis or file."""
        return _KINDS[urlsplit(self.url).scheme]

    @property
    def shown(self) -> str:
        """The URL for messages, without a password."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=host, query="").geturl()


def read_settings(url: str | None, mode: str | None) -> RemoteSettings | None:
    """The remote store that a URL and a mode name; None where none is named or it is switched off.

    Raises:
        ValueError: the URL or the mode is not valid.
    """
    chosen, chosen_mode = url or "", mode or READ
    if chosen_mode not in MODES:
        raise ValueError(f"remote_mode is {chosen_mode!r}: use 'read', 'write' or 'off'")
    if not chosen or chosen_mode == OFF:
        return None
    parts = urlsplit(chosen)
    if parts.scheme not in _KINDS:
        raise ValueError(f"the remote store {chosen!r} is not a URL of a known kind: write {_FORMS}")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        raise ValueError(f"the remote store {chosen!r} does not name an absolute path: write file:///directory")
    if parts.scheme != "file" and not parts.scheme.startswith("unix") and not parts.netloc:
        raise ValueError(f"the remote store {chosen!r} names no host or bucket: write {_FORMS}")
    return RemoteSettings(chosen.rstrip("/"), chosen_mode)
