"""The remote stores of one `Cache`: fetches missing functions, offers compiled ones."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from compcache.errors import CompcacheError, FormatError
from compcache.files import reraise_interrupt
from compcache.formats.entry import is_pack
from compcache.formats.graph import decode_notes
from compcache.formats.manifest_writer import WholeManifest
from compcache.formats.statistics import counter_of
from compcache.identity import label_of
from compcache.interrupts import suppress
from compcache.publish.quarantine import warn
from compcache.remote import maintenance
from compcache.remote.adopt import adopt_module
from compcache.remote.answer import (
    FOUND,
    HAD,
    SAID_NOTHING,
    UNAVAILABLE,
    WAS_MISSING,
    RemoteAnswer,
    Said,
    left_alone,
    mapped,
    read_answer,
)  # fmt: skip
from compcache.remote.breaker import Patience, breaker_of
from compcache.remote.card import IMPORTS_LIMIT, INLINE_LIMIT, Card, encode_cards
from compcache.remote.connection import ask, wake_helper
from compcache.remote.directory import outbox_directory, state_directory
from compcache.remote.outbox import Outbox, Upload
from compcache.remote.shelves import card_key, includes, module_key, platform_shelf, shelf_of, usable_shelves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from compcache.remote.address import Stores
    from compcache.remote.adopt import Adopted
    from compcache.remote.breaker import Breaker
    from compcache.remote.connection import Question
    from compcache.store import Store

__all__ = ["START_SECONDS", "Inquiry", "RemoteStore"]

#: How long a caller that cannot compile waits for each round of a look-up, and how much longer for the helper.
_PATIENCE = 10.0
_PATIENCE_PER_NAME = 0.1
_MARGIN = 2.0
#: How long a process waits, once, for a helper that is starting and for its first answer.
START_SECONDS = 1.0
_BATCH = 512  # names in one question
#: How often one process lets the helper probe a store that is not asked, in seconds.
_PROBE_PAUSE = 1.0


class Inquiry:
    """A look-up that is under way."""

    def __init__(self, remote: RemoteStore, names: tuple[str, ...], question: Question, *, insists: bool) -> None:
        self._remote = remote
        self._insists = insists
        self._names = names
        self._question = question
        self._asked = time.monotonic()
        self.fetched: tuple[str, ...] | None = None  # the functions that came; None until there is an answer
        self.unanswered: tuple[str, ...] = ()  # the functions about which no store said anything

    def arrived(self, seconds: float = 0.0) -> bool:
        """Wait at most `seconds`; return whether functions have come into the local cache.

        The wait is longer where more is at stake: as long as compiling functions of this label has taken here, and, once per process, a
        second for a helper that is starting. There is no wait for a store that has not answered lately, unless the question insists.
        """
        if self.fetched is None:
            started = time.monotonic()
            if self._is_answered(seconds):
                self._take_in(time.monotonic() - started)
            elif seconds and self._question.sent:
                self._remote.patience.lost(time.monotonic() - max(started, self._question.sent))
        if self._question.problem and self.fetched is None:
            self.fetched = ()
            self._remote.complain(self._question.problem)
        return bool(self.fetched)

    def _is_answered(self, seconds: float) -> bool:
        if not seconds or not (self._insists or self._remote.patience.allows()):
            return self._question.wait(0.0)
        seconds = max(seconds, self._remote.at_stake(self._names))
        if self._question.is_starting() and (self._question.wait(max(START_SECONDS, seconds)) or not self._question.sent):
            return self._question.is_answered
        return self._question.wait(seconds)

    def _take_in(self, waited: float) -> None:
        self._remote.count("remote_answers")
        self._remote.count("remote_seconds", time.monotonic() - self._asked)
        rows, seconds = self._question.answer
        answers = [Said(*row) for row in rows]
        self._remote.count_by_store(answers, seconds)
        outcomes = zip(self._names, answers, strict=True)
        self.unanswered = tuple(name for name, said in outcomes if said.outcome == UNAVAILABLE)
        if any(not {HAD, WAS_MISSING}.isdisjoint(said.by_store) for said in answers):
            self._remote.patience.answered()
        else:
            self._remote.patience.lost(waited)
        self.fetched = self._remote.take_in(self._names, answers, insists=self._insists)
        if self.fetched:
            self.close()

    def give_up(self) -> None:
        """Stop waiting: the functions are compiled here."""
        if self.fetched is None:
            self._remote.count("remote_late")

    def close(self) -> None:
        """End the look-up: the functions are compiled and queued for upload, or will not be."""
        self._question.close()

    def compiled(self, seconds: float) -> None:
        """Record that the functions were compiled, in this time in seconds."""
        self._remote.note_stake(self._names, seconds)


class RemoteStore:
    """The remote stores that a cache was opened with, in the order in which they are asked."""

    def __init__(self, store: Store, settings: Stores) -> None:
        self._store = store
        self.settings = settings
        self._complained = False
        self.patience = Patience()
        self._probed = -_PROBE_PAUSE  # the last time this process asked for a probe
        self._rejected: set[str] = set()  # functions of the store that this cache does not accept
        self._start_up = 0, b""  # a process, and the token by which the helper recognizes its questions
        self._stakes: dict[str, float] = {}  # by label: the seconds that the last compilation took

    @property
    def writes(self) -> bool:
        """Return whether compiled modules are uploaded."""
        return bool(self.settings.writable)

    def directory(self) -> str:
        """Return the directory of the helper's socket, for the current credentials. Raises `OSError`."""
        return state_directory(self.settings.url, os.environ)

    def outboxes(self) -> tuple[Outbox, ...]:
        """Return the outbox of each store. Raises `OSError`."""
        return tuple([Outbox(outbox_directory(store.url, os.environ)) for store in self.settings.each])

    def breakers(self) -> tuple[Breaker, ...]:
        """Return the breaker of each store, for the current credentials. Raises `OSError`."""
        return tuple([breaker_of(store.url) for store in self.settings.each])

    def _is_in_service(self, *, waits: bool) -> bool:
        """Return whether one of the stores may be asked. Stores whose pause is over are probed first; only callers with `waits` wait for
        the probe.
        """
        breakers = self.breakers()
        if not all(breaker.is_open() or breaker.is_half_open() for breaker in breakers):
            return True
        now = time.monotonic()
        if any(breaker.is_half_open() for breaker in breakers) and (waits or now - self._probed >= _PROBE_PAUSE):
            self._probed = now
            probe = ask(self.settings, "probe")
            if waits and probe.wait(_PATIENCE):
                return bool(probe.answer)
            probe.close()
        return False

    # ---------------------------------------------------------------- fetching

    def inquire(
        self, names: Iterable[str], *, plain: bool = False, insists: bool = False, compiles: bool = False, first: int = 0
    ) -> Inquiry | None:
        """Ask for functions. Return None if there is nothing to ask, or no store may be asked now.

        Only names that stand for content are asked for, unless `plain` says that the caller named the functions on purpose. `insists`: wait
        for the answer even if the store has not answered lately. `compiles`: the caller compiles what does not come, and then calls
        `Inquiry.close`; until then other hosts wait. `first`: the position of the first store to ask.
        """
        wanted = tuple(name for name in names if plain or label_of(name) is not None)
        if not wanted:
            return None
        if not (insists or self.patience.asks()):
            self.count("remote_skipped")
            return None
        try:
            if not self._is_in_service(waits=insists):
                self.count("remote_skipped")
                return None
            patience = _patience(wanted) if insists else 0.0
            stake = self.at_stake(wanted) if compiles else None
            question = ask(
                self.settings, "find", list(wanted), *self._places(), self._token(), self.settings.writable, time.monotonic(), patience,
                stake, self._store.temporary, first, keeps=compiles and self.writes,
            )  # fmt: skip
        except OSError as error:
            reraise_interrupt(error)
            self.complain(str(error))
            return None
        return Inquiry(self, wanted, question, insists=insists)

    def fetch(self, names: Iterable[str], *, plain: bool = False, insists: bool = False, first: int = 0) -> tuple[str, ...]:
        """Fetch functions and everything that they import into the local cache; return those that came. See `inquire` for the arguments."""
        wanted = list(dict.fromkeys(names))
        come: list[str] = []
        while wanted:
            batch, wanted = wanted[:_BATCH], wanted[_BATCH:]
            inquiry = self.inquire(batch, plain=plain, insists=insists, first=first)
            if inquiry is None:
                continue
            inquiry.arrived(_patience(batch) + _MARGIN)
            if inquiry.fetched is None:
                inquiry.give_up()
                inquiry.close()
                break
            come += inquiry.fetched
            if insists and inquiry.fetched:
                wanted += inquiry.unanswered  # as long as each round brings something
        return tuple(come)

    def has(self, names: Sequence[str]) -> tuple[bool, ...]:
        """Return for each function whether a store has code of it that this host can use. Warns if the stores do not say."""
        self._is_in_service(waits=True)
        question = ask(self.settings, "has", list(names), *self._places())
        answers = question.answer if question.wait(_patience(names) + _MARGIN) else [None] * len(names)
        unknown = answers.count(None)
        if unknown:
            self.complain(question.problem or f"it did not say whether it has {unknown} of {len(names)} functions")
        return tuple(map(bool, answers))

    def _places(self) -> tuple[str, list[str]]:
        """Return the platform, and the shelves that this host can use."""
        return platform_shelf(), list(usable_shelves(self._store.processor()))

    def _token(self) -> bytes:
        """Return the token that tells questions of this process from those of others; a forked child gets its own."""
        if self._start_up[0] != os.getpid():
            self._start_up = os.getpid(), os.urandom(8)
        return self._start_up[1]

    def explain(self, name: str) -> RemoteAnswer:
        """Ask the stores about a function now. Nothing is fetched into the cache, or counted."""
        try:
            if not self._is_in_service(waits=True):
                failures, seconds = min([breaker.state() for breaker in self.breakers()], key=lambda state: state[1])
                return left_alone(self.settings.shown, name, failures, seconds)
            question = ask(self.settings, "find", [name], *self._places(), b"", (), time.monotonic(), _PATIENCE, None, "", 0)
        except OSError as error:
            reraise_interrupt(error)
            return read_answer(self._store, self.settings, name, None, str(error))
        said = Said(*question.answer[0][0]) if question.wait(_PATIENCE + _MARGIN) else None
        return read_answer(self._store, self.settings, name, said, question.problem)

    def take_in(self, names: tuple[str, ...], answers: list[Said], *, insists: bool = False) -> tuple[str, ...]:
        """Verify and publish the modules that were found, then fetch their imports; return the functions that came."""
        come: list[str] = []
        imports: dict[str, None] = {}
        refused: dict[int, list[str]] = {}  # by the store to ask next, the one after the store whose answer was not accepted
        packed = False
        for name, said in zip(names, answers, strict=True):
            why = f": {said.data}" if isinstance(said.data, str) and said.data and said.outcome != FOUND else ""
            self._store.stats.asked(name, f"{said.outcome}{why}")
            if said.outcome != FOUND:
                self.count("remote_errors" if said.outcome == UNAVAILABLE else "remote_misses")
                continue
            adopted = self._adopt(name, said.data, said.signatures, said.store)
            if adopted is not None:
                come.append(name)
                imports.update(dict.fromkeys([*adopted.imports, *self._adopt_imports(said)]))
            else:
                packed |= said.packed
                refused.setdefault(0 if said.packed else said.store + 1, []).append(name)
        if packed:
            ask(self.settings, "distrust", self._token()).wait(_PATIENCE)
        for first, again in refused.items():
            if first < len(self.settings.each):
                come += self.fetch(again, plain=True, insists=insists, first=first)
        absent = [name for name in imports if name not in names and next(self._store.find(name), None) is None]
        if absent:
            self.fetch(absent, plain=True, insists=insists)
        return tuple(come)

    def _adopt_imports(self, said: Said) -> Iterator[str]:
        """Publish the imports that came with a function, unless they are here; yield what those import in turn."""
        for name, data, signatures in said.imports:
            is_here = next(self._store.find(name), None) is not None
            adopted = self._adopt(name, data, signatures, said.store) if not is_here else None
            if adopted is not None:
                yield from adopted.imports

    def _adopt(self, name: str, data: bytes | str, signatures: bytes, store: int) -> Adopted | None:
        """Publish a module, given as bytes or as a file that the helper has written."""
        try:
            module = data if isinstance(data, bytes) else self._taken(data)
            adopted = adopt_module(self._store, module, wanted=name, signatures=signatures)
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            self._count_at(store, "remote_rejected")
            self._rejected.add(name)
            self._store.stats.refused(name, f"remote store: {error}")
            return None
        self._count_at(store, "remote_hits")
        self._count_at(store, "remote_size", len(module))
        return adopted

    def _taken(self, path: str) -> memoryview:
        if os.path.dirname(path) != self._store.temporary:
            raise FormatError(f"the helper process names a file that is not in {self._store.temporary}")
        try:
            return mapped(path)
        finally:
            with suppress(OSError):
                os.unlink(path)

    def note_stake(self, names: Iterable[str], seconds: float) -> None:
        """Record that compiling these functions took this number of seconds."""
        self._stakes.update(dict.fromkeys(map(_label, names), seconds))

    def at_stake(self, names: Iterable[str]) -> float:
        """Estimate the seconds that compiling these functions takes, from others of their labels; 0.0 if there are none."""
        return min(max([self._stakes.get(_label(name), 0.0) for name in names], default=0.0), _PATIENCE)

    # --------------------------------------------------------------- uploading

    def offer(self, module_id: bytes, *, always: bool = False) -> bool:
        """Put a stored module into the outbox of each writable store; return whether there was something to upload."""
        try:
            upload = self._upload_of(module_id, always=always)
            if upload is None:
                return False
            boxes = self.outboxes()
            dropped = sum([boxes[place].put(upload) for place in self.settings.writable])
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            self.complain(f"a module could not be put into the outbox: {error}")
            return False
        if dropped:
            self.count("remote_dropped", dropped)
        self._token()
        self.count("remote_offered")
        wake_helper(self.settings)
        return True

    def pack(self, names: Iterable[str]) -> None:
        """Request a pack of functions that were offered, for hosts that fetch them together."""
        try:
            ask(self.settings, "pack", list(names), *self._places(), self.settings.writable).wait(_PATIENCE)
        except OSError as error:
            reraise_interrupt(error)
            self.complain(str(error))

    def flush(self, seconds: float) -> int:
        """Wait until the outboxes are empty, at most `seconds`; return how many uploads are left."""
        boxes = self.outboxes()
        waiting = [boxes[place] for place in self.settings.writable]
        if not any(box.names() for box in waiting) and not (self.writes and self._start_up[1]):
            return 0  # then this process has nothing to add to a pack either
        question = ask(self.settings, "flush", seconds, self.settings.writable)
        if not question.wait(seconds + 0.5):
            question.close()
            self.complain(question.problem)
            return sum([len(box.names()) for box in waiting])
        return int(question.answer)

    def _upload_of(self, module_id: bytes, *, always: bool) -> Upload | None:
        card, data, manifest = self._card_of("", module_id)
        header = manifest.header
        names = [(name, needs) for name, _, needs in manifest.indexed() if always or label_of(name) is not None]
        if not names:
            return None
        platform = platform_shelf(header.triple, header.abi)
        inline = data if len(data) <= INLINE_LIMIT else b""
        imports: dict[str, tuple[Card, ...]] = {}
        cards = []
        for name, needs in names:
            shelf = shelf_of(needs)
            if shelf not in imports:
                imports[shelf] = tuple(self._imports(manifest, shelf))
            mine = card._replace(name=name, module=inline, imports=imports[shelf])
            cards.append((card_key(platform, name), encode_cards({shelf: mine})))
        replaces = not self._rejected.isdisjoint(name for name, _ in names)
        # The time that writing took says nothing about the value of a pack.
        return Upload(
            module_key(module_id),
            b"" if inline else data,
            cards,
            card.seconds,
            always or is_pack(header.image_kind),
            replaces or is_pack(header.image_kind),
        )

    def _card_of(self, name: str, module_id: bytes) -> tuple[Card, bytes, WholeManifest]:
        """Return the card of a stored module (without the module), the module, and its manifest."""
        with self._store.open_module(module_id) as module:
            data = module.read(0, module.size)
            manifest = WholeManifest(module.read(module.image, module.records))
            footer = module.footer()
            seconds = float(decode_notes(module.read(footer.content, footer.notes)).get("seconds", 0.0))
        signatures = self._store.signatures_of(module_id)
        return Card(name, module_id, len(data), seconds, b"", signatures), data, manifest

    def _imports(self, manifest: WholeManifest, shelf: str) -> Iterator[Card]:
        """Yield cards of what a module of this shelf imports, directly or not, if they are small and run wherever the module does."""
        left, waiting = IMPORTS_LIMIT, list(manifest.imports())
        seen = set(waiting)
        while waiting:
            name = waiting.pop(0)
            for module_id, _ in self._store.find(name):
                with suppress(CompcacheError, OSError):
                    card, data, found = self._card_of(name, module_id)
                    needs = {each: requirement for each, _, requirement in found.indexed()}.get(name)
                    platform, same = [platform_shelf(each.header.triple, each.header.abi) for each in (found, manifest)]
                    if needs is None or len(data) > left or platform != same:
                        continue
                    if not includes(shelf, shelf_of(needs), manifest.header.triple):
                        continue
                    left -= len(data)
                    more = [each for each in found.imports() if each not in seen]
                    seen.update(more)
                    waiting += more
                    yield card._replace(module=data)
                    break

    # ------------------------------------------------------------- maintenance

    def status(self) -> list[dict[str, Any]]:
        """Return the status of each store. See `compcache.remote.maintenance.status`."""
        return maintenance.status(self.settings)

    def verify(self) -> list[maintenance.RemoteReport]:
        """Verify each store. See `compcache.remote.maintenance.verify`."""
        return [maintenance.verify(store) for store in self.settings.alone()]

    def collect_garbage(
        self, *, older_than: float | None = None, unused_for: float | None = None, grace: float = maintenance.GRACE, dry_run: bool = False
    ) -> list[maintenance.RemoteGarbage]:
        """Collect the garbage of each writable store. See `compcache.remote.maintenance.collect_garbage`."""
        return [
            maintenance.collect_garbage(store, older_than=older_than, unused_for=unused_for, grace=grace, dry_run=dry_run)
            for store in self.settings.alone()
            if store.writable
        ]

    # -------------------------------------------------------------------- both

    def count(self, counter: str, amount: float = 1) -> None:
        """Count something that happened."""
        self._store.stats.count(counter, amount)

    def _count_at(self, place: int, counter: str, amount: float = 1) -> None:
        """Count something that one store did, also under the name of that store."""
        self.count(counter, amount)
        self.count(counter_of(counter, self.settings.each[place].shown), amount)

    def count_by_store(self, answers: Iterable[Said], seconds: Iterable[float]) -> None:
        """Count what each store answered, and how long it took."""
        for place, (store, took) in enumerate(zip(self.settings.each, seconds, strict=False)):
            letters = [said.by_store[place : place + 1] for said in answers]
            asked = sum([letters.count(letter) for letter in (HAD, WAS_MISSING)])
            for counter, amount in (
                ("misses", letters.count(WAS_MISSING)), ("errors", letters.count(SAID_NOTHING)), ("answers", asked), ("seconds", took),
            ):  # fmt: skip
                if amount:
                    self.count(counter_of(f"remote_{counter}", store.shown), amount)

    def complain(self, problem: str) -> None:
        """Warn, once, that the stores are not used, and do not ask them for a while."""
        self.count("remote_errors")
        with suppress(OSError):
            for breaker in self.breakers():
                breaker.failed()
        if problem and not self._complained:
            self._complained = True
            verb = "is" if len(self.settings.each) == 1 else "are"
            warn(f"the remote store{'s' * (len(self.settings.each) > 1)} {self.settings.shown} {verb} not used: {problem}")


def _label(name: str) -> str:
    return label_of(name) or name


def _patience(names: Collection[str]) -> float:
    """Return how long to wait for an answer about this number of functions, in seconds."""
    return _PATIENCE + _PATIENCE_PER_NAME * len(names)
