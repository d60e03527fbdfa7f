"""The remote stores of one `Cache`: fetches missing functions, and queues compiled functions for upload."""

from __future__ import annotations

import os
import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.errors import CompcacheError
from compcache.formats.entry import is_pack
from compcache.formats.graph import decode_notes
from compcache.formats.manifest import LINKED
from compcache.formats.manifest_writer import WholeManifest
from compcache.formats.statistics import counter_of
from compcache.identity import label_of
from compcache.interrupts import reraise_interrupt, suppress
from compcache.remote import maintenance
from compcache.remote.adopt import adopt_module
from compcache.remote.answer import (
    FOUND,
    STORE_ERROR,
    STORE_HIT,
    STORE_MISS,
    UNAVAILABLE,
    HelperAnswer,
    RemoteAnswer,
    remote_answer,
)  # fmt: skip
from compcache.remote.breaker import Patience, breaker_of
from compcache.remote.card import IMPORTS_LIMIT, INLINE_LIMIT, Card, encode_cards
from compcache.remote.connection import ask, wake_helper
from compcache.remote.directory import outbox_directory, state_directory
from compcache.remote.outbox import Outbox, Upload
from compcache.remote.shelves import card_key, module_key, platform_part_of, runs_also, shelf_of, usable_shelves
from compcache.warning import warn
from compcache.wording import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from compcache.remote.address import Stores
    from compcache.remote.adopt import AdoptedModule
    from compcache.remote.breaker import Breaker
    from compcache.remote.connection import Question
    from compcache.store import Store

__all__ = ["START_SECONDS", "Inquiry", "RemoteStore"]

#: How many seconds a caller that cannot compile waits for each round of a look-up, and how much longer per name and for the helper.
_PATIENCE = 10.0
_PATIENCE_PER_NAME = 0.1
_MARGIN = 2.0
#: How many seconds a process waits, once, for a helper that is starting and for its first answer.
START_SECONDS = 1.0
_BATCH = 512  # names in one question
#: The least time between two requests of one process to probe a store that is not asked, in seconds.
_PROBE_PAUSE = 1.0


class Inquiry:
    """A look-up in the remote stores.

    Attributes:
        fetched: the names of the fetched functions, or None until there is an answer or a failure.
        unanswered: the names of the functions that no store answered for.
    """

    def __init__(self, remote: RemoteStore, names: tuple[str, ...], question: Question, *, insists: bool) -> None:
        self._remote = remote
        self._insists = insists
        self._names = names
        self._question = question
        self._asked = time.monotonic()
        self.fetched: tuple[str, ...] | None = None
        self.unanswered: tuple[str, ...] = ()

    def wait_for_functions(self, seconds: float = 0.0) -> bool:
        """Wait for an answer, and return whether functions were fetched into the local cache.

        The wait is at most `seconds` (0: no wait), or as long as compiling functions with the same labels took in this process, if that is
        longer. The first wait of a process for a starting helper may take `START_SECONDS`. If the store has not answered lately, there is
        no wait unless the inquiry was made with `insists`.
        """
        if self.fetched is None:
            started = time.monotonic()
            if self._wait_for_answer(seconds):
                self._process_answer(time.monotonic() - started)
            elif seconds and self._question.sent:
                self._remote.patience.record_wait(time.monotonic() - max(started, self._question.sent))
        if self._question.problem and self.fetched is None:
            self.fetched = ()
            self._remote.report_failure(self._question.problem)
        return bool(self.fetched)

    def _wait_for_answer(self, seconds: float) -> bool:
        """Wait for the answer, up to `seconds` or the expected time of compilation. Return whether it has come."""
        if not seconds or not (self._insists or self._remote.patience.allows_waiting()):
            return self._question.wait(0.0)
        seconds = max(seconds, self._remote.estimate_compile_time(self._names))
        if self._question.claim_first_wait() and (self._question.wait(max(START_SECONDS, seconds)) or not self._question.sent):
            return self._question.is_answered
        return self._question.wait(seconds)

    def _process_answer(self, waited: float) -> None:
        """Count the helper's answer, adopt the modules that it has found, and set `fetched` and `unanswered`.

        `waited` is how long this process waited for the answer, in seconds. It counts against the store unless a store has answered.
        """
        self._remote.count("remote_answers")
        self._remote.count("remote_seconds", time.monotonic() - self._asked)
        rows, seconds = self._question.answer
        answers = [HelperAnswer(*row) for row in rows]
        self._remote.count_by_store(answers, seconds)
        outcomes = zip(self._names, answers, strict=True)
        self.unanswered = tuple(name for name, answer in outcomes if answer.outcome == UNAVAILABLE)
        if any(not {STORE_HIT, STORE_MISS}.isdisjoint(answer.by_store) for answer in answers):
            self._remote.patience.record_answer()
        else:
            self._remote.patience.record_wait(waited)
        self.fetched = self._remote.adopt_answers(self._names, answers, insists=self._insists)
        if self.fetched:
            self.close()

    def record_late_answer(self) -> None:
        """Count the answer as late if there is none yet. The caller compiles the functions itself."""
        if self.fetched is None:
            self._remote.count("remote_late")

    def close(self) -> None:
        """End the look-up. Call this after the functions were compiled and queued for upload, or if they will not be compiled."""
        self._question.close()

    def record_compilation(self, seconds: float) -> None:
        """Record that this process compiled the functions in `seconds`."""
        self._remote.record_compile_time(self._names, seconds)


class _StoredModule(NamedTuple):
    """A module of the cache: a card that does not contain the module, the bytes of its file, and its manifest."""

    card: Card
    data: bytes
    manifest: WholeManifest


class RemoteStore:
    """The remote stores of a cache, in the order in which they are asked."""

    def __init__(self, store: Store, settings: Stores) -> None:
        self._store = store
        self.settings = settings
        self._has_warned = False
        self.patience = Patience()
        self._probed = -_PROBE_PAUSE  # the monotonic time of this process's last request for a probe
        self._rejected: set[str] = set()  # the functions whose modules in the store this cache does not accept
        self._start_up = 0, b""  # the id of this process, and the token by which the helper recognizes its questions
        self._compile_times: dict[str, float] = {}  # by label: the seconds that the last compilation took

    @property
    def writes(self) -> bool:
        """Return whether compiled modules are uploaded."""
        return bool(self.settings.writable)

    def directory(self) -> str:
        """Return the directory of the helper's socket, for the current credentials. Raise `OSError` if it cannot be made private."""
        return state_directory(self.settings.url, os.environ)

    def outboxes(self) -> tuple[Outbox, ...]:
        """Return the outbox of each store. Raise `OSError` if a directory cannot be made private."""
        return tuple([Outbox(outbox_directory(store.url, os.environ)) for store in self.settings.each])

    def breakers(self) -> tuple[Breaker, ...]:
        """Return the breaker of each store, for the current credentials. Raise `OSError` if a directory cannot be made private."""
        return tuple([breaker_of(store.url) for store in self.settings.each])

    def _check_service(self, *, waits: bool) -> bool:
        """Return whether a store may get requests; True if a breaker cannot be read. If all pause, request a probe if a pause is over.

        With `waits`, wait for the probe and return its result. Otherwise return False.
        """
        try:
            breakers = self.breakers()
        except OSError as error:
            reraise_interrupt(error)
            return True  # the question reports the error
        if not all(breaker.is_open() or breaker.is_half_open() for breaker in breakers):
            return True
        now = time.monotonic()
        if any(breaker.is_half_open() for breaker in breakers) and (waits or now - self._probed >= _PROBE_PAUSE):
            self._probed = now
            answer, _ = self._send_question(_PATIENCE if waits else 0.0, "probe")
            return waits and bool(answer)
        return False

    def _send_question(self, seconds: float, *message: Any) -> tuple[Any, str]:
        """Send a question to the helper, and wait for the answer. See `Question.wait` for `seconds`, which a busy helper can exceed.

        Return the answer and "". Without an answer, return None and the reason, which is "" if the answer has not arrived in time.
        """
        try:
            question = ask(self.settings, *message)
            if question.wait(seconds):
                return question.answer, ""
        except OSError as error:
            reraise_interrupt(error)
            return None, str(error)
        question.close()
        return None, question.problem

    # ---------------------------------------------------------------- fetching

    def inquire(
        self, names: Iterable[str], *, plain: bool = False, insists: bool = False, compiles: bool = False, first: int = 0
    ) -> Inquiry | None:
        """Request functions. Return None if nothing is requested.

        This is so if there is no function to request, no store gets requests now, the helper cannot be asked, or this process has lately
        waited in vain too often (`Patience.should_ask`).

        Args:
            names: the functions. Only content names are requested, unless `plain` is set.
            plain: request functions with plain names too.
            insists: wait for the answer even if the store has not answered lately.
            compiles: the caller will compile the functions that are not fetched, and then call `Inquiry.close`. Other hosts wait for that.
            first: the position of the first store to ask.
        """
        requested = tuple(name for name in names if plain or label_of(name) is not None)
        if not requested:
            return None
        if not (insists or self.patience.should_ask()):
            self.count("remote_skipped")
            return None
        try:
            if not self._check_service(waits=insists):
                self.count("remote_skipped")
                return None
            patience = _answer_timeout(requested) if insists else 0.0
            compile_seconds = self.estimate_compile_time(requested) if compiles else None
            question = ask(
                self.settings, "find", list(requested), *self._platform_and_shelves(), self._process_token(), self.settings.writable,
                time.monotonic(), patience, compile_seconds, first, keeps=compiles and self.writes,
            )  # fmt: skip
        except OSError as error:
            reraise_interrupt(error)
            self.report_failure(str(error))
            return None
        return Inquiry(self, requested, question, insists=insists)

    def fetch(self, names: Iterable[str], *, plain: bool = False, insists: bool = False, first: int = 0) -> tuple[str, ...]:
        """Fetch functions and their imports into the local cache, and return the names of the fetched functions.

        If no answer arrives, the remaining functions are not fetched. With `insists`, functions that no store answered for are requested
        again, as long as each round fetches a function. See `inquire` for the arguments.
        """
        unique_names = list(dict.fromkeys(names))
        fetched: list[str] = []
        while unique_names:
            batch, unique_names = unique_names[:_BATCH], unique_names[_BATCH:]
            inquiry = self.inquire(batch, plain=plain, insists=insists, first=first)
            if inquiry is None:
                continue
            inquiry.wait_for_functions(_answer_timeout(batch) + _MARGIN)
            if inquiry.fetched is None:
                inquiry.record_late_answer()
                inquiry.close()
                break
            fetched += inquiry.fetched
            if insists and inquiry.fetched:
                unique_names += inquiry.unanswered
        return tuple(fetched)

    def has(self, names: Sequence[str]) -> tuple[bool, ...]:
        """Return, for each function, whether a store has code that this host can run.

        A function that the stores did not answer for counts as False. A warning is issued once per cache.
        """
        self._check_service(waits=True)
        answer, problem = self._send_question(_answer_timeout(names) + _MARGIN, "has", list(names), *self._platform_and_shelves())
        answers = answer or [None] * len(names)
        unknown = answers.count(None)
        if unknown:
            self.report_failure(problem or f"no answer for {unknown} of {plural(len(names), 'function')}")
        return tuple(map(bool, answers))

    def _platform_and_shelves(self) -> tuple[str, list[str]]:
        """Return the part of keys for this platform, and the shelves that this host can use."""
        return platform_part_of(), list(usable_shelves(self._store.processor()))

    def _process_token(self) -> bytes:
        """Return the token that marks questions of this process, created at the first call. A forked child creates another token."""
        if self._start_up[0] != os.getpid():
            self._start_up = os.getpid(), os.urandom(8)
        return self._start_up[1]

    def explain(self, name: str) -> RemoteAnswer:
        """Ask the stores about a function, and return their answer. Nothing is fetched into the cache, and nothing is counted."""
        if not self._check_service(waits=True):
            states = [breaker.state() for breaker in self.breakers()]
            failures, seconds = min(states, key=itemgetter(1))  # of the store that is asked again first
            message = f"it gets no requests for another {seconds:.0f} s; consecutive failures: {failures}"
            return RemoteAnswer(self.settings.shown, "skipped", message, label_of(name) is not None)
        question = "find", [name], *self._platform_and_shelves(), b"", (), time.monotonic(), _PATIENCE, None, 0
        answer, problem = self._send_question(_PATIENCE + _MARGIN, *question)
        if answer is not None:
            (row,), _seconds = answer
            answer = HelperAnswer(*row)
        return remote_answer(self._store, self.settings, name, answer, problem)

    def adopt_answers(self, names: tuple[str, ...], answers: list[HelperAnswer], *, insists: bool = False) -> tuple[str, ...]:
        """Verify and publish the modules in the helper's answers, and fetch their imports. Count the answers in the statistics.

        If a module is rejected, its function is requested again: without packs from all stores if the module came from a pack, otherwise
        from the stores behind the store of the module.

        Return the functions of `names` whose modules were published. See `inquire` for `insists`.
        """
        imports: dict[str, None] = {}
        rejected: dict[int, list[str]] = {}  # by the position of the store to ask next
        distrusts_pack = False
        fetched: list[str] = []
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer.data, str):  # no module
                reason = f": {answer.data}" if answer.data else ""
                self._store.stats.remote_answered(name, f"{answer.outcome}{reason}")
                self.count("remote_errors" if answer.outcome == UNAVAILABLE else "remote_misses")
                continue
            self._store.stats.remote_answered(name, FOUND)
            adopted = self._adopt_module(name, answer.data, answer.signatures, answer.store)
            if adopted is not None:
                fetched.append(name)
                imports.update(dict.fromkeys([*adopted.imports, *self._adopt_imports(answer)]))
            else:
                distrusts_pack |= answer.packed
                rejected.setdefault(0 if answer.packed else answer.store + 1, []).append(name)
        if distrusts_pack:
            self._send_question(_PATIENCE, "distrust", self._process_token())
        for first, retry in rejected.items():
            if first < len(self.settings.each):
                fetched += self.fetch(retry, plain=True, insists=insists, first=first)
        absent = [name for name in imports if name not in names and next(self._store.find(name), None) is None]
        if absent:
            self.fetch(absent, plain=True, insists=insists)
        return tuple(fetched)

    def _adopt_imports(self, answer: HelperAnswer) -> Iterator[str]:
        """Publish the imported modules in an answer that the cache lacks. Yield the names that these modules import."""
        for name, data, signatures in answer.imports:
            is_stored = next(self._store.find(name), None) is not None
            adopted = self._adopt_module(name, data, signatures, answer.store) if not is_stored else None
            if adopted is not None:
                yield from adopted.imports

    def _adopt_module(self, name: str, data: bytes, signatures: bytes, store: int) -> AdoptedModule | None:
        """Publish a module. Return None if the module is not accepted, or cannot be stored."""
        try:
            adopted = adopt_module(self._store, data, func_name=name, signatures=signatures)
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            self._count_for_store(store, "remote_rejected")
            self._rejected.add(name)
            self._store.stats.refused(name, f"remote store: {error}")
            return None
        self._count_for_store(store, "remote_hits")
        self._count_for_store(store, "remote_size", len(data))
        return adopted

    def record_compile_time(self, names: Iterable[str], seconds: float) -> None:
        """Record the seconds that compiling these functions took."""
        self._compile_times.update(dict.fromkeys(map(_label_or_name, names), seconds))

    def estimate_compile_time(self, names: Iterable[str]) -> float:
        """Estimate how many seconds compiling these functions takes, from earlier compilations with the same labels.

        The estimate is 0.0 if there were none, and at most `_PATIENCE`.
        """
        return min(max([self._compile_times.get(_label_or_name(name), 0.0) for name in names], default=0.0), _PATIENCE)

    # --------------------------------------------------------------- uploading

    def offer(self, module_id: bytes, *, always: bool = False) -> bool:
        """Put a stored module into the outbox of each writable store, and return whether that was done.

        The result is False if the module has no function to upload or cannot be read, or if an outbox cannot be written. With `always`,
        functions with plain names are uploaded too.
        """
        try:
            upload = self._make_upload(module_id, always=always)
            if upload is None:
                return False
            boxes = self.outboxes()
            dropped = sum([boxes[position].put(upload) for position in self.settings.writable])
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            self.count("remote_errors")  # of this host: the stores may be in order
            self._warn_once(f"cannot be sent module {module_id.hex()}: {error}")
            return False
        if dropped:
            self.count("remote_dropped", dropped)
        self._process_token()  # so that `flush` asks the helper for the packs of this process too
        self.count("remote_offered")
        wake_helper(self.settings)
        return True

    def pack(self, names: Iterable[str]) -> None:
        """Request that these offered functions are also stored as one pack, for hosts that fetch them together. Report a failure."""
        _, problem = self._send_question(_PATIENCE, "pack", list(names), *self._platform_and_shelves(), self.settings.writable)
        if problem:
            self.report_failure(problem)

    def flush(self, seconds: float) -> bool:
        """Wait about `seconds` until the outboxes of the writable stores are empty. Return whether they are. Report a failure."""
        if not self.writes:
            return True
        try:
            boxes = self.outboxes()
        except OSError as error:
            reraise_interrupt(error)
            self.report_failure(str(error))
            return False
        waiting = [boxes[position] for position in self.settings.writable]
        if not self._start_up[1] and not any(map(Outbox.names, waiting)):
            return True  # this process has nothing to add to a pack either
        answer, problem = self._send_question(seconds + 0.5, "flush", seconds, self.settings.writable)
        if answer is None:
            self.report_failure(problem)
            return not any(map(Outbox.names, waiting))
        return bool(answer == 0)

    def _make_upload(self, module_id: bytes, *, always: bool) -> Upload | None:
        """Return the upload of a stored module, or None if the module is a linked closure or has no function to upload.

        Plain names are uploaded only with `always`, which also uploads modules whose compilation was short. Their newest code replaces the
        cards of older code.

        Raise `CompcacheError` or `OSError` if the module cannot be read.
        """
        card, data, manifest = self._read_module("", module_id)
        header = manifest.header
        indexed = manifest.indexed()
        if any(offset >= LINKED for _, offset, _ in indexed):
            return None  # a linked closure is not used without the modules of its functions
        names = [(name, requirement) for name, _, requirement in indexed if always or label_of(name) is not None]
        names = [
            (name, needs) for name, needs in names if label_of(name) is not None or not self._is_former(name, module_id, shelf_of(needs))
        ]
        is_plain = any(label_of(name) is None for name, _ in names)
        if not names:
            return None
        platform_part = _platform_part(manifest)
        inline = data if len(data) <= INLINE_LIMIT else b""
        imports: dict[str, tuple[Card, ...]] = {}
        cards = []
        for name, requirement in names:
            shelf = shelf_of(requirement)
            if shelf not in imports:
                imports[shelf] = tuple(self._imported_cards(manifest, shelf))
            own_card = card._replace(name=name, module=inline, imports=imports[shelf])
            cards.append((card_key(platform_part, name), encode_cards({shelf: own_card})))
        is_rejected = not self._rejected.isdisjoint(name for name, _ in names)
        # A pack of data is always uploaded, because the time that writing it took does not measure its value.
        return Upload(
            module_key(module_id),
            b"" if inline else data,
            cards,
            card.seconds,
            always or is_pack(header.image_kind),
            is_rejected or is_plain or is_pack(header.image_kind),
        )

    def _is_former(self, name: str, module_id: bytes, shelf: str) -> bool:
        """Return whether newer code of a plain name, for the same shelf, is stored here.

        Raise `CompcacheError` or `OSError` if a newer module cannot be read.
        """
        for newer_id, _ in self._store.find(name):
            if newer_id == module_id:
                break
            _, _, newer = self._read_module(name, newer_id)
            if any(other == name and shelf_of(requirement) == shelf for other, _, requirement in newer.indexed()):
                return True
        return False

    def _read_module(self, name: str, module_id: bytes) -> _StoredModule:
        """Read a module, and make a card for its function `name` ("": for no function).

        Raise `CompcacheError` or `OSError` if the module cannot be read.
        """
        with self._store.open_module(module_id) as module:
            data = module.read(0, module.size)
            manifest = WholeManifest(module.read(module.image, module.records))
            footer = module.footer()
            seconds = float(decode_notes(module.read(footer.content, footer.notes)).get("seconds", 0.0))
        signatures = self._store.signatures_of(module_id)
        return _StoredModule(Card(name, module_id, len(data), seconds, b"", signatures), data, manifest)

    def _imported_cards(self, manifest: WholeManifest, shelf: str) -> Iterator[Card]:
        """Yield cards of the modules that a module imports, directly or indirectly.

        Left out are unreadable modules, modules for which `IMPORTS_LIMIT` has no space, and modules for another platform or that some
        processor of the shelf cannot run. Raise `FormatError` if the records of `manifest` are damaged.
        """
        space, pending = IMPORTS_LIMIT, list(manifest.imports())
        visited = set(pending)
        while pending:
            name = pending.pop(0)
            for module_id, _ in self._store.find(name):
                with suppress(CompcacheError, OSError):
                    card, data, imported = self._read_module(name, module_id)
                    needs = {function: requirement for function, _, requirement in imported.indexed()}.get(name)
                    if needs is None or len(data) > space or _platform_part(imported) != _platform_part(manifest):
                        continue
                    if not runs_also(shelf, shelf_of(needs), manifest.header.triple):
                        continue
                    space -= len(data)
                    unseen = [function for function in imported.imports() if function not in visited]
                    visited.update(unseen)
                    pending += unseen
                    yield card._replace(module=data)
                    break

    # ------------------------------------------------------------- maintenance

    def status(self) -> list[dict[str, Any]]:
        """Return the status of each store. See `compcache.remote.maintenance.status`."""
        return maintenance.status(self.settings)

    def verify(self) -> list[maintenance.RemoteReport]:
        """Verify each store. See `compcache.remote.maintenance.verify`."""
        return [maintenance.verify(store) for store in self.settings.separately()]

    def collect_garbage(
        self, *, older_than: float | None = None, unused_for: float | None = None, grace: float = maintenance.GRACE, dry_run: bool = False
    ) -> list[maintenance.RemoteGarbage]:
        """Collect the garbage of each writable store. See `compcache.remote.maintenance.collect_garbage`."""
        return [
            maintenance.collect_garbage(store, older_than=older_than, unused_for=unused_for, grace=grace, dry_run=dry_run)
            for store in self.settings.separately()
            if store.writable
        ]

    # ------------------------------------------------------------- statistics

    def count(self, counter: str, amount: float = 1) -> None:
        """Add an amount to a counter of the cache's statistics."""
        self._store.stats.count(counter, amount)

    def _count_for_store(self, position: int, counter: str, amount: float = 1) -> None:
        """Add an amount to a counter, in total and for the store at this position."""
        self.count(counter, amount)
        self.count(counter_of(counter, self.settings.each[position].shown), amount)

    def count_by_store(self, answers: Iterable[HelperAnswer], seconds: Iterable[float]) -> None:
        """Count each store's answers by kind, and the seconds that they took."""
        for position, (store, duration) in enumerate(zip(self.settings.each, seconds, strict=False)):
            results = [answer.by_store[position : position + 1] for answer in answers]
            misses = results.count(STORE_MISS)
            amounts = {
                "misses": misses,
                "errors": results.count(STORE_ERROR),
                "answers": misses + results.count(STORE_HIT),
                "seconds": duration,
            }
            for counter, amount in amounts.items():
                if amount:
                    self.count(counter_of(f"remote_{counter}", store.shown), amount)

    def report_failure(self, problem: str) -> None:
        """Record a failure in the breakers of all stores. Warn once per cache that the stores are not used, unless `problem` is empty."""
        self.count("remote_errors")
        with suppress(OSError):
            for breaker in self.breakers():
                breaker.record_failure()
        if problem:
            self._warn_once(f"{'is' if len(self.settings.each) == 1 else 'are'} not used: {problem}")

    def _warn_once(self, problem: str) -> None:
        """Warn, once per cache, about a problem with the stores. `problem` continues a sentence whose subject is the stores."""
        if not self._has_warned:
            self._has_warned = True
            warn(f"the remote {'store' if len(self.settings.each) == 1 else 'stores'} {self.settings.shown} {problem}")


def _platform_part(manifest: WholeManifest) -> str:
    """Return the part of keys for the platform of a module."""
    return platform_part_of(manifest.header.triple, manifest.header.abi)


def _label_or_name(name: str) -> str:
    """Return the label of a content name; the name itself if it is not a content name."""
    return label_of(name) or name


def _answer_timeout(names: Collection[str]) -> float:
    """Return for how many seconds to wait for an answer about these functions."""
    return _PATIENCE + _PATIENCE_PER_NAME * len(names)
