"""Verifies module files without a valid stamp, quarantines damaged files, and recovers the index."""

from __future__ import annotations

import errno
import os
import stat
import time
from itertools import islice
from typing import TYPE_CHECKING

from compcache.directory.module_file import ModuleFile
from compcache.directory.places import INDEX
from compcache.errors import FormatError, IncompatibleTargetError, StorageError, UnknownVersionError, UntrustedDirectoryError
from compcache.files import writer
from compcache.formats.footer import LARGEST_FOREIGN, is_signed_with, require_intact
from compcache.formats.order import UNNUMBERED
from compcache.formats.records import decode_module
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish import index_merge
from compcache.publish.atomic_file import is_settled
from compcache.publish.index_rebuild import describe_from_records, mark_unfinished, rebuild_index
from compcache.publish.locks import wait_lock
from compcache.publish.quarantine import quarantine, reject_file, warn_once
from compcache.warning import warn

if TYPE_CHECKING:
    from compcache.errors import CompcacheError
    from compcache.formats.index import Index, ModuleEntry
    from compcache.store import Store

__all__ = [
    "closed_parent", "condemn", "condemn_unreadable", "has_own_signature", "record_verified", "recover_index", "untrusted_directory_error",
    "uses_unsigned", "verify_module", "warn_about_layer",
]  # fmt: skip

#: For how many seconds a look-up waits for a process that rebuilds the index; then the function is compiled again.
_PATIENCE = 1.0
#: The age in seconds of a module whose addition has ended.
_OLD = 3600.0


def verify_module(store: Store, module: ModuleFile, status: os.stat_result, *, leave_stamp: bool, foreign: bool) -> ModuleFile:
    """Verify a module file, and write a stamp so that the next open can skip the verification.

    Args:
        store: the directory.
        module: the open file.
        status: the result of `fstat` on the file.
        leave_stamp: whether to write a stamp. This is done only if the store verifies digests, and the file has settled (`is_settled`).
        foreign: whether other users could change the file.

    Returns:
        The module, or a copy in memory if other users could change the file.

    Raises:
        FormatError: the content of the file is damaged.
        IntegrityError: the file belongs to another user, is too large for a file that other users can change, or lacks a required
            signature.
        StorageError: the file cannot be read.
        OSError: there is no room for the copy.
        MissingPackageError: a signature must be checked, and PyNaCl is not installed.
    """
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("the module is not a regular file")
    if foreign and not store.stamp_key:
        raise reject_file(store, module.path, _describe_writer(status))
    if foreign and module.size > LARGEST_FOREIGN:
        reason = f"others can change it, and its {module.size} bytes exceed the {LARGEST_FOREIGN} bytes allowed for such a file; remove it"
        raise reject_file(store, module.path, reason)
    signed = _has_valid_mac(store, module)
    if foreign and signed:
        module = _copy_to_memory(module)
        signed = _has_valid_mac(store, module)
    if store.verify or store.stamp_key:
        require_intact(module.footer(), module.module_id, module.read)
    if not signed:
        raise reject_file(store, module.path, "it is not signed with this cache's signing_key")
    requirement = describe_from_records(module)
    if store.trusted_keys:
        _require_trusted(store, module, requirement)
    if store.verify and leave_stamp and not module.copied and is_settled(status):
        store.record_verified(store.entry_of(module, status))
    return module


def _describe_writer(status: os.stat_result) -> str:
    """Return a description of the users who may have written a file, for a message."""
    if writer(status) < 0:
        return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):o}), and may have done so; remove it"
    return f"it belongs to user {status.st_uid}, not to you ({os.geteuid()}); remove it"


def _has_valid_mac(store: Store, module: ModuleFile) -> bool:
    """Return whether the file has a MAC by the store's signing key, or the store has no signing key.

    Raise `FormatError` if the footer is damaged, or `StorageError` if the file cannot be read.
    """
    return not store.signing_key or is_signed_with(module.footer(), store.signing_key)


def _require_trusted(store: Store, module: ModuleFile, requirement: str) -> None:
    """Raise `IntegrityError` if no trusted key has signed a module. See `is_signed` for another exception."""
    from compcache.signing.signatures import is_signed, signers

    content = store.signatures_of(module.module_id)
    if not is_signed(content, store.trusted_keys, module.module_id, requirement):
        names = ", ".join(map(repr, signers(content)))
        trusted = ", ".join(repr(key.name) for key in store.trusted_keys)
        problem = f"its signatures are by {names}, and none of them is valid for a trusted key" if names else "it is not signed"
        raise reject_file(store, module.path, f"{problem} (trusted_keys: {trusted}); publish it with one of these keys, or remove it")


def has_own_signature(store: Store, module: ModuleFile) -> bool:
    """Return whether a module is signed with the store's publish key, in the directory or a layer.

    Without a publish key, the result is False.

    The store signs a new module only if all modules from which it is built are signed in this way. Code of other keys stays under their
    signatures, so that it is refused once they are no longer trusted.

    Raise `FormatError` if the module record is malformed. See `is_signed` for another exception.
    """
    if store.publish_key is None:
        return False
    from compcache.signing.signatures import is_signed

    keys = (store.publish_key.public(),)
    requirement = decode_module(module.read_record(0)).requirement()
    with suppress(StorageError):  # unknown signatures do not make new code trusted
        contents = [holder.signatures_of(module.module_id) for holder in (store, *store.layers)]
        return any(is_signed(content, keys, module.module_id, requirement) for content in contents)
    return False


def uses_unsigned(store: Store) -> bool:
    """Return whether a store uses modules that it publishes without a signature.

    With trusted keys, the stamps of its publications let it use them. In a directory where others can write, no stamp is trusted.
    """
    return not (store.trusted_keys and store.exposed)


def _copy_to_memory(module: ModuleFile) -> ModuleFile:
    """Close the file and return a copy in memory, which other users cannot change. Raise `OSError` if there is no room for the copy."""
    from compcache.images.anonymous_file import anonymous_file

    copy = ModuleFile(module._files, module.path, module.module_id)
    copy.adopt(anonymous_file(module.read(0, module.size)))
    copy.size = module.size
    copy.copied = True
    module.close()
    return copy


def record_verified(store: Store, index: Index, entry: ModuleEntry) -> None:
    """Record in `index`, an index of the directory, that a file was verified. Ignore failures to write: the next open verifies again."""
    with suppress(OSError):
        index_merge.add_all(index, [((), entry, UNNUMBERED)])
        index_merge.merge_additions(store, index, levels=index_merge.SMALL_LEVELS)


def condemn(store: Store, module: ModuleFile, error: FormatError) -> CompcacheError:
    """Implement `Store.condemn`: close the file, and return the exception to raise.

    The file is read a second time, and quarantined only if it is still damaged. An intact file comes from another version of compcache.
    """
    try:
        if isinstance(error, UnknownVersionError) or _is_intact(module):
            name = module.module_id.hex()
            return IncompatibleTargetError(f"module {name} was written by another version of compcache: {error}", module_id=name)
        return quarantine(store, module.path, str(error))
    except StorageError as problem:
        return problem
    finally:
        module.close()


def _is_intact(module: ModuleFile) -> bool:
    """Read the file again, and return whether its content is intact. A closed or special file is not.

    Raise `StorageError` if the file cannot be read.
    """
    if module.opened.number < 0 or not stat.S_ISREG(os.fstat(module.opened.number).st_mode):
        return False
    try:
        require_intact(module.footer(), module.module_id, module.read)
    except FormatError:
        return False
    return True


def condemn_unreadable(store: Store, module: ModuleFile, error: OSError) -> CompcacheError:
    """Close a module file that cannot be read, quarantine it if it is a link or a socket, and return the exception to raise."""
    path = module.path
    module.close()
    if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link or a socket, which compcache did not publish
        return quarantine(store, path, "it is not a regular file")
    return store.unreadable_error(path, error)


def untrusted_directory_error(root: str, status: os.stat_result, link: os.stat_result, user: int) -> UntrustedDirectoryError:
    """Return the exception to raise for an untrusted root, with the reason and the remedy.

    `status` and `link` are the `stat` and `lstat` results of the path, and `user` is the user id of this process.
    """
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (user, 0):
        problem = f"is a symbolic link of user {link.st_uid}, not yours ({user}): loading from it could run their code"
        remedy = "choose another directory"
    elif status.st_uid not in (user, 0):
        problem = f"belongs to user {status.st_uid}, not to you ({user}): loading from it would run their code"
        remedy = "choose another directory"
    else:
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        problem = f"can be written by other users (mode {mode}): loading from it would run their code"
        remedy = f"run 'chmod go-w {root}'"
    reason = f"the cache directory {root} {problem}; {remedy}"
    advice = "pass trust=True if you trust all users who can write there, or a key (trusted_keys, signing_key)"
    return UntrustedDirectoryError(f"{reason}, or {advice}", path=root, reason=reason)


def warn_about_layer(store: Store, source: str, problem: str) -> None:
    """Issue a warning, once, that a layer cannot be read. The warning contains the command that gives others access."""
    closed = closed_parent(source)
    command = f"chmod go+x {closed}" if closed else f"chmod -R go+rX {source}"
    warn_once(store, source, f"the layer {source} is used only in part: {problem} (its owner gives others access with '{command}')")


def closed_parent(path: str) -> str:
    """Return the first parent directory of an absolute path that this user cannot search, or "" if there is none."""
    parents = [path[:end] for end, character in enumerate(path) if character == os.sep and end]
    return next((parent for parent in parents if os.path.isdir(parent) and not os.access(parent, os.X_OK)), "")


def recover_index(store: Store) -> None:
    """Rebuild an index that is damaged or was deleted, and warn about damage. A read-only cache only warns, also about a deleted index.

    One process rebuilds the index. Other processes wait for it, up to a second. If the index cannot be rebuilt, a warning says why.
    """
    damaged = dict(store.index.damaged)
    if damaged:
        names = ", ".join(sorted(damaged))
        action = "a read-only cache cannot rebuild it" if store.readonly else "rebuilding it"
        warn_once(store, names, f"the index of {store.root} cannot be used completely ({names}: {next(iter(damaged.values()))}); {action}")
    if store.readonly:
        if not damaged and not store.index.unfinished and _holds_old_module(store):
            action = f"run 'compcache --dir {store.root} check --repair' where it is writable"
            warn_once(store, "index", f"the cache {store.root} has no index, so none of its modules is found; {action}")
        return
    try:
        if any(True for _ in store.module_ids()):
            with wait_lock(store, "index-rebuild", timeout=_PATIENCE, until=lambda: _refresh_index(store)) as owned:
                if owned is not False and not _refresh_index(store):
                    rebuild_index(store)
                store.index.refresh()
        elif store.index.unfinished or damaged:
            rebuild_index(store)
            store.index.refresh()
    except (OSError, FormatError) as error:
        reraise_interrupt(error)
        with suppress(OSError):  # otherwise, an index of later additions would count as complete
            mark_unfinished(store)
        action = "until it is rebuilt, functions are compiled again; 'compcache check' shows the problems"
        warn(f"cannot rebuild the index of {store.root}: {error}; {action}")


def _holds_old_module(store: Store) -> bool:
    """Return whether there is a module, and the first was written over an hour ago. The entry of a newer one may not be written yet."""
    with suppress(OSError):
        return any(store.status_of(module_id)[1] < time.time() - _OLD for module_id in islice(store.module_ids(), 1))
    return False


def _refresh_index(store: Store) -> bool:
    """Refresh the index, and return whether it is complete. Damaged segments that another process has removed are forgotten."""
    index = store.index
    index.refresh()
    for name in set(index.damaged).difference(store.names(INDEX)):
        del index.damaged[name]
    return bool(index.segments) and not index.unfinished and not index.damaged
