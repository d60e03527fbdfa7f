"""What a new user does: install, and follow every page from top to bottom.

    python tests/new_user.py [--numba]

The package is built and installed into an environment of its own, with nothing of the checkout on its path. Then the programs of
the README and of each page of docs/ run as they are written, each page in a new directory and twice, the commands of the
pages behind them, and the programs of examples/. With --numba the environment has the extra `numba`, for the page about it.
Exit status 1 where something did not work; what it was is printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
from pathlib import Path

from documents import PAGES, commands_of, programs_of, results_of, session_of, shown_by, write_program
from helpers import PACKAGE_ROOT

EXAMPLES = ("regex_dfa.py", "stencil.py", "library.py")
#: Pages whose commands go on with what the ones before have left: they run in one shell, after these lines.
SESSIONS = {
    "remote-store.md": """
        export COMPCACHE_REMOTE=file://$PWD/store COMPCACHE_REMOTE_MODE=write COMPCACHE_DIR=$PWD/first-host
        cat >third.ll <<'END'
define i64 @third(i64 %x) {
  %y = sdiv i64 %x, 3
  ret i64 %y
}
END
        compcache add third.ll
        NAME=third
    """,
    "sharing.md": """
        cat >kernels.ll <<'END'
declare double @llvm.sqrt.f64(double)
define double @norm(double %x, double %y) {
  %a = fmul double %x, %x
  %b = fmul double %y, %y
  %c = fadd double %a, %b
  %d = call double @llvm.sqrt.f64(double %c)
  ret double %d
}
END
    """,
    "wheels.md": """
        cat >blur.c <<'END'
double blur(double left, double right) { return (left + right) / 2; }
END
    """,
}
#: Commands in these pages that are not run, and why.
NOT_RUN = {
    "pip ": "it installs from an index, or builds another project", "export COMPCACHE_REMOTE": "the store is somebody's",
    "pyinstaller ": "it is not installed; see tests/peer/test_frozen.py", "dist/": "what PyInstaller would have made",
}  # fmt: skip
#: What a session needs beside the package.
EXTRAS = ("pynacl",)


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
            command, cwd=directory, env=self.environment, capture_output=True, text=True, check=False
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
        self.run("install it", [*pip, "install", f"{wheel}{self.extra}", *EXTRAS], self.home)

    def follow(self, page: Path) -> None:
        """Do what a page says."""
        name = page.relative_to(PACKAGE_ROOT)
        directory = Path(tempfile.mkdtemp(dir=self.home))
        shutil.copytree(PACKAGE_ROOT / "examples", directory / "examples")  # README is read in a clone
        shutil.copytree(PACKAGE_ROOT / "examples/kernels", directory / "kernels")
        if programs_of(page):
            program = write_program(page, directory)
            for turn in ("compiling", "again"):
                self.run(f"{name}, its program, {turn}", ["python", str(program)], directory, shown_by(page))
        if page.name in SESSIONS:
            self.type(page, directory)
            return
        for command in commands_of(page):
            self.run(f"{name}: {command}", ["sh", "-c", command], directory)


    def type(self, page: Path, directory: Path) -> None:
        """Type the commands of a page into one shell, which ends at the first that fails; what it shows must be shown."""
        lines = [textwrap.dedent(SESSIONS[page.name])]
        for command in session_of(page):
            reason = next((why for start, why in NOT_RUN.items() if command.startswith(start)), "")
            if not reason and command.startswith("minisign ") and shutil.which("minisign") is None:
                reason = "minisign is not installed"
            if reason:
                print(f"not done: {command}: {reason}", flush=True)
            else:
                lines += [f"echo {shlex.quote('$ ' + command)} >&2", command.replace("NAME...", "$NAME")]
        (directory / "session.sh").write_text("\n".join(lines), encoding="utf-8")
        self.run(f"{page.name}, its commands in one shell", ["sh", "-eu", "session.sh"], directory, results_of(page))


def _adopt() -> None:
    """Become the parent of what the user's programs leave behind: helpers of remote stores, processes that merge (prctl(2))."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _end_adopted() -> None:
    """End what still runs, and wait for it: it writes into the directory that is about to be removed."""
    while children := Path("/proc/thread-self/children").read_text(encoding="ascii").split():
        for child in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        time.sleep(0.05)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def main() -> int:
    """Do it all; the exit status."""
    with_numba = "--numba" in sys.argv[1:]
    _adopt()
    with tempfile.TemporaryDirectory(prefix="new-user-") as home, contextlib.ExitStack() as behind:
        behind.callback(_end_adopted)
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
