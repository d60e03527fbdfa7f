"""Finds bodies in stored modules that a new module can inline (`compcache.build.inlining`). It also imports these functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.build.codegen import llvm_version
from compcache.build.inlining.imported import Provided
from compcache.errors import CompcacheError
from compcache.formats.bodies import read_bodies
from compcache.formats.makers import LLVM, PACKAGE, Maker, read_makers
from compcache.formats.records import decode_module, version_numbers
from compcache.images.linkers.version import NAMES as LINKERS
from compcache.interrupts import suppress
from compcache.publish.verify import has_own_signature

if TYPE_CHECKING:
    from compcache.directory.module_file import ModuleFile
    from compcache.session import Session

__all__ = ["find_bodies"]


def find_bodies(session: Session, names: tuple[str, ...]) -> dict[str, Provided]:
    """Return the inlinable bodies of functions with these content names, by name. Functions without a usable body are left out."""
    bodies = ((name, _find_body(session, name)) for name in names)
    return {name: offer for name, offer in bodies if offer is not None}


def _find_body(session: Session, name: str) -> Provided | None:
    """Return the body of a function from its first usable realization that has one; None if no realization has one."""
    store = session.store
    for module_id, _ in store.find(name):
        with suppress(CompcacheError, OSError), store.open_module(module_id) as module:
            session.loader.require_usable(module)
            offer = _read_body(session, module, name)
            if offer is not None:
                return offer
    return None


def _read_body(session: Session, module: ModuleFile, name: str) -> Provided | None:
    """Return a function's body in a module; None if this cache may use none. Raise `FormatError` or `StorageError` if it is unreadable."""
    footer = module.footer()
    start = footer.image + footer.records + footer.graph
    body = read_bodies(lambda at, size: module.read(start + at, size), footer.bitcode).get(name)
    if body is None or version_numbers(decode_module(module.read_record(0)).llvm_version) > version_numbers(llvm_version()):
        return None  # the body is missing, or a newer LLVM wrote it, whose IR this LLVM may interpret differently
    if not all(session.loader.holds(imported, to_import=True) for imported in body.imports):
        return None  # the importing module may contain code of the body's imports without needing them
    if session.store.publish_key is not None and not has_own_signature(session.store, module):
        return None  # a module built from the body would be signed
    compilers = [maker for maker in read_makers(module.read_record, module.records) if maker.name not in LINKERS]
    makers = [maker for maker in compilers if maker.name != LLVM and maker != Maker(PACKAGE, "")]
    return Provided(body, module.module_id.hex(), tuple(makers))
