"""REPETITIONS LABEL DIRECTORY NAMES...: get_target of a fresh Cache object, the module not being mapped.

The arguments after the first are groups, separated by `--`: a label, a directory, names of functions, each of which
is asked for in turn. Microseconds for opening, and for get_target.
"""

from __future__ import annotations

import sys
from time import perf_counter

from children.timing import report, take_turns
from compcache import Cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _mapped(path: str) -> bool:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return any(path in line for line in maps)


def _side(directory: str, names: list[str]) -> Callable[[int], float]:
    def measure(repetition: int) -> float:
        name = names[repetition % len(names)]
        cache = Cache(directory)
        started = perf_counter()
        target = cache.get_target(name)
        elapsed = perf_counter() - started
        target(1.0, 2.0)
        del target
        cache.close()
        if repetition == 0 and _mapped(f"{directory}/modules"):
            raise SystemExit(f"a module of {directory} is still mapped after its last target is gone")
        return elapsed * 1e6

    return measure


def main(arguments: list[str]) -> None:
    groups: list[list[str]] = [[]]
    for argument in arguments[1:]:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    sides = {label: _side(directory, names) for label, directory, *names in groups}
    report(take_turns(sides, int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
