"""Which shelves of a store are in use: a host could run the code of many, and a fleet uses one or two.

Before something is stored on a shelf for the first time its mark is stored. A look-up does not ask shelves without a mark; whether there is
one is found out beside the first look-ups, which ask all. A store without any mark that a host could use is asked on all shelves.

Limitations: what is stored on a shelf that was not in use is found a minute later by helpers that know of its emptiness.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from compcache.remote.shelves import shelf_key

if TYPE_CHECKING:
    from compcache.remote.helper.requests import Requests

__all__ = ["UsedShelves"]

#: For so many seconds it is believed that a shelf is not in use, and after so many it is asked again.
_BELIEVED, _ASKED_AGAIN = 60.0, 30.0
_MARK = b"in use\n"


class UsedShelves:
    """The shelves in use, as far as one helper process knows.

    Args:
        requests: ask the store.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._used: set[str] = set()  # keys of marks that are there
        self._unused: dict[str, float] = {}  # those that were not, and when
        self._asking: dict[str, asyncio.Task[None]] = {}

    def among(self, platform: str, shelves: list[str]) -> list[str]:
        """Those of these shelves that may have something; what is not known is found out meanwhile."""
        may_have = [shelf for shelf in shelves if self._may_have(shelf_key(platform, shelf))]
        return may_have if any(shelf_key(platform, shelf) in self._used for shelf in may_have) else shelves

    async def note(self, platform: str, shelf: str) -> None:
        """Something is about to be stored on this shelf.

        Raises:
            Exception: what the client raises.
        """
        key = shelf_key(platform, shelf)
        if key not in self._used:
            await self._requests.create(key, _MARK)
            self._used.add(key)

    def _may_have(self, key: str) -> bool:
        if key in self._used:
            return True
        age = asyncio.get_running_loop().time() - self._unused.get(key, float("-inf"))
        if age > _ASKED_AGAIN and key not in self._asking:
            self._asking[key] = asyncio.ensure_future(self._ask(key))
        return age > _BELIEVED

    async def _ask(self, key: str) -> None:
        try:
            if await self._requests.get(key, len(_MARK)) is None:
                self._unused[key] = asyncio.get_running_loop().time()
            else:
                self._used.add(key)
        except Exception:  # noqa: BLE001 - whatever the client raises: it is asked as if it were in use
            self._unused.pop(key, None)
        finally:
            del self._asking[key]
