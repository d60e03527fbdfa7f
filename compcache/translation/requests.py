"""Requests to the compiler: a snapshot of a module's source for each of its targets."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.exports import read_exports
from compcache.build.inlining.imported import nothing_offered
from compcache.build.ir_text import extreme_of
from compcache.build.large_data.variables import abridged
from compcache.build.slots import read_requests
from compcache.content.names import digest_beside_code, source_digests
from compcache.errors import CompileError
from compcache.formats import host
from compcache.formats.entry import PART_OF
from compcache.images import making
from compcache.images.llvm_thread import in_llvm_thread
from compcache.settings import from_environment
from compcache.targets.machine import NATIVE, TARGETS_VARIABLE, machine_for, parse_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from compcache.build.exports import Export
    from compcache.build.inlining.imported import Provided
    from compcache.build.slots import Requests
    from compcache.build.source import ModuleSource
    from compcache.targets.host_probe import Host
    from compcache.targets.machine import Machine
    from compcache.translation.members import Member

__all__ = ["Request", "refuse_extremes", "requests_of", "size_of", "unparsed"]

_LEVELS = (0, 1, 2, 3)


class Request(NamedTuple):
    """A snapshot of the source."""

    ir: Any
    exports: tuple[Export, ...] | None
    requests: Requests
    level: int
    machine: Machine
    keep_bitcode: bool
    identity: Any
    target: str  # as the source names it, where it names several
    portable: bool  # the source says for which hosts it is: all of it is kept as it was before it was optimized
    untrusted: bool
    digests: dict[str, str]
    shared: (
        bool  # entry points are an object of their own, and what the cache provides are symbols whose places a load fills, and not slots
    )
    entries: dict[str, bytes]  # of data, for each function, by kind
    beside_code: bytes = b""  # a digest of what decides what the functions do, and does not stand in the code
    is_cached: Callable[[str], bool] = bool
    is_beside: Callable[[str], bool] = frozenset().__contains__  # whether sources that are added together with this one define a symbol
    assumed: dict[str, bool] | None = None  # gets what nothing provides yet (compcache.build.slots)
    overridden: Collection[str] = ()  # functions of other sources, which weak ones give way to
    named_entries: Mapping[tuple[str, str], bytes] = MappingProxyType({})  # of data of the source itself, by kind and name
    members: tuple[Member, ...] = ()  # of a group, in place of `ir`: they are linked, and not optimized any more
    copies: Collection[str] = ()  # functions that the code has for the optimizer alone, and must have itself
    named: tuple[Export, ...] = ()  # what members export by name, where others export all that is visible
    unexported: Collection[str] = ()  # what is visible in the former, and is not among it
    makers: str = ""  # of the code that was given (compcache.formats.makers)
    inlines: bool = True  # whether bodies of what it imports may come into the module (compcache.build.inlining)
    provided: Callable[[tuple[str, ...]], Mapping[str, Provided]] = nothing_offered  # bodies that others offer of functions


def requests_of(source: ModuleSource, machine: Host, maker: str) -> list[Request]:
    """Return one request for each target that the source names."""
    if source.optimize not in _LEVELS:
        raise CompileError(f"optimize must be 0, 1, 2 or 3, not {source.optimize!r}")
    targets = _requested_targets(source, machine)
    ir, exports, requests = codegen.plain_source(source.ir), read_exports(source), read_requests(source)
    digests = {"maker": maker}
    if isinstance(source.ir, (str, bytes)):
        digests |= dict(zip(("code", "source"), [part.hex() for part in source_digests(source)], strict=True))
    beside_code = digest_beside_code(source)
    return [
        Request(
            ir, exports, requests, source.optimize, machine_for(cpu, features, machine, host.platform_name()),
            source.keep_bitcode, source.identity, (cpu or "") if len(targets) > 1 else "",
            len(targets) > 1 or cpu not in (None, NATIVE),
            source.untrusted,
            digests,
            making.makes_shared_objects(),
            {**(source.entries or {}), **({PART_OF: source.part_of.encode()} if source.part_of else {})},
            beside_code,
            named_entries=source.named_entries,
            makers=source.makers,
            inlines=source.inline,
        )
        for cpu, features in targets
    ]  # fmt: skip


def unparsed(ir: Any) -> Iterable[str | bytes]:
    """Return the code in the pieces that a child process reads, without parsing it here."""
    if isinstance(ir, tuple):
        return ir
    return [ir if isinstance(ir, (str, bytes)) else in_llvm_thread(lambda: str(ir))]


def size_of(ir: Any) -> int:
    """Return the length of a source's code."""
    return sum(map(len, ir)) if isinstance(ir, tuple) else len(ir)


def refuse_extremes(text: str, *, printed: bool) -> None:
    """Raise `CompileError` for code whose numbers or nesting would end the process that parses it. `printed`: LLVM has printed it."""
    reason = extreme_of(abridged(text), printed=printed)
    if reason is not None:
        raise CompileError(f"the code has {reason}")


def _requested_targets(source: ModuleSource, host_machine: Host) -> list[tuple[str | None, str | None]]:
    """Return the targets of a source as (CPU, changes to it).

    Raises:
        CompileError: it has both targets and a CPU, or no target at all.
        SettingError: the source names none, and $COMPCACHE_TARGETS names what LLVM does not know.
    """
    chosen = source.targets
    if source.cpu is not None or source.features is not None:
        if chosen is not None:
            raise CompileError("targets= names the CPUs to compile for: leave cpu= and features= out, or targets=")
        return [(source.cpu, source.features)]
    if chosen is None:
        return from_environment(TARGETS_VARIABLE, partial(_known_targets, host_machine)) or parse_targets(NATIVE)
    return parse_targets(chosen)


def _known_targets(host_machine: Host, text: str) -> list[tuple[str | None, str | None]]:
    """Return the targets that a setting names. Raises `ValueError` for one that LLVM does not know."""
    try:
        targets = parse_targets(text)
        for cpu, changes in targets:
            machine_for(cpu, changes, host_machine, host.platform_name())
    except CompileError as error:
        raise ValueError(str(error)) from error
    return targets
