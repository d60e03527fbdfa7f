"""Module files that no compiler has made, hence many in a second: they are listed, pruned and checked like others, and cannot be loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.digest import digest
from compcache.formats.built_module import Sections
from compcache.formats.graph import decode_notes, encode_graph, encode_notes, pack_notes
from compcache.formats.host import ABI_VERSION, platform_name, target_id
from compcache.formats.makers import MAKERS
from compcache.formats.manifest import IMAGE_SHARED, NO_ENTRY, FunctionRecord, NeedsRecord
from compcache.formats.manifest_writer import ManifestWriter, encode_function, encode_module, encode_needs
from compcache.formats.order import with_number
from compcache.formats.records import ModuleRecord
from compcache.publish.additions import merge
from compcache.publish.writer import Publication, publish_modules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.store import Store

__all__ = ["publish_module"]


def publish_module(
    store: Store,
    number: int,
    names: Sequence[str],
    imports: Sequence[str] = (),
    *,
    cpu: str = "",
    llvm: str = "22.1.0",
    makers: str = "",
    size: int = 0,
    addition: int = 0,
) -> bytes:
    """Add a module of these functions; its module_id. `number` makes it another one, `size` is how many bytes its image has more.

    `addition` is the number of the addition.
    """
    key = digest([number.to_bytes(8, "little")])
    writer = ManifestWriter()
    header = ModuleRecord(key, "shared", platform_name(), cpu, ("",), "", cpu, llvm, "", "", ABI_VERSION)
    writer.add(encode_module(header))
    if makers:
        writer.add(MAKERS + makers.encode())
    slots = tuple((slot, name, b"", b"") for slot, name in enumerate(imports, 1))
    needs = writer.add(encode_needs(NeedsRecord(slots, (), (), ()))) if slots else 0
    requirement = header.requirement("")
    indexed = []
    for name in names:
        record = FunctionRecord(name, "f", "i64(i64)", target_id(requirement), 0, NO_ENTRY, needs)
        indexed.append((name, writer.add(encode_function(record)), requirement))
    image = b"\x7fELF" + bytes(60) + b"CCMODULE" + ABI_VERSION.to_bytes(4, "little") + (2).to_bytes(4, "little") + key + bytes(100 + size)
    notes = pack_notes(with_number(decode_notes(encode_notes(0.05, None, {})), addition))
    sections = Sections(image, writer.content(), encode_graph(()), b"", notes)
    (module_id,) = publish_modules(store, [Publication(sections, indexed, bytes(8), IMAGE_SHARED, key)])
    merge(store)
    return module_id
