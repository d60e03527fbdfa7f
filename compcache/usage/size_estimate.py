"""The estimated size of all modules, in one small file: what additions count by without listing anything.

``stats/size-v1`` is two decimal numbers of bytes: the estimate, and the size that the last sweep left. It is derived:
without it the modules are listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache import files as file_ops

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["SIZE_FILE", "read_estimate", "remember_size", "write_estimate"]

SIZE_FILE = ("stats", "size-v1")


def read_estimate(store: Store) -> tuple[int, int] | None:
    """The estimate, and the size that the last sweep left."""
    data = store.read_file(*SIZE_FILE)
    try:
        estimate, settled = map(int, (data or b"").split())
    except ValueError:
        return None
    return estimate, settled


def write_estimate(store: Store, estimate: int, settled: int) -> None:
    """Replace the estimate.

    Raises:
        OSError: it could not be written.
    """
    data = f"{estimate} {settled}\n".encode()
    file_ops.publish(store.files, store.temporary, store.path(*SIZE_FILE), [data], sync=False)


def remember_size(store: Store, size: int) -> None:
    """Correct the estimate after somebody measured; not being able to is no error."""
    try:
        write_estimate(store, size, 0)
    except OSError:
        return
