"""Lists the paths at which a preprocessor looks for files. A new file at one of them can change what the preprocessor reads."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["SearchPath", "read_search_path", "searched_paths"]

#: The spaces, continued lines and comments of up to 4,096 characters that may stand between the tokens of a directive. Without a limit,
#: the end of each comment that does not end would be looked for in the whole file.
_GAP = rb"(?:[ \t\v\f]|\\\r?\n|/\*(?:[^*]|\*(?!/)){0,4096}\*/)*"
#: A name that code looks for without including the file: ``__has_include(<name>)``, also by the macros of libraries.
_HAS_INCLUDE = re.compile(rb'has_include(?:_next)?%b\(%b[<"]([^<>"\n]+)[>"]' % (_GAP, _GAP))
#: An inclusion that begins to search in the directory of the including file, or may do so because a macro contains the name.
_INCLUDES_BESIDE = re.compile(rb"#%b(?:include(?:_next)?|import|embed)\b[ \t]*[^ \t<]" % _GAP)
_MISSING = "ignoring nonexistent directory "
_QUOTED = '#include "..." search starts here:\n'
_BRACKETED = "#include <...> search starts here:"
_END = "End of search list.\n"
#: A part of what clang's driver writes with ``-v``.
_VERBOSE = "Thread model: "


class SearchPath(NamedTuple):
    """The directories in which a compiler looks for included files, in order, and the directories in its options that do not exist."""

    directories: tuple[str, ...]
    missing: tuple[str, ...]


def read_search_path(log: str) -> tuple[SearchPath, str]:
    """Return the search path that clang's option ``-v`` writes to standard error, and the compiler's diagnostics after it.

    If `log` has no search path, the returned path is empty. The diagnostics are then the lines with errors if ``-v`` has written other
    lines, too; otherwise all lines.
    """
    head, end, diagnostics = log.partition(_END)
    if not end:
        errors = [line for line in log.splitlines() if "error: " in line] if _VERBOSE in log else []
        return SearchPath((), ()), "\n".join(errors) or log
    missing = [line.removeprefix(_MISSING).strip('"') for line in head.splitlines() if line.startswith(_MISSING)]
    directories = [line.strip() for line in head.partition(_QUOTED)[2].splitlines() if line != _BRACKETED]
    return SearchPath(tuple(directories), tuple(missing)), diagnostics


def searched_paths(search_path: SearchPath, codes: Mapping[str, bytes], directory: str) -> tuple[list[str], list[str]]:
    """Return the paths at which the compiler may have looked for files: those of existing files, and those at which nothing exists.

    An existing file may have been created after the compiler looked for it. For paths in a directory that does not exist, the path of the
    directory is returned. Names that code passes to ``__has_include`` by a macro are not considered. `codes` holds the source and the files
    that it includes, by their paths; `directory` is the compiler's working directory, to which the search path is relative.
    """
    folders = [os.path.join(directory, name).rstrip("/") for name in search_path.directories]
    includers = {os.path.dirname(path): None for path, code in codes.items() if _INCLUDES_BESIDE.search(code)}
    missing = dict.fromkeys([os.path.join(directory, name) for name in search_path.missing])
    existing: dict[str, None] = {}
    for name, searched in _searches(codes, folders):
        for folder in (*includers, *searched):
            path = _find_or_record_missing(folder, name, missing)
            if path:
                existing[path] = None
    return list(existing), list(missing)


def _searches(codes: Mapping[str, bytes], folders: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each name that the compiler looked for, and the folders of the search path in which it may have looked."""
    for code in codes.values():
        yield from ((os.fsdecode(name), folders) for name in _HAS_INCLUDE.findall(code))
    for path in codes:
        for position, folder in enumerate(folders):
            if path.startswith(f"{folder}/"):
                yield path[len(folder) + 1 :], folders[:position]


def _find_or_record_missing(folder: str, name: str, missing: dict[str, None]) -> str:
    """Return the path of a file in a folder, or "" if there is none. Record in `missing` the first part of the path that does not exist."""
    path = folder
    for part in name.split("/"):
        path = f"{path}/{part}"
        if path in missing:
            return ""
        if not os.path.exists(path):
            missing[path] = None
            return ""
    return path if os.path.isfile(path) else ""
