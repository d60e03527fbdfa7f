"""``compcache doctor``: examine the environment in which compcache runs."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, NamedTuple

import click

from compcache import frontend
from compcache.cli.environment import SETTINGS, invalid_settings, misspelt_settings
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import Column, fullness_text, other_formats_text, plural, print_rows, size_text
from compcache.cli.session import Session, pass_session
from compcache.errors import CacheWarning, CompcacheError
from compcache.hit.target import load_runtime
from compcache.publish.verify import closed_parent
from compcache.settings import CONFIGURATION_VARIABLE, configuration, configuration_files, from_environment, setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.cache import Cache

__all__ = ["command"]

OK, NOTE, PROBLEM = "ok", "note", "error"
_LITTLE_SPACE = 256 << 20  # bytes
_FEW_FILES = 100


class _Result(NamedTuple):
    """A result of an examination. `severity` is OK, NOTE or PROBLEM."""

    severity: str
    subject: str
    message: str


@click.command("doctor")
@json_option
@pass_session
def command(session: Session, as_json: bool) -> int:
    """Look for problems with settings, directory, layers, keys, remote store, linker, processor and Numba.

    Nothing is created or changed. Exit status 1 if there is a problem. Warnings, for example about a layer that is not used, are problems.
    """
    from compcache.signing.keys import OldKeyWarning

    with warnings.catch_warnings(record=True, action="always", category=CacheWarning) as caught:
        results = [*_examine_settings()]
        if all(result.subject != CONFIGURATION_VARIABLE for result in results):
            results += [*_examine_cache(session), *_examine_numba()]
    for message, category in dict.fromkeys((str(warning.message), warning.category) for warning in caught):
        results.append(_Result(NOTE if issubclass(category, OldKeyWarning) else PROBLEM, "warning", message))
    if as_json:
        print_json([result._asdict() for result in results])
    else:
        print_rows([Column("severity"), Column("subject"), Column("message", flexible=True)], results)
    return 1 if any(result.severity == PROBLEM for result in results) else 0


def _examine_settings() -> Iterator[_Result]:
    """Report invalid and misspelt settings, and where the settings come from. Stop at an invalid configuration file."""
    for name, message in invalid_settings():
        yield _Result(PROBLEM, name, message.removeprefix(f"{name}: "))
        if name == CONFIGURATION_VARIABLE:
            return
    for name, suggestion in misspelt_settings(os.environ):
        yield _Result(PROBLEM, name, f"this variable is not a setting of compcache and is ignored; did you mean {suggestion}?")
    in_environment = [row.name for row in SETTINGS if os.environ.get(row.name)]
    if in_environment:
        yield _Result(OK, "settings", f"from the environment: {', '.join(in_environment)}")
    files = [path for path in configuration_files() if os.path.exists(path)]
    if files:
        yield _Result(OK, "settings", f"from {' and '.join(files)}: {', '.join(sorted(configuration())) or 'no setting'}")
    elif not in_environment:
        yield _Result(OK, "settings", "every setting has its default value")


def _examine_cache(session: Session) -> Iterator[_Result]:
    """Run all examinations of the cache of a session. If the cache cannot be opened, yield only this problem."""
    try:
        load_runtime()
        cache = session.open_or_assume_empty()
    except ImportError as error:
        yield _Result(PROBLEM, "runtime", str(error))
        return
    except (CompcacheError, ValueError, OSError) as error:
        yield _Result(PROBLEM, "directory", getattr(error, "reason", "") or str(error))
        return
    with cache:
        for subject, examine in _EXAMINATIONS.items():
            try:
                yield from examine(cache, session)
            except (CompcacheError, ValueError, OSError) as error:
                yield _Result(PROBLEM, subject, str(error))


def _examine_directory(cache: Cache, session: Session) -> Iterator[_Result]:
    """Report who can write to the cache directory, or to the directory in which it would be created. Report a lack of space."""
    description = f"{cache.path} (chosen by: {session.chosen_by})"
    existing = cache.path
    while not os.path.isdir(existing):
        if os.path.lexists(existing):
            problem = f"{description} cannot be used, because {existing} is not a directory: choose another with --dir"
            yield _Result(PROBLEM, "directory", problem)
            return
        existing = os.path.dirname(existing)
    if not os.access(existing, os.R_OK | os.X_OK):
        problem = f"{description} cannot be read by this user: choose another with --dir, or have its owner run 'chmod -R go+rX {existing}'"
        yield _Result(PROBLEM, "directory", problem)
        return
    if not os.access(existing, os.W_OK):
        yield _Result(NOTE, "directory", f"{description} is not writable for this user: functions compiled here are not stored")
    elif not cache.exists:
        yield _Result(OK, "directory", f"{description} does not exist yet: the first addition creates it")
    else:
        is_shared = os.stat(existing).st_mode & 0o022
        writers = "this user and others" if is_shared or os.stat(existing).st_uid != os.getuid() else "this user alone"
        yield _Result(NOTE if is_shared else OK, "directory", f"{description} is writable for {writers}")
    system = os.statvfs(existing)
    free_size = system.f_bavail * system.f_frsize
    if free_size < _LITTLE_SPACE:
        problem = f"only {size_text(free_size)} are free on the file system of {existing}: additions will fail; free some space"
        yield _Result(PROBLEM, "space", problem)
    elif system.f_files and system.f_favail < _FEW_FILES:
        problem = f"only {plural(system.f_favail, 'inode')} are free on the file system of {existing}: additions will fail; remove files"
        yield _Result(PROBLEM, "space", problem)


def _examine_content(cache: Cache, _: Session) -> Iterator[_Result]:
    """Report the content of the cache, the processor, and the tools that additions use."""
    info = cache.info()
    content = f"{plural(info.functions, 'function')} in {plural(info.modules, 'module')}"
    yield _Result(OK, "content", f"{content}, {fullness_text(info.size, info.max_size)}")
    if info.quarantined:
        yield _Result(NOTE, "quarantine", f"{plural(info.quarantined, 'damaged file')} in quarantine: 'compcache check' shows details")
    if info.other_formats:
        yield _Result(NOTE, "other formats", other_formats_text(info.other_formats))
    yield _Result(OK, "processor", f"{info.platform}, {info.cpu}")
    yield _Result(OK, "llvm", f"{info.llvm_version}, from llvmlite")
    yield _Result(OK, "linker", info.linker)
    yield _Result(OK, "loader", info.loader)


def _examine_layers(cache: Cache, _: Session) -> Iterator[_Result]:
    """Report the content of each layer of the cache. A layer that does not exist or holds no cache is a problem."""
    from compcache.cache import Cache as Opened

    for layer in cache.layers:
        closed = closed_parent(layer)
        if closed:
            problem = f"{layer} is not used, because this user cannot search {closed}: its owner gives others access with 'chmod go+x'"
            yield _Result(PROBLEM, "layer", problem)
        elif not os.path.exists(layer):
            yield _Result(PROBLEM, "layer", f"{layer} does not exist and is not used: correct the path, or leave the layer out")
        elif os.path.isdir(layer):
            with Opened(layer, readonly=True, layers=()) as opened:
                functions = opened.info().functions if opened.exists else None
            if functions is None:
                yield _Result(PROBLEM, "layer", f"{layer} is not a cache: correct the path, or leave the layer out")
            else:
                yield _Result(OK, "layer", f"{layer}: {plural(functions, 'function')}")
        else:
            yield _Result(OK, "layer", f"{layer}: a bundle of {size_text(os.stat(layer).st_size)}")


def _examine_rules(_: Cache, __: Session) -> Iterator[_Result]:
    """Report which code the settings allow to run, and which keys sign additions."""
    from compcache.signing.keys import read_publish_key, read_trusted_keys

    if setting("COMPCACHE_SIGNING_KEY"):
        yield _Result(OK, "keys", "COMPCACHE_SIGNING_KEY signs added modules; modules without its signature are not used")
    trusted = from_environment("COMPCACHE_TRUSTED_KEYS", read_trusted_keys)
    if trusted:
        names = ", ".join(key.name for key in trusted)
        yield _Result(OK, "keys", f"code compiled elsewhere is used if one of these keys signed it: {names}")
    publish_key = from_environment("COMPCACHE_PUBLISH_KEY", read_publish_key)
    if publish_key is not None:
        yield _Result(OK, "keys", f"the key {publish_key.name} signs added modules for other users")
    oldest = setting("COMPCACHE_MIN_LLVM")
    if oldest:
        yield _Result(OK, "keys", f"code compiled by an LLVM older than {oldest} is not used")


def _examine_remote(_: Cache, __: Session) -> Iterator[_Result]:
    """Report whether each remote store answers this process, and how many modules wait for their upload."""
    from compcache.remote.address import read_mode, read_settings, read_url
    from compcache.remote.maintenance import status

    settings = read_settings(from_environment("COMPCACHE_REMOTE", read_url), from_environment("COMPCACHE_REMOTE_MODE", read_mode))
    if settings is None:
        return
    for store in status(settings):
        problem = store["last_error"]
        yield _Result(PROBLEM if problem else OK, "remote", f"{store['url']} ({store['mode']}): {problem or 'answers'}")
        if store["waiting_uploads"]:
            yield _Result(NOTE, "remote", f"uploads to {store['url']}: {plural(store['waiting_uploads'], 'module')} waiting")


#: The examinations of an open cache, by the subject of the reported problem if the examination raises an exception.
_EXAMINATIONS = {
    "directory": _examine_directory,
    "content": _examine_content,
    "layers": _examine_layers,
    "rules": _examine_rules,
    "remote": _examine_remote,
}


def _examine_numba() -> Iterator[_Result]:
    """Report whether the installed Numba is supported, and whether its functions are cached."""
    from importlib.metadata import PackageNotFoundError, version

    from compcache.numba.versions import is_supported, series_supported

    try:
        installed = version("numba")
    except PackageNotFoundError:
        yield _Result(OK, "numba", "not installed")
        return
    if not is_supported(installed):
        oldest, *_, newest = [".".join(map(str, series)) for series in series_supported()]
        yield _Result(NOTE, "numba", f"{installed} is not supported and works without compcache; {oldest} to {newest} are supported")
    else:
        is_on = "COMPCACHE_NUMBA" not in dict(invalid_settings()) and frontend.is_on("COMPCACHE_NUMBA")
        verb = "caches" if is_on else "would cache"
        yield _Result(OK, "numba", f"{installed}: COMPCACHE_NUMBA=1 {verb} functions with cache=True")
