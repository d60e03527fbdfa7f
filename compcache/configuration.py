"""Reads configuration files: ``config.toml`` of the user and of the system, and ``[tool.compcache]`` of a project for caches inside it.

A key is the name of an environment variable without ``COMPCACHE_``, in lower case. Reading TOML is slow, so the settings are also kept as
lines in a file beside the user's caches. This file is used for as long as the configuration files have the same times and sizes.
"""

from __future__ import annotations

import os
import re
import stat
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from compcache.digest import CHECK_SIZE, check, digest
from compcache.errors import CompcacheError, StorageError
from compcache.files import READ_FLAGS, UNUSABLE, WRITABLE_BY_OTHERS, Files, not_missing, read_at, read_file
from compcache.interrupts import reraise_interrupt, suppress
from compcache.settings import users_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["KEYS", "SettingError", "parse_setting", "place_of", "project_setting", "read_configuration", "read_private_text", "read_switch"]

_LARGEST = 1 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: A file that has changed within these nanoseconds may change again without changing its times.
_SETTLED = 2_000_000_000
_PREFIX = "COMPCACHE_"
_ON, _OFF = ("1", "on", "yes", "true"), ("0", "off", "no", "false")
#: The settings that may be lists, and the separators of their items in environment variables.
_LISTS = {"layers": os.pathsep, "trusted_keys": " ", "targets": ",", "remote": " ", "remote_mode": " "}
_SWITCHES = frozenset(("locks", "map_files", "stats", "check", "debug", "numba"))
_PATHS = frozenset(("dir", "layers"))
#: Secrets. Others may read a configuration file, so the file only names the file or the variable that contains the secret.
_SECRETS = frozenset(("signing_key", "publish_key"))
_TEXTS = frozenset(("dir", "max_size", "lock_timeout", "min_llvm", "linker"))
KEYS = _TEXTS | _SWITCHES | _SECRETS | frozenset(_LISTS)
#: The settings that a project may have. A cloned project must not decide which code runs, or where the code comes from.
PROJECT_KEYS = frozenset(("max_size", "lock_timeout"))
#: The settings of the build hooks in the same table (`compcache.packaging.build`).
BUILD_KEYS = frozenset(("kernels", "targets"))


class SettingError(CompcacheError, ValueError):
    """Raised when a setting is invalid. `variable` is the name of its environment variable, even if a file contains the setting."""

    def __init__(self, message: str, variable: str = "") -> None:
        super().__init__(message)
        self.variable = variable


def parse_setting(text: str, read: Callable[[str], _T], variable: str, files: Iterable[str]) -> _T:
    """Return the result of `read` for the text of a setting.

    `read` parses the text. `files` are the configuration files that may contain the setting. Raise `SettingError` if `read` raised
    `ValueError`, or `OSError` about a file that the text names. The message names the variable, or the file and the key.
    """
    try:
        return read(text)
    except (ValueError, OSError) as error:
        reraise_interrupt(error)
        message = f"{error.filename}: {error.strerror or error}" if isinstance(error, OSError) and error.filename else str(error)
        raise SettingError(f"{place_of(variable, files)}: {message}", variable) from error


def read_switch(text: str) -> bool:
    """Return whether a switch is on. Raise `ValueError` if its text is neither on (1, on, yes, true) nor off (0, off, no, false)."""
    word = text.strip().lower()
    if word not in (*_ON, *_OFF):
        raise ValueError(f"{text!r} is neither on nor off: use 1 or 0")
    return word in _ON


def read_configuration(files: Iterable[str], is_named: bool = True) -> dict[str, str]:
    """Return the settings in configuration files, by environment variable. The first file with a key takes precedence.

    If the parsed copy of the files is out of date, write it again. Unless the user has named them, `not_missing` selects the files.

    Raise `SettingError` if a file cannot be read, is writable by other users, or is not valid.
    """
    paths = [os.path.abspath(path) for path in (files if is_named else not_missing(files))]
    if not paths:
        return {}
    try:
        states = [_file_state(path) for path in paths]
    except OSError as error:
        reraise_interrupt(error)
        raise SettingError(
            f"COMPCACHE_CONFIG: {error.filename} cannot be read ({error.strerror or error}): correct the path or its permissions",
            "COMPCACHE_CONFIG",
        ) from error
    name = f"compcache-settings-{digest([os.fsencode(os.pathsep.join(paths))], size=8).hex()}"
    copy_path = os.path.join(users_directory("XDG_CACHE_HOME", "~/.cache"), name)
    settings = _read_settings_copy(copy_path, states)
    if settings is None:
        settings = {}
        for path in reversed(paths):
            settings.update(_read_settings(path))
        if max(os.stat(path).st_mtime_ns for path in paths) < time.time_ns() - _SETTLED:
            _write_settings_copy(copy_path, states, settings)
    return settings


def place_of(variable: str, files: Iterable[str]) -> str:
    """Return where a setting is set, for messages: the file and the key, or the variable. See `_read_settings` for the exception."""
    if variable not in os.environ:
        for path in files:
            if os.path.exists(path) and variable in _read_settings(path):
                return f"{path}: {variable.removeprefix(_PREFIX).lower()}"
    return variable


def project_setting(variable: str, directory: str) -> tuple[str, str]:
    """Return a setting of the project that contains a cache directory, and the path of its ``pyproject.toml``.

    The setting is "" if the project does not set it, or if its file cannot be parsed or must not be read. Both are "" if no project
    contains the directory.

    Raises:
        SettingError: the project's ``[tool.compcache]`` has a setting that is unknown, invalid or not allowed in projects.
        StorageError: the file cannot be read at the moment.
    """
    for path in _project_files(os.path.abspath(directory)):
        try:
            return _read_project(path, _file_state(path)).get(variable, ""), path
        except OSError as error:
            reraise_interrupt(error)
            if error.errno not in UNUSABLE:
                raise StorageError(f"{path} cannot be read ({error.strerror or error}): try again", path=path, errno=error.errno) from error
    return "", ""


@lru_cache(maxsize=16)
def _project_files(directory: str) -> tuple[str, ...]:
    """Return the paths of the ``pyproject.toml`` that may apply to a directory, the nearest first."""
    parent = os.path.dirname(directory)
    return () if parent == directory else (os.path.join(parent, "pyproject.toml"), *_project_files(parent))


@lru_cache(maxsize=64)
def _read_project(path: str, state: str) -> dict[str, str]:  # noqa: ARG001 - an edited file is read again
    """Return the settings of a pyproject.toml by variable, none if it is not valid TOML or others can write to it.

    Raise `SettingError` for an invalid setting, or `OSError` if the file cannot be read.
    """
    import tomllib

    try:
        settings = tomllib.loads(read_private_text(path)).get("tool", {}).get("compcache", {})
        table = {key: value for key, value in settings.items() if key not in BUILD_KEYS}
    except (SettingError, tomllib.TOMLDecodeError, AttributeError) as error:
        reraise_interrupt(error)
        return {}  # other tools report its errors
    if forbidden := sorted(set(table) & KEYS - PROJECT_KEYS):
        raise SettingError(
            f"{path}: [tool.compcache] {forbidden[0]}: a project may set only {' and '.join(sorted(PROJECT_KEYS))}; move other settings to "
            "the user's configuration file or the environment",
            _variable_of(forbidden[0]),
        )
    return _convert_table(table, path)


def _read_settings(path: str) -> dict[str, str]:
    """Return the settings of a configuration file by variable. Raise `SettingError` if the file or a setting is not valid."""
    import tomllib

    try:
        table = tomllib.loads(read_private_text(path))
    except OSError as error:
        reraise_interrupt(error)
        raise SettingError(f"{path}: the configuration file cannot be read ({error.strerror or error}): make it readable") from error
    except tomllib.TOMLDecodeError as error:
        reraise_interrupt(error)
        raise SettingError(f"{path}: the file is not valid TOML: {error}") from error
    return _convert_table(table, path)


def read_private_text(path: str) -> str:
    """Return the content of a configuration file, or of a file of trusted keys. Symbolic links are followed.

    Raises:
        OSError: the file cannot be read.
        SettingError: the file is not UTF-8 or a regular file, is too large, or is writable by other users except root.
    """
    files = Files()
    try:
        opened = files.open_owned(os.path.realpath(path), READ_FLAGS)
        status = files.fstat(opened.number)
        if not stat.S_ISREG(status.st_mode):
            raise SettingError(f"{path}: this is not a regular file: replace it, or change the setting that names it")
        if status.st_size > _LARGEST:
            raise SettingError(f"{path}: the file has {status.st_size} bytes, but at most {_LARGEST} are allowed: shorten it")
        if status.st_mode & WRITABLE_BY_OTHERS or status.st_uid not in (0, os.geteuid()):
            raise SettingError(f"{path}: other users can write to the file: change its owner, and run chmod go-w on it")
        return read_at(files, opened, 0, status.st_size).decode()
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: the file is not UTF-8: save it as UTF-8 ({error})") from error


def _convert_table(table: Mapping[str, Any], path: str) -> dict[str, str]:
    """Return a table's settings by variable. Raise `SettingError` for an unknown key or an invalid value."""
    settings = {}
    for key, value in table.items():
        if key not in KEYS:
            raise _unknown_key_error(path, key)
        try:
            settings[_variable_of(key)] = _as_text(key, value)
        except ValueError as error:
            reraise_interrupt(error)
            raise SettingError(f"{path}: {key}: {error}", _variable_of(key)) from None
    return settings


def _unknown_key_error(path: str, key: str) -> SettingError:
    """Return the exception for a key that is not a setting. The message suggests the most similar key, or all keys."""
    from difflib import get_close_matches

    similar = get_close_matches(key, KEYS, 1)
    advice = f"did you mean {similar[0]!r}?" if similar else f"use {', '.join(sorted(KEYS))}"
    return SettingError(f"{path}: {key!r} is not a setting: {advice}")


def _as_text(key: str, value: object) -> str:
    """Return the value of a key as the text of its environment variable. Raise `ValueError` if the value is not allowed."""
    if key in _SWITCHES:
        if not isinstance(value, bool):
            raise ValueError(f"the value must be true or false, not {value!r}")
        return "1" if value else "0"
    if isinstance(value, list) and key in _LISTS:
        return _LISTS[key].join(_item_text(key, item) for item in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and key in PROJECT_KEYS:
        return str(value)
    return _item_text(key, value)


def _item_text(key: str, value: object) -> str:
    """Return a value as the text of its variable, with ``~`` in paths expanded. Raise `ValueError` if the key does not allow the value."""
    if not isinstance(value, str):
        kinds = "a string or a list of strings" if key in _LISTS else "a string"
        raise ValueError(f"the value must be {kinds}, not {value!r}")  # noqa: TRY004 - callers report invalid values as ValueError
    if _CONTROL.search(value):
        raise ValueError("the value contains a line break or another control character: remove it")
    if key in _SECRETS and value[:1] not in "@$":
        raise ValueError(
            "a configuration file must not contain secrets: write '@' and the path of a file with the secret, or '$' and the name of an "
            "environment variable with it"
        )
    if value.startswith("@~"):
        return "@" + os.path.expanduser(value[1:])
    if key in _PATHS:
        value = os.path.expanduser(value)
        if not os.path.isabs(value):
            raise ValueError(f"the path {value!r} is not absolute: begin the path with / or ~")
    return value


def _variable_of(key: str) -> str:
    """Return the environment variable of a key in configuration files."""
    return _PREFIX + key.upper()


def _file_state(path: str) -> str:
    """Return a text that changes when a file changes: its times, size, inode and path. Raise `OSError` if the file does not exist."""
    status = os.stat(path)
    return f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_size} {status.st_ino} {path}"


def _read_settings_copy(copy_path: str, states: list[str]) -> dict[str, str] | None:
    """Return the settings in the parsed copy of the configuration files; None if the copy does not match the states or is not usable."""
    try:
        data = read_file(Files(), copy_path, _LARGEST, owners=frozenset((os.geteuid(),)))
    except OSError as error:
        reraise_interrupt(error)
        return None
    if check(data[CHECK_SIZE:]) != data[:CHECK_SIZE]:
        return None  # the system crashed before the content was on disk
    header, _, body = data[CHECK_SIZE:].decode(errors="surrogateescape").partition("\n\n")
    lines = [line.partition("=") for line in body.split("\n")]  # values may contain other characters at which `splitlines` splits
    return {name: value for name, equals, value in lines if equals} if header.split("\n") == states else None


def _write_settings_copy(copy_path: str, states: list[str], settings: Mapping[str, str]) -> None:
    """Write the copy of the settings that later processes read. Without it they read the files, so errors are ignored."""
    data = ("\n".join(states) + "\n\n" + "".join(f"{name}={value}\n" for name, value in settings.items())).encode(errors="surrogateescape")
    unfinished = f"{copy_path}.{os.getpid()}"
    with suppress(OSError):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, check(data) + data)
        finally:
            os.close(descriptor)
        os.replace(unfinished, copy_path)
