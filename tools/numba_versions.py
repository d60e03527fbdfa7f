"""What the backend uses of Numba in every series that it supports: environments, what changed from one to the next, the tests there.

    python tools/numba_versions.py compare [SERIES ...]     what changed from one series to the next; of one: since the newest supported
    python tools/numba_versions.py write SERIES ...         record a series, which is supported from then on
    python tools/numba_versions.py test [SERIES ...]        the smallest proof in the environment of each; --whole: all of Numba's gate

A series is `0.68`. For the next one: `compare` it, read what changed, mend the backend where it relied on that, `write` it, `test` it.
Environments lie in `build/numba/`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "compcache" / "numba" / "versions"
ENVIRONMENTS = ROOT / "build" / "numba"
_PROOF = ("tests/numba/test_numba_versions.py", "-k", "recorded or proof")
_WHOLE = tuple(
    f"tests/numba/test_numba_{subject}.py" for subject in ("versions", "gate", "modes", "former_values", "kept_results")
)


# ---------------------------------------------------------------------------------------------------- names that are used


def names_used() -> tuple[str, ...]:
    """All names of Numba in the backend's sources, as ``module:attribute``: what it imports, reads in a module, or lists as private."""
    found: set[str] = set()
    for path in sorted((ROOT / "compcache" / "numba").rglob("*.py")):
        found |= set(_names_in(ast.parse(path.read_text(encoding="utf-8"))))
    return tuple(sorted(found))


def _names_in(tree: ast.Module) -> Iterator[str]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    yield from [ast.literal_eval(node.args[0]) for node in calls if ast.unparse(node.func) == "PrivateName"]
    yield from _read_in(tree, {})


_SCOPES = (ast.FunctionDef, ast.Lambda)


def _read_in(scope: ast.AST, outer: dict[str, str]) -> Iterator[str]:
    """What a scope and those in it import of Numba, and read in modules of Numba that these names stand for."""
    nodes = list(_own_nodes(scope))
    imported = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "numba" for alias in node.names
    }  # fmt: skip
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = {name: where for name, where in outer.items() if name not in own} | imported
    yield from imported.values()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            yield f"{known[node.value.id]}.{node.attr}"
        elif isinstance(node, _SCOPES):
            yield from _read_in(node, known)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, with the scopes in it but not what is in these."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _own_nodes(child)


# ------------------------------------------------------------------------------------------ what they are, in this process


def surface(names: Iterable[str]) -> dict[str, str]:
    """What each name is in the Numba of this process: the digest of its source, the kind of what has none; "" is missing."""
    return {name: _description(name) for name in names}


def _description(name: str) -> str:
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = _attribute(found, part)
    except (ImportError, AttributeError):
        return ""
    if inspect.ismodule(found):
        return "module"
    function: Any = found.fget if isinstance(found, property) else inspect.unwrap(found) if callable(found) else found
    try:
        source = inspect.getsource(function)
    except (TypeError, OSError):
        return type(found).__name__
    return hashlib.sha256(inspect.cleandoc(source).encode()).hexdigest()[:12]


def _attribute(owner: Any, name: str) -> Any:
    try:
        return inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
    except AttributeError:
        if inspect.ismodule(owner):
            return import_module(f"{owner.__name__}.{name}")
        raise


def describe() -> dict[str, Any]:
    """The record of the Numba of this process."""
    import llvmlite
    import numba

    return {"release": numba.__version__, "llvmlite": llvmlite.__version__, "names": surface(names_used())}


# -------------------------------------------------------------------------------------------------------- environments


def python_of(series: str) -> Path:
    """The interpreter of an environment with the newest release of a series: this one, or one that is made if there is none."""
    with suppress(PackageNotFoundError):
        if version("numba").startswith(f"{series}."):
            return Path(sys.executable)
    place = ENVIRONMENTS / series
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", place], check=True)
        with (ROOT / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
        tools = [one for one in project["optional-dependencies"]["test"] if one.startswith(("pytest", "hypothesis"))]
        wanted = [f"numba=={series}.*", *project["dependencies"], *tools]
        pip = [sys.executable, "-m", "pip", "--python", str(python)]  # to install pip there takes as long as these packages
        subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)
        (place / "installed").touch()
    return python


def record_of(series: str) -> dict[str, Any]:
    """What a series has, asked in its environment."""
    asked = subprocess.run([python_of(series), __file__, "describe"], check=True, stdout=subprocess.PIPE, env=_environment())
    record: dict[str, Any] = json.loads(asked.stdout)
    return record


def _environment() -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith(("COMPCACHE_", "NUMBA_"))}
    return others | {"PYTHONPATH": str(ROOT)}


def recorded() -> list[str]:
    """The series that are supported, the oldest first."""
    return sorted((path.stem for path in RECORDS.glob("*.json")), key=lambda series: tuple(map(int, series.split("."))))


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """The names that are missing, new and changed from one series to another."""
    rows: dict[str, list[str]] = {"missing": [], "new": [], "changed": []}
    for name in sorted({*before, *after}):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            rows["new" if not old else "changed" if new else "missing"].append(name)
    return rows


def compare(series: list[str]) -> int:
    """Print what changed from each series to the next; 1 where a private name is missing in the last."""
    records = {one: record_of(one)["names"] for one in series}
    for before, after in pairwise(series):
        found = changes(records[before], records[after])
        print(f"{before} -> {after}: " + ", ".join(f"{len(names)} {kind}" for kind, names in found.items()))
        for kind, names in found.items():
            print(*[f"  {kind}: {name}" for name in names], sep="\n", end="\n" if names else "")
    return 0 if all(records[series[-1]].values()) else 1


def write(series: str) -> list[str]:
    """Record a series; the names that it lacks."""
    record = record_of(series)
    (RECORDS / f"{series}.json").write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")
    return [f"{series} lacks {name}" for name, digest in record["names"].items() if not digest]


def test(series: Iterable[str], *, whole: bool) -> int:
    """Run the tests in the environment of each series, some at a time; 1 where one fails."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = [(one, pool.submit(_test, one, whole=whole)) for one in series]
        failed = [one for one, answer in answers if not _passed(one, answer.result())]
    print(f"failed with Numba {', '.join(failed)}" if failed else "passed with each")
    return 1 if failed else 0


def _test(series: str, *, whole: bool) -> subprocess.CompletedProcess[str]:
    command = [str(python_of(series)), "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    command += ["-m", "peer or not peer", *_WHOLE] if whole else _PROOF
    return subprocess.run(command, check=False, cwd=ROOT, env=_environment(), text=True, capture_output=True)


def _passed(series: str, done: subprocess.CompletedProcess[str]) -> bool:
    said = done.stdout.rstrip().rpartition("\n")[2] if done.returncode == 0 else f"\n{done.stdout}{done.stderr}"
    print(f"Numba {series}: {said}", flush=True)
    return done.returncode == 0


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compare", "write", "test", "describe"])
    parser.add_argument("series", nargs="*")
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    if given.what == "describe":
        print(json.dumps(describe()))
        return 0
    if given.what == "compare":
        last = recorded()[-1]
        return compare(([last] if len(given.series) == 1 and given.series != [last] else []) + given.series if given.series else recorded())
    if given.what == "write":
        lacking = [line for one in given.series for line in write(one)]
        print(*lacking, sep="\n", end="\n" if lacking else "")
        return 1 if lacking else 0
    return test(given.series or recorded(), whole=given.whole)


if __name__ == "__main__":
    sys.exit(main())
