"""Members of `Cache` that exchange functions with other caches: bundles, and the remote store."""

from __future__ import annotations

import os

from compcache.cache import Suggesting, func_names_of, install_members
from compcache.cache.questions import Questions
from compcache.files import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.identity import Identity
    from compcache.remote.client import RemoteStore


__all__ = ["Sharing"]


class Sharing(Questions):
    """Exports and imports bundles, asks the remote store, and uploads to it."""

    def export(
        self,
        names: Iterable[str | Identity],
        path: str | os.PathLike[str],
        targets: Iterable[str] | str | None = None,
        *,
        closure: bool = True,
        minisign: bool = False,
        linked: bool = False,
    ) -> tuple[str, ...]:
        """Write functions to a bundle: one file, a ZIP archive, for `import_bundle` or for use as a layer.

        The same modules give the same bytes, in every process and on every host. Modules keep their signatures. A `publish_key` adds
        its own.

        Args:
            names: the functions, at least one, by their names or identities.
            path: the file. An existing file of this name is replaced.
            targets: CPUs (see `ModuleSource`): include the realizations that hosts with these CPUs would use. None includes every
                realization.
            closure: include all functions that these functions import, transitively.
            minisign: write a signature of the whole file by the `publish_key` beside it (``<path>.minisig``) for `minisign -V`, with the
                key that ``compcache key show --minisign`` prints.
            linked: include the linked closures (see `link`) all of whose parts are in the bundle.

        Returns:
            The func_names in the bundle, sorted.

        Raises:
            ValueError: no function is named, or there is no `publish_key` for `minisign`.
            NotCachedError: one of the functions is not in the cache, or has no realization for a target.
            StorageError: the file could not be written.
        """
        self._require_open()
        from compcache.bundles.export import export

        if self._entries is not None:
            self._entries.flush()

        wanted = func_names_of(names)
        with Suggesting(self):
            return export(self._store, wanted, absolute_path(os.fspath(path)), targets, closure=closure, minisign=minisign, linked=linked)

    def import_bundle(self, path: str | os.PathLike[str], *, trusted_keys: Iterable[str] | str | None = None) -> tuple[str, ...]:
        """Add the modules of a bundle, all of them or none.

        Args:
            path: the bundle.
            trusted_keys: public keys in addition to those of the cache (``name:base64``, or ``@path``). If there are any keys, one of
                them must have signed each module.

        Returns:
            The func_names of all functions in the bundle, sorted.

        Raises:
            FormatError: the file is not a bundle, or is damaged, or a part of it is missing.
            IntegrityError: a module lacks a required signature. Trusted keys require a signature, and so do pickled values.
            StorageError: the bundle could not be read, or the cache could not be written.
        """
        self._require_open()
        from compcache.bundles.unpack import import_bundle

        keys: Any = ()
        if trusted_keys:
            from compcache.signing.keys import parse_public_keys

            keys = parse_public_keys(trusted_keys)
        return import_bundle(self._store, absolute_path(os.fspath(path)), keys)

    # -------------------------------------------------------------- remote store

    @property
    def remote(self) -> RemoteStore | None:
        """The remote stores that the cache was opened with, for their `status`, `verify` and `collect_garbage`; None without any."""
        self._require_open()
        return self._session().remote()

    def has_many(self, names: Iterable[str | Identity]) -> tuple[bool, ...]:
        """Return, for many functions, whether the cache or the remote store has them.

        Args:
            names: the functions, by their names or identities.

        Returns:
            For each function, in the order of `names`, whether either place has code that this host can use.
        """
        self._require_open()
        wanted = func_names_of(names)
        known = {name: self.has(name) for name in wanted}
        absent = [name for name, is_here in known.items() if not is_here]
        remote = self._session().remote()
        if absent and remote is not None:
            known.update(zip(absent, remote.has(absent), strict=True))
        return tuple(known[name] for name in wanted)

    def prefetch(self, names: Iterable[str | Identity], *, plain: bool = True) -> tuple[str, ...]:
        """Fetch functions that are not cached, and all their imports, from the remote store.

        Args:
            names: the functions, by their names or identities.
            plain: also fetch functions with plain names.

        Returns:
            The func_names of the fetched functions. The result is empty without a remote store.
        """
        self._require_open()
        remote = self._session().remote()
        absent = [name for name in func_names_of(names) if not self.has(name)]
        return remote.fetch(absent, plain=plain, insists=True) if remote is not None else ()

    def push(self, names: Iterable[str | Identity]) -> int:
        """Upload the modules of functions, and of all their imports, to the remote store in the background.

        Functions that are pushed together also form a pack: `prefetch` of the same functions takes one request.

        Args:
            names: the functions, by their names or identities.

        Returns:
            The number of modules that were queued. `flush_uploads` waits for them.

        Raises:
            NotCachedError: a function is not in the cache.
            ValueError: the cache has no remote store that may be written to.
        """
        self._require_open()
        remote = self._session().remote()
        if remote is None or not remote.writes:
            raise ValueError("push() requires a remote store to write to: open the cache with remote= and remote_mode='write'")
        wanted = dict.fromkeys([each for name in func_names_of(names) for each in (name, *self.dependencies(name, transitive=True))])
        found = dict.fromkeys([each.module_id for function in wanted for each in self.realizations(function)])
        count = sum([remote.offer(bytes.fromhex(module_id), always=True) for module_id in found])
        remote.pack(wanted)
        return count

    def flush_uploads(self, timeout: float = 60.0) -> bool:
        """Wait until all compiled and pushed modules are in the remote store.

        Args:
            timeout: the longest wait, in seconds.

        Returns:
            Whether nothing is left to upload; True without a remote store.
        """
        self._require_open()
        remote = self._session().remote()
        return remote is None or remote.flush(timeout) == 0


install_members(Sharing)
