"""The arguments with which another process opens a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.processes.secret_references import is_reference, reference_to
from compcache.settings import KEY_VARIABLE, PUBLISH_VARIABLE, REMOTE_VARIABLE

if TYPE_CHECKING:
    from compcache.cache import Cache
    from compcache.session import Session

__all__ = ["settings_of"]


def settings_of(cache: Cache, *, secrets: bool = False) -> dict[str, Any]:
    """Return the arguments with which `Cache` opens the same directory, for example in another process.

    These are all arguments but `retarget`, `tune` and `link`, which then have their defaults. The other process checks the directory, too.
    Keys and URLs with passwords are replaced by references to an environment variable or a file, which the other process reads. If a secret
    was passed as a value, the reference lets processes of the same user on this host read the secret from the memory of this process, while
    this process lives.

    Args:
        cache: an open cache.
        secrets: whether to return the values of keys and passwords instead of references, for example for a pipe to a child process.

    Raises:
        ValueError: a secret was passed as a value, and this system does not support references to values.
        SettingError, ValueError: the settings or the arguments for remote stores are not valid.
    """
    store, session = cache._store, cache._session()
    signing, publishing = cache._keys_given
    return {
        "path": cache.path, "readonly": store.readonly, "verify": store.verify,
        "signing_key": _secret_reference(signing, store.signing_key, KEY_VARIABLE, "signing_key", as_values=secrets),
        "trust": store.trust, "allow_pickle": cache._plain.allow_pickle, "max_size": session.max_size,
        "lock_timeout": session.lock_timeout, "layers": cache.layers, "min_llvm": store.min_llvm,
        "trusted_keys": tuple(map(str, store.trusted_keys)),
        "publish_key": _secret_reference(publishing, str(store.publish_key or ""), PUBLISH_VARIABLE, "publish_key", as_values=secrets),
        "remote": _remote_references(session, as_values=secrets),  # the other process may have another environment
        "remote_mode": session.remote_mode(),
    }  # fmt: skip


def _secret_reference(
    argument: str | bytes | None, value: str | bytes | None, variable: str, description: str, *, as_values: bool
) -> str | bytes | None:
    """Return a reference to a secret (`reference_to`, with its exception). Return `value` if it is empty or None, or `as_values` is set."""
    if as_values or not value:
        return value
    return reference_to(argument, value, variable, description)


def _remote_references(session: Session, *, as_values: bool) -> str | None:
    """Return the URLs of the remote stores, or None if no store is set. See `settings_of` for the exceptions.

    URLs with secrets become references, unless `as_values` is set.
    """
    url = session.remote_url()
    if as_values or not url:
        return url
    from compcache.remote.address import has_secret, split_urls

    if not has_secret(url):
        return url
    argument = session.remote_given
    if argument is None:
        return str(_secret_reference(None, url, REMOTE_VARIABLE, "the remote store", as_values=False))
    names = [
        _secret_reference(item, item, REMOTE_VARIABLE, "the remote store", as_values=not (is_reference(item) or has_secret(item)))
        for item in split_urls(argument)
    ]
    return " ".join(map(str, names))
