"""What a new user does: install, and follow every page from top to bottom.

    python tests/new_user.py [--numba]

The package is built and installed into an environment of its own, with nothing of the checkout on its path. Then the programs of
the README and of each page of docs/ run as they are written, each page in a new directory and twice, the commands of the
pages behind them, and the programs of examples/. With --numba the environment has the extra `numba`, for the page about it.
Exit status 1 where something did not work; what it was is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from documents import PAGES, commands_of, programs_of, shown_by, write_program
from helpers import PACKAGE_ROOT

EXAMPLES = ("regex_dfa.py", "stencil.py", "library.py")
#: Pages whose commands need more than an installation; tests of their own run them.
NEEDS = {"remote.md": "a remote store", "sharing.md": "files of the reader's, and a package that signs"}
_SECONDS = 900


class User:
    """Somebody with a home directory, an environment and no idea where the checkout is."""

    def __init__(self, home: Path, extra: str) -> None:
        self.home = home
        self.extra = extra
        self.failures: list[str] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMPCACHE_", "PYTHON", "VIRTUAL"))}
        self.environment = {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PATH": f"{home}/env/bin:{kept['PATH']}"}

    def run(self, what: str, command: list[str], directory: Path, shown: list[str] | None = None) -> None:
        """Run a command, and say how it went; `shown` are lines that it must print."""
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=directory, env=self.environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        missing = [line for line in shown or [] if line not in done.stdout.splitlines()]
        good = done.returncode == 0 and not missing
        print(f"{'ok' if good else 'FAILED'}  {time.monotonic() - started:6.1f} s  {what}", flush=True)
        if not good:
            self.failures.append(what)
            print(done.stdout[-2000:], done.stderr[-4000:], f"not printed: {missing}" if missing else "", sep="\n")

    def install(self) -> None:
        """Build the package and install it, as `pip install` would from an index."""
        venv.create(self.home / "env", with_pip=True)
        pip = [str(self.home / "env/bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        self.run("build a wheel", [*pip, "wheel", "--no-deps", "-w", str(self.home), str(PACKAGE_ROOT)], self.home)
        wheel = next(self.home.glob("compcache-*.whl"), None)
        self.run("install it", [*pip, "install", f"{wheel}{self.extra}"], self.home)

    def follow(self, page: Path) -> None:
        """Do what a page says."""
        name = page.relative_to(PACKAGE_ROOT)
        directory = Path(tempfile.mkdtemp(dir=self.home))
        shutil.copytree(PACKAGE_ROOT / "examples/kernels", directory / "kernels")
        if programs_of(page):
            program = write_program(page, directory)
            for turn in ("compiling", "again"):
                self.run(f"{name}, its program, {turn}", ["python", str(program)], directory, shown_by(page))
        if page.name in NEEDS:
            print(f"not done: the commands of {name}, which need {NEEDS[page.name]}", flush=True)
            return
        for command in commands_of(page):
            self.run(f"{name}: {command}", ["sh", "-c", command], directory)


def main() -> int:
    """Do it all; the exit status."""
    with_numba = "--numba" in sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="new-user-") as home:
        user = User(Path(home), "[numba]" if with_numba else "")
        user.install()
        for page in PAGES:
            if with_numba or page.name != "numba.md":
                user.follow(page)
        for example in EXAMPLES:
            user.run(f"examples/{example}", ["python", str(PACKAGE_ROOT / "examples" / example)], user.home)
    print(f"{len(user.failures)} things did not work" if user.failures else "everything worked")
    return 1 if user.failures else 0


if __name__ == "__main__":
    sys.exit(main())
