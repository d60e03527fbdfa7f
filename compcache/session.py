"""Sessions: the cache directory, loader, limits and remote stores for the miss path and for tools.

The facade creates a session at the first miss, and passes it to all operations except hits. These operations do not know the facade.
"""

from __future__ import annotations

from compcache.interrupts import reraise_interrupt
from compcache.settings import REMOTE_MODE_VARIABLE, REMOTE_VARIABLE, from_environment, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.hit.loader import Loader
    from compcache.remote.client import Inquiry, RemoteStore
    from compcache.store import Store

__all__ = ["Session"]


class Session:
    """An open cache, for the layers below the facade.

    Args:
        store: the store of the directory.
        loader: the loader of the store.
        max_size: the size limit that additions maintain, in bytes; None for the environment's setting or the default.
        lock_timeout: the number of seconds that a build waits for another process; None for the environment's setting or the default.
        retargets: whether code for other CPUs is compiled for this host.
        remote: the URLs and the modes of the remote stores, each a text or a list of texts; None for the environment's settings.

    Raises:
        TypeError: an item of `remote` has another type.
    """

    __slots__ = ("_remote_given", "_remotes", "_url", "loader", "lock_timeout", "max_size", "retargets", "store")

    def __init__(
        self, store: Store, loader: Loader, *, max_size: int | None, lock_timeout: float | None, retargets: bool,
        remote: tuple[str | Sequence[str] | None, str | Sequence[str] | None],
    ) -> None:  # fmt: skip
        self.store = store
        self.loader = loader
        self.max_size = max_size
        self.lock_timeout = lock_timeout
        self.retargets = retargets
        self._remote_given = _join_texts("remote", remote[0]), _join_texts("remote_mode", remote[1])
        self._remotes: list[RemoteStore | None] = []  # at most one item: the opened store, or None if there is no remote store
        self._url: str | None = None  # the URLs, with the content of files, for which the store was opened

    @property
    def remote_given(self) -> str | None:
        """The argument `remote`: URLs, or references to URLs; None for the environment's setting."""
        return self._remote_given[0]

    def remote_url(self) -> str | None:
        """Return the URLs of the remote stores, from the argument or the environment; None if there are no remote stores.

        Files with URLs are read each time, because passwords and tokens change. If a file cannot be read, its last URLs are returned. If
        the URLs have changed, the next look-up opens the remote stores again.

        Raises:
            ValueError: a variable or file that the argument names contains no URL, and never contained one.
            SettingError: the environment's setting does not name a valid store.
        """
        argument = self._remote_given[0]
        try:
            url = from_environment(REMOTE_VARIABLE, _resolve_references) if argument is None else _resolve_references(argument)
        except (ValueError, OSError) as error:
            reraise_interrupt(error)
            if not self._url:
                raise
            url = self._url  # the file is being replaced
        if url != self._url:
            self._url = url
            self._remotes.clear()
        return url

    def remote_mode(self) -> str | None:
        """Return the modes of the remote stores, from the argument or `setting`; None if no mode is set. Exception: see `setting`."""
        return self._remote_given[1] or setting(REMOTE_MODE_VARIABLE) or None

    def remote(self) -> RemoteStore | None:
        """Open the remote store at the first call, and return it; None if no store is set, its mode is off, or the cache is read-only.

        Raise `ValueError` if the argument's URL or mode is not valid, or `SettingError` if the environment's URL or mode is not valid.
        """
        url = self.remote_url()
        if not self._remotes:
            opened = None
            if not self.store.readonly and (url or self._remote_given[1] is not None):
                from compcache.remote.address import read_mode, read_settings, read_url
                from compcache.remote.client import RemoteStore

                urls, mode = self._remote_given
                if urls is None:
                    from_environment(REMOTE_VARIABLE, read_url)
                settings = read_settings(url, mode or from_environment(REMOTE_MODE_VARIABLE, read_mode))
                opened = RemoteStore(self.store, settings) if settings is not None else None
            self._remotes.append(opened)
        return self._remotes[0]

    def inquire(self, names: tuple[str, ...], *, compiles: bool = False) -> Inquiry | None:
        """Start a look-up (`RemoteStore.inquire`); return None if no store is asked. See `_remote_for_miss` for the exceptions."""
        remote = self._remote_for_miss(names)
        return remote.inquire(names, compiles=compiles) if remote is not None else None

    def fetch(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Fetch functions, and return the names of the fetched ones; () if no store is used. See `_remote_for_miss` for the exceptions."""
        remote = self._remote_for_miss(names)
        return remote.fetch(names) if remote is not None else ()

    def _remote_for_miss(self, names: tuple[str, ...]) -> RemoteStore | None:
        """Return the remote store for a miss of these functions, or None.

        The result is None if `remote` returns None, if the cache is read-only, or if no function has a content name.

        See `remote_url` and `remote` for the exceptions.
        """
        url = self.remote_url()
        if not url or self.store.readonly:
            return None
        from compcache.identity import label_of

        if all(label_of(name) is None for name in names):
            return None
        return self.remote()

    def has(self, func_name: str) -> bool:
        """Return whether the directory contains a realization of a function that this host can use."""
        return self.loader.holds(func_name)

    def can_import(self, name: str) -> bool:
        """Return whether code can import a function or variable.

        If the directory lacks it, first `fetch` it from the remote store, or store its module again from memory (`_restore_module`).
        """
        return self.loader.holds(name, to_import=True) or bool(self.fetch((name,))) or self._restore_module(name)

    def _restore_module(self, name: str) -> bool:
        """Store the module of a function again if this process holds it, and return whether code can import the function afterwards.

        Raise `StorageError` if the directory cannot be read.
        """
        target = self.loader.held(name)
        if target is None:
            return False
        from compcache.publish.restore import ensure_stored

        return ensure_stored(self.store, self.loader, target) and self.loader.holds(name, to_import=True)


def _join_texts(name: str, value: object) -> str | None:
    """Return a text unchanged, and a list of texts joined with spaces; None for None. Raise `TypeError` for other values."""
    if value is None or isinstance(value, str):
        return value
    # The messages do not show the value, which may contain a password.
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"Cache(): {name} must be a str or a list of str, not {type(value).__name__}")
    for item in value:
        if not isinstance(item, str):
            raise TypeError(f"Cache(): each item of {name} must be a str, not {type(item).__name__}")
    return " ".join(value)


def _resolve_references(urls: str) -> str:
    """Return the URLs in the text of a setting, with references to files and variables replaced by their contents.

    See `read_url` for the exceptions.
    """
    if "$" not in urls and "@" not in urls:
        return urls
    from compcache.remote.address import read_url

    return read_url(urls)
