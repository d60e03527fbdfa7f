"""The rules for code that a cache uses and signs, from its arguments and the environment. Hits without such rules do not import this."""

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
    """Return the arguments of a `Store` for these rules. Values that are None come from these environment `variables`. See `Cache`.

    Raises:
        TypeError, ValueError: an argument is not valid.
        SettingError: a variable of the environment is not valid.
        OSError: a file that one of them names cannot be read.
    """
    options: dict[str, Any] = {}
    key = _chosen(signing_key, variables[0], _signing_key)
    if key is not None:
        options["signing_key"] = key
    if trusted_keys is not None or publish_key is not None or setting(variables[1]) or setting(variables[2]):
        from compcache.signing.keys import read_own, read_publics

        own = _chosen(publish_key, variables[2], read_own) if publish_key != "" else None
        trusted = _chosen(trusted_keys, variables[1], read_publics) or ()
        # Where some are trusted, what this cache signs is.
        options["trusted_keys"] = (*trusted, own.public()) if trusted and own is not None else trusted
        options["publish_key"] = own
    oldest = _chosen(min_llvm, variables[3], _version)
    if oldest:
        options["min_llvm"] = oldest
    return options


def _chosen(given: Any, variable: str, read: Callable[[Any], _T]) -> _T | None:
    return from_environment(variable, read) if given is None else read(given)


def _signing_key(key: bytes | str) -> bytes:
    if not key:
        raise ValueError("signing_key is empty: pass None for a cache without signatures")
    return read_secret(key, "signing_key").encode() if isinstance(key, str) else key


def _version(text: str) -> str:
    if text:
        version_numbers(text)
    return text
