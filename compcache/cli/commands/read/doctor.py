"""``compcache doctor``: looks for what is wrong in the place where compcache runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import click

from compcache import frontend
from compcache.cli.environment import SETTINGS, invalid_settings, misspelt_settings
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import Column, fullness, plural, print_rows, size_text
from compcache.cli.session import Session, pass_session
from compcache.errors import CompcacheError
from compcache.hit.target import load_runtime
from compcache.settings import CONFIGURATION_VARIABLE, configuration, configuration_files, from_environment, setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.cache import Cache

__all__ = ["command"]

OK, NOTE, PROBLEM = "ok", "note", "error"
_LITTLE_SPACE = 256 << 20


class _Finding(NamedTuple):
    """A result of an examination: fine, worth knowing, or a problem."""

    severity: str
    subject: str
    message: str


@click.command("doctor")
@json_option
@pass_session
def command(session: Session, as_json: bool) -> int:
    """Look for what is wrong: settings, directory, layers, keys, remote store, linker, processor, Numba.

    Nothing is created or changed. Exit status 1 if there is a problem.
    """
    findings = [*_settings()]
    if all(finding.subject != CONFIGURATION_VARIABLE for finding in findings):
        findings += [*_cache(session), *_numba()]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_rows([Column("severity"), Column("subject"), Column("message", flexible=True)], findings)
    return 1 if any(finding.severity == PROBLEM for finding in findings) else 0


def _settings() -> Iterator[_Finding]:
    for name, message in invalid_settings():
        yield _Finding(PROBLEM, name, message.removeprefix(f"{name}: "))
        if name == CONFIGURATION_VARIABLE:
            return
    for name, near in misspelt_settings(os.environ):
        yield _Finding(PROBLEM, name, f"nothing reads this variable: {near} is a setting")
    chosen = [row.name for row in SETTINGS if os.environ.get(row.name)]
    if chosen:
        yield _Finding(OK, "settings", f"from the environment: {', '.join(chosen)}")
    read = [path for path in configuration_files() if os.path.exists(path)]
    if read:
        yield _Finding(OK, "settings", f"from {' and '.join(read)}: {', '.join(sorted(configuration())) or 'nothing'}")
    elif not chosen:
        yield _Finding(OK, "settings", "all have their defaults")


def _cache(session: Session) -> Iterator[_Finding]:
    """Examine the directory and its surroundings. The first problem that keeps it from being opened ends the examination."""
    try:
        load_runtime()
        cache = session.look()
    except ImportError as error:
        yield _Finding(PROBLEM, "runtime", str(error))
        return
    except (CompcacheError, ValueError, OSError) as error:
        yield _Finding(PROBLEM, "directory", getattr(error, "reason", "") or str(error))
        return
    with cache:
        for look in (_directory, _content, _layers, _rules, _remote):
            try:
                yield from look(cache, session)
            except (CompcacheError, ValueError, OSError) as error:
                yield _Finding(PROBLEM, look.__name__.strip("_"), str(error))


def _directory(cache: Cache, session: Session) -> Iterator[_Finding]:
    where = f"{cache.path} (chosen by: {session.chosen_by})"
    place = cache.path
    while not os.path.isdir(place):
        if os.path.lexists(place):
            problem = f"{where} cannot be used, because {place} is not a directory: what is compiled here is not stored"
            yield _Finding(PROBLEM, "directory", problem)
            return
        place = os.path.dirname(place)
    if not os.access(place, os.W_OK):
        yield _Finding(NOTE, "directory", f"{where} cannot be written by this user: what is compiled here is not stored")
    elif not cache.exists:
        yield _Finding(OK, "directory", f"{where} is not created yet: the first addition does that")
    else:
        others = os.stat(place).st_mode & 0o022
        who = "by this user, and by others" if others or os.stat(place).st_uid != os.getuid() else "by this user alone"
        yield _Finding(NOTE if others else OK, "directory", f"{where} can be written {who}")
    free = os.statvfs(place)
    size = free.f_bavail * free.f_frsize
    if size < _LITTLE_SPACE:
        yield _Finding(PROBLEM, "space", f"{size_text(size)} are left on the file system of {place}: additions will fail")


def _content(cache: Cache, _: Session) -> Iterator[_Finding]:
    """Report the content of the cache, and what additions need."""
    info = cache.info()
    held = f"{plural(info.functions, 'function')} in {plural(info.modules, 'module')}"
    yield _Finding(OK, "content", f"{held}, {fullness(info.size, info.max_size)}")
    if info.quarantined:
        yield _Finding(NOTE, "quarantine", f"{plural(info.quarantined, 'damaged file')} set aside: 'compcache check' says more")
    if info.other_formats:
        names = ", ".join(info.other_formats)
        yield _Finding(NOTE, "other formats", f"{names}: not used by this version; 'compcache prune --stale 0s' removes them")
    yield _Finding(OK, "processor", f"{info.platform}, {info.cpu}")
    yield _Finding(OK, "llvm", f"{info.llvm_version}, by llvmlite")
    yield _Finding(OK, "linker", info.linker)
    yield _Finding(OK, "loader", info.loader)


def _layers(cache: Cache, _: Session) -> Iterator[_Finding]:
    from compcache.cache import Cache as Opened

    for layer in cache.layers:
        if not os.path.exists(layer):
            yield _Finding(PROBLEM, "layer", f"{layer} does not exist: nothing of it is used")
        elif os.path.isdir(layer):
            with Opened(layer, readonly=True, layers=()) as opened:
                state, number = (OK, opened.info().functions) if opened.exists else (PROBLEM, 0)
            yield _Finding(state, "layer", f"{layer}: {plural(number, 'function') if state == OK else 'no cache is there'}")
        else:
            yield _Finding(OK, "layer", f"{layer}: a bundle of {size_text(os.stat(layer).st_size)}")


def _rules(_: Cache, __: Session) -> Iterator[_Finding]:
    """Report which code may run, and what is signed, according to the settings."""
    from compcache.signing.keys import read_own, read_publics

    if setting("COMPCACHE_SIGNING_KEY"):
        yield _Finding(OK, "keys", "what is added is signed with COMPCACHE_SIGNING_KEY, and nothing else is used")
    trusted = from_environment("COMPCACHE_TRUSTED_KEYS", read_publics)
    if trusted:
        names = ", ".join(key.name for key in trusted)
        yield _Finding(OK, "keys", f"code that was compiled elsewhere is used if one of these keys signed it: {names}")
    own = from_environment("COMPCACHE_PUBLISH_KEY", read_own)
    if own is not None:
        yield _Finding(OK, "keys", f"what is added is signed for others with {own.name}")
    oldest = setting("COMPCACHE_MIN_LLVM")
    if oldest:
        yield _Finding(OK, "keys", f"code of an LLVM older than {oldest} is not used")


def _remote(_: Cache, __: Session) -> Iterator[_Finding]:
    """Yield whether the stores answer, as this process is set up."""
    from compcache.remote.address import read_mode, read_settings, read_url
    from compcache.remote.maintenance import status

    settings = read_settings(from_environment("COMPCACHE_REMOTE", read_url), from_environment("COMPCACHE_REMOTE_MODE", read_mode))
    if settings is None:
        return
    for store in status(settings):
        problem = store["last_error"]
        yield _Finding(PROBLEM if problem else OK, "remote", f"{store['url']} ({store['mode']}): {problem or 'answers'}")
        if store["waiting_uploads"]:
            yield _Finding(NOTE, "remote", f"{plural(store['waiting_uploads'], 'module')} wait to be uploaded to {store['url']}")


def _numba() -> Iterator[_Finding]:
    from importlib.metadata import PackageNotFoundError, version

    from compcache.numba.versions.supported import is_supported, series_supported

    try:
        found = version("numba")
    except PackageNotFoundError:
        yield _Finding(OK, "numba", "not installed")
        return
    if not is_supported(found):
        oldest, *_, newest = [".".join(map(str, series)) for series in series_supported()]
        yield _Finding(NOTE, "numba", f"{found} is not supported, and works as without compcache: {oldest} to {newest} are")
    else:
        is_on = "COMPCACHE_NUMBA" not in dict(invalid_settings()) and frontend.is_on("COMPCACHE_NUMBA")
        how = "COMPCACHE_NUMBA=1 caches what has cache=True" if is_on else "COMPCACHE_NUMBA=1 would cache what has cache=True"
        yield _Finding(OK, "numba", f"{found}: {how}")
