"""The arguments of the miss path and of tools: a cache directory with its loader, its limits and its remote stores.

The facade makes a session at the first miss, and passes it to everything that is not a hit. Its users do not know the facade.
"""

from __future__ import annotations

from compcache.files import reraise_interrupt
from compcache.settings import from_environment, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.hit.loader import Loader
    from compcache.remote.breaker import Gate
    from compcache.remote.client import Inquiry, RemoteStore
    from compcache.store import Store

__all__ = ["Session"]

REMOTE_VARIABLE = "COMPCACHE_REMOTE"
REMOTE_MODE_VARIABLE = "COMPCACHE_REMOTE_MODE"


class Session:
    """An open cache, for the layers below the facade.

    Args:
        store: the directory; its recorder counts.
        loader: the loader of the store.
        max_size: the size below which additions keep the directory, in bytes; None: the environment's, or the default.
        lock_timeout: how many seconds a build waits at most for another process; None as for `max_size`.
        retargets: whether code for other CPUs is compiled for this host.
        remote: the URLs and the modes of the remote stores, each one text or several; None leaves it to the environment.

    Raises:
        TypeError: `remote` has another type.
    """

    __slots__ = ("_gates", "_remote_given", "_remotes", "_url", "loader", "lock_timeout", "max_size", "retargets", "store")

    def __init__(
        self, store: Store, loader: Loader, *, max_size: int | None, lock_timeout: float | None, retargets: bool,
        remote: tuple[str | Sequence[str] | None, str | Sequence[str] | None],
    ) -> None:  # fmt: skip
        self.store = store
        self.loader = loader
        self.max_size = max_size
        self.lock_timeout = lock_timeout
        self.retargets = retargets
        self._remote_given = _text("remote", remote[0]), _text("remote_mode", remote[1])
        self._remotes: list[RemoteStore | None] = []  # the store that was opened, or None where there is none: at most one item
        self._gates: list[Gate | None] = []  # likewise
        self._url: str | None = None  # with what was read of a file when these were opened

    @property
    def remote_given(self) -> str | None:
        """The remote store as it was given: its URL, or a reference to it; None if the environment decides."""
        return self._remote_given[0]

    def remote_url(self) -> str | None:
        """Return the given remote stores, or those of the environment. Files are read each time, because passwords and tokens change.

        Raises:
            ValueError: a named variable or file has no URL, and never had one.
            SettingError: the environment does not name a valid store.
        """
        given = self._remote_given[0]
        try:
            url = from_environment(REMOTE_VARIABLE, _told) if given is None else _told(given)
        except (ValueError, OSError) as error:
            reraise_interrupt(error)
            if not self._url:
                raise
            url = self._url  # the file is being exchanged
        if url != self._url:
            self._url = url
            self._remotes.clear()
            self._gates.clear()
        return url

    def remote_mode(self) -> str | None:
        """Return the mode of the remote store: the argument, or the setting of the environment."""
        return self._remote_given[1] or setting(REMOTE_MODE_VARIABLE) or None

    def remote(self) -> RemoteStore | None:
        """Return the remote store, or None.

        Raises:
            ValueError: its URL or mode is of no known kind.
            SettingError: the environment's URL or mode is not valid.
        """
        url = self.remote_url()
        if not self._remotes:
            opened = None
            if not self.store.readonly and (url or self._remote_given[1] is not None):
                from compcache.remote.address import read_mode, read_settings, read_url
                from compcache.remote.client import RemoteStore

                given, mode = self._remote_given
                if given is None:
                    from_environment(REMOTE_VARIABLE, read_url)
                settings = read_settings(url, mode or from_environment(REMOTE_MODE_VARIABLE, read_mode))
                opened = RemoteStore(self.store, settings) if settings is not None else None
            self._remotes.append(opened)
        return self._remotes[0]

    def inquire(self, names: tuple[str, ...], *, compiles: bool = False) -> Inquiry | None:
        """Start a look-up in the remote store; return None if it is not asked. See `RemoteStore.inquire`."""
        remote = self._asked_store(names)
        return remote.inquire(names, compiles=compiles) if remote is not None else None

    def fetch(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Fetch functions from the remote store; return those that were fetched."""
        remote = self._asked_store(names)
        return remote.fetch(names) if remote is not None else ()

    def _asked_store(self, names: tuple[str, ...]) -> RemoteStore | None:
        """Return the remote store that a miss asks for these functions; None also if it is not asked for a while."""
        url = self.remote_url()
        if not url or self.store.readonly:
            return None
        from compcache.identity import label_of

        if all(label_of(name) is None for name in names):
            return None
        if not self._gates:
            from compcache.remote.breaker import Gate

            is_off = (self.remote_mode() or "").split() == ["off"]
            self._gates.append(Gate([each.rstrip("/") for each in _each(url)]) if not is_off else None)
        gate = self._gates[0]
        if gate is None:
            return None
        if gate.is_shut():
            self.store.stats.count("remote_skipped")
            return None
        return self.remote()

    def has(self, func_name: str) -> bool:
        """Return whether the directory holds a realization of this function that this host can call."""
        return self.loader.holds(func_name)

    def can_import(self, name: str) -> bool:
        """Return whether code may import this function or variable: it is here, the remote store has it, or it is in memory and is stored
        again.
        """
        return self.loader.holds(name, to_import=True) or bool(self.fetch((name,))) or self._stores_again(name)

    def _stores_again(self, name: str) -> bool:
        target = self.loader.held(name)
        if target is None:
            return False
        from compcache.publish.restore import ensure_stored

        return ensure_stored(self.store, self.loader, target) and self.loader.holds(name, to_import=True)


def _text(name: str, value: object) -> str | None:
    """Return one text, or several, in the form of a setting."""
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"Cache(): {name} must be str, or a list of them, not {value!r}")
    return value


def _each(urls: str) -> list[str]:
    """Return the URLs of a setting; a setting of one word is not parsed."""
    if len(urls.split()) == 1:
        return [urls]
    from compcache.remote.address import split_urls

    return split_urls(urls)


def _told(urls: str) -> str:
    """Return the URLs that a setting contains, or to which it refers."""
    if "$" not in urls and "@" not in urls:
        return urls
    from compcache.remote.address import read_url

    return read_url(urls)
