"""The stored description of a machine, valid until its next boot: LLVM's name for it.

The file is named after the boot and what the processor says of itself: a kernel does not change without a boot, and emulators and
containers share a boot with their machine. Hits read it only to choose among realizations that fit equally well.
"""

from __future__ import annotations

import os

from compcache.digest import CHECK_SIZE, check, digest, mac
from compcache.files import reraise_interrupt
from compcache.formats.host import platform_name
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.files import Files

__all__ = ["HostFile", "decode_host", "encode_host", "host_key"]

#: How many fields version 1.0 of the package stores.
_FIRST_FIELDS = 2
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def host_key(files: Files, processor: bytes) -> str | None:
    """Return a name for this boot of this machine and its processor; None where the system does not report them.

    `processor` is what the processor says of itself: emulators and containers share a boot with their machine.
    """
    try:
        opened = files.open_owned(_BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
        boot_id = files.pread(opened.number, 64, 0)
    except OSError as error:
        reraise_interrupt(error)
        return None
    return digest([boot_id.strip(), platform_name().encode(), processor], size=12).hex()


class HostFile(Record):
    """What is stored about a machine until its next boot.

    `cpu` is its name in this version of LLVM. It only decides between realizations that fit equally well. Tools alone read the other
    fields: `features` as in `Host`, and `library`, which identifies the file of the LLVM that described the machine. Version 1.0 of the
    package stores neither field: they are empty.
    """

    __slots__ = ("cpu", "llvm_version", "features", "library")
    cpu: str
    llvm_version: str
    features: str
    library: str


def encode_host(host: HostFile, name: str, signing_key: bytes | None = None) -> bytes:
    """Return the bytes of the file with this name, signed if there is a key."""
    text = f"{host.cpu}\0{host.llvm_version}\0{host.features}\0{host.library}".encode()
    return _seal(text, name, signing_key) + text


def decode_host(data: bytes, name: str, signing_key: bytes | None = None) -> HostFile | None:
    """Return the content of a file; None if its bytes are damaged, belong to another name, or lack the key's signature."""
    text = data[CHECK_SIZE:]
    if _seal(text, name, signing_key) != data[:CHECK_SIZE]:
        return None
    fields = text.decode("utf-8", "replace").split("\0")
    if len(fields) == _FIRST_FIELDS:
        fields += ["", ""]
    return HostFile(*fields) if len(fields) == len(HostFile.__slots__) else None


def _seal(text: bytes, name: str, signing_key: bytes | None) -> bytes:
    """Bind the text to its file's name, so that the description of another machine is not accepted."""
    sealed = name.encode() + b"\0" + text
    return mac(sealed, signing_key)[:CHECK_SIZE] if signing_key else check(sealed)
