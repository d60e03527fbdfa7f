"""Damages a cache directory, one case at a time, and says what its functions answer. Run as a child process.

Every line of the input is a case, a JSON object; it is announced before it is tried, so that a crash has an author.
The answer is ``right``, ``miss`` (a documented exception) or a text that says what went wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FUNCTIONS", "Case", "run_cases"]

#: The functions of the directory under test and what they answer to 1: f and g are alone, h needs f, t has a global.
FUNCTIONS = {"f": 2, "g": 21, "h": 102, "t": 42}


class Case(NamedTuple):
    """A file below the root; what is done to it; a number and a second file, as that needs it."""

    path: str
    kind: str
    number: int = 0
    other: str = ""


def run_cases(
    pristine: Path, cases: list[Case], *, key: str = ""
) -> list[tuple[Case, dict[str, str], list[str]]]:
    """What became of each case, as (case, {function: outcome}, warnings); a crash or a case that hangs is an AssertionError."""
    work = pristine.with_name("damaged")
    shutil.rmtree(work, ignore_errors=True)
    found = []
    for start in range(0, len(cases), _AT_ONCE):
        found += _run_some(pristine, work, cases[start : start + _AT_ONCE], key)
    return found


#: Cases of one child process, and the seconds that each of them may take: some 50 ms on an idle machine.
_AT_ONCE, _EACH = 500, 2


def _run_some(pristine: Path, work: Path, cases: list[Case], key: str) -> list[tuple[Case, dict[str, str], list[str]]]:
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", __file__, str(pristine), str(work), key],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate("\n".join(json.dumps(case) for case in cases), 30 + _EACH * len(cases))
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    if process.returncode:
        raise AssertionError(f"{output[-500:]} ended with {process.returncode}:\n{errors}")
    lines = [json.loads(line) for line in output.splitlines()]
    assert len(lines) == 2 * len(cases)
    return [(Case(*case), *outcome) for case, outcome in zip(lines[::2], lines[1::2], strict=True)]


def damage(root: Path, case: Case) -> None:
    """Do to a file what the case says. Flips are in place where the number is even: so the inode stays."""
    path = root / case.path
    if case.kind == "delete":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    if case.kind == "flip":
        at, bit = divmod(case.number, 8)
        data[at] ^= 1 << bit
        if case.number % 2 == 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(data[at : at + 1])
            return
    elif case.kind == "truncate":
        os.truncate(path, max(0, len(data) - case.number))
        return
    elif case.kind == "append":
        with path.open("ab") as file:
            file.write(b"\x5a" * case.number)
        return
    elif case.kind == "zero":
        data = bytearray(len(data))
    elif case.kind == "swap":
        other = root / case.other
        data, theirs = bytearray(other.read_bytes()), data
        write(other, theirs)
    else:
        raise ValueError(case.kind)
    write(path, data)


def write(path: Path, data: bytes | bytearray) -> None:
    scratch = path.with_name("scratch")
    scratch.write_bytes(data)
    scratch.replace(path)


def main(pristine: Path, work: Path, key: str) -> None:
    for line in sys.stdin:
        case = Case(*json.loads(line))
        sys.stdout.write(json.dumps(case) + "\n")
        sys.stdout.flush()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = try_case(pristine, work, case, key.encode() or None)
        messages = [str(warning.message) for warning in caught if warning.category.__name__ == "CacheWarning"]
        others = [str(warning.message) for warning in caught if warning.category.__name__ != "CacheWarning"]
        if others:
            outcome["warnings"] = others[0]
        sys.stdout.write(json.dumps([outcome, messages]) + "\n")


def try_case(pristine: Path, work: Path, case: Case, key: bytes | None) -> dict[str, str]:
    from compcache import Cache

    restore(pristine, work)
    with Cache(work, signing_key=key) as cache:  # whatever is remembered of good files is remembered now
        for name, value in FUNCTIONS.items():
            assert cache.get_target(name)(1) == value
    damage(work, case)
    with Cache(work, signing_key=key) as cache:
        outcome = {name: answer(cache, name, value) for name, value in FUNCTIONS.items()}
        outcome |= {f"tools of {name}": ask_tools(cache, name) for name in FUNCTIONS}
    return outcome


def restore(pristine: Path, work: Path) -> None:
    """Copy what differs, and start without an index's stamps for the copies: the first load leaves them."""
    for path in sorted(pristine.rglob("*")):
        name = path.relative_to(pristine)
        if path.is_dir():
            (work / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    known = {path.relative_to(pristine) for path in pristine.rglob("*")}
    for path in work.rglob("*"):
        if path.relative_to(work) not in known and path.is_file():
            path.unlink()
    for name in known:
        if (pristine / name).is_file() and not is_same(pristine / name, work / name):
            (work / name).unlink(missing_ok=True)
            shutil.copyfile(pristine / name, work / name)
    work.chmod(0o700)


def is_same(path: Path, other: Path) -> bool:
    try:
        return path.read_bytes() == other.read_bytes()
    except OSError:
        return False


def answer(cache: Any, name: str, value: int) -> str:
    from compcache import CompcacheError

    try:
        found = cache.get_target(name)(1)
    except CompcacheError as error:
        return "miss" if str(error) else "an error without a message"
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        return f"{type(error).__name__}: {error}"
    return "right" if found == value else f"wrong: {found}"


def ask_tools(cache: Any, name: str) -> str:
    from compcache import CompcacheError

    try:
        cache.realizations(name)
        cache.dependencies(name)
    except CompcacheError:
        return "miss"
    except BaseException as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "right"


def every_bit(root: Path, path: Path) -> Iterator[Case]:
    """A case for each bit of a file."""
    name = str(path.relative_to(root))
    return (Case(name, "flip", number) for number in range(8 * path.stat().st_size))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
