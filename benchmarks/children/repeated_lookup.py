"""DIRECTORY NAME REPETITIONS: nanoseconds of get_target of a function that is loaded, and of a dict look-up."""

import sys

from children.timing import nanoseconds, report, take_turns
from compcache import Cache


def main(directory: str, name: str, repetitions: int) -> None:
    cache = Cache(directory)
    target = cache.get_target(name)
    table = {name: target}
    sides = {
        "get_target": lambda _: nanoseconds(lambda: cache.get_target(name), 20_000),
        "dict look-up": lambda _: nanoseconds(lambda: table[name], 20_000),
        "empty": lambda _: nanoseconds(lambda: None, 20_000),
    }
    report(take_turns(sides, repetitions))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
