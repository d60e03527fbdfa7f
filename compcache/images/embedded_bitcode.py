"""LLVM bitcode embedded in object files (code for link-time optimization) and in archives of them.

* ELF: `.llvm.lto` (clang's ``-ffat-lto-objects``) and `.llvmbc` (``-fembed-bitcode``) contain bitcode.
* `ar` archives, as System V and BSD write them: https://man.freebsd.org/cgi/man.cgi?ar(5). Thin archives only name files.
* ``-flto`` and ``-flto=thin`` objects are bitcode files. They are read only as members of archives.

Malformed or truncated bytes raise `FormatError`, and so does a file without bitcode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.arch.known import KNOWN
from compcache.errors import FormatError
from compcache.images.elf.parts import is_elf
from compcache.images.elf.reading import named_sections

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BITCODE_MAGIC", "embedded_bitcode", "holds_machine_code"]

BITCODE_MAGIC = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
_ARCHIVE, _THIN = b"!<arch>\n", b"!<thin>\n"
_OTHER_OBJECTS = {
    b"\xcf\xfa\xed\xfe": "a Mach-O object",
    b"\xca\xfe\xba\xbe": "a Mach-O universal file",
    b"MZ": "a Windows program",
    **{known.coff_magic: "a COFF object" for known in KNOWN if known.coff_magic},
}
_SECTIONS = (".llvm.lto", ".llvmbc")
_HEADER = 60
_TABLES = ("/", "//", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED", "__.SYMDEF_64")
_ADVICE = "compile with -emit-llvm, -flto or -ffat-lto-objects"


def holds_machine_code(data: bytes) -> bool:
    """Return whether the bytes are an object file or an archive, of any platform."""
    return is_elf(data) or data.startswith((_ARCHIVE, _THIN, *_OTHER_OBJECTS))


def embedded_bitcode(data: bytes) -> tuple[bytes, ...]:
    """Return the bitcode modules in an object file or archive, in file order. There is at least one.

    Raise `FormatError` if the file is malformed, of an unsupported format, or has no bitcode. The message describes "the file".
    """
    if data.startswith(_THIN):
        raise FormatError("the file is a thin archive, which names other files without containing them: pass its member files")
    if not data.startswith(_ARCHIVE):
        return (_read_object(data),)
    modules = []
    for name, content in _read_members(data):
        try:
            modules.append(content if content.startswith(BITCODE_MAGIC) else _read_object(content))
        except FormatError as error:
            raise FormatError(f"the archive member {name!r} cannot be used: {error}") from error
    if not modules:
        raise FormatError("the archive has no members: add the object files to it")
    return tuple(modules)


def _read_object(data: bytes) -> bytes:
    """Return the bitcode in an object file. Raise `FormatError` if the file has no bitcode."""
    if not is_elf(data):
        kind = next((kind for magic, kind in _OTHER_OBJECTS.items() if data.startswith(magic)), None)
        if kind is None:
            raise FormatError("the file is neither an object file nor LLVM bitcode: pass one of these")
        raise FormatError(f"the file is {kind}, but LLVM bitcode can be read only from ELF objects: compile with -emit-llvm or -flto")
    unusable = ""
    for name, content in named_sections(data, _SECTIONS):
        if content.startswith(BITCODE_MAGIC):
            return content
        unusable = name
    if unusable:
        raise FormatError(f"the file is an ELF file whose section {unusable} is not LLVM bitcode: {_ADVICE}")
    raise FormatError(f"the file is an ELF file of machine code without LLVM bitcode: {_ADVICE}")


def _read_members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each archive member, except tables of symbols and names. Raise `FormatError` if the archive is damaged."""
    position = len(_ARCHIVE)
    long_names = b""
    while position < len(data):
        header = data[position : position + _HEADER]
        if len(header) < _HEADER or header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise FormatError(f"the archive is damaged: no valid member starts at byte {position}; build it again")
        name = header[:16].decode("utf-8", "replace").rstrip()
        start, size = position + _HEADER, int(header[48:58])
        content = data[start : start + size]
        if len(content) < size:
            raise FormatError(f"the archive is truncated: the member {name!r} should have {size} bytes, not {len(content)}; build it again")
        position = start + size + size % 2
        if name == "//":
            long_names = content
        name, content = _with_long_name(name, content, long_names)
        if name not in _TABLES:
            yield name.removesuffix("/"), content


def _with_long_name(name: str, content: bytes, long_names: bytes) -> tuple[str, bytes]:
    """Return the name and the content of a member. A name that does not fit the header is in the content (BSD) or in `long_names` (GNU)."""
    if name.startswith("#1/") and name[3:].isdecimal():
        length = int(name[3:])
        return content[:length].rstrip(b"\0").decode("utf-8", "replace"), content[length:]
    if name.startswith("/") and name[1:].isdecimal():
        return long_names[int(name[1:]) :].partition(b"/\n")[0].decode("utf-8", "replace"), content
    return name, content
