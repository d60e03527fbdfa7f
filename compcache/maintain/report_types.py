"""Frozen records of the results of prunes, checks, compactions and links."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from compcache.display import Shown

__all__ = [
    "CheckReport", "CheckStep", "CompactReport", "Finding", "LinkReport", "LinkedClosure", "PruneReport", "PrunedFile", "PrunedModule",
]  # fmt: skip


class PrunedModule(NamedTuple):
    """A module that a prune removed or would remove.

    Attributes:
        module_id: the module_id as 32 hexadecimal digits.
        functions: the names of the functions in the module.
        size: the size of the module in bytes.
        created: the time when the module was added, in seconds since the epoch.
        last_used: the time of the last use, in seconds since the epoch; 0.0: never.
        reason: fault (a maker has a known fault), made_by, unused, old, duplicate, stale, llvm, matched, size, count or derived.
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
        path: the path of the file.
        size: the size of the file in bytes.
        reason: the kind of leftover, as text.
    """

    path: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class PruneReport(Shown):
    """The result of a prune. With `dry_run`, it describes the modules and files that a prune would remove or index.

    Attributes:
        dry_run: whether the prune has removed nothing.
        removed: the removed modules.
        leftovers: the removed leftovers.
        needed: the module_ids of modules that the policy selects but a kept module needs, so they stay.
        modules_before: the number of modules before the prune.
        size_before: the total size of modules and packs before the prune, in bytes.
        within_limits: whether the remaining modules are within the limits of the policy. Pinned functions and `keep` may prevent this.
        seconds: the duration of the prune.
        indexed: the module_ids of modules from interrupted additions that were added to the index.
        removed_packs: the removed packs, which hold entries of data.
        unknown_makers: the makers in the policy's `made_by` that made no module.
        known_makers: the makers of modules; empty if `unknown_makers` is empty.
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
        """Return the total size of removed modules, packs and leftovers in bytes."""
        return self.size_before - self.size_after + sum(file.size for file in self.leftovers)

    @property
    def modules_after(self) -> int:
        """Return the number of modules after the prune."""
        return self.modules_before - len(self.removed)

    @property
    def size_after(self) -> int:
        """Return the total size of modules and packs after the prune, in bytes."""
        return self.size_before - sum(file.size for file in (*self.removed, *self.removed_packs))


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a note, found by a check.

    Attributes:
        step: the name of the step that found the problem.
        kind: the kind of problem in one word, for programs: damaged, dangling, unindexed, ...
        severity: "error" if functions are misses or the cache is unsafe; "note" if the problem costs only space or time.
        subject: the module_id, function, file or directory with the problem.
        message: a description of the problem, and advice.
        repaired: whether the check repaired the problem.
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
        name: the name of the step.
        checked: the number of checked items.
        seconds: the duration of the step.
        numbers: further counts, by name.
    """

    name: str
    checked: int
    seconds: float
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckReport(Shown):
    """The result of a check. It is true if there are no errors, or all errors were repaired.

    Attributes:
        steps: the steps of the check, in order.
        findings: the problems and notes, in the order in which they were found.
    """

    steps: tuple[CheckStep, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Return the errors that were not repaired."""
        return tuple([finding for finding in self.findings if finding.severity == "error" and not finding.repaired])

    @property
    def seconds(self) -> float:
        """Return the duration of the check."""
        return sum(step.seconds for step in self.steps)

    def __bool__(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class CompactReport(Shown):
    """The result of `Cache.compact`.

    Attributes:
        packed: the number of modules that had their own file, and are now in a volume.
        merged: the module_ids of removed modules, whose functions are in newer modules with the same content.
        modules: the number of modules after compaction.
        size_before, size_after: the total size of the files that hold modules, in bytes.
        files_before, files_after: the number of the files that hold modules.
        seconds: the duration of the compaction.
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
    """A linked closure: a module with the code of several modules.

    Attributes:
        module_id: the module_id of the closure.
        functions: the func_names of the functions that the closure realizes.
        parts: the module_ids of the modules whose code is in the closure.
        size: the size of the closure in bytes.
    """

    module_id: str
    functions: tuple[str, ...]
    parts: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The result of `Cache.link`.

    Attributes:
        linked: the linked closures.
        left: the functions that were not linked, each with the reason.
    """

    linked: tuple[LinkedClosure, ...]
    left: dict[str, str]
