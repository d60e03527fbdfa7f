"""Records that the package returns to callers and tools. All are frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from compcache.display import Shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.formats.makers import Maker
    from compcache.usage.summaries import EntrySummary, FunctionSummary

__all__ = [
    "CacheInfo",
    "FunctionGraph",
    "FunctionReport",
    "GlobalReport",
    "GraphNode",
    "LoadedState",
    "Provenance",
    "Realization",
    "Signer",
]


@dataclass(frozen=True, slots=True)
class Realization:
    """One stored copy of a function.

    Attributes:
        func_name: the function.
        link_name: the name of this copy, unique among all.
        module_id: the module that holds it.
        signature: its signature as text.
        cpu: the processor that it is for, in LLVM's words.
        features: what it requires of one, likewise.
        llvm_version: the version of LLVM that compiled it.
        image_kind: the kind of the module's image, like ``elf-shared``.
        size: that of the module's file, in bytes.
        created: when it was compiled, in seconds since the epoch.
        loaded: whether this cache object has it in memory.
        problem: why this host cannot use it; empty where it can.
    """

    func_name: str
    link_name: str
    module_id: str
    signature: str
    cpu: str
    features: str
    llvm_version: str
    image_kind: str
    size: int
    created: float
    loaded: bool
    problem: str


class Signer(NamedTuple):
    """A name in the signatures of a module, and the result of its check.

    Attributes:
        name: the name.
        status: trusted (by a key that is trusted here), wrong (such a key has that name, and has not signed this), unknown (no key
            of that name is trusted here) or unchecked (without PyNaCl).
    """

    name: str
    status: str


@dataclass(frozen=True, slots=True)
class Provenance(Shown):
    """The recorded origin of a stored module. Which user compiled it, and on which host, is not recorded.

    Attributes:
        module_id: the module.
        makers: the packages and programs that made its code, by name and version; an empty version is not recorded.
        digests: digests of the given `code`, of the code with its options (`source`), and of the function that returned it (`maker`).
        compiled: when it was compiled, by the clock of the compiling host.
        added: when its file was written to the directory that has it.
        owner: the user that the file belongs to.
        origin: how it came to the directory: compiled, bundle, or remote. Copies by other programs keep their origin.
        layer: the layer that has it; empty if it is in the directory itself.
        order: the number of its addition; 0 if it has none.
        signers: the keys that are said to have signed it.
        keyed_digest: own (made with this cache's `signing_key`), other, or empty.
    """

    module_id: str
    makers: tuple[Maker, ...]
    digests: Mapping[str, str]
    compiled: float
    added: float
    owner: str
    origin: str
    layer: str
    order: int
    signers: tuple[Signer, ...]
    keyed_digest: str


@dataclass(frozen=True, slots=True)
class LoadedState:
    """The contents of a cache object in memory.

    Attributes:
        modules: ids of modules.
        targets: names of call targets.
        bytes_mapped: the size of the mapped images, in bytes.
    """

    modules: tuple[str, ...]
    targets: tuple[str, ...]
    bytes_mapped: int


@dataclass(frozen=True, slots=True)
class CacheInfo(Shown):
    """A whole cache directory: its content, and the compiler that it would use.

    Attributes:
        directory: its path.
        exists: whether it is there.
        format: the version of its format.
        other_formats: the directories of formats that this version does not use; `prune` with `stale` removes them.
        modules: the number of modules.
        functions: the number of names of functions.
        realizations: the number of stored copies of functions.
        size: that of the modules, in bytes.
        max_size: the limit below which additions keep `size`, in bytes; None: no limit.
        other_size: that of all other files, in bytes.
        hits: loads by all processes since the statistics were zeroed.
        misses: requests that found nothing usable, likewise.
        quarantined: the number of damaged files that were put aside.
        linker: the linker that would be used; empty if none is needed or found.
        loader: how images are loaded.
        platform: architecture, operating system and kind of object files.
        cpu: LLVM's name of this processor.
        features: its features, in LLVM's words.
        llvm_version: the version of LLVM that compiles here.
        version: the version of compcache.
    """

    directory: str
    exists: bool
    format: str
    other_formats: tuple[str, ...]
    modules: int
    functions: int
    realizations: int
    size: int
    max_size: int | None
    other_size: int
    hits: int
    misses: int
    quarantined: int
    linker: str
    loader: str
    platform: str
    cpu: str
    features: str
    llvm_version: str
    version: str

    @property
    def hit_rate(self) -> float:
        """Hits among all requests that were not answered from memory; 0.0 if there were none."""
        requests = self.hits + self.misses
        return self.hits / requests if requests else 0.0


@dataclass(frozen=True, slots=True)
class GlobalReport:
    """One global variable that loading fills: the `kind` of its definition, and `definition`, its description in words."""

    name: str
    kind: str
    form: str
    size: int
    definition: str


@dataclass(frozen=True, slots=True)
class FunctionReport(Shown):
    """Everything that is known about one cached function.

    Attributes:
        func_name: its name.
        signature: its signature as text.
        module_id: the module that a load would choose.
        realizations: all stored copies.
        dependencies: the functions that it uses, in `module_id`.
        globals: the variables that a load fills, in `module_id`.
        natives: the symbols of the process that it uses, in `module_id`.
        has_code: whether the optimized code is kept, for `Cache.ir` and `Cache.asm`.
        seconds: the processor time that compiling the module took.
        identity: the names and texts of its components, as its builder gave them.
        uses: for each realization, in the same order, how often it was loaded, and when last (0.0: never).
        parts: functions that were made for it, or for all of its label.
        entries: the entries of data that require its modules, or have its name or its label.
        provenance: the origin of each realization.
    """

    func_name: str
    signature: str
    module_id: str
    realizations: tuple[Realization, ...]
    dependencies: tuple[str, ...]
    globals: tuple[GlobalReport, ...]
    natives: tuple[str, ...]
    has_code: bool
    seconds: float
    identity: tuple[tuple[str, str], ...]
    uses: tuple[tuple[int, float], ...]
    parts: tuple[FunctionSummary, ...]
    entries: tuple[EntrySummary, ...]
    provenance: tuple[Provenance, ...]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of a cache's dependency graph.

    kind: "function"; "missing", a function that something imports and the cache does not hold; "global", filled when
    code is loaded; "variable", which other modules can import if it has a signature, and which otherwise belongs to a module; "native", a
    symbol of the process; or "inlined", code of a function of the module `module_id`, which may be in the functions that refer to it.
    `module_id` is empty if the node belongs to no module.
    """

    kind: str
    name: str
    signature: str
    module_id: str
    problem: str


@dataclass(frozen=True, slots=True)
class FunctionGraph(Shown):
    """A dependency graph across modules.

    Attributes:
        nodes: functions and variables, the ones asked for first.
        edges: pairs of numbers of nodes: the user, and what it uses.
    """

    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[int, int], ...]
