"""Makes caches of any size quickly: one module is compiled, and published again and again under other names."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

import sources

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.formats.built_module import BuiltModule
    from compcache.formats.manifest import FunctionRecord
    from compcache.publish.writer import Publication
    from compcache.store import Store

PER_MODULE = 10


class Filled(NamedTuple):
    """What filling a cache took, and what it left on disk."""

    modules: int
    seconds: float
    slowest_ms: float
    index_bytes: int

    @property
    def amortized_us(self) -> float:
        """The cost of one addition, its share of all index merges included."""
        return self.seconds / self.modules * 1e6


def function_name(module: int, function: int) -> str:
    """The name of one function of a synthesized cache."""
    return f"package.module_{module:06d}.function_{function:02d}"


def add_small(directory: str) -> None:
    """Add the smallest module, through the public interface; it leaves the host in the cache."""
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(sources.SMALL))
        cache.get_target(sources.SMALL_NAME)(1.0, 2.0)


def _do_not_sync(fd: object) -> None:
    """Stands for fsync where nothing has to survive a crash."""


def fill(directory: str, modules: int, *, sync: bool, first: int = 0, functions: int = PER_MODULE) -> Filled:
    """Publish `modules` modules of ten `functions` each, or of so many, which all can be loaded and called.

    They differ in the names of their functions, hence in records, digest and file; the image is the same. With
    `sync` off nothing waits for the disk, which would take minutes for a hundred thousand files.
    """
    from compcache.files import Files
    from compcache.publish.additions import merge
    from compcache.publish.writer import publish_modules
    from compcache.store import Store

    class Unsynced(Files):
        __slots__ = ()
        fsync = staticmethod(_do_not_sync)

    store = Store(directory, files=None if sync else Unsynced())
    publications = _publications(store, modules, first, functions)
    slowest = 0.0
    taken = 0.0
    for publication in publications:
        started = time.perf_counter()
        publish_modules(store, [publication])
        merge(store)
        elapsed = time.perf_counter() - started
        taken += elapsed
        slowest = max(slowest, elapsed)
    store.close()
    names = os.listdir(f"{directory}/index-v1")
    size = sum(os.path.getsize(f"{directory}/index-v1/{name}") for name in names)
    return Filled(modules, taken, slowest * 1e3, size)


def compile_template(store: Store, functions: int) -> tuple[list[bytes], list[FunctionRecord], BuiltModule]:
    """Compile a module of small functions; return the payloads of its records, its function records and the built module."""
    from compcache.formats import manifest, manifest_writer
    from compcache.linker import build_module

    source = ModuleSource(sources.small_module([f"template_{number}" for number in range(functions)]))
    built = build_module(source, machine=store.host(), is_cached=lambda _: False)
    payloads = [payload for _, payload in manifest_writer.iterate_frames(built.sections.records)]
    return payloads, [manifest.decode_function(payload) for payload in payloads if payload[:1] == b"F"], built


def _publications(store: Store, modules: int, first: int, per_module: int) -> Iterator[Publication]:
    from compcache.formats import manifest, manifest_writer, records
    from compcache.publish.writer import Publication

    payloads, templates, built = compile_template(store, per_module)
    header = records.decode_module(payloads[0])
    for module in range(first, first + modules):
        writer = manifest_writer.ManifestWriter()
        writer.add(payloads[0])  # the module record: its key is the image's
        functions = []
        for number, template in enumerate(templates):
            name = function_name(module, number)
            fields = (template.symbol, template.signature, template.target_id, template.function, template.entry, template.needs)
            offset = writer.add(manifest_writer.encode_function(manifest.FunctionRecord(name, *fields)))
            functions.append((name, offset, header.requirement(header.features_of(template))))
        yield Publication(built.sections._replace(records=writer.content()), functions, built.target, built.flags, built.key)
