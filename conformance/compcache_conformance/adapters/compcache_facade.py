"""compcache as a front end uses it: functions named by an `Identity` and linked, or named by the content of their LLVM code."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.results import Cannot

#: What the documents say of code that is mapped out of files.
MAPPED = dict.fromkeys(
    ["files that shrink under a reader", "files rewritten under a reader"],
    "docs/security.md: a program with your rights that truncates or overwrites a mapped file in place can crash it; "
    "not with COMPCACHE_MAP_FILES=0",
)
_BY_IDENTITY = """
import conformance_front_end as front
from compcache import Cache, Identity, ModuleSource
from conformance_serve import serve

front.sys.setrecursionlimit(500)  # less than four frames for each of a chain of 130 functions (`long chain`)
cache = Cache()
built = []
known = {}

def identity_of(name):
    order = [name]
    while order:  # callees first, however long the chain is
        missing = [callee for callee in front.callees(order[-1]) if callee not in known]
        if missing:
            order += missing
            continue
        last = order.pop()
        if last not in known:
            values = {constant.name: constant.value for constant in front.constants(last)}
            callees = [known[callee] for callee in front.callees(last)]
            said = front.function(last)
            known[last] = Identity(last, body=said.body, arguments=said.arguments, closed=said.closes_over, fast=said.fast,
                                   constants=values, callees=callees)
    return known[name]

def source(name):
    for callee in front.callees(name):  # another process may have removed them since
        if not cache.has(identity_of(callee)):
            target_of(callee)
    built.append(name)
    signature = "f64(%s)" % ", ".join("f64" for _ in front.function(name).arguments)
    imports = {callee: identity_of(callee) for callee in front.callees(name)}
    return ModuleSource(front.code_alone(name), {name: signature}, imports=imports, identity=identity_of(name))

def target_of(name):
    order, seen = [name], set()
    while order:  # what it calls is compiled before it
        last = order[-1]
        missing = [callee for callee in front.callees(last) if callee not in seen and not cache.has(identity_of(callee))]
        if missing:
            order += missing
            seen |= set(missing)
            continue
        target = cache.get_or_compile(identity_of(last), lambda last=last: source(last))
        order.pop()
    return target

def ask(name, *arguments):
    before = len(built)
    answer = target_of(name)(*arguments)
    return answer, len(built) == before

serve(ask)
"""

_BY_CONTENT = """
import conformance_front_end as front
import conformance_llvm as llvm
from compcache import Cache
from conformance_serve import serve

cache = Cache()

def ask(name, *arguments):
    before = llvm.worked()
    function = cache.compile(front.code_whole(name))[name]
    answer = function(*arguments)
    return answer, None if before else not llvm.worked()  # whether later ones are found cannot be told

serve(ask)
"""


class _Facade(Adapter):
    makes_llvm: ClassVar[bool] = True
    is_forked: ClassVar[bool] = True
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "table", "environment", "data", "record", "closure", "fast"})
    entries: ClassVar[int] = 200
    most: ClassVar[int] = 10_000
    chain: ClassVar[int] = 1000
    distribution: ClassVar[str] = "compcache"
    knows_used_features: ClassVar[bool] = True  # docs/platforms.md
    patience: ClassVar[float] = 90.0
    limits: ClassVar[dict[str, str]] = {
        **MAPPED,
        "other user's store": "docs/security.md: another user's directory is refused with an error, unless the caller trusts it",
    }

    def __init__(self, interpreter: Path | None = None) -> None:
        super().__init__(interpreter)
        if not find_spec("compcache"):
            raise Cannot("needs compcache in the environment of the suite: pip install compcache")

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The variable of the directory, and that of the project's checkout."""
        import compcache

        return {"COMPCACHE_DIR": str(store), "PYTHONPATH": str(Path(compcache.__file__).parents[1])}

    def limited_environment(self, size: int) -> dict[str, str]:
        """The variable of the limit."""
        return {"COMPCACHE_MAX_SIZE": str(size)}

    def processor_environment(self, name: str) -> dict[str, str]:
        """The variable of the targets."""
        return {"COMPCACHE_TARGETS": {"generic": "x86-64"}.get(name, name)}

    def default_environment(self, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """No directory: that of the user's caches."""
        return {"COMPCACHE_DIR": ""}


class ByIdentity(_Facade):
    """Each function a module of its own, which imports those that it calls."""

    name: ClassVar[str] = "compcache"
    driver: ClassVar[str] = _BY_IDENTITY


class ByContent(_Facade):
    """The code of a function and of all that it calls, named by its content."""

    name: ClassVar[str] = "compcache-compile"
    driver: ClassVar[str] = _BY_CONTENT
    drivers: ClassVar[tuple[str, ...]] = ("conformance_llvm.py",)
