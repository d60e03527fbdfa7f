"""Frozen records that the package returns to callers and tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from compcache.display import Shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.formats.makers import Maker
    from compcache.usage.summaries import EntrySummary, FunctionSummary

__all__ = [
    "CacheInfo", "FunctionGraph", "FunctionReport", "GlobalReport", "GraphNode", "LoadedState", "Provenance", "Realization", "Signer",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Realization:
    """One stored copy of a function.

    Attributes:
        func_name: the name of the function.
        link_name: the unique name of this copy.
        module_id: the module that holds the copy.
        signature: the signature as text.
        cpu: LLVM's name of the processor for which the copy was compiled.
        features: the features of the processor that the copy requires, in LLVM's terms.
        llvm_version: the version of the LLVM that compiled the copy.
        image_kind: the kind of the module's image, like ``elf-shared``.
        size: the size of the module in bytes.
        created: the time of the compilation, in seconds since the epoch.
        loaded: whether this cache object has the module in memory.
        problem: the reason why this host cannot use the copy; empty if it can.
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
    """The name of a key in the signatures of a module, and the result of the check of the signature.

    Attributes:
        name: the name of the key.
        status: "trusted" (a trusted key of this name has signed the module), "wrong" (a trusted key of this name has not signed it),
            "unknown" (no trusted key has this name) or "unchecked" (PyNaCl is not installed).
    """

    name: str
    status: str


@dataclass(frozen=True, slots=True)
class Provenance(Shown):
    """The recorded origin of a stored module. The user and the host that compiled it are not recorded.

    Attributes:
        module_id: the module.
        makers: the packages and programs that made the code, by name and version; an empty version is not recorded.
        digests: digests of the given `code`, and of the code with its options (`source`).
        compiled: the time of the compilation by the clock of the compiling host, in seconds since the epoch; 0.0 if unknown.
        added: the time when the file was written to its directory, in seconds since the epoch; 0.0 for a module in memory.
        owner: the name or numeric id of the user who owns the file; empty for a module in memory.
        origin: the source of the file: "compiled", "bundle" or "remote". Copies by other programs keep their origin.
        layer: the layer that holds the module; empty if the module is in the directory itself.
        order: the addition number; 0 if the module has no addition number.
        signers: the keys named in the signatures of the module.
        keyed_digest: "own" (made with the `signing_key` of this cache), "other", or empty.
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
        modules: the module_ids of the loaded modules.
        targets: the func_names of the call targets.
        bytes_mapped: the total size of the mapped images in bytes.
    """

    modules: tuple[str, ...]
    targets: tuple[str, ...]
    bytes_mapped: int


@dataclass(frozen=True, slots=True)
class CacheInfo(Shown):
    """A summary of a cache directory and of the host: content, counters, linker, loader, processor, versions.

    Attributes:
        directory: the path of the directory.
        exists: whether the directory exists.
        format: the names of its format, with versions.
        other_formats: the directories of formats that this version does not use. `prune` with `stale` removes them.
        modules: the number of modules.
        functions: the number of function names.
        realizations: the number of stored copies of functions.
        size: the total size of the modules in bytes.
        max_size: the limit in bytes under which additions keep `size`; None: no limit.
        other_size: the total size of all other files in bytes.
        hits: the number of loads by all processes since the statistics were zeroed.
        misses: the number of requests without a usable function since the statistics were zeroed.
        quarantined: the number of damaged files in quarantine.
        linker: the linker for images that need one; "none" if no linker was found.
        loader: the way in which images are loaded, as text.
        platform: architecture, operating system and object format.
        cpu: LLVM's name of the processor.
        features: the features of the processor in LLVM's terms.
        llvm_version: the version of the LLVM that compiles in this process.
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
        """Return the share of hits in the requests not answered from memory; 0.0 without such requests."""
        requests = self.hits + self.misses
        return self.hits / requests if requests else 0.0


@dataclass(frozen=True, slots=True)
class GlobalReport:
    """A global variable that a load fills. `size` is in bytes; `definition` describes the definition of kind `kind` as text."""

    name: str
    kind: str
    form: str
    size: int
    definition: str


@dataclass(frozen=True, slots=True)
class FunctionReport(Shown):
    """The details of a cached function.

    Attributes:
        func_name: the name of the function.
        signature: the signature as text.
        module_id: the module that a load would choose. It is the source of `dependencies`, `globals` and `natives`.
        realizations: all stored copies.
        dependencies: the functions that the function uses.
        globals: the global variables that a load fills.
        natives: the symbols of the process that the function uses.
        has_code: whether the optimized code is stored, for `Cache.ir` and `Cache.asm`.
        seconds: the processor time that compiling the module took.
        identity: the names and texts of the components of the `Identity`; empty without an `Identity`.
        uses: for each realization, in the same order, the number of loads, and the time of the last load (0.0: never).
        parts: functions that were made for this function, or for all functions of its label.
        entries: the entries of data that require a module of the function, or have its name or label.
        provenance: the origin of each realization, in the same order.
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
    """A node of a dependency graph. `module_id` is empty if the node belongs to no module.

    `kind` is one of six words. "function" is a cached function. "missing" is a function that is imported and not in the cache, or whose
    modules cannot be read. "global" is a variable that a load fills. "variable" is a variable of a module, which other modules can
    import if it has a signature. "native" is a symbol of the process. "inlined" is a function of the module `module_id`, whose code may
    be in the functions that refer to the node.
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
        nodes: functions and variables, the requested functions first.
        edges: pairs of node numbers: a node, and a node to which it refers.
    """

    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[int, int], ...]
