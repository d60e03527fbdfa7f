"""The places of all files in a cache directory. Only this module contains these names."""

from __future__ import annotations

from compcache.digest import DIGEST_SIZE
from compcache.interrupts import reraise_interrupt
from compcache.record import Record, set_field

__all__ = [
    "BUNDLES", "CLOSURES", "GONE", "HOSTS", "INDEX", "JOURNALS", "LAYERS", "LOCKS", "MERGED_LAYERS", "MODULES",
    "MODULE_FILES", "MODULE_LISTS", "NUMBERS", "PARTS", "PINS", "PLACES", "QUARANTINE", "SIGNATURES", "SIZE", "STATISTICS", "TAG",
    "TEMPORARY", "UNCACHED", "VOLUMES", "Place", "module_id_of",
]  # fmt: skip


class Place(Record):
    """One kind of file in a cache directory.

    Attributes:
        form: the path below the root, with variable parts in angle brackets. The number at the end of the directory or file name is the
            version of the format.
        directory: the name of the directory, or "" for a file in the root.
        name: the file name, or "" for a kind with many files.
        suffix: the common ending of the file names, or "".
        derived: whether the files can be recreated from the modules or the system.
        cleared: whether the files are removed when the cache is cleared.
    """

    __slots__ = ("form", "directory", "name", "suffix", "derived", "cleared")
    form: str
    directory: str
    name: str
    suffix: str
    derived: bool
    cleared: bool

    def __init__(self, form: str, *, derived: bool = False, cleared: bool = False) -> None:
        directory, _, file = form.rpartition("/")
        _, varies, suffix = file.rpartition(">")
        set_field(self, "form", form)
        set_field(self, "directory", directory.partition("/")[0])
        set_field(self, "name", "" if varies else file)
        set_field(self, "suffix", suffix if varies else "")
        set_field(self, "derived", derived)
        set_field(self, "cleared", cleared)

    def file_name(self, stem: str) -> str:
        """Return the name of a file of this kind: the stem and the suffix."""
        return stem + self.suffix

    def includes(self, file_name: str) -> bool:
        """Return whether a file name belongs to this kind."""
        return file_name == self.name if self.name else file_name.endswith(self.suffix)


TAG = Place("CACHEDIR.TAG")
MODULES = Place("modules-v1/<aa>/<module_id>.ccm", cleared=True)
NUMBERS = Place("numbers-v1/<number>.numbered", cleared=True)
INDEX = Place("index-v1/<LL>-<digest>.idx", derived=True, cleared=True)
PARTS = Place("index-v1/<directories and time>.idx-part", derived=True, cleared=True)
HOSTS = Place("hosts-v4/<boot and processor>.host", derived=True)
LAYERS = Place("layers-v1/<LL>-<digest>.idx", derived=True, cleared=True)
MERGED_LAYERS = Place("layers-v1/<digest>.all", derived=True, cleared=True)  # of versions up to 1.0; neither read nor written
BUNDLES = Place("bundles-v1/<bundle and its state>.unpacked", derived=True, cleared=True)
CLOSURES = Place("closures-v1/<key of the closure>.closure", derived=True, cleared=True)
SIGNATURES = Place("signatures-v1/<module_id>.ed25519", cleared=True)
MODULE_LISTS = Place("module-lists-v5/<LL>-<digest>.list", derived=True, cleared=True)
MODULE_FILES = Place("module-lists-v5/files", derived=True, cleared=True)  # of versions up to 1.0; neither read nor written
JOURNALS = Place("stats/<host>.<n>.journal1")
STATISTICS = Place("stats/<unique>.stats1")
SIZE = Place("stats/size-v2", derived=True, cleared=True)
PINS = Place("pins-v1/<key of the name>.pin")
UNCACHED = Place("uncached-v2/<key of the name>.uncached", cleared=True)
VOLUMES = Place("volumes-v1/<digest>.volume", cleared=True)
GONE = Place("volumes-v1/<digest>.gone", cleared=True)
LOCKS = Place("locks/<key of the name>.lock")
TEMPORARY = Place("tmp/<unique>")
QUARANTINE = Place("quarantine/<name>.<unique>", cleared=True)
#: Every kind of file that the package writes into a cache directory.
PLACES = (
    TAG, MODULES, NUMBERS, INDEX, PARTS, HOSTS, LAYERS, MERGED_LAYERS, BUNDLES, CLOSURES, SIGNATURES, MODULE_LISTS, MODULE_FILES, JOURNALS,
    STATISTICS, SIZE, PINS, UNCACHED, VOLUMES, GONE, LOCKS, TEMPORARY, QUARANTINE,
)  # fmt: skip


def module_id_of(name: str) -> bytes | None:
    """Return the module_id in the name of a module file, or None for other names."""
    try:
        module_id = bytes.fromhex(name[: -len(MODULES.suffix)])
    except ValueError as error:
        reraise_interrupt(error)
        return None
    return module_id if len(module_id) == DIGEST_SIZE and name == MODULES.file_name(module_id.hex()) else None
