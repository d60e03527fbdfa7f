"""The environment variables that compcache reads, in one table: purpose, default and valid values.

``compcache config``, ``compcache doctor`` and the documents show the table. Commands that open the cache check all variables first.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.configuration import SettingError, place_of, read_switch
from compcache.errors import CompcacheError
from compcache.settings import CONFIGURATION_VARIABLE, configuration, configuration_files, from_environment, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["SETTINGS", "Setting", "invalid_settings", "misspelt_settings", "setting_source"]

_PREFIX = "COMPCACHE_"


class Setting(NamedTuple):
    """An environment variable. `check` raises for an invalid value. The value of a `secret` variable is not shown."""

    name: str
    purpose: str
    default: str
    check: Callable[[str], Any]
    secret: bool = False


def invalid_settings() -> Iterator[tuple[str, str]]:
    """Yield the name of each invalid setting, and a message that describes the valid values.

    If the configuration file is not valid, yield only its variable, because the file may set every other setting.
    """
    try:
        configuration()
    except SettingError as error:
        yield CONFIGURATION_VARIABLE, str(error)
        return
    for row in SETTINGS:
        try:
            from_environment(row.name, row.check)
        except CompcacheError as error:
            yield row.name, str(error)


def misspelt_settings(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable of `environment` that is not a setting but resembles a setting, with the name of the setting."""
    settings = [setting.name.removeprefix(_PREFIX) for setting in SETTINGS]
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in settings:
            for nearest in get_close_matches(name.removeprefix(_PREFIX), settings, 1, 0.7):  # the least similarity
                yield name, _PREFIX + nearest


def setting_source(name: str) -> str:
    """Return where a setting's value comes from: ``$NAME``, a key of a file, or "default". See `setting` for the exception."""
    if os.environ.get(name):
        return f"${name}"
    if not setting(name):
        return "default"

    return place_of(name, configuration_files())


def _import_when_called(reader: str) -> Callable[[str], Any]:
    """Return a function that imports a reader, given as ``module:function``, and calls it with the text of a setting."""

    def read(text: str) -> Any:
        return resolve_name(f"compcache.{reader}")(text)

    return read


def _check_linker(_: str) -> None:
    """Raise `LinkerError` if the linker in the settings cannot be used."""
    from compcache.images.linkers.find import find_linkers

    find_linkers()


SETTINGS = (
    Setting("COMPCACHE_DIR", "the cache directory", "compcache in the user's cache directory", str),
    Setting("COMPCACHE_MAX_SIZE", "the size limit of the cache; 0: no limit", "5G", _import_when_called("usage.limits:parse_size")),
    Setting("COMPCACHE_LOCK_TIMEOUT", "seconds to wait for another process that compiles the same function", "60",
        _import_when_called("usage.limits:read_seconds")),
    Setting("COMPCACHE_LOCKS", "0: work without lock files", "1", read_switch),
    Setting("COMPCACHE_MAP_FILES", "1: map code from its files on every file system; 0: copy code to memory first",
        "by the kind of file system", read_switch),
    Setting("COMPCACHE_STATS", "0: record no statistics", "1", read_switch),
    Setting("COMPCACHE_CHECK", "1: call build() on hits too, and warn if it returns different code (for CI)", "0", read_switch),
    Setting("COMPCACHE_MIN_LLVM", "ignore code compiled by an LLVM older than this version, like 22", "code of every LLVM is used",
        _import_when_called("formats.records:version_numbers")),
    Setting("COMPCACHE_DEBUG", "1: log hits, misses, compilations, waits and refusals on standard error", "0", read_switch),
    Setting("COMPCACHE_LAYERS", "read-only caches below the cache directory, paths separated by colons", "none", str),
    Setting("COMPCACHE_LINKER", "the linker for all images: a path, a name on the path, ziglang, or none",
        "only images that need a linker use one", _check_linker),
    Setting("COMPCACHE_SIGNING_KEY", "the key that signs added modules, or @ and its file; modules without its signature are misses",
        "no signatures", _import_when_called("signing.rules:read_signing_key"), secret=True),
    Setting("COMPCACHE_REMOTE",
        "the URL of a remote store for misses, like s3://bucket/prefix, or @ and its file; several with spaces, the nearest first",
        "no remote store", _import_when_called("remote.address:read_url"), secret=True),
    Setting("COMPCACHE_REMOTE_MODE", "read, write (upload compiled modules too) or off, for all stores or one for each", "read",
        _import_when_called("remote.address:read_mode")),
    Setting("COMPCACHE_TRUSTED_KEYS", "public keys; code compiled elsewhere is a miss unless one of these keys signed it", "none",
        _import_when_called("signing.keys:read_trusted_keys")),
    Setting("COMPCACHE_PUBLISH_KEY", "the secret key that signs added modules for others, or @ and its file", "none",
        _import_when_called("signing.keys:read_publish_key"), secret=True),
    Setting("COMPCACHE_TARGETS", "the CPUs that modules are compiled for, like x86-64-v2,x86-64-v3,native", "native",
        _import_when_called("targets.machine:parse_targets")),
    Setting(CONFIGURATION_VARIABLE, "the configuration file; none: no file is read", "the files of the user and of the system", str),
    Setting("COMPCACHE_NUMBA", "1: cache functions that Numba compiles with cache=True", "0", read_switch),
)  # fmt: skip
