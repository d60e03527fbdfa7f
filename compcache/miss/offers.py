"""What stored modules offer to a new module that imports their functions: the bodies that it may inline (`compcache.build.inlining`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.build.codegen import llvm_version
from compcache.build.inlining.imported import Provided
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.bodies import read_bodies
from compcache.formats.makers import LLVM, PACKAGE, Maker, read_makers
from compcache.formats.records import decode_module, version_numbers
from compcache.images.linkers.version import NAMES as LINKERS
from compcache.publish.verify import is_vouched_for

if TYPE_CHECKING:
    from compcache.directory.module_file import ModuleFile
    from compcache.session import Session

__all__ = ["offers_of"]


def offers_of(session: Session, names: tuple[str, ...]) -> dict[str, Provided]:
    """Return what the modules of a cache offer of functions with these names of content, by name."""
    found = ((name, _offer(session, name)) for name in names)
    return {name: offer for name, offer in found if offer is not None}


def _offer(session: Session, name: str) -> Provided | None:
    """Return the body that the first usable realization offers. An invalid realization offers nothing."""
    store = session.store
    for module_id, _ in store.find(name):
        try:
            with store.open_module(module_id) as module:
                session.loader.require_usable(module)
                offer = _read(session, module, name)
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            continue
        if offer is not None:
            return offer
    return None


def _read(session: Session, module: ModuleFile, name: str) -> Provided | None:
    footer = module.footer()
    start = footer.image + footer.records + footer.graph
    body = read_bodies(lambda at, size: module.read(start + at, size), footer.bitcode).get(name)
    if body is None or version_numbers(decode_module(module.read_record(0)).llvm_version) > version_numbers(llvm_version()):
        return None  # or it was written by an LLVM whose text may mean something else to this one
    if not all(session.loader.holds(other, to_import=True) for other in body.imports):
        return None  # its module may contain code of these without needing them
    if session.store.publish_key is not None and not is_vouched_for(session.store, module):
        return None  # what is built from it would be signed
    made = [maker for maker in read_makers(module.read_record, module.records) if maker.name not in LINKERS]
    makers = [maker for maker in made if maker.name != LLVM and maker != Maker(PACKAGE, "")]
    return Provided(body, module.module_id.hex(), tuple(makers))
