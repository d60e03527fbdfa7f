"""Addresses of remote stores: which kind of store a URL names, and whether it can be used.

A setting names one or several stores, separated by white space, in the order in which they are asked. Each entry is a URL, or a reference
to a variable or file that contains URLs (`compcache.processes.secret_references`). There is one mode, or one for each store.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

from compcache.interrupts import reraise_interrupt, suppress
from compcache.processes.secret_references import is_reference, read_secret
from compcache.settings import setting
from compcache.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterator
    from urllib.parse import SplitResult

__all__ = [
    "LONGEST_URL", "MODES", "OFF", "READ", "WRITE", "RemoteSettings", "Stores", "has_secret", "read_mode", "read_settings", "read_url",
    "shown_url", "split_urls",
]  # fmt: skip

#: The longest setting that names stores, in characters.
LONGEST_URL = 3000

READ, WRITE, OFF = "read", "write", "off"
MODES = (READ, WRITE, OFF)
_KINDS = {
    "s3": "object", "s3a": "object", "gs": "object", "az": "object", "azure": "object", "abfs": "object", "abfss": "object",
    "http": "http", "https": "http", "redis": "redis", "rediss": "redis", "unix+redis": "redis", "file": "file",
}  # fmt: skip
#: The space between two entries. Paths may contain other spaces.
_SEPARATOR = re.compile(r"\s+(?=[A-Za-z][A-Za-z0-9+.-]*:/|[@$])")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*")
_URL_FORMS = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, https://host/path, redis://host/0 or file:///directory"


class RemoteSettings(NamedTuple):
    """A remote store: its URL without a trailing slash, and its mode: ``read``, or ``write``, which includes reading.

    It cannot be pickled, because the URL may contain a password.
    """

    url: str
    mode: str

    @property
    def kind(self) -> str:
        """The backend that serves the URL: object, http, redis or file."""
        return _KINDS[urlsplit(self.url).scheme]

    @property
    def shown(self) -> str:
        """The URL without a password, for messages."""
        return _without_secrets(self.url)

    @property
    def bare(self) -> str:
        """The URL of an HTTP store without user and password."""
        parts = urlsplit(self.url)
        _, _, host = parts.netloc.rpartition("@")
        return parts._replace(netloc=host).geturl()

    @property
    def credentials(self) -> tuple[str, str] | None:
        """The decoded user and password in the URL, or None if the URL has neither. A token is a password without a user."""
        parts = urlsplit(self.url)
        if parts.username is None and parts.password is None:
            return None
        return unquote(parts.username or ""), unquote(parts.password or "")

    def __repr__(self) -> str:
        return f"RemoteSettings({self.shown!r}, {self.mode!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the settings of a remote store cannot be pickled, because they may contain a password: pass the URL")


class Stores(NamedTuple):
    """The remote stores of a cache, in the order in which they are asked. They cannot be pickled: their URLs may contain passwords."""

    each: tuple[RemoteSettings, ...]

    @property
    def url(self) -> str:
        """The URLs of all stores, in the form of a setting."""
        return " ".join([store.url for store in self.each])

    @property
    def shown(self) -> str:
        """The URLs of all stores without passwords, for messages."""
        return ", ".join([store.shown for store in self.each])

    @property
    def writable(self) -> tuple[int, ...]:
        """The positions of the stores that may be written to."""
        return tuple([position for position, store in enumerate(self.each) if store.mode == WRITE])

    def separately(self) -> Iterator[Stores]:
        """Yield, for each store, a `Stores` that contains only this store."""
        for store in self.each:
            yield Stores((store,))

    def __repr__(self) -> str:
        return f"Stores({', '.join(map(repr, self.each))})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the settings of a remote store cannot be pickled, because they may contain a password: pass the URL")


def split_urls(text: str) -> list[str]:
    """Split a setting into its entries, one for each store."""
    return [entry for entry in _SEPARATOR.split(text.strip()) if entry]


def shown_url(text: str) -> str:
    """Return a setting's URLs without parts that may be a password or a token, for messages. The URLs need not be valid."""
    return " ".join(map(_without_secrets, split_urls(text)))


def _without_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment, for messages."""
    scheme = _SCHEME.match(url)
    start = scheme[0] if scheme is not None else ""
    user, separator, host_and_path = url[len(start) :].rpartition("@")
    if start.startswith("abfs") and not set(user) & set(":/?#"):  # Azure: the name of a container
        host_and_path = user + separator + host_and_path
    without_query, *_ = re.split(r"[?#]", host_and_path, maxsplit=1)
    return start + without_query


def has_secret(url: str) -> bool:
    """Return whether a URL in a setting has a part that may be a password or a token."""
    return any(_without_secrets(entry) != entry for entry in split_urls(url))


def read_url(text: str) -> str:
    """Resolve a setting to the URLs of stores, reading the variables and files that it refers to.

    Raises:
        ValueError: an entry refers to a variable or file that does not exist, or `read_settings` does not accept the URLs.
        OSError: a file cannot be read.
    """
    urls = " ".join([url for entry in split_urls(text) for url in _resolve_entry(entry)])
    read_settings(urls, None)
    return urls


def _resolve_entry(text: str) -> Iterator[str]:
    """Yield the URLs of one entry of a setting. References are followed, through other references too.

    Raise `ValueError` if a reference is not valid, or `OSError` if its file cannot be read.
    """
    if text[0] == "$" and is_reference(text):
        entries = split_urls(setting(text[1:]))
        if len(entries) > 1:
            for entry in entries:
                yield from split_urls(read_secret(entry, "the remote store"))
            return
    yield from split_urls(read_secret(text, "the remote store"))


def read_mode(text: str) -> str:
    """Check the modes in a setting, and return them separated by single spaces.

    Raise `ValueError` if a word is not one of `MODES`, or there is no word.
    """
    words = text.split()
    if not words or not set(words) <= set(MODES):
        raise ValueError(f"remote_mode is {text!r}: use 'read', 'write' or 'off', or one of these words for each store")
    return " ".join(words)


def read_settings(url: str | None, mode: str | None) -> Stores | None:
    """Return the remote stores that URLs and modes name, or None if there are none, or if all are off.

    Raises:
        ValueError: a URL or a mode is not valid, a store is named twice, the URLs are too long together, or the number of modes is neither
            one nor the number of stores.
    """
    urls, modes = split_urls(url or ""), read_mode(mode or READ).split()
    if not urls:
        return None
    if len(modes) > 1 and len(modes) != len(urls):
        raise ValueError(f"remote_mode names {len(modes)} modes for {plural(len(urls), 'store')}: write one mode for all, or one for each")
    if len(modes) == 1:
        modes *= len(urls)
    stores = [_read_store(store_url, store_mode) for store_url, store_mode in zip(urls, modes, strict=True) if store_mode != OFF]
    for number, store in enumerate(stores):
        if store.url in [previous.url for previous in stores[:number]]:
            raise ValueError(f"the remote store {store.shown!r} is named twice: write each store once")
    length = sum([len(store.url) + 1 for store in stores]) - 1
    if length > LONGEST_URL:
        raise ValueError(f"the URLs of the remote stores have {length} characters together: write at most {LONGEST_URL}")
    return Stores(tuple(stores)) if stores else None


def _has_valid_port(parts: SplitResult) -> bool:
    """Return whether a URL has no port or a valid one."""
    with suppress(ValueError):
        return parts.port is None or parts.port > 0
    return False


def _read_store(url: str, mode: str) -> RemoteSettings:
    """Return the settings of one remote store. Raise `ValueError` if its URL is invalid. No message contains the URL's secrets."""
    safe_url = _without_secrets(url)
    scheme = _SCHEME.match(url)
    start = f" that begins with {scheme[0]!r}" if scheme is not None else ""
    try:
        parts = urlsplit(url)
    except ValueError as error:  # the error's text contains part of the URL
        reraise_interrupt(error)
        raise ValueError(f"the remote store{start} is not a valid URL: write {_URL_FORMS}") from None
    if not _has_valid_port(parts):
        raise ValueError(
            f"the remote store{start} has an invalid port: write a number from 1 to 65535, and encode : / ? # @ in a password as %XX"
        )
    if len(url) > LONGEST_URL:
        raise ValueError(f"the URL of the remote store {safe_url[:60]!r}... has {len(url)} characters: write at most {LONGEST_URL}")
    if parts.scheme not in _KINDS:
        raise ValueError(f"the remote store {safe_url!r} has an unknown URL scheme: write {_URL_FORMS}")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise ValueError(f"the remote store {safe_url!r} names a host, which URLs of directories cannot: write file:///directory")
    if parts.scheme == "file" and not parts.path.startswith("/"):
        raise ValueError(f"the remote store {safe_url!r} does not name an absolute path: write file:///directory")
    if parts.scheme != "file" and not parts.scheme.startswith("unix") and not parts.netloc:
        raise ValueError(f"the remote store {safe_url!r} does not name a host or bucket: write {_URL_FORMS}")
    return RemoteSettings(url.rstrip("/"), mode)
