"""The scenarios for systems whose every process takes seconds: of each kind of mistake, the one that shows it with the fewest processes."""

from __future__ import annotations

__all__ = ["CORE"]

CORE = frozenset(
    {
        "edited function", "callee in another file", "constant in another file", "closure", "environment read while compiling",
        "data file read while compiling", "same size and time", "older file", "fast arithmetic", "file that appears",
        "second process", "touched files", "moved sources", "other HOME", "other hash seed", "moved lines", "edit taken back",
        "new function in the file", "copied store", "large constant",
        "forks with one name", "bodies exchanged", "long names", "integer and float",
        "two starters", "each its own function", "ranks", "killed while it compiles", "store removed beside a reader", "stopped writer",
        "truncated", "zero-filled", "flipped bits", "orphans of writers", "foreign files", "half a copy",
        "read-only store", "not writable", "no home", "full disk", "few descriptors", "narrow umask", "spaces and letters",
        "late renames", "stale handles", "missing files", "no locks", "files that shrink under a reader",
        "older processor", "other host name", "fewer processors",
        "files for an entry", "long chain",
        "pickle that runs", "another user's store", "planted entry", "rights of what is made",
        "threads compile", "children find", "memory",
    }
)  # fmt: skip
