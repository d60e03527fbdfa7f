"""Records which content each implementation had when it ran for some types, because Numba keeps the results of overloads and intrinsics.

Later callers are compiled with the former result, even if a global that the implementation reads has changed. A process that loads code has
not run the implementations of the code. Without a cache, it would have run them when it compiled the code, so an entry lists their results.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprints.former import keep_objects, keep_values
from compcache.numba.fingerprints.implementations import GENERATOR, plain_function, registry
from compcache.numba.identity.dependencies import Dependency, is_current
from compcache.numba.identity.key import flags_text, signature_text
from compcache.numba.lazy.description import RESULT
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.lazy.description import Description

__all__ = [
    "Result", "are_results_valid", "changed_implementation", "decode_results", "digest_arguments", "encode_results", "former_result",
    "record_generators", "record_results", "record_results_in", "record_unknown_result",
]  # fmt: skip


class Result(NamedTuple):
    """A result that the compiler used: which implementation ran, and for which types.

    Attributes:
        dependency: the implementation, with its content before it ran.
        arguments: a digest of the types, from `digest_arguments`; "" if Numba does not keep the result.
    """

    dependency: Dependency
    arguments: str


#: The content of each implementation when it ran, by its name and the form of the content (`Dependency.is_by_files`), and by the digest of
#: the types (without a digest, by `_implementation_count`); "" if it ran with several contents.
_contents: dict[tuple[str, bool], dict[str, str]] = {}
#: The names of implementations with results whose content is unknown.
_with_unknown_results: set[str] = set()
#: The flags that `njit` without options sets to other values than the default ones.
_PLAIN_FLAGS = {"enable_looplift": True, "enable_pyobject_looplift": True, "nrt": True}


def digest_arguments(function: Any, args: Iterable[Any], kws: Iterable[tuple[str, Any]], flags: Any = None) -> str:
    """Return a digest of the types of an implementation's arguments, and of its position among the implementations with its name.

    The digest covers the flags of the caller's compilation, too, except those of a plain `njit`. `flags` is None if Numba keeps the result
    for all flags. The result is "" if a type or a flag has no identity by content.
    """
    registry.refresh()
    functions = [implementation.function for implementation in registry.by_name.get(registry.name_of(function), ())]
    position = next((number for number, other in enumerate(functions) if other is function), -1)
    try:
        text = f"{position} {signature_text([*args, *dict(kws).values()])} {' '.join(dict(kws))}"
        if flags is not None:
            chosen = flags_text(flags, omitted=(type(flags)().values() | _PLAIN_FLAGS).items())
            text += chosen and f" | {chosen}"
    except Unidentifiable:
        return ""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def record_results(results: Iterable[Result]) -> None:
    """Record results that this process has, or would have if it had compiled the code that it has loaded."""
    registry.refresh()
    for dependency, arguments in results:
        name, content = dependency
        for implementation in registry.by_name.get(name, ()):
            function = implementation.function
            function = getattr(function, "generic", None) if isinstance(function, type) else plain_function(function)
            keep_values(function)
            keep_objects(function, ())
        contents, digest = _contents.setdefault((name, dependency.is_by_files), {}), arguments or _implementation_count(name)
        contents[digest] = content if contents.get(digest, content) == content else ""


def record_results_in(description: Description) -> None:
    """Record the results that a description lists."""
    record_results(decode_results(description))
    record_generators(Dependency(*row) for row in description.used)


def record_generators(dependencies: Iterable[Dependency]) -> None:
    """Record code generators that have made code of this process. Numba links that code into later callers."""
    record_results(Result(dependency, "") for dependency in dependencies if dependency.name.startswith(GENERATOR))


def _implementation_count(name: str) -> str:
    """Return "#" and how many implementations have a name, in place of a digest. One more changes the content of the name, but no value."""
    return f"#{len(registry.by_name.get(name, ()))}"


def former_result(function: Any, arguments: str) -> Dependency | None:
    """Return an implementation with the content that it had when it ran for these types, or None if no content or several are recorded.

    `arguments` is a digest from `digest_arguments`.
    """
    name = registry.name_of(function)
    # A digest of the values shows more changes than one of the files.
    content = next((_contents[key][arguments] for key in ((name, False), (name, True)) if arguments in _contents.get(key, ())), "")
    return Dependency(name, content) if content and arguments else None


def record_unknown_result(function: Any) -> None:
    """Record that Numba has kept a result of an implementation whose content was not recorded when it ran."""
    _with_unknown_results.add(registry.name_of(function))


def are_results_valid(dependency: Dependency, arguments: Iterable[str]) -> bool:
    """Return whether Numba would use the recorded results of an implementation in this process.

    For types with a kept result, Numba uses that result: it must come from the recorded content. For other types, Numba runs the
    implementation: its present content must be the recorded content, and so must the contents of its earlier runs, except of runs before
    another implementation of its name was registered. `arguments` are the digests of the types; empty if they are not recorded. Raise
    `Unidentifiable` if the present content cannot be compared.
    """
    recorded = _contents.get((dependency.name, dependency.is_by_files), {})
    digests = set(arguments)
    are_recorded = bool(digests) and "" not in digests
    if are_recorded:
        contents = {recorded[digest] for digest in digests & recorded.keys()}
    else:
        registry.refresh()
        present = _implementation_count(dependency.name)
        contents = {content for digest, content in recorded.items() if digest[0] != "#" or digest == present}
    if dependency.name in _with_unknown_results or not contents <= {dependency.content}:
        return False
    return (are_recorded and digests <= recorded.keys()) or is_current(dependency)


def changed_implementation(dependencies: Iterable[Dependency], results: Iterable[Result]) -> str:
    """Return the name of an implementation of which a load would need two present contents; "" if there is none."""
    # Results for known types have the content of their time.
    kept = {result.dependency for result in results if result.arguments} - {result.dependency for result in results if not result.arguments}
    contents: dict[tuple[str, str], set[Dependency]] = {}
    for dependency in dependencies:
        contents.setdefault((dependency.name, dependency.content.rpartition(" ")[0]), set()).add(dependency)
    return min([name for (name, _), rows in contents.items() if len(rows) > 1 and not rows <= kept], default="")


def encode_results(results: Iterable[Result]) -> set[Dependency]:
    """Return the dependencies that list results in a description: for each implementation and content, the digests of the types."""
    digests: dict[Dependency, set[str]] = {}
    for dependency, arguments in results:
        digests.setdefault(dependency, set()).add(arguments)
    return {Dependency(name, f"{RESULT}{','.join(sorted(arguments))} {content}") for (name, content), arguments in digests.items()}


def decode_results(description: Description) -> list[Result]:
    """Return the results that a description lists."""
    results = []
    for name, text in description.dependencies:
        if text.startswith(RESULT):
            digests, _, content = text.removeprefix(RESULT).partition(" ")
            results += [Result(Dependency(name, content), arguments) for arguments in digests.split(",")]
    return results
