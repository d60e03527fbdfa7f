"""What a fleet asks of its store, by discrete events: `python benchmarks/fleet_model.py [--hosts N] [--functions N] [--seconds N]`.

Sizes are measured first: a sample of functions is compiled, and the objects that a store would have of them are encoded. How many requests
a host makes is what `tests/remote/test_request_counts.py` pins: one for a look-up, on whatever shelf, two for a start-up that has a pack.
The model then starts the hosts within so many seconds, each with a helper that has 32 slots, and has S3 answer: in 30 ms and 80 MB/s for
each host (10 % of the requests take three times as long), 5,500 reads and 3,500 writes a second for each prefix, with a burst of one
second; what is above that gets 503 and is made again after pauses that double. A prefix is what comes before the key's own name.

    before     five shelves, a card and a pack each, as before cards of all levels were one object; uncompressed
    cards      a look-up for each function, by one card
    packs      the card of the first function, then its pack
    mirrors    the same by way of a mirror for each 100 hosts, which asks the origin once, as several stores in order do
    empty      nobody has anything: leases; each host compiles what nobody else does, 1 s each, and waits at most 5 s for others

It prints, for each: requests in all and to the busiest prefix in its busiest second, what was throttled, bytes, how long hosts waited for
all their functions (for `empty`: for one function), and how often a function was compiled. Last: how long a collection of garbage takes
among ten million cards, each of which it reads.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import tempfile
import time
from collections import Counter, deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remote import names_of, source

from compcache import Cache
from compcache.remote.card import PackedFunction, decode_cards, encode_pack

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

READS, WRITES = 5500.0, 3500.0  # a second and prefix, as S3 documents
ANSWER, BANDWIDTH = 0.03, 80e6
SLOTS, AT_ONCE = 32, 32  # of a helper, and of a collection of garbage
LEASE_WAIT, LEASE_LOOK = 5.0, 0.5  # as in compcache.remote.helper.leases
COMPILE = 1.0
PREFIXES = 256


class Sizes(NamedTuple):
    """Bytes: of a module, of a card with it, of a pack for each of its functions."""

    module: float
    card: float
    packed: float


def measured(count: int) -> Sizes:
    """The sizes of what a store has of a sample of functions."""
    with tempfile.TemporaryDirectory() as place, Cache(Path(place) / "cache", remote=(Path(place) / "store").as_uri()) as cache:
        for number, name in enumerate(names_of(count)):
            cache.get_or_compile(name, partial(source, number))
        remote: Any = cache.remote
        uploads = [remote._make_upload(bytes.fromhex(module.module_id), always=True) for module in cache.modules()]
        cards = [data for upload in uploads for _, data in upload.cards]
        known = [card for data in cards for card in decode_cards(data).values()]
        pack = encode_pack([PackedFunction(card._replace(module=b""), card.module) for card in known])
    return Sizes(
        statistics.mean(card.size for card in known), statistics.mean(map(len, cards)), len(pack) / len(known)
    )


class Store:
    """S3 as far as throttling, distance and bandwidth go. Counts what it is asked."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._level: dict[tuple[str, bool], tuple[float, float]] = {}
        self.requests: Counter[str] = Counter()
        self.seconds: Counter[tuple[str, int]] = Counter()
        self.bytes = 0.0
        self.throttled = 0

    def ask(self, now: float, prefix: str, size: float, *, writes: bool = False) -> float | None:
        """When the answer is there; None where it is 503."""
        limit = WRITES if writes else READS
        tokens, since = self._level.get((prefix, writes), (limit, now))
        tokens = min(limit, tokens + (now - since) * limit)
        self.requests["PUT" if writes else "GET"] += 1
        self.seconds[prefix, int(now)] += 1
        if tokens < 1.0:
            self._level[prefix, writes] = tokens, now
            self.throttled += 1
            return None
        self._level[prefix, writes] = tokens - 1.0, now
        self.bytes += 0.0 if writes else size
        return now + ANSWER * (3.0 if self._chance.random() < 0.1 else 1.0) + size / BANDWIDTH


class Loop:
    """Runs processes, generators that yield until when they sleep, in the order of time."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Generator[float, None, None]]] = []
        self._count = 0

    def start(self, when: float, process: Generator[float, None, None]) -> None:
        """Have a process begin."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, process))

    def run(self) -> None:
        """Until all have ended."""
        while self._queue:
            self.now, _, process = heapq.heappop(self._queue)
            try:
                self.start(next(process), process)
            except StopIteration:
                continue

    now = 0.0


class Fleet:
    """One run of the model."""

    def __init__(self, options: argparse.Namespace, sizes: Sizes) -> None:
        self.options, self.sizes = options, sizes
        self.chance = random.Random(1)
        self.store, self.mirror = Store(self.chance), Store(self.chance)
        self.loop = Loop()
        self.waits: list[float] = []
        self.compiled: Counter[int] = Counter()

    def get(self, store: Store, prefix: str, size: float, *, writes: bool = False) -> Generator[float, None, None]:
        """One request, made again as long as it is throttled."""
        pause = 0.05
        while (done := store.ask(self.loop.now, prefix, size, writes=writes)) is None:
            yield self.loop.now + pause * self.chance.uniform(0.5, 1.5)
            pause = min(2 * pause, 5.0)
        yield done

    def host(self, each: Callable[[], Generator[float, None, None]]) -> Generator[float, None, None]:
        """A host that waits for all that it asks for."""
        began = self.loop.now
        yield from each()
        self.waits.append(self.loop.now - began)

    def many(self, requests: deque[tuple[str, float]]) -> Generator[float, None, None]:
        """Requests of one host, so many at a time."""
        busy = [self.loop.now] * SLOTS  # when each slot is free
        pauses: Counter[tuple[str, float]] = Counter()
        while requests:
            free = heapq.heappop(busy)
            if free > self.loop.now:
                yield free
            prefix, size = requests.popleft()
            done = self.store.ask(self.loop.now, prefix, size)
            if done is None:
                pauses[prefix, size] += 1
                requests.append((prefix, size))
                done = self.loop.now + min(5.0, 0.05 * 2 ** pauses[prefix, size]) * self.chance.uniform(0.5, 1.5)
            heapq.heappush(busy, done)
        yield max(busy)

    # --------------------------------------------------------------------- designs

    def before(self) -> Generator[float, None, None]:
        """Five shelves: a function's card is on one of them."""
        wanted = [
            (f"f/{shelf}/{self.chance.randrange(PREFIXES)}", self.sizes.card if shelf == 2 else 0.0)
            for _ in range(self.options.functions) for shelf in range(5)
        ]  # fmt: skip
        yield from self.many(deque(wanted))

    def cards(self) -> Generator[float, None, None]:
        """A card for each function."""
        yield from self.many(deque((f"f/{self.chance.randrange(PREFIXES)}", self.sizes.card) for _ in range(self.options.functions)))

    def packs(self) -> Generator[float, None, None]:
        """The first card, and its pack."""
        yield from self.get(self.store, "f/0", self.sizes.card)
        yield from self.get(self.store, "p/0", self.sizes.packed * self.options.functions)

    def mirrors(self) -> Generator[float, None, None]:
        """The same by a mirror, which may be the first to ask."""
        number = self.chance.randrange(max(1, self.options.hosts // 100))
        for prefix, size in (("f/0", self.sizes.card), ("p/0", self.sizes.packed * self.options.functions)):
            if (number, prefix) not in self._mirrored:
                self._mirrored.add((number, prefix))
                yield from self.get(self.store, prefix, size)
            yield from self.get(self.mirror, f"{number}/{prefix}", size)

    _mirrored: set[tuple[int, str]]

    def empty(self) -> Generator[float, None, None]:
        """Nobody has anything; each host begins with another function."""
        functions = self.options.functions
        start = self.chance.randrange(functions)
        for number in range(functions):
            began, name = self.loop.now, (start + number) % functions
            prefix = f"f/{name % PREFIXES}"
            yield from self.get(self.store, prefix, self.sizes.card if name in self._done else 0.0)
            if self._done.get(name, 1e9) <= self.loop.now:
                continue
            yield from self.get(self.store, f"l/{name % PREFIXES}", 0.0, writes=True)
            pause = 0.05
            while name in self._leases and self.loop.now - began < LEASE_WAIT and self._done.get(name, 1e9) > self.loop.now:
                yield self.loop.now + pause * self.chance.uniform(0.5, 1.5)
                yield from self.get(self.store, f"l/{name % PREFIXES}", 0.0)
                pause = min(2 * pause, LEASE_LOOK)
            self.waits.append(self.loop.now - began)
            if self._done.get(name, 1e9) <= self.loop.now:
                yield from self.get(self.store, prefix, self.sizes.card)
                continue
            self._leases.add(name)
            self.compiled[name] += 1
            yield self.loop.now + COMPILE
            yield from self.get(self.store, prefix, self.sizes.card, writes=True)
            self._done.setdefault(name, self.loop.now)

    _done: dict[int, float]
    _leases: set[int]

    def run(self, design: str) -> str:
        """A line about a design."""
        self._mirrored, self._done, self._leases = set(), {}, set()
        each = getattr(self, design)
        for _ in range(self.options.hosts):
            process = each() if design == "empty" else self.host(each)
            self.loop.start(self.chance.uniform(0.0, self.options.seconds), process)
        self.loop.run()
        busiest = max(self.store.seconds.values())
        compiled = f"; compiled {sum(self.compiled.values()) / len(self.compiled):.2f} times each" if self.compiled else ""
        counts = ", ".join(f"{count:,} {kind}s" for kind, count in sorted(self.store.requests.items()))
        waits = sorted(self.waits)
        return (
            f"{design:8} {counts}; busiest prefix {busiest:,}/s; {self.store.throttled:,} throttled; {self.store.bytes / 1e9:.2f} GB; "
            f"waits {statistics.median(waits):.2f} s (99 %: {waits[len(waits) * 99 // 100]:.2f}, longest {waits[-1]:.2f}){compiled}"
        )


def main() -> None:
    """Print a line for each design."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--functions", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="the time within which the hosts start")
    parser.add_argument("--sample", type=int, default=100, help="functions that are compiled to measure sizes")
    parser.add_argument("--designs", nargs="*", default=["before", "cards", "packs", "mirrors", "empty"])
    parser.add_argument("--scale", type=int, default=100, help="run designs that look functions up one by one with one host of N")
    options = parser.parse_args()
    sizes = measured(options.sample)
    print(f"a module has {sizes.module:,.0f} bytes, a card with it {sizes.card:,.0f}, a pack {sizes.packed:,.0f} for each function")
    for design in options.designs:
        started, chosen = time.perf_counter(), options
        if design in ("before", "cards", "empty") and options.scale > 1:
            chosen = argparse.Namespace(**{**vars(options), "hosts": max(1, options.hosts // options.scale)})
        line = Fleet(chosen, sizes).run(design)
        print(f"{chosen.hosts:6,} hosts: {line}  [{time.perf_counter() - started:.0f} s]", flush=True)
    cards = 10_000_000
    minutes = (cards / AT_ONCE + cards / 1000) * ANSWER / 60
    print(f"a collection of {cards:,} cards, {AT_ONCE} requests at a time: {minutes:.0f} min")


if __name__ == "__main__":
    main()
