"""Compiles realizations for this host from stored bitcode, with LLVM and without a front end.

`load_retargeted` is called if all realizations of a function are for other CPUs. `tune` compiles for exactly this host after a more
generic realization was loaded; it runs in a process of its own (`compcache.closures.background`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompcacheError, FormatError, NotCachedError, UndefinedSymbolError
from compcache.formats import host
from compcache.formats.bodies import read_bodies
from compcache.formats.entry import may_be_read
from compcache.formats.graph import decode_notes
from compcache.formats.makers import read_makers
from compcache.formats.manifest import SUSPECT, decode_function
from compcache.formats.manifest_writer import WholeManifest
from compcache.formats.records import decode_module, version_numbers
from compcache.hit.miss import unfit_function
from compcache.images.kinds import is_known
from compcache.interrupts import reraise_interrupt, suppress
from compcache.miss.publication import publish_or_keep
from compcache.publish.locks import try_lock
from compcache.publish.module_reader import read_graph
from compcache.warning import warn

if TYPE_CHECKING:
    from compcache.formats.built_module import BuiltModule
    from compcache.formats.records import ModuleRecord
    from compcache.hit.loader import Accept
    from compcache.hit.target import TypedCallTarget
    from compcache.session import Session
    from compcache.store import Store

__all__ = ["accept_own_llvm", "load_retargeted", "loads_native_code", "tune"]


def load_retargeted(session: Session, func_name: str, owner: object, accept: Accept | None, error: CompcacheError) -> TypedCallTarget:
    """Compile realizations of a function and its imports for this host, and load the function.

    If `accept_own_llvm` makes the cache accept code of this process's LLVM, stored code may be sufficient.

    `owner` and `accept` are the parameters of `Loader.load`, and `error` is the exception of the load.

    Raise `CompcacheError` if the function still cannot be loaded. This is `error`, or the exception that the last attempt raised.
    """
    tried: set[str] = set()
    try:
        while True:
            if not accept_own_llvm(session.store):
                name = unfit_function(error, func_name)
                if name is None or name in tried or not _retarget_function(session, name):
                    raise error
                tried.add(name)
            try:
                return session.loader.load(func_name, owner, accept)
            except (NotCachedError, UndefinedSymbolError) as next_error:
                error = next_error
    finally:
        del error  # the traceback contains this frame


def accept_own_llvm(store: Store) -> bool:
    """Accept code of this process's LLVM even if it is older than `min_llvm`, with a warning: nothing newer can be compiled here.

    Return whether the cache did not accept this code before.
    """
    if not store.min_llvm:
        return False
    from compcache.build import codegen  # imports LLVM

    own_version = codegen.llvm_version()
    if version_numbers(own_version) >= version_numbers(store.min_llvm):
        return False
    warn(
        f"the cache {store.root} requires code of LLVM {store.min_llvm} or later (min_llvm), but this process compiles with LLVM "
        f"{own_version}, and uses code of this LLVM: install a newer llvmlite"
    )
    store.min_llvm = own_version
    return True


def _retarget_function(session: Session, func_name: str) -> bool:
    """Compile a stored realization for this host, and publish the new module. If it cannot be stored or used there, keep it in memory.

    Return False if no realization could be compiled.
    """
    from compcache.publish.verify import uses_unsigned
    from compcache.publish.writer import keep_in_memory

    store = session.store
    for module_id, _ in store.find_all(func_name):
        try:
            built, is_signed_here = _recompile(session, module_id)
        except (CompcacheError, OSError) as failure:
            reraise_interrupt(failure)
            continue  # the error of the load already says why
        if built is None or func_name not in [name for name, *_ in built.functions]:
            continue
        store.stats.compiled(built.seconds)
        if is_signed_here or uses_unsigned(store):
            publish_or_keep(session, func_name, built, sign=is_signed_here)
        else:
            keep_in_memory(store, built)
        return True
    return False


def _recompile(session: Session, module_id: bytes) -> tuple[BuiltModule | None, bool]:
    """Compile a stored module for this host.

    Returns:
        The compiled module, and whether it may be signed, because this cache has signed the stored module. The compiled module is None
        if the stored module cannot be compiled here: it is for another platform, or has an unknown kind, a known fault, no bitcode, bitcode
        of another version of compcache, or pickled globals outside the writable directory.

    Raises:
        CompileError, LinkError: the code cannot be compiled or linked for this host.
        FormatError: a part of the module is malformed.
        FileNotFoundError, IntegrityError, IncompatibleTargetError, StorageError: the module cannot be used or read.
    """
    from compcache.build.inlining.edges import inlined_of
    from compcache.build.large_data.variables import read_large_values
    from compcache.build.recipe import read_recipe
    from compcache.linker import rebuild_module
    from compcache.publish.verify import has_own_signature

    store = session.store
    with store.open_module(module_id) as module:
        footer = module.footer()
        header = decode_module(module.read_record(0))
        if module.flags == SUSPECT or not _is_for_this_platform(header) or not is_known(header.image_kind) or not footer.bitcode:
            return None, False
        section = module.read(footer.image + footer.records + footer.graph, footer.bitcode)
        notes = decode_notes(module.read(footer.content, footer.notes))
        records = WholeManifest(module.read(footer.image, footer.records)).entries()
        readable = [record for _, record in records if may_be_read(record.kind, elsewhere=module.elsewhere)]
        entries = {(record.kind, record.name): record.data for record in readable}
        try:
            recipe = read_recipe(section, module.read_record)._replace(data=read_large_values(module.read(0, footer.image)))
        except FormatError:
            return None, False  # another version of compcache wrote the bitcode
        makers = read_makers(module.read_record, module.records)
        if module.elsewhere and recipe.is_pickled():
            return None, False  # publishing the result here would make an unsigned pickle trusted
        is_signed_here = has_own_signature(store, module)
        inlined, bodies = inlined_of(read_graph(module)), read_bodies(lambda at, size: section[at : at + size], len(section)).values()
    return rebuild_module(recipe, notes, entries, store.host(), makers=makers, inlined=inlined, bodies=bodies), is_signed_here


def _is_for_this_platform(header: ModuleRecord) -> bool:
    """Return whether a module is for this platform, this version of images and this C library."""
    is_same_platform = header.abi == host.ABI_VERSION and header.triple == host.platform_name()
    return is_same_platform and host.libc_serves(header.libc)


def loads_native_code(session: Session, func_name: str) -> bool:
    """Return whether the best realization was compiled for exactly this host. The result is True if no realization can be read."""
    store = session.store
    for module_id, offset in store.find(func_name):
        with suppress(CompcacheError, OSError), store.open_module(module_id) as module:
            header = decode_module(module.read_record(0))
            features = header.features_of(decode_function(module.read_record(offset)))
            return store.processor().rank(header.requirement(features)) == host.NATIVE
    return True


def tune(session: Session, func_name: str) -> bool:
    """Compile and store a realization for exactly this host, and return whether that succeeded.

    Nothing is compiled if the realization exists, or while another process tunes any function for the same processor.
    """
    with try_lock(session.store, "tune " + (session.store.processor().identity or "host")) as owned:
        return owned and not loads_native_code(session, func_name) and _retarget_function(session, func_name)
