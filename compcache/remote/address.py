"""Addresses of remote stores: which kind of store a URL names, and whether it can be used."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

from compcache.files import reraise_interrupt
from compcache.processes.secret_references import read_secret

__all__ = [
    "LONGEST_URL",
    "MODES",
    "OFF",
    "READ",
    "WRITE",
    "RemoteSettings",
    "has_secret",
    "read_mode",
    "read_settings",
    "read_url",
    "shown_url",
]

LONGEST_URL = 3000

READ, WRITE, OFF = "read", "write", "off"
MODES = (READ, WRITE, OFF)
_KINDS = {
    "s3": "object", "s3a": "object", "gs": "object", "az": "object", "azure": "object", "abfs": "object", "abfss": "object",
    "http": "http", "https": "http", "redis": "redis", "rediss": "redis", "unix+redis": "redis", "file": "file",
}  # fmt: skip
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*")
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
        return shown_url(self.url)

    @property
    def bare(self) -> str:
        """A URL of HTTP without user and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    @property
    def credentials(self) -> tuple[str, str] | None:
        """The user and the password of the URL, decoded; None where it names neither. Without a user the password is a token."""
        parts = urlsplit(self.url)
        if parts.username is None and parts.password is None:
            return None
        return unquote(parts.username or ""), unquote(parts.password or "")

    def __repr__(self) -> str:
        return f"RemoteSettings({self.shown!r}, {self.mode!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the settings of a remote store are not pickled: they may hold a password")


def shown_url(url: str) -> str:
    """A URL, right or not, for messages: what can be a password or a token is left out."""
    scheme = _SCHEME.match(url)
    start = scheme[0] if scheme is not None else ""
    user, at, rest = url[len(start) :].rpartition("@")
    if start.startswith("abfs") and not set(user) & set(":/?#"):  # of Azure, where it is the name of a container
        rest = user + at + rest
    return start + re.split(r"[?#]", rest, maxsplit=1)[0]


def has_secret(url: str) -> bool:
    """Whether other users must not see a URL."""
    return shown_url(url) != url


def read_url(text: str) -> str:
    """The URL of a store that a setting contains, or that the variable or the file has which it names.

    Raises:
        ValueError: it is not the URL of a store, or what is named is not there.
        OSError: the file cannot be read.
    """
    url = read_secret(text, "the remote store")
    read_settings(url, None)
    return url


def read_mode(text: str) -> str:
    """What may be done with a store, as a setting has it.

    Raises:
        ValueError: it is not one of `MODES`.
    """
    if text not in MODES:
        raise ValueError(f"remote_mode is {text!r}: use 'read', 'write' or 'off'")
    return text


def read_settings(url: str | None, mode: str | None) -> RemoteSettings | None:
    """The remote store that a URL and a mode name; None where none is named or it is switched off.

    Raises:
        ValueError: the URL or the mode is not valid.
    """
    chosen, chosen_mode = url or "", read_mode(mode or READ)
    if not chosen or chosen_mode == OFF:
        return None
    shown = shown_url(chosen)
    try:
        parts = urlsplit(chosen)
        is_url = parts.port is None or parts.port > 0
    except ValueError as error:  # which shows a part of it
        reraise_interrupt(error)
        is_url = False
    if not is_url or len(chosen) > LONGEST_URL:
        scheme = _SCHEME.match(chosen)
        start = f" that begins with {scheme[0]!r}" if scheme is not None else ""
        raise ValueError(
            f"the remote store{start} is not a URL, or too long: write {_FORMS}; a port is a number, passwords have % for : / ? # @"
        )
    if parts.scheme not in _KINDS:
        raise ValueError(f"the remote store {shown!r} is not a URL of a known kind: write {_FORMS}")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        raise ValueError(f"the remote store {shown!r} does not name an absolute path: write file:///directory")
    if parts.scheme != "file" and not parts.scheme.startswith("unix") and not parts.netloc:
        raise ValueError(f"the remote store {shown!r} names no host or bucket: write {_FORMS}")
    return RemoteSettings(chosen.rstrip("/"), chosen_mode)
