"""Settings: environment variables, and configuration files for variables that are not set. Only this file reads them."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["configuration", "configuration_files", "from_environment", "is_on", "setting", "users_directory"]

#: Names the one configuration file, in place of the user's and the system's; ``none``: no file at all.
CONFIGURATION_VARIABLE = "COMPCACHE_CONFIG"
#: What this process has read of configuration files: one item, once it has.
_read: "list[Mapping[str, str]]" = []


def setting(variable: str) -> str:
    """Return the text of a setting; empty if it is not set. A variable takes precedence over the configuration, even if it is empty.

    Raises:
        SettingError: a configuration file cannot be used.
    """
    text = os.environ.get(variable)
    return configuration().get(variable, "") if text is None else text


def is_on(variable: str, *, default: bool = False) -> bool:
    """Return whether a switch is on (1, on, yes, true).

    Raises:
        SettingError: the text is neither on nor off (0, off, no, false).
    """
    text = setting(variable)
    if text in ("", "0", "1"):  # the usual ones, without an import
        return text == "1" if text else default
    from compcache.configuration import read_switch

    return bool(from_environment(variable, read_switch))


def from_environment(variable: str, read: "Callable[[str], _T]") -> "_T | None":
    """Apply `read` to the text of a setting; return None if it is not set.

    Raises:
        SettingError: `read` raised `ValueError`, or `OSError` about a file that the value names. The message names the variable,
            or the key and its configuration file.
    """
    text = setting(variable)
    if not text:
        return None
    from compcache.configuration import checked

    return checked(text, read, variable, configuration_files())


def configuration() -> "Mapping[str, str]":
    """Return what the configuration files set, by environment variable. A process reads them once.

    Raises:
        SettingError: one of them cannot be used.
    """
    if not _read:
        named = CONFIGURATION_VARIABLE in os.environ
        files = [path for path in configuration_files() if named or os.path.exists(path)]
        found: Mapping[str, str] = {}
        if files:
            from compcache.configuration import read_configuration

            found = read_configuration(files)
        _read.append(found)
    return _read[0]


def users_directory(variable: str, otherwise: str) -> str:
    """Return a base directory of the user by the XDG Base Directory Specification, which ignores relative paths."""
    base = os.environ.get(variable, "")
    return base if os.path.isabs(base) else os.path.expanduser(otherwise)


def configuration_files() -> "tuple[str, ...]":
    """Return the configuration files, existing or not, the preferred one first."""
    chosen = os.environ.get(CONFIGURATION_VARIABLE)
    if chosen:
        return () if chosen.lower() == "none" else (chosen,)
    return os.path.join(users_directory("XDG_CONFIG_HOME", "~/.config"), "compcache", "config.toml"), "/etc/compcache/config.toml"
