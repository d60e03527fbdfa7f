"""The environment variables that compcache reads, in one table: the purpose of each, its default, and which values are valid.

For ``compcache config``, ``compcache doctor`` and the documents; a command that opens the cache looks at all of them first.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.configuration import SettingError, place_of, read_switch
from compcache.errors import CompcacheError
from compcache.settings import CONFIGURATION_VARIABLE, configuration, configuration_files, from_environment, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["SETTINGS", "Setting", "invalid_settings", "misspelt_settings", "source_of"]

_PREFIX = "COMPCACHE_"


class Setting(NamedTuple):
    """A variable: its purpose, its default, and a function that raises for an invalid value. Values of secret ones are not shown."""

    name: str
    purpose: str
    default: str
    check: Callable[[str], Any]
    secret: bool = False


def invalid_settings() -> Iterator[tuple[str, str]]:
    """Return the variables with invalid values, each with a message that names it and says what is allowed."""
    try:
        configuration()
    except SettingError as error:
        yield CONFIGURATION_VARIABLE, str(error)
        return  # it could set any of them
    for row in SETTINGS:
        try:
            from_environment(row.name, row.check)
        except CompcacheError as error:
            yield row.name, str(error)


def misspelt_settings(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that nothing reads and whose names resemble a setting, each with that setting."""
    known = [setting.name.removeprefix(_PREFIX) for setting in SETTINGS]
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in known:
            near = get_close_matches(name.removeprefix(_PREFIX), known, 1, 0.7)
            if near:
                yield name, _PREFIX + near[0]


def source_of(name: str) -> str:
    """Return the source of a setting, for people: the variable itself, a key of a configuration file, or "default"."""
    if os.environ.get(name):
        return f"${name}"
    if not setting(name):
        return "default"

    return place_of(name, configuration_files())


# ------------------------------------------------------------------- values


def _any(_: str) -> None:
    """Accept every value."""


def _size(text: str) -> None:
    from compcache.usage.limits import parse_size

    parse_size(text)


def _seconds(text: str) -> None:
    from compcache.usage.limits import read_seconds

    read_seconds(text)


def _llvm_version(text: str) -> None:
    from compcache.formats.records import version_numbers

    version_numbers(text)


def _linker(_: str) -> None:
    from compcache.images.linkers.find import find_linkers

    find_linkers()


def _signing_key(text: str) -> None:
    from compcache.processes.secret_references import read_secret

    read_secret(text, "signing_key")


def _publish_key(text: str) -> None:
    from compcache.signing.keys import read_own

    read_own(text)


def _trusted_keys(text: str) -> None:
    from compcache.signing.keys import read_publics

    read_publics(text)


def _remote(text: str) -> None:
    from compcache.remote.address import read_url

    read_url(text)


def _remote_mode(text: str) -> None:
    from compcache.remote.address import read_mode

    read_mode(text)


def _targets(text: str) -> None:
    from compcache.targets.machine import parse_targets

    parse_targets(text)


SETTINGS = (
    Setting("COMPCACHE_DIR", "the cache directory", "compcache in the user's cache directory", _any),
    Setting("COMPCACHE_MAX_SIZE", "the size limit of the cache; 0: no limit", "5G", _size),
    Setting("COMPCACHE_LOCK_TIMEOUT", "seconds to wait for another process that compiles the same function", "60", _seconds),
    Setting("COMPCACHE_LOCKS", "0: work without lock files", "1", read_switch),
    Setting(
        "COMPCACHE_MAP_FILES",
        "1: map code out of its files wherever they are, 0: copy it to memory first",
        "by the kind of file system",
        read_switch,
    ),
    Setting("COMPCACHE_STATS", "0: record no statistics", "1", read_switch),
    Setting("COMPCACHE_CHECK", "1: hits call build() too, and warn if it returns different code (for CI)", "0", read_switch),
    Setting(
        "COMPCACHE_MIN_LLVM",
        "ignore code compiled by an LLVM older than this version, like 22",
        "code of every LLVM is used",
        _llvm_version,
    ),
    Setting("COMPCACHE_DEBUG", "1: log hits, misses, compilations, waits and refusals on standard error", "0", read_switch),
    Setting("COMPCACHE_LAYERS", "read-only caches below the cache directory, paths separated by colons", "none", _any),
    Setting(
        "COMPCACHE_LINKER", "the linker for all images: a path, a name on the path, ziglang, or none", "only for what takes one", _linker
    ),
    Setting(
        "COMPCACHE_SIGNING_KEY",
        "the key that signs added modules, or @ and its file; unsigned ones are misses",
        "no signatures",
        _signing_key,
        secret=True,
    ),
    Setting(
        "COMPCACHE_REMOTE",
        "the URL of a remote store for misses, like s3://bucket/prefix, or @ and its file; several with spaces, the nearest first",
        "no remote store",
        _remote,
        secret=True,
    ),
    Setting(
        "COMPCACHE_REMOTE_MODE", "read, write (upload compiled modules too) or off, for all stores or one for each", "read", _remote_mode
    ),
    Setting("COMPCACHE_TRUSTED_KEYS", "public keys; code that none of them signed is a miss, unless compiled here", "none", _trusted_keys),
    Setting(
        "COMPCACHE_PUBLISH_KEY", "the secret key that signs added modules for others, or @ and its file", "none", _publish_key, secret=True
    ),
    Setting("COMPCACHE_TARGETS", "the CPUs that modules are compiled for, like x86-64-v2,x86-64-v3,native", "native", _targets),
    Setting(CONFIGURATION_VARIABLE, "the configuration file; none: no such file is read", "those of the user and of the system", _any),
    Setting("COMPCACHE_NUMBA", "1: cache functions that Numba compiles with cache=True", "0", read_switch),
)
