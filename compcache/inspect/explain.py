"""Explanations of hits and misses: each realization with the reason why it is not used, and the variants stored before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from compcache.display import Shown
from compcache.errors import CompcacheError
from compcache.formats.graph import INLINED
from compcache.formats.manifest import decode_function
from compcache.hit.link_types import compare_types, read_type
from compcache.hit.loader import Loader
from compcache.hit.miss import miss_reason
from compcache.identity import Difference, compare, label_of
from compcache.inspect.functions import realizations
from compcache.inspect.names import stored_functions, suggestion
from compcache.inspect.separate_state import SeparateState, find_separate_state
from compcache.inspect.uncached import Refusal, read_refusals
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.module_reader import needs_of, read_graph, read_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from compcache.directory.module_file import ModuleFile
    from compcache.hit.loader import Sources
    from compcache.identity import Identity
    from compcache.inspect.descriptions import Realization
    from compcache.remote.answer import RemoteAnswer
    from compcache.store import IsNear, Store
    from compcache.usage.module_files import Progress


__all__ = ["Explanation", "Overload", "Variant", "Verdict", "explain", "newest_of_label"]

_MAX_COMPARED = 64  # variants
_MAX_SHOWN = 5  # variants


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of trying to load one realization.

    Attributes:
        realization: the realization.
        reason: the reason why it cannot be loaded, in one word (absent, cpu, damaged, dependency, global, ...); empty if it can.
        message: the reason as a sentence; empty if the realization can be loaded.
        passed_over: realizations of its imports that do not have the expected link type, as texts.
        inlined: functions of other modules whose code may be in it, as texts.
    """

    realization: Realization
    reason: str
    message: str
    passed_over: tuple[str, ...] = ()
    inlined: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A stored function with the same label, or an older addition with the same plain name, compared with the requested function.

    Attributes:
        func_name: the name of the stored function.
        module_id: the module of the stored function.
        created: the time when its file was written, in seconds since the epoch.
        differences: the components that differ; None if one of the two functions was stored without an `Identity`.
    """

    func_name: str
    module_id: str
    created: float
    differences: tuple[Difference, ...] | None


@dataclass(frozen=True, slots=True)
class Overload:
    """The latest stored function for one combination of argument types, like ``kernels.total(int64)``.

    `hit` tells whether its code can be loaded. `message` is the reason if it cannot. Only a process with the source knows whether the
    code is up to date. `before` is the function stored before for the same types; None if there is no such function.
    """

    label: str
    func_name: str
    hit: bool
    message: str
    before: Variant | None = None


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """The explanation of a hit or a miss.

    Attributes:
        func_name: the requested function; for a label, the newest function of the label.
        hit: whether a load succeeds now. For a name without types: whether one of the `overloads` can be loaded.
        reason: the reason of the miss in one word, as in `Verdict`; empty for a hit.
        message: the reason as a sentence; empty for a hit.
        verdicts: the result for each realization.
        variants: the other stored functions of the label, or earlier additions under a plain name. The most similar function comes first
            if an `Identity` was given, else the latest function.
        refusals: the reasons why functions of the label were compiled and not cached, the latest first. `message` of a miss has them, too.
        overloads: for a name without types, the stored functions for each combination of argument types.
        remote: the current answer of the remote store; None without a remote store.
        separate: variables of which the function and another function of its module use different copies.
    """

    func_name: str
    hit: bool
    reason: str
    message: str
    verdicts: tuple[Verdict, ...]
    variants: tuple[Variant, ...]
    refusals: tuple[Refusal, ...] = ()
    overloads: tuple[Overload, ...] = ()
    remote: RemoteAnswer | None = None
    separate: tuple[SeparateState, ...] = ()


class _Addition(NamedTuple):
    """A stored function: the time when its file was written, in seconds since the epoch, its name, and its module."""

    written: float
    func_name: str
    module_id: bytes


class _OneRealization(Loader):
    """A loader that knows only one realization of one function."""

    __slots__ = ("_candidate", "_name")

    def __init__(self, store: Store, name: str, candidate: tuple[bytes, int], *, allow_pickle: bool) -> None:
        super().__init__(store, allow_pickle=allow_pickle)
        self._name = name
        self._candidate = candidate

    def candidates(self, func_name: str, is_near: IsNear | None = None, *, sources: Sources | None = None) -> Iterator[tuple[bytes, int]]:
        """See `Loader.candidates`. The function that this loader is for has only the given realization."""
        return iter((self._candidate,)) if func_name == self._name else super().candidates(func_name, is_near, sources=sources)


def explain(
    store: Store,
    loader: Loader,
    func_name: str,
    identity: Identity | None = None,
    progress: Progress | None = None,
    remote: RemoteAnswer | None = None,
) -> Explanation:
    """Explain why a function is a hit or a miss; see `Cache.explain`.

    The settings of the `loader` are used. The requested `identity` is compared with the identities of variants; if it is None, the identity
    stored with the function is compared. `remote` is the answer of the remote store; None without a remote store.
    """
    copies = {bytes.fromhex(copy.module_id): copy for copy in realizations(store, loader, func_name)}
    candidates = [candidate for candidate in store.find_all(func_name) if candidate[0] in copies]
    verdicts = tuple([_try_realization(store, loader, func_name, candidate, copies[candidate[0]]) for candidate in candidates])
    error = _load_error(Loader(store, allow_pickle=loader.allow_pickle), func_name)
    components = identity.components() if identity is not None else _read_identity_components(store, copies)
    label = identity.label if identity is not None else label_of(func_name) or func_name
    refusals = tuple([refusal for refusal in read_refusals(store) if _is_of_label(refusal.name, label)])
    same_label = _functions_of_label(store, func_name, label, progress)
    overloads = _overloads(store, loader, func_name, same_label) if error is not None and not copies else ()
    reason, message = ("", "") if error is None else (miss_reason(error), str(error))
    if reason == "absent" and not same_label:
        message += suggestion(store, func_name)
    if reason == "absent" and refusals:
        reason, message = "refused", "; ".join(refusal.text for refusal in refusals)
    if any(overload.hit for overload in overloads):
        error, reason, message = None, "", ""
    separate = find_separate_state(store, loader, func_name) if copies else ()
    variants = _compare_variants(store, same_label, components)
    older = [_Addition(copy.created, func_name, module_id) for module_id, copy in islice(copies.items(), 1, None)]
    variants += [variant for variant in _compare_variants(store, older, components) if variant.differences]
    if identity is not None:  # the variants that differ least come first
        variants.sort(key=lambda variant: _MAX_COMPARED if variant.differences is None else len(variant.differences))
    shown_variants = tuple(variants[:_MAX_SHOWN])
    return Explanation(func_name, error is None, reason, message, verdicts, shown_variants, refusals, overloads, remote, separate)


def _try_realization(store: Store, loader: Loader, func_name: str, candidate: tuple[bytes, int], copy: Realization) -> Verdict:
    """Try to load one realization of a function with the settings of `loader`, and return the result.

    `candidate` is the module_id and the offset of the record. `copy` describes the realization.
    """
    error = _load_error(_OneRealization(store, func_name, candidate, allow_pickle=loader.allow_pickle), func_name)
    reason, message = ("", "") if error is None else (miss_reason(error), str(error))
    return Verdict(copy, reason, message, _describe_passed_over(store, *candidate), _describe_inlined(store, *candidate))


def newest_of_label(store: Store, name: str) -> str:
    """Return the newest function with the label `name`. Return `name` itself if it names a stored function or is not a label.

    The label of a Numba function may omit the argument types if the cache stores functions for only one combination of types.
    """
    if any(True for _ in store.find_all(name)):
        return name
    names = [addition.func_name for addition in _functions_of_label(store, name, name, None)]
    return names[0] if len(set(map(label_of, names))) == 1 else name


def _is_of_label(name: str | None, label: str) -> bool:
    """Return whether `name` is the label, or the label with argument types."""
    return name is not None and (name == label or name.startswith(f"{label}("))


def _load_error(loader: Loader, func_name: str) -> Exception | None:
    """Try to load a function as a hit does, close the loader, and return the error of the load; None if the load succeeds."""
    try:
        loader.load(func_name)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return error
    finally:
        loader.close()
    return None


def _read_identity_components(store: Store, modules: Mapping[bytes, object]) -> dict[str, str] | None:
    """Return the identity components in the first module that has them; None if no module was stored with an `Identity`."""
    for module_id in modules:
        with suppress(FileNotFoundError, CompcacheError), store.open_module(module_id) as module:
            identity = read_notes(module).get("identity")
            if isinstance(identity, dict):
                return {str(name): str(text) for name, text in identity.items()}
    return None


def _functions_of_label(store: Store, func_name: str, label: str, progress: Progress | None) -> list[_Addition]:
    """Return the stored functions of a label except `func_name`, the latest first."""

    def is_other(name: str) -> bool:
        return name != func_name and _is_of_label(label_of(name), label)

    functions = stored_functions(store, is_other, (f"{label}\0", f"{label}("), progress)
    return sorted([_Addition(status.modified, name, module_id) for name, module_id, status in functions], reverse=True)


def _overloads(store: Store, loader: Loader, func_name: str, additions: list[_Addition]) -> tuple[Overload, ...]:
    """Return the latest stored function for each combination of argument types, sorted by label."""
    by_label: dict[str, list[_Addition]] = {}
    for addition in additions:
        label = label_of(addition.func_name) or ""
        if label.startswith(f"{func_name}("):
            by_label.setdefault(label, []).append(addition)
    overloads = []
    for label, (latest, *older) in sorted(by_label.items()):
        error = _load_error(Loader(store, allow_pickle=loader.allow_pickle), latest.func_name)
        previous = _compare_variants(store, older[:1], _read_identity_components(store, {latest.module_id: None}))
        message = "" if error is None else str(error)
        overloads.append(Overload(label, latest.func_name, error is None, message, previous[0] if previous else None))
    return tuple(overloads)


def _compare_variants(store: Store, additions: list[_Addition], components: dict[str, str] | None) -> list[Variant]:
    """Return the first `_MAX_COMPARED` additions, with the differences of their identities from the components of an identity."""
    variants = []
    for addition in additions[:_MAX_COMPARED]:
        stored = _read_identity_components(store, {addition.module_id: None})
        differences = None if components is None or stored is None else compare(components, stored)
        variants.append(Variant(addition.func_name, addition.module_id.hex(), addition.written, differences))
    return variants


def _describe_inlined(store: Store, module_id: bytes, offset: int) -> tuple[str, ...]:
    """Describe each function of another module that may be inlined into a realization: its name and its module, as one text.

    The record of the realization is at `offset` in the module. The result is empty if the module cannot be read.
    """
    with suppress(FileNotFoundError, CompcacheError), store.open_module(module_id) as module:
        nodes = read_graph(module).nodes
        symbol = decode_function(module.read_record(offset)).symbol
        references = nodes[symbol].references if symbol in nodes else ()
        used_nodes = [nodes[key] for key in references if key in nodes]
        return tuple([f"{node.func_name} of module {node.signature}" for node in used_nodes if node.kind == INLINED])
    return ()


def _describe_passed_over(store: Store, module_id: bytes, offset: int) -> tuple[str, ...]:
    """Return a text about each realization of a function's imports that a load skips because of its link type.

    The record of the function is at `offset` in the module. The result is empty if the module cannot be read.
    """
    texts = []
    expected_types: dict[str, str] = {}
    with suppress(FileNotFoundError, CompcacheError), store.open_module(module_id) as module:
        import_types = _read_import_types(module, offset)
        expected_types = {name: read_type(module.read_record, link_type) for name, link_type in import_types}
    for name, expected in expected_types.items():
        if expected:
            for provider, actual in _read_realization_types(store, name):
                is_fitting, reason = compare_types(actual, expected)
                if not is_fitting:
                    texts.append(
                        f"{name!r} of module {provider.hex()} is {actual}, and module {module_id.hex()} uses it as {expected}: {reason}"
                    )
    return tuple(texts)


def _read_import_types(module: ModuleFile, offset: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the expected link type of each import of a function and of its closure in the module.

    Raise `FormatError` if a record is damaged, or `StorageError` if the module cannot be read.
    """
    for record in needs_of(module, decode_function(module.read_record(offset)).needs):
        yield from [(name, link_type) for _, name, _, link_type in record.imports if link_type]


def _read_realization_types(store: Store, name: str) -> Iterator[tuple[bytes, str]]:
    """Yield the module_id and the link type of each realization of a function. Realizations that cannot be read are left out."""
    for module_id, offset in store.find_all(name):
        text = None
        with suppress(FileNotFoundError, CompcacheError), store.open_module(module_id) as module:
            text = read_type(module.read_record, decode_function(module.read_record(offset)).link_type)
        if text is not None:
            yield module_id, text
