"""Interrupts wherever Python runs signal handlers, in everything that a program can ask of a cache: a program of its own.

``python interrupted_ways.py WAY NUMBER SEED DIRECTORY`` runs one way NUMBER times, each interrupted at another instruction of those that it
runs, in the standard library as well, and prints what went wrong as JSON.
"""

from __future__ import annotations

import collections
import json
import opcode
import os
import random
import shutil
import sys
import warnings
from typing import TYPE_CHECKING, Any

from helpers import adder, caller

from compcache import Cache, Identity, ModuleSource, PrunePolicy, frontend
from compcache.batch import compile_many
from compcache.miss import compile_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType


class Late(Exception):  # noqa: N818 - as users name theirs
    pass


ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: Late("late"),
    lambda: TimeoutError("late"),
    lambda: FileNotFoundError(2, "late"),
    lambda: ValueError("late"),
    lambda: KeyError("late"),
    lambda: RuntimeError("late"),
)
#: What is in the remote store: names of content travel.
FAR = Identity("far", code=1)
#: An instruction, by its function.
Place = tuple["CodeType", int]


class Interrupter:
    """Calls a handler before an instruction, as Python does: behind calls, at the start of functions and where loops begin again."""

    def __init__(self) -> None:
        self.places: dict[Place, int] = {}
        self.at: Place | None = None
        self.raised: Exception | None = None
        self.error: Callable[[], Exception] = ERRORS[0]
        self._last: dict[FrameType, str] = {}

    def run(self, work: Callable[[], Any]) -> Any:
        self.places.clear()
        self._last.clear()
        self.raised = None
        sys.settrace(self._enter)
        try:
            return work()
        finally:
            sys.settrace(None)
            self._last.clear()

    def _enter(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event != "call" or frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "return":
            self._last.pop(frame, None)
        if event != "opcode":
            return self._step
        name = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
        last, self._last[frame] = self._last.get(frame, "CALL"), name
        if last.startswith(("CALL", "JUMP_BACKWARD")):
            place = frame.f_code, frame.f_lasti
            self.places[place] = self.places.get(place, 0) + 1
            if place == self.at and self.raised is None:
                self.raised = self.error()
                self._handle(2, frame)
        return self._step

    def _handle(self, _number: int, _frame: FrameType) -> None:
        assert self.raised is not None
        raise self.raised


def opened(place: str, **more: Any) -> Cache:
    return Cache(f"{place}/cache", **more)


def setup(place: str) -> None:
    with opened(place) as cache:
        cache.add_modules([ModuleSource(adder("first", 20)), ModuleSource(caller("second", "first"), imports=["first"])])
        cache.add_module(ModuleSource(adder("third", 3)))
        frontend.put_entry(cache, "first", b"data", kind="kind")
        cache.export(["second"], f"{place}/bundle")
    with Cache(f"{place}/uploaded", remote=f"file://{place}/remote", remote_mode="write") as cache:
        cache.get_or_compile(FAR, lambda: ModuleSource(adder("far", 7)))
        cache.push([FAR])
        assert cache.flush_uploads(30)


def load(place: str) -> Any:
    with opened(place) as cache:
        return cache.get_target("second")(5), cache.has("third"), cache.has("nothing")


def import_bundle(place: str) -> Any:
    with Cache(f"{place}/other") as cache:
        return sorted(map(str, cache.import_bundle(f"{place}/bundle"))), cache.get_target("second")(5)


def export(place: str) -> Any:
    with opened(place) as cache:
        cache.export(["second", "third"], f"{place}/exported")
    with Cache(f"{place}/other", layers=[f"{place}/exported"]) as cache:
        return cache.has("second"), cache.has("third")


def layers(place: str) -> Any:
    with Cache(f"{place}/other", layers=[f"{place}/cache"]) as cache:
        return cache.get_target("second")(5), cache.has("nothing")


def bundle_as_layer(place: str) -> Any:
    with Cache(f"{place}/other", layers=[f"{place}/bundle"]) as cache:
        return cache.get_target("second")(5), cache.has("nothing")


def remote(place: str) -> Any:
    with Cache(f"{place}/other", remote=f"file://{place}/remote") as cache:
        return cache.get_target(FAR.func_name)(5), cache.has("nothing")


def prune(place: str) -> Any:
    with opened(place) as cache:
        cache.prune(PrunePolicy(max_modules=1))
        return len(cache.modules())


def check(place: str) -> Any:
    with opened(place) as cache:
        return [str(finding) for finding in cache.check(repair=True).errors], cache.get_target("second")(5)


def remove(place: str) -> Any:
    with opened(place) as cache:
        if cache.has("third"):
            cache.remove("third")
        return cache.has("third"), cache.has("second")


def add(place: str) -> Any:
    with opened(place) as cache:
        cache.add_module(ModuleSource(adder("fourth", 4)))
        return cache.get_target("fourth")(5)


def compile_(place: str) -> Any:
    with opened(place) as cache:
        target = cache.get_or_compile("fifth", lambda: ModuleSource(adder("fifth", 5)))
        return target(5)


def entries(place: str) -> Any:
    with opened(place) as cache:
        frontend.put_entry(cache, "second", b"more", kind="kind")
        found = frontend.get_entry(cache, "first", "kind"), frontend.get_entry(cache, "second", "kind")
    with opened(place) as cache:
        return [str(data) for data in (*found, frontend.get_entry(cache, "first", "kind"), frontend.get_entry(cache, "second", "kind"))]


def listings(place: str) -> Any:
    with opened(place) as cache:
        names = sorted(str(function.func_name) for function in cache.functions())
        return names, len(cache.modules()), len(cache.realizations("first")), cache.dependencies("second")


def batch(place: str) -> Any:
    with opened(place) as cache:
        report = compile_many(cache, [ModuleSource(adder(f"job{number}", number)) for number in range(2)], workers=1)
        return [str(failure) for failure in report.failed], cache.has("job1")


WAYS: dict[str, Callable[[str], Any]] = {
    way.__name__.strip("_"): way
    for way in (
        load, import_bundle, export, layers, bundle_as_layer, remote, prune, check, remove, add, compile_, entries, listings, batch,
    )
}  # fmt: skip


def attack(name: str, number: int, seed: int, directory: str) -> dict[str, Any]:
    """Run a way, interrupted at so many of its instructions."""
    run = WAYS[name]
    chance = random.Random(seed)
    template, place = f"{directory}/template", f"{directory}/copy"
    os.environ["XDG_RUNTIME_DIR"] = f"{directory}/run"  # helper processes end with it
    os.mkdir(os.environ["XDG_RUNTIME_DIR"], 0o700)
    compile_once.HEDGE_SECONDS = 20.0  # the machine may be busy
    setup(template)
    interrupter = Interrupter()

    def fresh() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(template, place, symlinks=True)

    for _ in range(2):  # imports and what is remembered
        fresh()
        expected = run(place)
    fresh()
    assert interrupter.run(lambda: run(place)) == expected
    places = list(interrupter.places)
    lost: list[Any] = []
    sys.unraisablehook = lost.append  # what falls into a finalizer is lost in Python
    counts: collections.Counter[str] = collections.Counter()
    wrong = []
    for place_, error in [(at, chance.choice(ERRORS)) for at in chance.sample(places, min(number, len(places)))]:
        fresh()
        interrupter.at, interrupter.error = place_, error
        lost.clear()
        outcome = "arrived"
        try:
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                answer = interrupter.run(lambda: run(place))
            outcome = "answered" if answer == expected else f"wrong answer: {answer}"
            if interrupter.raised is None:
                outcome = "not met"
            elif lost and outcome == "answered":
                outcome = "lost in a finalizer"
        except Exception as caught:  # noqa: BLE001 - of any class
            if caught is not interrupter.raised:
                outcome = f"another error: {caught!r}"
        raised, interrupter.raised = interrupter.raised, None
        if raised is not None:
            raised.__traceback__ = None
        try:
            again = run(place)
            if again != expected:
                outcome += f"; then {again}"
        except Exception as caught:  # noqa: BLE001 - of any class
            outcome += f"; then {caught!r}"
        counts[outcome if outcome in ("arrived", "answered", "not met", "lost in a finalizer") else "wrong"] += 1
        if outcome not in ("arrived", "answered", "not met", "lost in a finalizer"):
            code, at = place_
            line = next((line for start, end, line in code.co_lines() if start <= at < end), 0)
            wrong.append(f"{type(raised).__name__} at {code.co_filename}:{line} ({code.co_qualname}): {outcome}")
    shutil.rmtree(place, ignore_errors=True)
    return {"places": len(places), "counts": counts, "wrong": wrong, "expected": str(expected)}


if __name__ == "__main__":
    print(json.dumps(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
