"""Reads settings: environment variables, and configuration files for unset variables. No other file reads settings."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = [
    "KEY_VARIABLE", "PUBLISH_VARIABLE", "REMOTE_MODE_VARIABLE", "REMOTE_VARIABLE", "RULES", "TRUSTED_VARIABLE", "are_set", "configuration",
    "configuration_files", "from_environment", "is_on", "setting", "users_directory",
]  # fmt: skip

#: The variable that names a configuration file, which replaces the user's and the system's files; ``none`` is no file.
CONFIGURATION_VARIABLE = "COMPCACHE_CONFIG"
REMOTE_VARIABLE = "COMPCACHE_REMOTE"
REMOTE_MODE_VARIABLE = "COMPCACHE_REMOTE_MODE"
#: Rules for used and signed code. A hit without any of them reads nothing about them.
RULES = KEY_VARIABLE, TRUSTED_VARIABLE, PUBLISH_VARIABLE, LLVM_VARIABLE = (
    "COMPCACHE_SIGNING_KEY", "COMPCACHE_TRUSTED_KEYS", "COMPCACHE_PUBLISH_KEY", "COMPCACHE_MIN_LLVM"
)  # fmt: skip
#: The settings that this process has read from configuration files: empty, or one item.
_read: "list[Mapping[str, str]]" = []


def setting(variable: str) -> str:
    """Return the text of a setting; empty if it is not set.

    A variable takes precedence over the configuration, even if it is empty. Raise `SettingError` if a configuration file cannot be used.
    """
    text = _text_of(variable)
    return configuration().get(variable, "") if text is None else text


def are_set(variables: "Sequence[str]") -> bool:
    """Return whether one of these settings has a text. Raise `SettingError` if a configuration file cannot be used."""
    return any(map(setting if _may_be_set(variables) else configuration().get, variables))


def _text_of(variable: str) -> "str | None":
    """Return the text of an environment variable, or None if it is not set."""
    return os.environ.get(variable) if _may_be_set((variable,)) else None


def _may_be_set(variables: "Sequence[str]") -> bool:
    """Return False only if none of these environment variables is set."""
    # `os.environ` raises and catches two exceptions for a missing variable, so its dict is asked. Where the dict does not have the form
    # that it has on POSIX, bytes by bytes, the variables may be set.
    names = getattr(os.environ, "_data", {})
    return bytes not in map(type, names) or not names.keys().isdisjoint(map(str.encode, variables))


def is_on(variable: str, *, default: bool = False) -> bool:
    """Return whether a switch is on (1, on, yes, true), not off (0, off, no, false); `default` if unset. Raise `SettingError` otherwise."""
    text = setting(variable)
    if text in ("", "0", "1"):  # the usual texts need no import
        return text == "1" if text else default
    from compcache.configuration import read_switch

    return bool(from_environment(variable, read_switch))


def from_environment(variable: str, read: "Callable[[str], _T]") -> "_T | None":
    """Return the result of `read` for the text of a setting; None if it is unset or empty.

    Raise `SettingError` if `read` raised `ValueError`, or `OSError` about a file that the text names. The message names the variable, or
    the key and its file.
    """
    text = setting(variable)
    if not text:
        return None
    from compcache.configuration import parse_setting

    return parse_setting(text, read, variable, configuration_files())


def configuration() -> "Mapping[str, str]":
    """Return the settings in configuration files, by environment variable, read once. Raise `SettingError` if a file cannot be used."""
    if not _read:
        is_named = _text_of(CONFIGURATION_VARIABLE) is not None
        files = [path for path in configuration_files() if is_named or _may_exist(path)]  # the paths end with /compcache/config.toml
        settings: Mapping[str, str] = {}
        if files:
            from compcache.configuration import read_configuration

            settings = read_configuration(files, is_named)
        _read.append(settings)
    return _read[0]


def _may_exist(path: str) -> bool:
    """Return False only if the directory does not exist, not even as a broken link."""
    try:
        from compcache.hit._runtime import open_beneath

        # It raises nothing for a missing file, and tells missing files from unreadable ones.
        if open_beneath(-1, path[:-12], getattr(os, "O_PATH", 0) | os.O_NOFOLLOW, 0, True) is None:
            return not os.access(path[:-22], 0) and os.access(path[:-22], 0, follow_symlinks=False)
    except (ImportError, OSError) as error:
        from compcache.interrupts import reraise_interrupt

        reraise_interrupt(error)
    return True


def users_directory(variable: str, otherwise: str) -> str:
    """Return a base directory of the user, from the XDG variable `variable`, or `otherwise` with ``~`` expanded."""
    # The XDG Base Directory Specification ignores relative paths in variables.
    base = _text_of(variable)
    if base and os.path.isabs(base):
        return base
    home = os.environ.get("HOME", "")
    return home + otherwise[1:] if home[-1:] not in ("", "/") else os.path.expanduser(otherwise)


def configuration_files() -> "tuple[str, ...]":
    """Return the paths of the configuration files, which may not exist, the preferred first; () for "none"."""
    chosen = _text_of(CONFIGURATION_VARIABLE)
    if chosen:
        return () if chosen.lower() == "none" else (chosen,)
    return f"{users_directory('XDG_CONFIG_HOME', '~/.config')}/compcache/config.toml", "/etc/compcache/config.toml"
