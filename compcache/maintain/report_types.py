"""Report types of prunes and checks. All are frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from compcache.display import Shown

__all__ = [
    "CheckReport",
    "CheckStep",
    "CompactReport",
    "Finding",
    "LinkReport",
    "LinkedClosure",
    "PruneReport",
    "PrunedFile",
    "PrunedModule",
]


class PrunedModule(NamedTuple):
    """A module that a prune removed or would remove.

    Attributes:
        module_id: its 32 hexadecimal digits.
        functions: those that it held.
        size: that of its file, in bytes.
        created: when it was compiled, in seconds since the epoch.
        last_used: its last use, likewise; 0.0: never.
        reason: fault (a maker is known to be wrong), made_by, unused, old, duplicate, stale, llvm, matched, size, count or derived.
    """

    module_id: str
    functions: tuple[str, ...]
    size: int
    created: float
    last_used: float
    reason: str


@dataclass(frozen=True, slots=True)
class PrunedFile:
    """A leftover that a prune removed or would remove.

    Attributes:
        path: where it is.
        size: in bytes.
        reason: the kind of leftover.
    """

    path: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class PruneReport(Shown):
    """The result of a prune, or with `dry_run` its plan.

    Attributes:
        dry_run: whether nothing was removed.
        removed: the modules that were removed, or would be.
        leftovers: other files, likewise.
        needed: ids of modules that the policy selects, and that a kept module needs.
        modules_before: the number of modules before.
        size_before: their size and that of entries of data before, in bytes.
        within_limits: False where pins and `keep` leave more than the limits of the policy allow.
        seconds: how long it took.
        indexed: ids of modules that an interrupted addition had left without an index entry, and that have one now.
        removed_packs: files of entries of data.
        unknown_makers: names in the policy's `made_by` that no module has among its makers.
        known_makers: where there are such names, those that modules have.
    """

    dry_run: bool
    removed: tuple[PrunedModule, ...]
    leftovers: tuple[PrunedFile, ...]
    needed: tuple[str, ...]
    modules_before: int
    size_before: int
    within_limits: bool
    seconds: float
    indexed: tuple[str, ...] = ()
    removed_packs: tuple[PrunedModule, ...] = ()
    unknown_makers: tuple[str, ...] = ()
    known_makers: tuple[str, ...] = ()

    @property
    def freed_size(self) -> int:
        """The size of everything removed, in bytes."""
        return self.size_before - self.size_after + sum(file.size for file in self.leftovers)

    @property
    def modules_after(self) -> int:
        """Return how many modules are left."""
        return self.modules_before - len(self.removed)

    @property
    def size_after(self) -> int:
        """The size of the modules and packs that are left, in bytes."""
        return self.size_before - sum(file.size for file in (*self.removed, *self.removed_packs))


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, or note, of a check.

    Attributes:
        step: the name of the step that found it.
        kind: one word for programs: damaged, dangling, unindexed, ...
        severity: "error" if functions miss or it is unsafe, "note" if it costs only space or time.
        subject: the module_id, function, file or directory that it is about.
        message: what was found and what to do, in words.
        repaired: whether the check repaired it.
    """

    step: str
    kind: str
    severity: str
    subject: str
    message: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One step of a check.

    Attributes:
        name: what it checks.
        checked: the number of items.
        seconds: how long it took.
        numbers: further counts, by name.
    """

    name: str
    checked: int
    seconds: float
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckReport(Shown):
    """The result of a check. It is true if there are no errors or all were repaired.

    Attributes:
        steps: what was done, in order.
        findings: what is wrong, or was.
    """

    steps: tuple[CheckStep, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors and were not repaired."""
        return tuple([f for f in self.findings if f.severity == "error" and not f.repaired])

    @property
    def seconds(self) -> float:
        """The duration of the check."""
        return sum(step.seconds for step in self.steps)

    def __bool__(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class CompactReport(Shown):
    """What `Cache.compact` has done.

    Attributes:
        packed: how many modules are now in a volume that had a file of their own.
        merged: ids of modules that were removed, since others realize all their functions by the same content.
        modules: how many there are now.
        size_before, size_after: the size of the files that hold modules, in bytes.
        files_before, files_after: the number of these files.
        seconds: how long it took.
    """

    packed: int
    merged: tuple[str, ...]
    modules: int
    size_before: int
    size_after: int
    files_before: int
    files_after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkedClosure:
    """One image of the code of several modules.

    Attributes:
        module_id: its module.
        functions: the func_names that it is a realization of.
        parts: the ids of the modules whose code is in it.
        size: its bytes.
    """

    module_id: str
    functions: tuple[str, ...]
    parts: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The result of `Cache.link`.

    Attributes:
        linked: the images.
        left: the functions that have none of these, each with the reason.
    """

    linked: tuple[LinkedClosure, ...]
    left: dict[str, str]
