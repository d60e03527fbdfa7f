"""A kind of images that is in the tests alone: a program for another processor, as bytes. Both sides of it, and modules of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.digest import digest
from compcache.errors import FormatError, LinkError
from compcache.formats.built_module import BuiltModule, Sections
from compcache.formats.graph import SymbolNode, encode_graph, encode_notes
from compcache.formats.host import ABI_VERSION, target_id
from compcache.formats.manifest import FUNCTION, FunctionRecord, NeedsRecord, decode_function
from compcache.formats.manifest_writer import ManifestWriter, encode_function, encode_module, encode_needs, image_flag, iterate_frames
from compcache.formats.records import ModuleRecord
from compcache.miss.publication import publish_built

if TYPE_CHECKING:
    from compcache import Cache
    from compcache.images.kinds import Table
    from compcache.images.sides import ImageFile

__all__ = ["KIND", "LOADED", "PLATFORM", "add_blob", "as_kind", "blob_module", "check", "is_comparable", "load", "requires"]

KIND = "blob"
PLATFORM = "dsp7-none-blob"
LOADED = "programs for another processor"
MAGIC = b"DSP7"


# ----------------------------------------------------------------- hits


def load(_: Any, file: ImageFile) -> Any:
    raise LinkError(f"{file.path} is a program for another processor")


def check(image: bytes, table: Table) -> None:
    if image[: len(MAGIC)] != MAGIC or image[-len(table.key) :] != table.key:
        raise FormatError("its image is not a program")


# ------------------------------------------------------------- what LLVM makes


def requires(_: bytes) -> str:
    return ""


def is_comparable(_: bytes) -> bool:
    return False


# -------------------------------------------------------------------- modules


def blob_module(
    name: str, *, imports: tuple[str, ...] = (), kind: str = KIND, platform: str = PLATFORM, code: bytes = b"program", bitcode: bytes = b"",
    made_on: str = "",
) -> BuiltModule:  # fmt: skip
    """A module with one function; `made_on` is the identity of the processor that it is for."""
    key = digest([name.encode(), kind.encode(), platform.encode(), code], size=16)
    header = ModuleRecord(key, kind, platform, "dsp7a", ("",), requires(code), "", "22.1.0", "", made_on, ABI_VERSION)
    writer = ManifestWriter()
    writer.add(encode_module(header))
    needs = NeedsRecord(tuple([(imported, imported, bytes(16), b"") for imported in imports]), (), (), ())
    needs_at = writer.add(encode_needs(needs)) if imports else 0
    requirement = header.requirement("")
    offset = writer.add(encode_function(FunctionRecord(name, name, "i64(i64)", target_id(requirement), 0, 1, needs_at)))
    nodes = [SymbolNode(name, "function", name, "i64(i64)", imports), *[SymbolNode(i, "import", i, "", ()) for i in imports]]
    digests = {"code": digest([code]).hex()}
    sections = Sections(MAGIC + code + key, writer.content(), encode_graph(nodes), bitcode, encode_notes(0.5, None, digests))
    needed = header.requirement()
    return BuiltModule(
        sections, ((name, offset, requirement),), target_id(needed), image_flag(kind), key, 0.5, header, ("i64(i64)",), imports,
        digests["code"],
    )  # fmt: skip


def add_blob(cache: Cache, name: str, **more: Any) -> str:
    """Publish a module as every addition does; its module_id."""
    return publish_built(cache._session(), [blob_module(name, **more)])[0][0]


def _with_kind(header: ModuleRecord, kind: str) -> ModuleRecord:
    return ModuleRecord(*[kind if name == "image_kind" else getattr(header, name) for name in header.__slots__])


def as_kind(built: BuiltModule, kind: str, image: bytes) -> BuiltModule:
    """A module of functions that need nothing, with another image of another kind."""
    header = _with_kind(built.header, kind)
    writer = ManifestWriter()
    writer.add(encode_module(header))
    functions = []
    for _, payload in iterate_frames(built.sections.records):
        if payload[:1] == FUNCTION:
            record = decode_function(payload)
            functions.append((record.name, writer.add(payload), header.requirement(header.features_of(record))))
    sections = built.sections._replace(image=image, records=writer.content())
    return built._replace(sections=sections, indexed=tuple(functions), flags=image_flag(kind), header=header)
