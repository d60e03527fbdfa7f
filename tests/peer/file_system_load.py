"""Users of one cache directory, for some seconds: they add, hit, remove, prune and ask, and check every answer.

    python file_system_load.py DIRECTORY SECONDS SEED ROLE

It prints what it did as one line of JSON: numbers of operations, and every error and wrong answer.
"""

from __future__ import annotations

import contextlib
import gc
import json
import random
import sys
import time
import traceback
import warnings
from collections import Counter

from compcache import Cache, ModuleSource, NotCachedError, PrunePolicy

FUNCTIONS = 120
done: Counter[str] = Counter()
problems: Counter[str] = Counter()


def adder(number: int) -> str:
    return f"define i64 @f{number}(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}"


def caller(number: int) -> str:
    return (
        f"declare i64 @f{number}(i64)\n"
        f"define i64 @c{number}(i64 %x) {{\n  %y = call i64 @f{number}(i64 %x)\n  %z = mul i64 %y, 3\n  ret i64 %z\n}}"
    )


def by_content(number: int) -> str:
    return f"define i64 @inner(i64 %x) {{\n  %y = mul i64 %x, {number}\n  ret i64 %y\n}}"


def use(cache: Cache, draw: random.Random) -> None:
    """One request and its answer."""
    number, kind = draw.randrange(FUNCTIONS), draw.random()
    built: list[int] = []

    def build_adder() -> ModuleSource:
        built.append(number)
        return ModuleSource(adder(number))

    def build_caller() -> ModuleSource:
        cache.get_or_compile(f"f{number}", build_adder)
        built.append(number)
        return ModuleSource(caller(number))

    if kind < 0.15:
        answer, expected = cache.compile(by_content(number)).inner(7), 7 * number
    elif kind < 0.35:
        answer, expected = cache.get_or_compile(f"c{number}", build_caller)(7), 3 * (7 + number)
    elif kind < 0.45:
        try:
            answer = cache.get_target(f"f{number}")(7)
        except NotCachedError:
            done["absent"] += 1
            return
        expected = 7 + number
    else:
        answer, expected = cache.get_or_compile(f"f{number}", build_adder)(7), 7 + number
    done["compiled" if built else "answered"] += 1
    if answer != expected:
        problems[f"wrong answer: {answer}, not {expected}"] += 1


def disturb(cache: Cache, draw: random.Random) -> None:
    """Take away what others use, or ask about it."""
    kind = draw.random()
    if kind < 0.5:
        with contextlib.suppress(NotCachedError):
            cache.remove(f"f{draw.randrange(FUNCTIONS)}", force=True)
            done["removed"] += 1
    elif kind < 0.6:
        cache.prune(PrunePolicy(max_bytes=draw.choice((400_000, 1_000_000))))
        done["pruned"] += 1
    elif kind < 0.8:
        len(cache.functions())
        done["listed"] += 1
    else:
        cache.info()
        done["asked"] += 1


def guarded(what: str, act: object, *arguments: object) -> None:
    try:
        act(*arguments)  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
        problems[f"{what}: {type(error).__name__}: {str(error)[:300]}"] += 1
        if problems.total() <= 2:
            traceback.print_exc()


def main() -> None:
    directory, seconds, seed, role = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    draw = random.Random(seed)
    until = time.monotonic() + seconds
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while time.monotonic() < until:
            with Cache(directory) as cache:
                for _ in range(draw.randrange(4, 24)):
                    guarded("use", use, cache, draw)
                    if role == "disturbs" and draw.random() < 0.2:
                        guarded("disturb", disturb, cache, draw)
            gc.collect()
            done["opened"] += 1
    said = Counter(str(each.message).replace(directory, "...")[:200] for each in caught)
    print(json.dumps({"done": done, "problems": problems, "warnings": dict(said.most_common(12))}))


main()
