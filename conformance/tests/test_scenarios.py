"""Every scenario holds for a sound cache, and fails for one that is broken in the way that it is about."""

from __future__ import annotations

import pytest
from toy import Toy

from compcache_conformance.results import Outcome, Result
from compcache_conformance.runner import play, play_all
from compcache_conformance.scenarios import SCENARIOS

#: What is broken, and the scenarios that must notice it.
BROKEN = {
    "knows names alone": (
        "edited function", "same length", "file that appears", "package moved away and back", "upgraded in place", "forks with one name",
        "forks under one path", "bodies exchanged", "two versions at once", "two stores merged", "store replaced under a process",
        "edited beside another host",
    ),
    "ignores callees": (
        "callee in another file", "callee in the same file", "callee of a callee", "callee of other arity", "callee that becomes slower",
    ),
    "ignores constants": (
        "constant in the file", "constant in another file", "constant of a callee", "table", "field of an object", "sign of zero",
        "environment read while compiling", "data file read while compiling", "ranks", "tool of a tool", "header",
        "file that assembly embeds",
    ),
    "rounds constants": ("last bit of a constant",),
    "ignores closures": ("closure",),
    "ignores defaults": ("default argument",),
    "ignores options": ("fast arithmetic",),
    "trusts times": ("same size and time",),
    "make-like": ("older file", "edited while it runs"),
    "knows environment": (
        "other HOME", "variable that does not matter", "other hash seed", "other locale", "other time zone", "other temporary directory",
        "other user name", "other terminal", "other thread count",
    ),
    "salts keys": ("two hosts", "second process", "many processes", "calls in another order", "callee called alone", "error in between"),
    "knows times": ("touched files", "files of 1980"),
    "knows places": ("moved sources", "other working directory", "copied store", "linked store", "no working directory"),
    "checks its times": ("copied store without times",),
    "knows files": ("moved lines", "edited comment", "new function in the file", "edited neighbour"),
    "one for each name": ("edit taken back", "two checkouts", "two processors in turn"),
    "no large entries": ("large constant",),
    "short digests": ("many alike",),
    "ignores arguments": ("arguments exchanged",),
    "sorts letters": ("operands exchanged",),
    "folds names": ("names that differ in case",),
    "short names": ("long names",),
    "ignores types": ("integer and float",),
    "sorts constants": ("constants of two names",),
    "abbreviates tables": ("tables that print alike",),
    "shares a store": ("two stores",),
    "one temporary name,raises what it writes": ("two starters", "crowd of starters"),
    "index": ("each its own function", "types at once", "each file removed", "half a copy"),
    "writes in place,checks nothing": ("killed at each change",),
    "stale lock": ("killed while it compiles", "terminated", "stopped writer"),
    "lists once": ("store removed beside a reader", "files removed beside a reader", "missing files"),
    "slow to write,raises what it writes": ("store removed while it is filled",),
    "checks nothing": ("truncated", "emptied", "zero-filled", "last byte lost", "tail of zeros", "other tool's files"),
    "raises what it reads": (
        "longer", "random bytes", "end of line conversion", "folder in place of a file", "unreadable files", "stale handles",
        "errors while reading", "flipped bits",
    ),
    "leaves damage": ("each file emptied",),
    "forgets what is old,leaves damage": ("entries of long ago",),
    "leaves what it began": ("leftovers of failed writes",),
    "one lock": ("children beside a thread that compiles",),
    "compiles all the same": ("found is cheaper",),
    "opens pipes": ("pipe in place of a file",),
    "checks no keys": ("files exchanged", "planted entry"),
    "reads every file": ("foreign files", "orphans of writers", "deep nesting"),
    "writes on hits": ("read-only store", "read-only mount"),
    "raises what it writes": (
        "new function beside a read-only store", "not writable", "store that cannot be made", "store is a file", "no home",
        "home that cannot be written", "full disk", "almost full disk", "no more files", "dangling link",
        "other user's store", "failing renames", "all renames fail", "answers that are lost",
    ),
    "leaves the umask,raises what it writes": ("umask that takes everything",),
    "wastes space,raises what it writes": ("size of files is limited",),
    "wastes space,no limit": ("limit of the size", "size of a table"),
    "many descriptors": ("few descriptors",),
    "needs a store": ("no store yet", "store that comes back"),
    "needs to execute": ("no programs from the store",),
    "ASCII alone": ("spaces and letters", "sources with spaces and letters"),
    "short paths": ("long path",),
    "needs a temporary directory": ("no temporary directory",),
    "knows the umask": ("narrow umask",),
    "rejects the future": ("files of the future",),
    "reads back": ("late renames",),
    "locks": ("no locks",),
    "links,raises what it writes": ("no links",),
    "syncs,raises what it writes": ("failing fsync",),
    "writes once,checks nothing": ("short writes",),
    "maps files": (
        "files that shrink under a reader", "files rewritten under a reader", "removed by another host", "cut by another host",
    ),
    "ignores processors": ("older processor",),
    "knows hosts": ("other host name", "other kernel", "fewer processors", "no network"),
    "slow scan": ("hit among many", "last of many additions", "ten thousand entries"),
    "slow for late names": ("hit of the last",),
    "many files": ("files for an entry",),
    "flat": ("flat directory",),
    "recurses": ("long chain",),
    "short bodies": ("long expression",),
    "unpickles": ("pickle that runs",),
    "unpickles later": ("pickle behind the head",),
    "believes anybody": ("another user's store", "files of another user"),
    "follows links": ("link in place of a file",),
    "clears on damage": ("folder that is a link",),
    "open to all": ("rights of what is made",),
    "not for threads": ("threads compile", "threads find"),
    "not for children": ("children compile", "children find"),
    "leaks": ("memory",),
    "crashes at exit": ("exit with many loaded",),
    "reads again": ("edited under a process",),
}  # fmt: skip
_FAULT_OF = {name: fault for fault, names in BROKEN.items() for name in names}


class Large(Toy):
    entries = 120


class Started(Toy):
    """Each process is started anew, as for the published table."""

    is_forked = False


class LargeStarted(Large, Started):
    """Both."""


def _toy(name: str, fault: str = "") -> Toy:
    """A broken one is detected in forked processes as well as in started ones: it is played with the latter only if the first detect it."""
    if fault:
        return Large(fault=fault) if name == "flat directory" else Toy(fault=fault)
    return LargeStarted() if name == "flat directory" else Started()


def test_every_scenario_has_a_fault() -> None:
    assert set(_FAULT_OF) == set(SCENARIOS)


def _played(name: str, fault: str = "") -> Result:
    """What came of a scenario; only what this machine lacks is an excuse for not playing it."""
    result = play(_toy(name, fault), SCENARIOS[name], is_quick=True)
    if result.detail.startswith("this machine: "):
        pytest.skip(result.detail)
    return result


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_fails_for_a_broken_cache(name: str) -> None:
    result = _played(name, _FAULT_OF[name])
    assert Outcome(result.result).is_loss, f"{result.result}: {result.detail}\n{result.log}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_holds_for_a_sound_cache(name: str) -> None:
    result = _played(name)
    assert result.result == Outcome.HELD, f"{result.detail}\n{result.log}"


_IN_STEPS = [scenario for scenario in SCENARIOS.values() if scenario.steps]


@pytest.mark.parametrize("fault", sorted({_FAULT_OF[scenario.name] for scenario in _IN_STEPS}))
def test_scenarios_that_are_played_together_fail_as_they_do_alone(fault: str) -> None:
    failing = {scenario.name for scenario in _IN_STEPS if _FAULT_OF[scenario.name] == fault}
    results = {result.scenario: result for result in play_all(_toy("", fault), _IN_STEPS, is_quick=True)}
    assert all(Outcome(results[name].result).is_loss for name in failing), {name: results[name].log for name in failing}


def test_a_sound_cache_is_asked_once_for_all_that_is_played_together() -> None:
    results = list(play_all(_toy(""), _IN_STEPS, is_quick=True))
    assert {result.result for result in results} == {Outcome.HELD}
    assert all(result.log.partition("\n")[0] == f"beside {len(_IN_STEPS) - 1} others" for result in results)
    assert results[0].log.count("process") == 6
