"""Compile requests. A source has one request for each of its targets."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.exports import read_exports
from compcache.build.inlining.imported import offer_nothing
from compcache.build.ir_text import find_extreme_construct
from compcache.build.large_data.variables import abridged
from compcache.build.slots import read_requests
from compcache.build.trial import try_in_child
from compcache.content.names import digest_beside_code, source_digests
from compcache.errors import CompileError
from compcache.formats import host
from compcache.formats.entry import PART_OF
from compcache.images import making
from compcache.settings import from_environment
from compcache.targets.machine import NATIVE, TARGETS_VARIABLE, machine_for, parse_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from compcache.build.exports import Export
    from compcache.build.inlining.imported import Provided
    from compcache.build.slots import Requests
    from compcache.build.source import ModuleSource
    from compcache.targets.host_probe import Host
    from compcache.targets.machine import Machine
    from compcache.translation.members import Member

__all__ = ["Request", "check_extremes", "code_pieces", "parse_safely", "print_code", "requests_of", "size_of"]

_LEVELS = (0, 1, 2, 3)
#: The beginning of the names of the intrinsics for coroutines that no compiler pass has split into functions.
_COROUTINES = "llvm.coro."


class Request(NamedTuple):
    """A source with one target and the options of the compilation."""

    ir: Any
    exports: tuple[Export, ...] | None
    requests: Requests
    level: int
    machine: Machine
    shared: bool  # whether the image will be a shared object, with separate entry points, and places instead of slots for imports
    keep_bitcode: bool = True
    identity: Any = None
    target: str = ""  # the name of the target, if the source has several; otherwise empty
    portable: bool = False  # whether the source names its targets; then its code is also stored as it was before optimization
    untrusted: bool = False
    digests: Mapping[str, str] = MappingProxyType({})
    entries: Mapping[str, bytes] = MappingProxyType({})  # the entries of data for each function, by kind
    beside_code: bytes = b""  # a digest of the inputs that affect the functions and are not in the code
    is_cached: Callable[[str], bool] = bool
    is_beside: Callable[[str], bool] = frozenset().__contains__  # whether a source added together with this source defines a symbol
    assumed: dict[str, bool] | None = None  # collects the symbols that no module defines yet (compcache.build.slots)
    is_overridden: Callable[[str], bool] = frozenset().__contains__  # whether another source overrides a weak definition
    named_entries: Mapping[tuple[str, str], bytes] = MappingProxyType({})  # the source's own entries of data, by kind and name
    members: tuple[Member, ...] = ()  # the optimized members of a group, instead of `ir`
    copies: Collection[str] = ()  # functions that the code defines for the optimizer, and has to keep
    named: tuple[Export, ...] = ()  # the exports of the members with functions=; the other members export all visible symbols
    unexported: Collection[str] = ()  # visible symbols of the members with functions= that are not exported
    makers: str = ""  # the makers of the given code (compcache.formats.makers)
    inline: bool = True  # whether bodies of imported functions may be inlined (compcache.build.inlining)
    provided: Callable[[tuple[str, ...]], Mapping[str, Provided]] = offer_nothing  # returns the offered bodies of functions


def requests_of(source: ModuleSource, host_machine: Host) -> list[Request]:
    """Return a request for each target of a source. `source` is frozen.

    Raises:
        CompileError: the source's options are invalid or inconsistent.
        SettingError: $COMPCACHE_TARGETS is invalid.
        LinkerError: $COMPCACHE_LINKER names a linker that cannot be run.
        InvalidNameError, SignatureError, GlobalValidationError: see `read_exports` and `read_requests`.
    """
    if source.optimize not in _LEVELS:
        raise CompileError(f"optimize must be 0, 1, 2 or 3, not {source.optimize!r}")
    targets = _requested_targets(source, host_machine)
    ir, exports, requests = codegen.plain_source(source.ir), read_exports(source), read_requests(source)
    code_digest, source_digest = source_digests(source)
    digests = {"code": code_digest.hex(), "source": source_digest.hex()}
    machines = [machine_for(cpu, features, host_machine, host.platform_name()) for cpu, features in targets]
    for_first_target = Request(
        ir,
        exports,
        requests,
        source.optimize,
        machines[0],
        making.makes_shared_objects(),
        keep_bitcode=source.keep_bitcode,
        identity=source.identity,
        untrusted=source.untrusted,
        digests=digests,
        entries={**(source.entries or {}), **({PART_OF: source.part_of.encode()} if source.part_of else {})},
        beside_code=digest_beside_code(source),
        named_entries=source.named_entries,
        makers=source.makers,
        inline=source.inline,
    )
    if len(targets) == 1:
        return [for_first_target._replace(portable=targets[0][0] not in (None, NATIVE))]
    return [
        for_first_target._replace(machine=target_machine, target=cpu or "", portable=True)
        for target_machine, (cpu, _) in zip(machines, targets, strict=True)
    ]


def code_pieces(ir: str | bytes | tuple[bytes, ...]) -> tuple[str | bytes, ...]:
    """Return the code as text or bitcode, in one or more pieces."""
    return ir if isinstance(ir, tuple) else (ir,)


def size_of(ir: str | bytes | tuple[bytes, ...]) -> int:
    """Return the length of a source's code, in characters of text or bytes of bitcode."""
    return sum(map(len, code_pieces(ir)))


def check_extremes(text: str, *, printed: bool) -> None:
    """Check that the code has no extreme numbers or nesting, which would make LLVM abort or run forever.

    `printed` says whether LLVM has printed the code. Raise `CompileError` if the code contains such a construct.
    """
    reason = find_extreme_construct(abridged(text), printed=printed)
    if reason is not None:
        raise CompileError(f"the code cannot be compiled, because it contains {reason}: generate simpler code")


def parse_safely(ir: Any, context: Any) -> Any:
    """Parse the result of `codegen.plain_source`, like `codegen.parse`, but reject constructs that make LLVM run forever or abort.

    Raise `CompileError` if LLVM rejects the code, or the code contains such a construct.
    """
    if isinstance(ir, str):
        check_extremes(ir, printed=False)
    for piece in code_pieces(ir):
        if _has_coroutines(piece):
            codegen.call_in_caller(_try_coroutines, piece)
    return codegen.parse(ir, context)


def _has_coroutines(code: str | bytes) -> bool:
    """Return whether text or bitcode contains coroutines. Bitcode contains names as plain bytes."""
    return _COROUTINES in code if isinstance(code, str) else _COROUTINES.encode() in code


def _try_coroutines(code: str | bytes) -> None:
    """Parse code with coroutines in another process. Raise `CompileError` if LLVM cannot parse it.

    The intrinsics for coroutines change between versions of LLVM, and LLVM aborts for some old intrinsics.
    """
    try:
        try_in_child(code, None)
    except CompileError as error:
        raise CompileError(
            f"the code contains coroutines that LLVM {codegen.llvm_version()} cannot read: compile the source without "
            f"-disable-llvm-passes, so that its own compiler splits the coroutines ({error})"
        ) from error


def print_code(ir: Any) -> str:
    """Return LLVM code as LLVM prints it. Raise `CompileError` if the code is not accepted (`codegen.plain_source`, `parse_safely`)."""
    plain = codegen.plain_source(ir)
    return codegen.run(lambda context: str(parse_safely(plain, context)))


def _requested_targets(source: ModuleSource, host_machine: Host) -> list[tuple[str | None, str | None]]:
    """Return the targets of a source as (CPU, changes to its features). None is the host's CPU, or no changes.

    Raises:
        CompileError: the source has targets and also a CPU or features, or its targets are malformed.
        SettingError: the source names no targets, and $COMPCACHE_TARGETS is not valid.
    """
    targets = source.targets
    if source.cpu is not None or source.features is not None:
        if targets is not None:
            name = "features=" if source.cpu is None else "cpu="
            raise CompileError(f"the source has both targets= and {name}: use either targets=, or cpu= and features=")
        return [(source.cpu, source.features)]
    if targets is None:
        return from_environment(TARGETS_VARIABLE, partial(_known_targets, host_machine)) or parse_targets(NATIVE)
    return parse_targets(targets)


def _known_targets(host_machine: Host, text: str) -> list[tuple[str | None, str | None]]:
    """Return the targets that a setting names. Raise `ValueError` if one is malformed, or LLVM does not know it."""
    try:
        targets = parse_targets(text)
        for cpu, changes in targets:
            machine_for(cpu, changes, host_machine, host.platform_name())
    except CompileError as error:
        raise ValueError(str(error)) from error
    return targets
