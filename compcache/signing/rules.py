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
    """Return the keyword arguments of `Store` for these rules; see `Cache`. Rules that are not set are left out.

    Args:
        signing_key: the key for the keyed digests of the directory's modules; None uses the setting.
        trusted_keys: the public keys of trusted publishers; None uses the setting.
        publish_key: the secret key that signs published modules for readers with its public key; None uses the setting, "" selects no key.
        min_llvm: the oldest LLVM version whose code is used; None uses the setting.
        variables: the environment variables of the four settings, in this order.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is not valid.
        SettingError: a setting is not valid.
        OSError: a file that an argument names cannot be read.
        MissingPackageError: there are trusted keys and a publish key, and PyNaCl is not installed.
    """
    options: dict[str, Any] = {}
    signing_variable, trusted_variable, publish_variable, llvm_variable = variables
    key = _argument_or_setting(signing_key, signing_variable, read_signing_key)
    if key is not None:
        options["signing_key"] = key
    if trusted_keys is not None or publish_key is not None or setting(trusted_variable) or setting(publish_variable):
        from compcache.signing.keys import read_publish_key, read_trusted_keys

        secret_key = _argument_or_setting(publish_key, publish_variable, read_publish_key) if publish_key != "" else None
        public_keys = _argument_or_setting(trusted_keys, trusted_variable, read_trusted_keys) or ()
        # Without its own key among the trusted keys, a cache would reject the modules that it has signed.
        options["trusted_keys"] = (*public_keys, secret_key.public()) if public_keys and secret_key is not None else public_keys
        options["publish_key"] = secret_key
    oldest = _argument_or_setting(min_llvm, llvm_variable, _check_version)
    if oldest:
        options["min_llvm"] = oldest
    return options


def _argument_or_setting(argument: Any, variable: str, read: Callable[[Any], _T]) -> _T | None:
    """Return an argument, or the setting for None, parsed with `read`; None if neither is set. Exceptions: see `from_environment`."""
    return from_environment(variable, read) if argument is None else read(argument)


def read_signing_key(key: bytes | str) -> bytes:
    """Return a signing key as bytes. A text may be a reference to the key.

    Raise `ValueError` if `key` is empty, or refers to no secret, or `OSError` if the file that it refers to cannot be read.
    """
    secret = read_secret(key, "signing_key").encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    if not secret:
        raise ValueError("signing_key is empty, or names a file without a key: pass None for a cache without signatures")
    return secret


def _check_version(text: str) -> str:
    """Return an LLVM version unchanged; raise `ValueError` if it is not valid. An empty text is valid."""
    if text:
        version_numbers(text)
    return text
