"""What maintenance reports: prunes, checks and statistics. All records are frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["CheckReport", "CheckStep", "Finding", "PruneReport", "PrunedFile", "PrunedModule"]


class PrunedModule(NamedTuple):
    """A module that a prune removed or would remove.

    `reason` is unused, old, duplicate, stale, matched, size or count; times are in seconds since the epoch,
    `last_used` is 0.0 for what was never used.
    """

    module_id: str
    functions: tuple[str, ...]
    size: int
    created: float
    last_used: float
    reason: str


@dataclass(frozen=True, slots=True)
class PrunedFile:
    """A leftover that a prune removed or would remove: its path, its size in bytes, and what it is."""

    path: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a prune did, or with `dry_run` would do.

    `needed` are the ids of modules that the policy would remove, but that a module which stays needs. `indexed` are those
    of modules that an interrupted addition had left without an index entry, and that can be found again.
    `within_limits` is False where pins and `keep` left more than the limits of the policy allow.
    """

    dry_run: bool
    removed: tuple[PrunedModule, ...]
    leftovers: tuple[PrunedFile, ...]
    needed: tuple[str, ...]
    modules_before: int
    bytes_before: int
    within_limits: bool
    seconds: float
    indexed: tuple[str, ...] = ()

    @property
    def bytes_freed(self) -> int:
        """The bytes of everything removed."""
        return sum(module.size for module in self.removed) + sum(file.size for file in self.leftovers)

    @property
    def modules_after(self) -> int:
        """How many modules are left."""
        return self.modules_before - len(self.removed)

    @property
    def bytes_after(self) -> int:
        """How many bytes the modules that are left have."""
        return self.bytes_before - sum(module.size for module in self.removed)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        step: the name of the step that found it.
        kind: what it is, as one word for programs: damaged, dangling, unindexed, ...
        severity: "error" for what makes functions miss or is unsafe, "note" for what costs only space or time.
        subject: the module_id, function, file or directory that it is about.
        message: the same in words, with what to do.
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
    """One step of a check: how many things it looked at, how long that took, and other numbers by name."""

    name: str
    checked: int
    seconds: float
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check. It is true where there are no errors, or all were repaired."""

    steps: tuple[CheckStep, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors and were not repaired."""
        return tuple([f for f in self.findings if f.severity == "error" and not f.repaired])

    @property
    def seconds(self) -> float:
        """How long the check took."""
        return sum(step.seconds for step in self.steps)

    def __bool__(self) -> bool:
        return not self.errors
