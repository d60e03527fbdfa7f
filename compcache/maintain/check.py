"""Checks a cache in named, timed steps; each returns how many items it checked, and further counts.

Nothing is changed unless repair is requested: then damaged modules go to quarantine, the index is rebuilt, leftovers are
removed and permissions corrected. A step that verifies something reads the files: it trusts neither stamps nor the
stored module rows.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, KEY_SIZE, name_key
from compcache.errors import CompcacheError, FormatError, IntegrityError, StorageError
from compcache.files import DIRECTORY_MODE, FILE_MODE, reraise_interrupt
from compcache.formats.footer import is_signed_with, require_intact
from compcache.formats.index import NUMBER_SIZE, Stamp
from compcache.formats.manifest import (
    FUNCTION,
    GLOBAL,
    MODULE,
    NEEDS,
    NO_ENTRY,
    NO_SLOT,
    decode_function,
    decode_global,
    decode_module,
    decode_needs,
)
from compcache.formats.manifest_writer import iterate_frames
from compcache.images.kinds import Table, check_image
from compcache.maintain.report_types import CheckReport, CheckStep, Finding
from compcache.publish.atomic_file import make_directories, unique_name
from compcache.store import MODULES, PLACES, QUARANTINE, module_id_of
from compcache.usage.module_reader import ModuleSections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compcache.store import Store
    from compcache.usage.module_files import Progress
    from compcache.usage.module_rows import Row

    Step = Callable[["_Check"], tuple[int, dict[str, int]]]

__all__ = ["STEPS", "check", "report_absence"]

_ATTEMPTS = 8  # at reading the index while other processes merge it
_DIRECTORIES = tuple(dict.fromkeys([place.directory for place in PLACES if place.directory]))


def report_absence(store: Store) -> CheckReport:
    """The report on a directory without a cache."""
    message = f"no cache at {store.root}"
    return CheckReport((), (Finding("directory", "absent", "error", store.root, message),))


def check(
    store: Store,
    *,
    repair: bool = False,
    checksums: bool = True,
    recompile: bool = False,
    progress: Progress | None = None,
) -> CheckReport:
    """Check a cache directory.

    Args:
        store: the directory.
        repair: correct what can be corrected.
        checksums: read every module in full, compare it with its digest, and its image with its records.
        recompile: recompile the stored bitcode of the modules, and compare the result with their images.
        progress: called with (modules read, modules to read) now and then.

    Raises:
        StorageError: `repair` is set and the cache is read-only.
    """
    if repair:
        store.require_writable()
    state = _Check(store, repair=repair, progress=progress)
    steps = []
    for name, step in STEPS.items():
        if (name == "checksums" and not checksums) or (name == "code" and not recompile):
            continue
        state.step = name
        started = time.perf_counter()
        checked, numbers = step(state)
        steps.append(CheckStep(name, checked, time.perf_counter() - started, numbers))
    return CheckReport(tuple(steps), tuple(state.findings))


class _Check:
    """State shared by the steps: the directory, its modules, and the findings so far."""

    def __init__(self, store: Store, *, repair: bool, progress: Progress | None) -> None:
        self.store = store
        self.repair = repair
        self.progress = progress
        self.step = ""
        self.findings: list[Finding] = []
        self.present: dict[bytes, os.stat_result] = {}
        self.rows: dict[bytes, Row] = {}
        self.unusable: set[bytes] = set()

    def find(
        self, kind: str, subject: str, message: str, *, note: bool = False, repaired: bool = False
    ) -> None:
        """Add a finding."""
        severity = "note" if note else "error"
        self.findings.append(Finding(self.step, kind, severity, subject, message, repaired))

    def unusable_for(self, module_id: bytes, error: Exception) -> None:
        """Report what is wrong with a module, and repair that if asked to, unless it was removed meanwhile.

        Only what was read is damaged: a file that cannot be read now, for lack of permission, descriptors or memory or
        because of the disk, stays.
        """
        if not self.store.exists(module_id):
            self.forget(module_id)
            return
        path = self.store.module_path(module_id)
        if isinstance(error, OSError) and error.errno is not None:
            reason = str(error) if isinstance(error, CompcacheError) else error.strerror
            self.find("unreadable", module_id.hex(), f"{path} cannot be checked: {reason}")
            self.forget(module_id)
            self.unusable.add(module_id)
            return
        self._damaged(module_id, path, str(error))

    def _damaged(self, module_id: bytes, path: str, reason: str) -> None:
        done = self.repair and _set_aside(self.store, path)
        what = (
            "it was moved to quarantine"
            if done
            else "repair moves it to quarantine, and its functions are compiled again"
        )
        self.find("damaged", module_id.hex(), f"{path} is damaged: {reason}; {what}", repaired=done)
        self.forget(module_id)
        if not done:
            self.unusable.add(module_id)

    def forget(self, module_id: bytes) -> None:
        """Exclude a module from the later steps."""
        self.present.pop(module_id, None)
        self.rows.pop(module_id, None)

    def is_provided(self, name: str) -> bool:
        """Whether a module holds a function now, one added since the check began included."""
        return any(self.store.exists(module_id) for module_id, _ in self.store.find_all(name))


def _set_aside(store: Store, path: str) -> bool:
    target = store.path(QUARANTINE, f"{os.path.basename(path)}.{unique_name()}")
    try:
        make_directories(store.files, os.path.dirname(target))
        store.files.rename(path, target)
    except OSError as error:
        reraise_interrupt(error)
        return False
    store.stats.count("corrupt")
    return True


# --------------------------------------------------------------------- permissions


def _permissions(state: _Check) -> tuple[int, dict[str, int]]:
    """Check that other users cannot write to the directories that code is loaded from."""
    store = state.store
    if not hasattr(os, "getuid"):
        return 0, {}
    checked = 0
    paths = [store.root, *[f"{store.root}/{name}" for name in _DIRECTORIES]]
    base = store.directory(MODULES)
    paths += [f"{base}/{fan}" for fan in store.names_in(base)]
    for path in paths:
        try:
            status = store.files.lstat(path)
        except OSError as error:
            reraise_interrupt(error)
            continue
        checked += 1
        _check_mode(state, path, status, DIRECTORY_MODE)
    return checked, {}


def _check_mode(state: _Check, path: str, status: os.stat_result, wanted: int) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        state.find(
            "permissions", path, f"{path} is a symbolic link, which compcache does not create; remove it"
        )
    elif status.st_uid not in (os.getuid(), 0):
        state.find(
            "permissions", path, f"{path} belongs to user {status.st_uid}, who could run code as you; change its owner"
        )
    elif mode & 0o022:
        done = state.repair and _set_mode(state.store, path, wanted)
        what = "" if done else f"; run 'chmod go-w {path}', or repair"
        state.find("permissions", path, f"other users can write to {path} ({mode:04o}){what}", repaired=done)


def _set_mode(store: Store, path: str, mode: int) -> bool:
    try:
        store.files.chmod(path, mode)
    except OSError as error:
        reraise_interrupt(error)
        return False
    return True


# ----------------------------------------------------------------------- leftovers


def _leftovers(state: _Check) -> tuple[int, dict[str, int]]:
    """Look for temporary files, damaged files and files that compcache did not write."""
    from compcache.maintain.policy import PrunePolicy
    from compcache.maintain.prune import clear_leftovers, find_leftovers

    store = state.store
    found = find_leftovers(store, PrunePolicy(), time.time())
    removed = {file.path for file in clear_leftovers(store, found)} if state.repair else set()
    for file in found:
        done = file.path in removed
        what = "" if done else "; repair or prune removes it"
        state.find(
            "leftover",
            file.path,
            f"{file.path}: {file.reason}, {file.size} bytes{what}",
            note=True,
            repaired=done,
        )
    strangers = list(_strangers(store))
    for path in strangers:
        state.find(
            "stranger", path, f"{path} was not written by compcache; delete it if it is not needed", note=True
        )
    quarantined = len(store.names(QUARANTINE))
    return len(found) + len(strangers), {
        "leftovers": len(found),
        "strangers": len(strangers),
        "quarantined": quarantined,
    }


def _strangers(store: Store) -> Iterator[str]:
    base = store.directory(MODULES)
    for fan in store.names_in(base):
        for name in store.names_in(f"{base}/{fan}"):
            if module_id_of(name) is None or name[:2] != fan:
                yield f"{base}/{fan}/{name}"
    for directory in _DIRECTORIES:
        kinds = [place for place in PLACES if place.directory == directory]
        for name in store.names_in(f"{store.root}/{directory}") if MODULES not in kinds else ():
            if not any(kind.includes(name) for kind in kinds):
                yield f"{store.root}/{directory}/{name}"


# --------------------------------------------------------------- manifests, checksums


def _manifests(state: _Check) -> tuple[int, dict[str, int]]:
    """Check that every module's records decode."""
    from compcache.usage.ledger import read_ledger
    from compcache.usage.module_files import status_of_modules
    from compcache.usage.module_rows import load_rows

    store = state.store
    state.present = status_of_modules(store)
    state.rows = load_rows(store, state.present, lambda: read_ledger(store).rows(), state.progress)
    for module_id, status in list(state.present.items()):
        if status.st_mode & 0o022:
            _check_mode(state, store.module_path(module_id), status, FILE_MODE)
        if module_id not in state.rows:
            state.unusable_for(module_id, _why_unreadable(store, module_id))
    functions = sum(len(row.names) for row in state.rows.values())
    return len(state.present), {"functions": functions}


def _why_unreadable(store: Store, module_id: bytes) -> Exception:
    try:
        with ModuleSections(store, module_id) as reader:
            list(iterate_frames(reader.records()))
    except (OSError, FormatError) as error:
        reraise_interrupt(error)
        return error
    return FormatError("its records do not decode")


def _checksums(state: _Check) -> tuple[int, dict[str, int]]:
    """Check every byte against the digests, and the symbols of the image against the records."""
    size = 0
    total = len(state.present)
    for number, module_id in enumerate(list(state.present)):
        if state.progress is not None and number % 64 == 0:
            state.progress(number, total)
        try:
            with ModuleSections(state.store, module_id) as reader:
                size += reader.size
                _verify(reader)
                signed = not state.store.signing_key or is_signed_with(reader.footer, state.store.signing_key)
            if not signed:
                _foreign(state, module_id)
        except FileNotFoundError:
            continue
        except (OSError, FormatError) as error:
            reraise_interrupt(error)
            state.unusable_for(module_id, error)
    return total, {"size": size}


def _code(state: _Check) -> tuple[int, dict[str, int]]:
    """Check that the stored bitcode compiles, and gives the code of the module."""
    from compcache.maintain.recompile import recompile

    kept = compared = 0
    total = len(state.present)
    for number, module_id in enumerate(list(state.present)):
        if state.progress is not None and number % 8 == 0:
            state.progress(number, total)
        try:
            done = recompile(state.store, module_id.hex())
            kept += done.translated
            compared += done.compared
        except FileNotFoundError:
            continue
        except (OSError, CompcacheError) as error:
            reraise_interrupt(error)
            state.unusable_for(module_id, error)
    return total, {"recompiled": kept, "compared": compared}


def _foreign(state: _Check, module_id: bytes) -> None:
    """Report an intact module that others have added: it is theirs, and stays."""
    path = state.store.module_path(module_id)
    message = f"{path} does not carry the signature of this cache's key and is not used; it is there for others"
    state.find("unsigned", module_id.hex(), message, note=True)


def _verify(reader: ModuleSections) -> None:
    """Raise `FormatError` with the reason if a module is not as it was published."""
    require_intact(reader.footer, reader.module_id, reader.read)
    _compare(reader.image(), reader.records())


def _compare(image: bytes, records: bytes) -> None:
    """Check that the image holds the module table whose slots the records refer to."""
    kind, table = _needs_of(records)
    check_image(kind, image, table)


def _needs_of(records: bytes) -> tuple[str, Table]:
    """The kind of a module's image, and the module table that the records require of it."""
    header = None
    highest = -1
    for _, payload in iterate_frames(records):
        kind = payload[:1]
        if kind == MODULE:
            header = decode_module(payload)
        elif kind == FUNCTION:
            record = decode_function(payload)
            highest = max(highest, record.function, -1 if record.entry == NO_ENTRY else record.entry)
        elif kind == NEEDS:
            highest = max([highest, *[slot for slot, _ in decode_needs(payload).imports if slot != NO_SLOT]])
        elif kind == GLOBAL:
            highest = max(highest, decode_global(payload).slot)
    if header is None:
        raise FormatError("it has no module record")
    return header.image_kind, Table(header.key, header.abi, highest + 1)


# --------------------------------------------------------------------------- edges


def _edges(state: _Check) -> tuple[int, dict[str, int]]:
    """Check that another module provides every import of a module."""
    provided = {name for row in state.rows.values() for name in row.names}
    missing: dict[str, list[bytes]] = {}
    edges = 0
    for module_id, row in state.rows.items():
        edges += len(row.imports)
        for name in row.imports:
            if name not in provided:
                missing.setdefault(name, []).append(module_id)
    dangling = 0
    for name, importers in sorted(missing.items()):
        modules = [module_id for module_id in importers if state.store.exists(module_id)]
        if not modules or state.is_provided(name):
            continue  # the directory changed meanwhile
        dangling += 1
        more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
        message = f"no module holds {name!r}, which module {modules[0].hex()}{more} imports: its importers miss until it is added"
        state.find("dangling", name, message, note=True)
    return edges, {"dangling": dangling}


# --------------------------------------------------------------------------- index


def _index(state: _Check) -> tuple[int, dict[str, int]]:
    """Compare the index with the modules."""
    store = state.store
    entries, stamps = _index_content(store)
    wanted = _wanted_entries(state)
    # Other processes add, prune and merge meanwhile: check entries that differ once more.
    there = {module_id: store.exists(module_id) for module_id in {*map(_module_of, wanted ^ entries)}}
    missing = {entry for entry in wanted - entries if there[_module_of(entry)]}
    stale = {
        entry
        for entry in entries - wanted
        if (_module_of(entry) in state.rows or not there[_module_of(entry)]) and _module_of(entry) not in state.unusable
    }
    unverified = sum(
        1 for module_id, status in state.present.items() if not _is_stamped(stamps.get(module_id, ()), status)
    )
    damaged = dict(store.index.damaged)
    numbers = {
        "missing": len(missing),
        "stale": len(stale),
        "unverified": unverified,
        "damaged": len(damaged),
    }
    if damaged or missing or stale:
        _repair_index(state, missing, stale, damaged)
    return len(entries), numbers


def _module_of(entry: bytes) -> bytes:
    return entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE]


def _index_content(store: Store) -> tuple[set[bytes], dict[bytes, list[bytes]]]:
    """The function entries and the module entries of all segments, as of one moment."""
    for _ in range(_ATTEMPTS):
        try:
            store.index.refresh()
            return _read_index(store)
        except FileNotFoundError:
            continue  # the segment was merged into another one meanwhile
        except OSError as error:
            reraise_interrupt(error)
            raise StorageError(f"cannot read the index of {store.root}: {error}", path=store.root) from error
    return _read_index(store, or_fail=False)


def _read_index(store: Store, *, or_fail: bool = True) -> tuple[set[bytes], dict[bytes, list[bytes]]]:
    entries: set[bytes] = set()
    stamps: dict[bytes, list[bytes]] = {}
    for segment in store.index.segments:
        try:
            texts = segment.requirements
            unknown = [data for data in segment.functions.entries() if data[-NUMBER_SIZE:] not in texts]
            if unknown:
                raise FormatError("a function entry names a requirement that the segment does not have")
            entries.update([data[: KEY_SIZE + DIGEST_SIZE + 4] for data in segment.functions.entries()])
            for data in segment.modules.entries():
                stamps.setdefault(data[:DIGEST_SIZE], []).append(data)
        except FileNotFoundError:
            if or_fail:
                raise
        except (FormatError, OSError) as error:
            reraise_interrupt(error)
            store.index.damaged[segment.name] = str(error)
    return entries, stamps


def _wanted_entries(state: _Check) -> set[bytes]:
    return {
        name_key(name) + module_id + offset.to_bytes(4, "little")
        for module_id, row in state.rows.items()
        for name, offset in zip(row.names, row.offsets, strict=True)
    }


def _is_stamped(entries: list[bytes] | tuple[()], status: os.stat_result) -> bool:
    wanted = Stamp.packed(status)
    return any(data.startswith(wanted, DIGEST_SIZE) for data in entries)


def _repair_index(state: _Check, missing: set[bytes], stale: set[bytes], damaged: dict[str, str]) -> None:
    done = state.repair and _rebuild(state)
    what = "it was rebuilt" if done else "repair rebuilds it"
    root = state.store.root
    for name, reason in damaged.items():
        state.find("index", name, f"segment {name} of the index is damaged ({reason}); {what}", repaired=done)
    if missing:
        example = next(iter(missing))[KEY_SIZE : KEY_SIZE + DIGEST_SIZE].hex()
        message = (
            f"the index of {root} lacks {len(missing)} functions, for example of module {example}: an addition was "
            f"interrupted, and look-ups of them miss; {what}{'' if done else ', prune adds them after an hour'}"
        )
        state.find("unindexed", root, message, note=True, repaired=done)
    if stale:
        message = f"the index of {root} has {len(stale)} entries of removed modules, which only cost space; {what}"
        state.find("stale", root, message, note=True, repaired=done)


def _rebuild(state: _Check) -> bool:
    from compcache.publish.index_rebuild import rebuild_index

    try:
        rebuild_index(state.store)
    except (OSError, IntegrityError) as error:
        reraise_interrupt(error)
        return False
    return True


# --------------------------------------------------------------------- what is kept beside


def _statistics(state: _Check) -> tuple[int, dict[str, int]]:
    """Check that the statistics decode and that the pinned functions are in the cache."""
    from compcache.maintain.pins import pinned
    from compcache.usage.ledger import read_ledger

    ledger = read_ledger(state.store)
    provided = {name for row in state.rows.values() for name in row.names}
    pins = pinned(state.store)
    for name in pins:
        if name not in provided and not state.is_provided(name):
            message = f"{name!r} is pinned, but no module holds it; unpin it, or add it"
            state.find("pin", name, message, note=True)
    return len(ledger.files), {"files": len(ledger.files), "incomplete": len(ledger.torn), "pins": len(pins)}


#: The steps in order: a module that one of them finds damaged is skipped by the later ones.
STEPS: dict[str, Step] = {
    "permissions": _permissions,
    "leftovers": _leftovers,
    "manifests": _manifests,
    "checksums": _checksums,
    "code": _code,
    "edges": _edges,
    "index": _index,
    "statistics": _statistics,
}
