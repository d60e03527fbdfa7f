"""A unit of compilation: source code, the compiler, the flags, and their digests."""

from __future__ import annotations

import os

from compcache.clang.compilers import Compiler, find_compiler, language_of
from compcache.digest import digest
from compcache.errors import CompileError
from compcache.files import absolute_path
from compcache.identity import encodable
from compcache.interrupts import suppress
from compcache.processes.detached import current_directory
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OVERRIDE", "Unit", "file_digest", "make_unit"]

_SIZE = 16  # bytes of a digest
#: Flags whose value is a file of options.
_CONFIG_FLAGS = ("--config",)
#: The beginnings of words in which the name of a file follows at once.
_BEFORE_FILES = ("@", "-include", "-ivfsoverlay", "-I")
#: The suffixes of precompiled headers.
_PRECOMPILED_SUFFIXES = (".pch", ".gch")
#: Flags that select another output than object code, and this output.
_OTHER_OUTPUT = {
    "-S": "assembly", "--assemble": "assembly", "-E": "preprocessed source", "--preprocess": "preprocessed source",
    "-M": "a list of headers", "-MM": "a list of headers", "--precompile": "an interface",
    "-fsyntax-only": "nothing", "-###": "nothing",
}  # fmt: skip
#: The environment variable from which clang takes further flags.
OVERRIDE = "CCC_OVERRIDE_OPTIONS"
#: Environment variables that affect the files that a compiler reads, or the code that it makes.
_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "SOURCE_DATE_EPOCH", OVERRIDE, "RUSTFLAGS")


class Unit(Record):
    """Source code, its compiler and the flags.

    `path` is "" for code without a file. `directory` is the compiler's working directory, or "" if the current directory no longer exists.
    """

    __slots__ = ("code", "path", "compiler", "flags", "directory")
    code: bytes
    path: str
    compiler: Compiler
    flags: tuple[str, ...]
    directory: str

    @property
    def label(self) -> str:
        """The unit's label in messages and names: its file name, with bytes that are not UTF-8 escaped; without a file, its language."""
        return encodable(os.path.basename(self.path)) or self.compiler.language

    def input_digest(self) -> bytes:
        """Return a digest of the inputs that are known without running the compiler. The headers are not among them.

        Two spellings of a path differ: `__FILE__` is the path as written, and a spelling with a link may lead to other headers.
        """
        texts = [self.path, self.compiler.language, self.compiler.stamp, self.directory, *self.flags]
        texts += [f"{name}={os.environ.get(name)}" for name in _VARIABLES]
        texts += self.flag_files()
        return _digest([self.code, *[text.encode("utf-8", "surrogateescape") for text in texts]])

    def flag_files(self, configurations: Iterable[str] = ()) -> tuple[str, ...]:
        """Return a text ``digest path`` for each file in the flags (``@options``, ``--config file``, ``-fplugin=a.so``, ``-Ldir -lname``).

        Paths in a file of options are relative to the working directory or to that file. `configurations` are further files of options.
        """
        digests: dict[str, str] = {}
        words = [(word, self.directory) for word in (*self.flags, *[f"@{path}" for path in configurations])]
        follows_config = {following for word, following in zip(self.flags, self.flags[1:], strict=False) if word in _CONFIG_FLAGS}
        while words:
            word, directory = words.pop()
            for path in _named_files(word, {self.directory, directory}).difference(digests):
                digests[path] = file_digest(path)
                if word.startswith(("@", *_CONFIG_FLAGS)) or word in follows_config:  # the file contains further flags
                    words += [(inner, os.path.dirname(path)) for inner in _read_options(path)]
        digests |= {path: file_digest(path) for path in self._libraries() if path not in digests}
        return tuple([f"{digests[path]} {path}" for path in sorted(digests)])

    def _libraries(self) -> list[str]:
        """Return the paths of the libraries in the flags ``-L`` and ``-l``. Code of static libraries becomes part of the unit's code."""
        directories, names = [], []
        for word, following in zip(self.flags, (*self.flags[1:], ""), strict=False):
            value = word[2:] or following
            if word.startswith("-L"):
                directories.append(os.path.join(self.directory, value.rpartition("=")[2]))
            elif word.startswith("-l"):
                names += [value[1:]] if value.startswith(":") else [f"lib{value}.a", f"lib{value}.so"]
        if directories and self.compiler.language == "rust":
            from glob import escape, glob

            return [path for directory in directories for path in sorted(glob(os.path.join(escape(directory), "*.rlib")))]
        paths = [os.path.join(directory, name) for directory in directories for name in names]
        return list(filter(os.path.isfile, paths))


def _named_files(word: str, directories: Iterable[str]) -> set[str]:
    """Return the existing files that a flag names as ``file``, ``--flag=file`` or ``--flag=name=file``, or after one of `_BEFORE_FILES`.

    Names are relative to one of the directories. Precompiled headers beside the files are returned, too, because clang reads such a header
    instead of a file that ``-include`` names.
    """
    names = {word, word.partition("=")[2], word.rpartition("=")[2], *[word.removeprefix(start) for start in _BEFORE_FILES]} - {""}
    names |= {f"{name}{suffix}" for name in names for suffix in _PRECOMPILED_SUFFIXES}
    return set(filter(os.path.isfile, [os.path.join(directory, name) for directory in directories for name in names]))


def _read_options(path: str) -> list[str]:
    """Return the words of a file of options; an empty list if the file cannot be read."""
    with suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().split()
    return []


def make_unit(
    source: str | os.PathLike[str],
    flags: Iterable[str] | None = None,
    cc: str | None = None,
    language: str | None = None,
    directory: str | None = None,
) -> Unit:
    """Return the unit for a source, after reading its file and finding the compiler.

    Args:
        source: source code, or the path of a source file.
        flags: the flags for the compiler; None selects optimization level 2.
        cc: the compiler; None selects the first installed compiler of the language.
        language: the language; None derives it from the file's suffix.
        directory: the working directory of the compiler, to which paths are relative; None selects the current directory.

    Raises:
        CompileError: the source, the language or a flag is invalid, the compiler is not installed, or a flag selects another output.
        OSError: the file cannot be read.
    """
    path = _path_or_empty(source)
    _encode(path, "the path of the source")
    if path.startswith(("-", "@")):
        path = f"./{path}"  # compilers would read the path as an option, or as the name of a file of options
    if path:
        with open(os.path.join(directory or "", path), "rb") as file:
            code = file.read()
    elif isinstance(source, str):
        code = _encode(source, "the source")
    else:
        raise CompileError(f"the source must be source code or the path of a file, not {type(source).__name__}")
    unit_language = language or language_of(path) or ("c" if not path else None)
    if unit_language is None:
        raise CompileError(f"the suffix of {path} does not belong to a known language: set the language (language=)")
    working_directory = absolute_path(directory) if directory else current_directory()  # may be "": absolute paths do not need it
    return Unit(code, path, find_compiler(unit_language, cc), _checked_flags(flags, unit_language), working_directory)


def _checked_flags(flags: Iterable[str] | None, language: str) -> tuple[str, ...]:
    """Return a compiler's flags; those for optimization level 2 if `flags` is None.

    Raise `CompileError` for a flag that is not a string, contains NUL, or selects other output than code.
    """
    if flags is None:
        return ("-Copt-level=2",) if language == "rust" else ("-O2",)
    words = tuple(flags.split() if isinstance(flags, str) else flags)
    for flag in words:
        if not isinstance(flag, str) or "\0" in flag:
            raise CompileError(f"the flags of a compiler must be strings without NUL, not {flag!r}")
        _encode(flag, "a flag")
    pieces = [piece for word in words for piece in (word.split(",") if word.startswith("-Wp,") else (word,))]
    output_flag = next((flag for flag in pieces if flag in _OTHER_OUTPUT or (language == "rust" and flag.startswith("--emit"))), None)
    if output_flag is not None:
        output = _OTHER_OUTPUT.get(output_flag, "another output")
        raise CompileError(f"the flag {output_flag} makes the compiler write {output} instead of code: remove the flag")
    return words


def _encode(text: str, subject: str) -> bytes:
    """Return text as compilers get it. Raise `CompileError` if it has a surrogate that does not stand for a byte."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise CompileError(f"{subject} contains the surrogate {text[error.start]!r}, which compilers cannot read: remove it") from error


def _path_or_empty(source: object) -> str:
    """Return the path if a source is a path, or "" if it is code."""
    if isinstance(source, os.PathLike):
        return str(os.fspath(source))
    is_path = isinstance(source, str) and language_of(source) and not set("{};\n") & set(source)  # code contains one of these characters
    return str(source) if is_path else ""


def file_digest(path: str) -> str:
    """Return the digest of a file's content in hexadecimal digits; "" if the file cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return _digest([file.read()]).hex()
    return ""


def _digest(parts: list[bytes]) -> bytes:
    """Return a digest of byte strings. Each of them is preceded by its length, so other lists have other digests."""
    return digest([piece for part in parts for piece in (b"%d:" % len(part), part)], size=_SIZE, person=b"compcache-clang")
