"""The codec for host files: LLVM's description of a host, valid until the next boot.

The name of the file depends on the boot and on the processor's own description, because emulators and containers share a boot with their
host. Hits read the file only to choose among realizations that fit equally well.
"""

from __future__ import annotations

import os

from compcache.digest import CHECK_SIZE, check, digest, mac
from compcache.formats.host import platform_name
from compcache.interrupts import suppress
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.files import Files

__all__ = ["HostFile", "decode_host", "encode_host", "host_key"]

#: The number of fields in files of version 1.0 of the package.
_FIRST_FIELDS = 2
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def host_key(files: Files, processor: bytes) -> str | None:
    """Return a name for the current boot of this host and a processor, or None if the system does not report boots.

    `processor` is the processor's own description, which differs in emulators.
    """
    with suppress(OSError):
        opened = files.open_owned(_BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
        boot_id = files.pread(opened.number, 64, 0)
        return digest([boot_id.strip(), platform_name().encode(), processor], size=12).hex()
    return None


class HostFile(Record):
    """The description of a host until its next boot.

    `cpu` is the name of its CPU in the version `llvm_version` of LLVM. Hits read only this name, to choose between realizations that fit
    equally well. Tools also read `features` (`Host`) and `library`, which identifies the file of the LLVM that described the host. These
    fields are empty in files of version 1.0 of the package.
    """

    __slots__ = ("cpu", "llvm_version", "features", "library")
    cpu: str
    llvm_version: str
    features: str
    library: str


def encode_host(host: HostFile, name: str, signing_key: bytes | None = None) -> bytes:
    """Encode a host file with this name. The file is signed if a key is given."""
    text = f"{host.cpu}\0{host.llvm_version}\0{host.features}\0{host.library}".encode()
    return _seal(text, name, signing_key) + text


def decode_host(data: bytes, name: str, signing_key: bytes | None = None) -> HostFile | None:
    """Decode a host file. Return None if it is damaged, belongs to another name, or is not signed with the key."""
    text = data[CHECK_SIZE:]
    if _seal(text, name, signing_key) != data[:CHECK_SIZE]:
        return None
    fields = text.decode("utf-8", "replace").split("\0")
    if len(fields) == _FIRST_FIELDS:
        fields += ["", ""]
    return HostFile(*fields) if len(fields) == len(HostFile.__slots__) else None


def _seal(text: bytes, name: str, signing_key: bytes | None) -> bytes:
    """Return a check of the text and of its file's name, with which the description of another machine is not accepted."""
    sealed = name.encode() + b"\0" + text
    return mac(sealed, signing_key)[:CHECK_SIZE] if signing_key else check(sealed)
