"""Identifies the dependencies of compiled code other than the function: the implementations that the compiler used.

A compilation records the user's implementations that it used, and the names by which it looked for implementations. An entry is valid if
each of these implementations still has the same content, and no other implementation matches the names.
"""

from __future__ import annotations

import functools
import sys
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.fingerprints.fingerprint import Limits, content_of_present_code, fingerprint_of_implementations
from compcache.numba.fingerprints.implementations import (
    GENERATOR,
    Implementation,
    generators_of_other_registries,
    is_generator_of_intrinsic,
    package_of_implementation,
    registry,
    stable_name,
    user_code_generator,
)
from compcache.numba.identity.extension_types import LIMITS_OF_CLASSES, content_of_type, name_of_type
from compcache.numba.registered.package_files import digest_of_package
from compcache.numba.registered.refusals import TooLarge, Unidentifiable, examines_program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.walk import Fingerprint, FunctionPart

__all__ = [
    "Dependency", "decode_names", "dependency_of", "dependency_of_generator", "dependency_of_type", "encode_names",
    "functions_compiled_for", "has_content", "is_current", "matching_names", "names_created",
]  # fmt: skip

#: The prefix of the content of an implementation that declined the argument types. The digest after it omits the values without an identity
#: that the implementation can reach (`overlook_members`). For example, every function that uses `len` asks every package that overloads
#: `len`.
_DECLINED = "declined "
#: The prefix of a content that is the digest of a package's files, because an implementation can reach too many values.
_FILES = "files "


class Dependency(NamedTuple):
    """An implementation that the compiler asked: its registered name, and its content, which is a digest after an optional prefix."""

    name: str
    content: str

    @property
    def is_declined(self) -> bool:
        """Whether the implementation declined the argument types of the compilation. The digest then omits values without an identity."""
        return self.content.startswith(_DECLINED)

    @property
    def is_by_files(self) -> bool:
        """Whether the content is the digest of a package's files. It neither equals nor contradicts a digest of the values."""
        return self.content.startswith(_FILES)


def encode_names(digests: Iterable[int]) -> bytes:
    """Encode the digests of names as a sorted array of 32-bit integers."""
    ordered = sorted(digests)
    return pack(f"<{len(ordered)}I", *ordered)


def decode_names(data: bytes) -> frozenset[int]:
    """Return the digests of names that `encode_names` has encoded."""
    return frozenset(unpack(f"<{len(data) // 4}I", data))


def matching_names(encoded_names: bytes, used: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the names of registered implementations that match the result of `encode_names`, except for `names_created`."""
    registry.refresh()
    digests = registry.names_by_digest.keys() & decode_names(encoded_names) if registry.names_by_digest else ()
    names = {name for digest in digests for name in registry.names_by_digest[digest]}
    return tuple(sorted(names - names_created(names, used)))


def names_created(names: Iterable[str], used: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names in `names` whose implementations are registered only for functions that an implementation in `used` creates.

    What an implementation creates when it runs follows from its content. A process that loads the result has not run it.
    """
    creators = {name.partition(" #")[0] for name, _ in used}  # without the number of an intrinsic
    registered = {name: registry.by_name.get(name, ()) for name in names}
    return {name for name, rows in registered.items() if rows and not any(creators.isdisjoint(row.creators) for row in rows)}


#: The limits for implementations of a package with files. Comparing the files is cheaper than examining more values.
_LIMITS = Limits(10_000, LIMITS_OF_CLASSES.unnamed)
#: The errors of implementations that cannot be compared, by name, number of implementations and `overlook_members`. Examining all values
#: that an implementation can reach takes seconds in some packages, and every compilation asks for the implementations.
_known_errors: dict[tuple[str, int, bool], Unidentifiable] = {}
#: The functions that are compiled for implementations, by the names of the implementations.
_compiled_functions: dict[str, tuple[FunctionPart, ...]] = {}
#: The packages with an implementation that can reach too many values. Implementations of them are compared by files.
_large_packages: set[str] = set()
#: Whether implementations are compared by files, by name. Once recorded, the form stays, because changes are found by comparing contents.
_by_files: dict[str, bool] = {}


@examines_program(Unidentifiable)
def dependency_of(function: Any, *, declined: bool = False) -> Dependency:
    """Return the dependency to record for an implementation. Raise `Unidentifiable` if the implementation cannot be compared.

    `declined` is whether the implementation did not support the types that the compiler requested.
    """
    registry.refresh()
    name = registry.name_of(function)
    return _dependency_on_name(name, registry.by_name.get(name) or [Implementation(function, ())], declined=declined)


def _dependency_on_name(name: str, registered: list[Implementation], *, declined: bool = False) -> Dependency:
    """Return the dependency on implementations with a name. Packages with too many values are compared by their files.

    `declined` is whether the implementations have declined the types of the call. Raise `Unidentifiable` if neither the values nor the
    files can be compared.
    """
    package = package_of_implementation(registered[0].function)
    if not _by_files.setdefault(name, package in _large_packages):
        try:
            return Dependency(name, _recorded_content(name, registered, declined=declined))
        except TooLarge:
            if digest_of_package(package) is None:
                raise
            _large_packages.add(package)
            _by_files[name] = True
    return Dependency(name, _content_by_files(package))


def _content_by_files(package: str) -> str:
    """Return the content of implementations that are compared by their package's files. Without a digest, it equals no recorded content."""
    return _FILES + (digest_of_package(package) or "")


def _recorded_content(name: str, registered: list[Implementation], *, declined: bool) -> str:
    """Return the digest of implementations, after a prefix if a value has no identity and the implementations have `declined` the types.

    Raise `Unidentifiable` for such a value if the types were not declined, or `TooLarge` if there are too many values.
    """
    try:
        return _digest_implementations(name, registered)
    except TooLarge:
        raise
    except Unidentifiable:
        if not declined:
            raise
        return _DECLINED + _digest_implementations(name, registered, overlook_members=True)


def _digest_implementations(name: str, registered: list[Implementation], *, overlook_members: bool = False) -> str:
    """Return the digest of implementations. See `fingerprint_of_implementations` for `overlook_members`.

    The functions that are compiled for them are recorded for `functions_compiled_for`. The errors of the walk are stored and raised again
    without a walk.

    Raises:
        TooLarge, Unidentifiable: as in `_compute_fingerprint`.
        Unidentifiable: this process has compiled a function that the implementations use, from other values.
    """
    package = package_of_implementation(registered[0].function)
    key = name, len(registered), overlook_members
    if key in _known_errors:
        raise _known_errors[key].without_traceback()
    try:
        fingerprint = _compute_fingerprint(package, registered, overlook_members=overlook_members)
    except Unidentifiable as error:
        _known_errors[key] = error.without_traceback()
        raise
    _compiled_functions[name] = fingerprint.parts
    return content_of_present_code(fingerprint)


def _compute_fingerprint(package: str, registered: list[Implementation], *, overlook_members: bool) -> Fingerprint:
    """Return the fingerprint of implementations. See `fingerprint_of_implementations` for `overlook_members`.

    Raises:
        TooLarge: the implementations can reach too many values. If the package has files, these can be compared instead.
        Unidentifiable: the implementations cannot be compared.
    """
    reads_all = any(isinstance(implementation.function, type) for implementation in registered)  # templates have methods
    walk = functools.partial(fingerprint_of_implementations, registered, overlook_members=overlook_members, read_all=reads_all)
    if hasattr(sys.modules.get(package), "__path__"):
        try:
            return walk(limits=LIMITS_OF_CLASSES if reads_all else _LIMITS)
        except TooLarge:
            if digest_of_package(package) is not None:
                raise
    return walk()


def functions_compiled_for(dependencies: Iterable[tuple[str, str]]) -> list[FunctionPart]:
    """Return the functions that are compiled for the implementations of these dependencies, which this process has digested."""
    return [part for name, _ in sorted(dependencies) for part in _compiled_functions.get(name, ())]


@examines_program(Unidentifiable)
def dependency_of_generator(implementation: Any) -> Dependency | None:
    """Return the dependency to record for a code generator, or None if the generator is not the user's, or belongs to an intrinsic.

    Raise `Unidentifiable` if the code generator cannot be compared.
    """
    registry.refresh()
    function = registry.generators.get(id(implementation)) or user_code_generator(implementation)
    if function is None:
        return None
    name = GENERATOR + stable_name(function)
    registered = registry.by_name.get(name)
    if registered is None:
        if is_generator_of_intrinsic(implementation):
            return None
        registered = generators_of_other_registries().get(name)
    if registered is None:
        raise Unidentifiable(
            f"the code generator {stable_name(function)} is in no registry that is installed in Numba: pass its registry to "
            "install_registry() of the CPU target context (numba.core.registry.cpu_target.target_context)"
        )
    return _dependency_on_name(name, registered)


@examines_program(Unidentifiable)
def dependency_of_type(cls: type) -> Dependency:
    """Return the dependency to record for a class of Numba types that a user has defined.

    A class without a data model has the content "", which is never current. Raise `Unidentifiable` if the class cannot be compared.
    """
    name = name_of_type(cls)
    return Dependency(name, content_of_type(name) or "")


@examines_program(Unidentifiable)
def is_current(dependency: Dependency) -> bool:
    """Return whether the implementation or the class of types that is registered under a dependency's name still has the recorded content.

    Raise `Unidentifiable` if the implementation cannot be compared.
    """
    registry.refresh()
    registered = registry.by_name.get(dependency.name)
    if registered is None:
        registered = _find_in_other_registries(dependency.name)
        if not registered:
            return content_of_type(dependency.name) == dependency.content
    if dependency.is_by_files:
        return _content_by_files(package_of_implementation(registered[0].function)) == dependency.content
    if dependency.is_declined:
        return _DECLINED + _digest_implementations(dependency.name, registered, overlook_members=True) == dependency.content
    return _digest_implementations(dependency.name, registered) == dependency.content


def has_content(dependency: Dependency, function: Any, copy: Any) -> bool:
    """Return whether an implementation has the content of a dependency if `copy` replaces `function`; False if it cannot be compared."""
    package, declined = package_of_implementation(function), dependency.is_declined
    if dependency.is_by_files:
        return _content_by_files(package) == dependency.content
    registered = [
        Implementation(copy, row.options, is_overload=row.is_overload) if row.function is function else row
        for row in registry.by_name.get(dependency.name, ())
    ]
    try:
        content = _compute_fingerprint(package, registered, overlook_members=declined).content
    except Unidentifiable:
        return False
    return (_DECLINED if declined else "") + content == dependency.content


def _find_in_other_registries(name: str) -> list[Implementation]:
    """Return the implementations with this name in registries that packages created themselves."""
    if name.startswith(GENERATOR):
        return generators_of_other_registries().get(name, [])
    template = _find_template(name)
    return [] if template is None else [Implementation(template, ())]


def _find_template(name: str) -> type | None:
    """Return the class with this full name in an imported module, or None. Templates in a package's own registries are such classes."""
    module, path = name, ""
    while module not in sys.modules:
        module, dot, last = module.rpartition(".")
        if not dot:
            return None
        path = f"{last}.{path}" if path else last
    value: Any = sys.modules[module]
    for part in path.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) else None
