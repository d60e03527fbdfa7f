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
    """Exports and imports bundles, and exchanges functions with the remote store."""

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
        """Write functions to a bundle, a ZIP archive that `import_bundle` can import and that can be used as a layer.

        Bundles are reproducible: the same modules give the same bytes in every process and on every host. Modules keep their signatures.
        If the cache has a `publish_key`, signatures by this key are added.

        Args:
            names: the functions, at least one, by their names or identities.
            path: the file. An existing file of this name is replaced.
            targets: CPUs (see `ModuleSource`). Only the realizations that hosts with these CPUs would use are included. None includes all
                realizations, except code of layers that newer code of the same plain name replaces.
            closure: include all functions that these functions import, transitively.
            minisign: also write ``<path>.minisig``, a signature of the file by the `publish_key`. `minisign -V` verifies it with the key
                that ``compcache key show --minisign`` prints.
            linked: include linked closures (see `link`) if the bundle contains all their parts.

        Returns:
            The func_names in the bundle, sorted.

        Raises:
            ValueError: no function is named, or there is no `publish_key` for `minisign`.
            CompileError: a target is not valid.
            NotCachedError: one of the functions is not in the cache, or has no realization for a target.
            FormatError: the notes of a module are damaged.
            FileNotFoundError, IntegrityError: another process has removed or damaged a module meanwhile.
            StorageError: a module could not be read, or the file could not be written.
        """
        self._require_open()
        from compcache.bundles.export import export

        if self._entries is not None:
            self._entries.flush()

        func_names = func_names_of(names)
        with Suggesting(self):
            return export(
                self._store, func_names, absolute_path(os.fspath(path)), targets, closure=closure, minisign=minisign, linked=linked
            )

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
            IntegrityError: a module lacks a required signature. Signatures are required if there are trusted keys, and for pickled values.
            StorageError: the bundle could not be read, or the cache could not be written.
            TypeError, ValueError, OSError: `trusted_keys` contains something other than keys, or names a file that cannot be read.
        """
        self._require_open()
        from compcache.bundles.unpack import import_bundle

        keys: Any = ()
        if trusted_keys:
            from compcache.signing.keys import parse_public_keys

            keys = parse_public_keys(trusted_keys)
        return import_bundle(self._store, absolute_path(os.fspath(path)), keys)

    @property
    def remote(self) -> RemoteStore | None:
        """The remote stores of the cache, with the methods `status`, `verify` and `collect_garbage`; None if there are none."""
        return self._session().remote()

    def has_many(self, names: Iterable[str | Identity]) -> tuple[bool, ...]:
        """Return, for many functions, whether the cache or the remote store has them.

        Args:
            names: the functions, by their names or identities.

        Returns:
            For each function, in the order of `names`, whether the cache or the store has code that this host can use. A function for
            which the store does not answer counts as missing.
        """
        func_names = func_names_of(names)
        cached = {name: self.has(name) for name in func_names}
        absent = [name for name, is_cached in cached.items() if not is_cached]
        remote = self._session().remote()
        if absent and remote is not None:
            cached.update(zip(absent, remote.has(absent), strict=True))
        return tuple(cached[name] for name in func_names)

    def prefetch(self, names: Iterable[str | Identity], *, plain: bool = True) -> tuple[str, ...]:
        """Fetch functions that are not cached, and all their imports, from the remote store.

        Args:
            names: the functions, by their names or identities.
            plain: also fetch functions with plain names.

        Returns:
            The func_names of the fetched functions. Functions that the store lacks, or does not answer for, are left out.
        """
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
            FormatError, StorageError: the module of a function is damaged, or cannot be read.
            ValueError: the cache has no writable remote store.
        """
        remote = self._session().remote()
        if remote is None or not remote.writes:
            raise ValueError("push() requires a writable remote store: open the cache with remote= and remote_mode='write'")
        functions: dict[str, None] = {}
        for name in func_names_of(names):
            functions |= dict.fromkeys([name, *self.dependencies(name, transitive=True)])
        module_ids = dict.fromkeys([realization.module_id for name in functions for realization in self.realizations(name)])
        count = sum([remote.offer(bytes.fromhex(module_id), always=True) for module_id in module_ids])
        remote.pack(functions)
        return count

    def flush_uploads(self, timeout: float = 60.0) -> bool:
        """Wait until all compiled and pushed modules are in the remote store.

        Args:
            timeout: the maximum wait in seconds.

        Returns:
            Whether all uploads are done. The result is True without a remote store.
        """
        remote = self._session().remote()
        return remote is None or remote.flush(timeout)


install_members(Sharing)
