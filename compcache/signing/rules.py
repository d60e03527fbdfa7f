"""The rules for the code that a cache uses and signs, from arguments and settings. Hits without such rules do not import this module."""

from __future__ import annotations

from compcache.formats.records import version_numbers
from compcache.processes.secret_references import read_secret
from compcache.settings import from_environment, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    _T = TypeVar("_T")

__all__ = ["read_rules"]


def read_rules(
    signing_key: bytes | str | None,
    trusted_keys: Iterable[str] | str | None,
    publish_key: str | None,
    min_llvm: str | None,
    variables: tuple[str, ...],
) -> dict[str, Any]:
    """Return the arguments of a `Store` that hold these rules; see `Cache`. A rule that is not set has no argument.

    Args:
        signing_key: the key that signs the modules of the directory; None: from the settings.
        trusted_keys: the public keys of trusted publishers; None: from the settings.
        publish_key: the secret key that signs modules for others; None: from the settings; "": no key.
        min_llvm: the oldest LLVM whose code is used; None: from the settings.
        variables: the environment variables of the four settings, in this order.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is not valid.
        SettingError: a setting is not valid.
        OSError: a file that an argument names cannot be read.
    """
    options: dict[str, Any] = {}
    key = _argument_or_setting(signing_key, variables[0], read_signing_key)
    if key is not None:
        options["signing_key"] = key
    if trusted_keys is not None or publish_key is not None or setting(variables[1]) or setting(variables[2]):
        from compcache.signing.keys import read_own, read_publics

        own = _argument_or_setting(publish_key, variables[2], read_own) if publish_key != "" else None
        trusted = _argument_or_setting(trusted_keys, variables[1], read_publics) or ()
        # A cache that trusts keys must trust its own key, or its own modules would be misses.
        options["trusted_keys"] = (*trusted, own.public()) if trusted and own is not None else trusted
        options["publish_key"] = own
    oldest = _argument_or_setting(min_llvm, variables[3], _check_version)
    if oldest:
        options["min_llvm"] = oldest
    return options


def _argument_or_setting(argument: Any, variable: str, read: Callable[[Any], _T]) -> _T | None:
    """Return the value that `read` returns for an argument, or for the setting if the argument is None; None if neither is set."""
    return from_environment(variable, read) if argument is None else read(argument)


def read_signing_key(key: bytes | str) -> bytes:
    """Return a signing key as bytes; `key` may be a reference to the key. Raise `ValueError` if it is empty."""
    if not key:
        raise ValueError("signing_key is empty: pass None for a cache without signatures")
    return read_secret(key, "signing_key").encode() if isinstance(key, str) else key


def _check_version(text: str) -> str:
    """Return an LLVM version unchanged; raise `ValueError` if it is not valid. An empty text is valid."""
    if text:
        version_numbers(text)
    return text
