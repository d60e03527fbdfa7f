"""Reads settings: environment variables, and configuration files for variables that are not set. No other file reads settings."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["are_set", "configuration", "configuration_files", "from_environment", "is_on", "setting", "users_directory"]

#: The variable that names a configuration file, which replaces the user's and the system's files; ``none`` is no file.
CONFIGURATION_VARIABLE = "COMPCACHE_CONFIG"
#: The settings that this process has read from configuration files: empty, or one item.
_read: "list[Mapping[str, str]]" = []


def setting(variable: str) -> str:
    """Return the text of a setting; empty if it is not set. A variable takes precedence over the configuration, even if it is empty.

    Raises:
        SettingError: a configuration file cannot be used.
    """
    text = os.environ.get(variable)
    return configuration().get(variable, "") if text is None else text


def are_set(variables: "Sequence[str]") -> bool:
    """Return whether one of these settings has a text. Raise `SettingError` if a configuration file cannot be used."""
    names = getattr(os.environ, "_data", ())  # bytes on POSIX. The mapping itself raises and catches two exceptions for a missing name
    is_known = bytes in map(type, names) and frozenset(map(str.encode, variables)).isdisjoint(names)
    return any(map(configuration().get if is_known else setting, variables))


def is_on(variable: str, *, default: bool = False) -> bool:
    """Return whether a switch is on (1, on, yes, true).

    Raises:
        SettingError: the text is neither on nor off (0, off, no, false).
    """
    text = setting(variable)
    if text in ("", "0", "1"):  # the usual texts need no import
        return text == "1" if text else default
    from compcache.configuration import read_switch

    return bool(from_environment(variable, read_switch))


def from_environment(variable: str, read: "Callable[[str], _T]") -> "_T | None":
    """Return the result of `read` for the text of a setting; None if the setting is not set or empty.

    Raises:
        SettingError: `read` raised `ValueError`, or `OSError` about a file that the text names. The message names the variable,
            or the key and its configuration file.
    """
    text = setting(variable)
    if not text:
        return None
    from compcache.configuration import checked

    return checked(text, read, variable, configuration_files())


def configuration() -> "Mapping[str, str]":
    """Return the settings in configuration files, by environment variable. A process reads the files once.

    Raises:
        SettingError: a file cannot be used.
    """
    if not _read:
        named = CONFIGURATION_VARIABLE in os.environ
        files = [path for path in configuration_files() if named or os.path.exists(path)]
        settings: Mapping[str, str] = {}
        if files:
            from compcache.configuration import read_configuration

            settings = read_configuration(files)
        _read.append(settings)
    return _read[0]


def users_directory(variable: str, otherwise: str) -> str:
    """Return a base directory of the user, from the XDG variable `variable`, or `otherwise` with ``~`` expanded.

    The XDG Base Directory Specification ignores relative paths in variables.
    """
    base = os.environ.get(variable, "")
    return base if os.path.isabs(base) else os.path.expanduser(otherwise)


def configuration_files() -> "tuple[str, ...]":
    """Return the paths of the configuration files, which may not exist. The preferred file is first."""
    chosen = os.environ.get(CONFIGURATION_VARIABLE)
    if chosen:
        return () if chosen.lower() == "none" else (chosen,)
    return os.path.join(users_directory("XDG_CONFIG_HOME", "~/.config"), "compcache", "config.toml"), "/etc/compcache/config.toml"
