"""What the suite asks of a system: write a program in its language, and run it in a fresh process against a store.

An adapter is a class in a file of `adapters/`, of 150 lines at most. It needs `write`, `driver` and `environment`; everything else has a
default. `docs/conformance.md` shows how to write one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.language import as_python, names_in
from compcache_conformance.results import Cannot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache_conformance.language import Program, Spelling

__all__ = ["Adapter"]

_SERVE = Path(__file__).parent / "drivers" / "conformance_serve.py"
_LANGUAGE = Path(__file__).parent / "language.py"
PLAIN = frozenset({"call"})


class Adapter:
    """One system. Attributes say what it is and can; methods do what differs from one to the next."""

    #: The column's heading and the name on the command line.
    name: ClassVar[str] = ""
    #: What pip installs into the environment of the system; nothing: the suite's own interpreter serves.
    requirements: ClassVar[tuple[str, ...]] = ()
    #: Programs that must be there besides.
    programs: ClassVar[tuple[str, ...]] = ()
    #: The Python that the system needs, "3.11" say; nothing: the suite's own.
    python: ClassVar[str] = ""
    #: What of `Program.shapes` the system's language can say.
    shapes: ClassVar[frozenset[str]] = PLAIN
    #: Scenarios that the system's documents exclude, each with what they say.
    limits: ClassVar[Mapping[str, str]] = {}
    #: Scenarios that have no meaning for the system, each with the reason.
    excluded: ClassVar[Mapping[str, str]] = {}
    #: How many seconds a process may take, and how many functions it compiles in that time.
    patience: ClassVar[float] = 40.0
    entries: ClassVar[int] = 20
    #: How many functions it compiles in some minutes, where that is ten thousand or more; 0: fewer.
    most: ClassVar[int] = 0
    #: How long a chain of functions that call each other its compiler takes.
    chain: ClassVar[int] = 20
    #: The distribution whose version the report names; nothing: `version` says it.
    distribution: ClassVar[str] = ""
    #: How the functions are written where the system compiles Python.
    spelling: ClassVar[Spelling | None] = None
    #: A Python program that calls `conformance_serve.serve(ask)`; it is written beside the sources.
    driver: ClassVar[str] = ""
    #: Further files of `drivers/` that the driver imports.
    drivers: ClassVar[tuple[str, ...]] = ()
    #: Whether quick runs may fork processes from an interpreter that has imported the modules of a first call. Only for systems whose
    #: `command` is an interpreter and a program, and whose driver does not infer from imports what was found.
    is_forked: ClassVar[bool] = False
    #: Whether it is a front end that makes LLVM code (`drivers/conformance_front_end.py`) rather than one that reads Python.
    makes_llvm: ClassVar[bool] = False
    #: Whether code says itself which features of a processor it uses, so that what uses no new ones may serve an older processor.
    knows_used_features: ClassVar[bool] = False
    #: Whether all files of a program are compiled as one, so that two programs cannot be played as one.
    is_whole: ClassVar[bool] = False
    #: Whether the system says for each request whether it was found or compiled.
    tells_found: ClassVar[bool] = True

    def __init__(self, interpreter: Path | None = None) -> None:
        self.interpreter = interpreter or Path(sys.executable)

    def write(self, folder: Path, program: Program) -> None:
        """Write the sources of a program to a folder. Sources of an earlier version of the program are replaced."""
        if self.makes_llvm:
            said = asdict(program) | {"language": str(_LANGUAGE)}
            for function in said["functions"]:
                function["names"] = sorted(names_in(function["body"]))
            self.put(folder / "program.json", json.dumps(said))
            shutil.copyfile(_SERVE.with_name("conformance_front_end.py"), folder / "conformance_front_end.py")
            return
        assert self.spelling is not None
        for file in program.files:
            self.put(folder / f"{file}.py", as_python(program, file, self.spelling))

    def put(self, path: Path, text: str) -> None:
        """Write a file, unless it already has this content."""
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    def install_driver(self, folder: Path) -> None:
        """Write the driver, and the files that it imports, to a folder."""
        for name in (_SERVE.name, *self.drivers):
            shutil.copyfile(_SERVE.with_name(name), folder / name)
        (folder / "conformance_driver.py").write_text(self.driver)

    def command(self, folder: Path) -> list[str]:
        """Return the command that starts a process of the system."""
        return [str(self.interpreter), str(folder / "conformance_driver.py")]

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Return the environment variables that make a process use a store."""
        return {"STORE": str(store)}

    def readonly_environment(self) -> dict[str, str]:
        """Return the documented environment variables that declare the store read-only; empty if the system has none."""
        return {}

    def limited_environment(self, size: int) -> dict[str, str]:
        """Return the environment variables that limit a store to `size` bytes. Raise `Cannot` if the system has no size limit."""
        raise Cannot(f"{self.name} has no size limit; {size} bytes were requested")

    def processor_environment(self, name: str) -> dict[str, str]:
        """Return the environment variables that select a processor; "generic" is the oldest. Raise `Cannot` if there is no setting."""
        raise Cannot(f"{self.name} has no setting that selects a processor; {name!r} was requested")

    def default_environment(self, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """Return the environment variables for the system's default store below $HOME. Raise `Cannot` if it has no default store."""
        raise Cannot(f"{self.name} has no default store")

    def version(self) -> str:
        """Return the version of the system for the report; "" if it is not installed as a distribution."""
        if not self.distribution:
            return ""
        code = f"import importlib.metadata as m; print(m.version({self.distribution!r}))"
        done = subprocess.run([str(self.interpreter), "-c", code], check=False, capture_output=True, text=True)
        return done.stdout.strip()
