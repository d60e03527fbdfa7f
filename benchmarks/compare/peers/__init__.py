"""The contenders: each prepares a directory for some work, and says which fresh process makes the first call."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compare.context import Context
    from compare.work import Work

NAMES = (
    "floor",
    "compcache_peer",
    "orc",
    "diskcache_peer",
    "joblib_peer",
    "numba_peer",
    "jax_peer",
    "typed_python",
)


class Prepared(NamedTuple):
    """A command whose process makes the first call from a filled cache; what filling took and left."""

    command: list[str]
    environment: Mapping[str, str]
    cold_ms: float | None
    disk_bytes: int | None


class Peer(Protocol):
    """One contender."""

    label: str
    #: Whether a hit starts few enough instructions that they can be counted one by one.
    light: bool

    def missing(self, context: Context) -> str | None:
        """Why it cannot take part here, or None."""

    def prepare(self, context: Context, work: Work) -> Prepared | None:
        """Fill a cache in a process of its own; None where it has nothing for this work.

        Raises:
            ProgramError: it could not.
        """


def contenders(context: Context) -> list[Peer]:
    """Those that can take part; the reasons of the others go into `context.skipped`."""
    found = []
    for name in NAMES:
        for peer in importlib.import_module(f"compare.peers.{name}").PEERS:
            reason = peer.missing(context)
            if reason is None:
                found.append(peer)
            else:
                context.skipped[peer.label] = reason
    return found


def not_installed(package: str) -> str | None:
    """The reason of a peer whose package is not there."""
    if importlib.util.find_spec(package) is None:
        return f"the package {package} is not installed for this interpreter"
    return None
