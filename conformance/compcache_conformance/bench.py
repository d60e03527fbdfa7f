"""What a scenario has in its hands: a store, a folder of sources, and fresh processes of one system."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from compcache_conformance.native_faults import library
from compcache_conformance.processes import Order, start
from compcache_conformance.results import Cannot, Lacking, Outcome, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from compcache_conformance.adapter import Adapter
    from compcache_conformance.language import Program
    from compcache_conformance.processes import Call, Reply, Run, Running
    from compcache_conformance.shared import Shared

__all__ = ["Bench"]

T = TypeVar("T")

#: Keep what is in $1, mount over it with the options $2, put it back ($3), fill the rest ($5), make it read-only ($4).
_MOUNT = """
p=$1; o=$2; k=$3; r=$4; f=$5; shift 5
d=$(mktemp -d); cp -a "$p"/. "$d"/
mount -t tmpfs -o "$o" tmpfs "$p" || exit 97
chmod 700 "$p"
if [ "$k" = 1 ]; then cp -a "$d"/. "$p"/; fi
rm -rf "$d"
if [ "$f" = 1 ]; then cat /dev/zero >"$p/filler" 2>/dev/null; fi
if [ "$r" = 1 ]; then mount -o remount,ro "$p"; fi
"""
#: What an order says about the start of a process, besides variables that are not the suite's: such a process is never forked.
_OF_STARTS = {"limits", "umask", "cwd", "wrap"}
#: Replies below this are about the processor time of a process.
_LAST_OF_CALLS = -2


class Bench:
    """One system on one scenario. All that it makes is below one folder, which is removed when it is left."""

    def __init__(self, adapter: Adapter, shared: Shared, *, is_quick: bool = False) -> None:
        self.adapter = adapter
        self.shared = shared
        self.is_quick = is_quick
        self.root = shared.new_folder()
        self.store, self.project = self.root / "store", self.root / "project"
        self.store.mkdir(mode=0o700)
        self.project.mkdir()
        self.patience = adapter.patience * float(os.environ.get("COMPCACHE_CONFORMANCE_PATIENCE", "1"))
        self.log: list[str] = []
        self.notes: list[str] = []
        self._program: Program | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for place, folders, _files in os.walk(self.root):
            for name in folders:
                with contextlib.suppress(OSError):
                    os.chmod(Path(place, name), 0o700, follow_symlinks=True)
        shutil.rmtree(self.root, ignore_errors=True)

    # ---------------------------------------------------------------- programs

    def write(self, program: Program, folder: Path | None = None) -> None:
        """Write a program's sources; what the system cannot say is "cannot"."""
        missing = program.shapes - self.adapter.shapes
        if missing:
            raise Cannot(f"the language of {self.adapter.name} has no {', '.join(sorted(missing))}")
        self._program = program
        folder = folder or self.project
        self.adapter.install_driver(folder)
        for constant in program.constants:
            if constant.source == "data":
                (folder / f"{constant.name}.txt").write_text(repr(constant.value))
            if constant.source == "embedded":
                (folder / f"{constant.name}.bin").write_bytes(struct.pack("<d", constant.value))
            if constant.source == "tool":
                (folder / f"{constant.name}.sh").write_text(f'exec sh "$(dirname "$0")/{constant.name}_inner.sh"\n')
                (folder / f"{constant.name}_inner.sh").write_text(f"echo {constant.value!r}\n")
        self.adapter.write(folder, program)
        functions = ", ".join(f"{function.name} = {function.body[:80]}" for function in program.functions[-3:])
        constants = ", ".join(f"{constant.name} = {constant.value!r}"[:80] for constant in program.constants)
        self._say(f"write {functions} {constants}")

    @contextlib.contextmanager
    def clients(self, *options: str) -> Iterator[tuple[Path, Path]]:
        """One store as two hosts of a network file system see it, each for half a second; `options` are those of `network_double`."""
        from compcache_conformance.network_double import mounted

        server, *places = (self.root / name for name in ("server", "first", "second"))
        for place in (server / "store", *places):
            place.mkdir(mode=0o700, parents=True)
        server.chmod(0o700)
        with contextlib.ExitStack() as stack:
            for number, place in enumerate(places):
                stack.enter_context(mounted(server, place, "--seconds", "0.5", "--seed", str(number), *options))
            yield places[0] / "store", places[1] / "store"

    # ---------------------------------------------------------------- processes

    def start(
        self,
        *calls: Call,
        store: Path | None = None,
        folder: Path | None = None,
        env: dict[str, str] | None = None,
        anew: bool = False,
        **order: Any,
    ) -> Running:
        """Start a process that makes these calls; without calls, ``f(3.0)``. A process that is measured as a whole is started `anew`."""
        folder = folder or self.project
        environment = {**self.adapter.environment(store or self.store, folder), **self._from_environment(), **(env or {})}
        is_special = anew or any(not name.startswith("CONFORMANCE_") for name in env or {}) or order.keys() & _OF_STARTS
        forking = None if is_special else self.shared.forking
        order.setdefault("cwd", folder)
        made = Order(calls=calls or (("f", (3.0,)),), environment=environment, **order)
        return start(self.adapter.command(folder), made, self.patience, forking)

    def run(self, *calls: Call, **order: Any) -> Run:
        """Make calls in a fresh process and wait for it."""
        return self._done(self.start(*calls, **order).wait(), order)

    def together(self, count: int, *calls: Call, **order: Any) -> list[Run]:
        """Start processes that begin at the same moment, and make the same calls."""
        return self.at_once([calls] * count, **order)

    def at_once(self, calls_of_each: Iterable[tuple[Call, ...]], **order: Any) -> list[Run]:
        """Start processes that begin at the same moment, each with calls of its own: they wait until the last has been started."""
        gate, ready = self.root / f"gate-{time.monotonic_ns()}", self.root / f"ready-{time.monotonic_ns()}-"
        running = [self.start(*calls, barrier=str(gate), ready=str(ready), **order) for calls in calls_of_each]
        deadline = time.monotonic() + self.patience / 2
        while len(list(self.root.glob(ready.name + "*"))) < len(running) and time.monotonic() < deadline:
            time.sleep(0.01)
        gate.touch()
        return [self._done(process.wait(), order) for process in running]

    def _done(self, run: Run, order: dict[str, Any]) -> Run:
        replies = "; ".join(
            f"{r.answer if r.error is None else r.error[:300]} {'' if r.found is None else 'found' if r.found else 'compiled'}"
            for r in run.replies[:8]
            if r.call >= _LAST_OF_CALLS
        )
        shown = {name: value for name, value in order.items() if name not in {"barrier", "ready"}}
        self._say(f"process {shown or ''}: status {run.status}, {run.seconds:.2f} s: {replies}")
        if run.status != 0 or any(reply.error for reply in run.replies):
            self._say(run.output[-1500:])
        return run

    def new_pause(self) -> Path:
        """A path for `pauses`: a process waits at that call until there is a file."""
        for name in ("pause", "pause.reached"):
            (self.root / name).unlink(missing_ok=True)
        return self.root / "pause"

    def wait_for_pause(self) -> None:
        """Wait until the process has come to its pause."""
        deadline = time.monotonic() + self.patience / 2
        while not (self.root / "pause.reached").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _from_environment(self) -> dict[str, str]:
        constants = self._program.constants if self._program else ()
        return {f"CONFORMANCE_{c.name}": repr(c.value) for c in constants if c.source == "environment"}

    def _say(self, text: str) -> None:
        self.log.append(text.strip())

    def note(self, text: str) -> None:
        """Say something that belongs into the cell whatever comes of the scenario."""
        self.notes.append(text)
        self._say(text)

    # ---------------------------------------------------------------- what must hold

    def expect(self, run: Run, *answers: float, found: bool | None = None, why: str = "") -> Run:
        """Every call was answered, rightly; `found` says that each must have been found, or compiled.

        Raises:
            Violation: with what came instead.
        """
        self.survived(run)
        replies = {reply.call: reply for reply in run.replies}
        for reply in run.replies:
            if reply.error is not None:
                raise Violation(Outcome.ERROR, reply.error.splitlines()[0][:300])
        for index, expected in enumerate(answers):
            if index not in replies:
                raise Violation(Outcome.ERROR, f"call {index} has no answer: {_last_line(run.output)}")
            self._right(replies[index], expected, why)
        for index in range(len(answers)):
            told = replies[index].found
            if found and told is False:
                raise Violation(Outcome.MISSED, why or "compiled again without need")
            if found is False and told:
                raise Violation(Outcome.WRONG, why or "found, where it had to be compiled")
        return run

    def survived(self, run: Run) -> None:
        """The process came to its end by itself."""
        if run.timed_out:
            raise Violation(Outcome.HANG, f"no end after {run.seconds:.0f} s: {_last_line(run.output)}")
        if run.status < 0:
            raise Violation(Outcome.CRASH, f"{signal.Signals(-run.status).name}: {_last_line(run.output)}")
        if run.status in {128 + number for number in (4, 6, 7, 8, 11)}:
            raise Violation(Outcome.CRASH, f"{signal.Signals(run.status - 128).name} in a child: {_last_line(run.output)}")
        if run.status and not any(reply.error for reply in run.replies):
            raise Violation(Outcome.ERROR, f"status {run.status}: {_last_line(run.output)}")

    def _right(self, reply: Reply, expected: float, why: str) -> None:
        if not reply.is_right(expected):
            raise Violation(Outcome.WRONG, f"{reply.answer}, not {expected}{f': {why}' if why else ''}")

    def refuses(self, expected: float = 7.0, why: str = "") -> None:
        """What is in the store is not run: the program gets an answer that was compiled, or an error that says why not."""
        run = self.run()
        if any(reply.error for reply in run.replies) or run.status > 0:
            self.note(f"refused: {_last_line(run.output)[:120]}")
            return
        if self.expect(run, expected).first.found:
            raise Violation(Outcome.WRONG, why)

    def works(self, expected: float = 7.0, **order: Any) -> Run:
        """The plain call is answered by a fresh process, found or compiled."""
        return self.expect(self.run(**order), expected)

    def keeps(self, expected: float = 7.0, why: str = "", **order: Any) -> Run:
        """What is stored is found again by a fresh process."""
        return self.expect(self.run(**order), expected, found=True, why=why)

    def filled(self, program: Program, expected: float = 7.0, *calls: Call) -> Run:
        """A store that holds what a program compiles; that it does is tried, so that what comes later means something.

        The scenarios of a system fill a bench with the same once: the next get a copy, times included, in the same place.
        """
        is_new = not any(self.store.iterdir()) and not any(self.project.iterdir())
        what = program, expected, calls
        self.write(program)
        if is_new and (kept := self.shared.put_back(self, what, lambda: self._is_found(expected, *calls))):
            self._say("a copy of the store that an earlier scenario filled with it")
            return kept
        first = self.expect(self.run(*calls), expected)
        if not self.files():
            raise Cannot(f"{self.adapter.name} stored nothing of this program")
        if not self._is_found(expected, *calls):
            raise Violation(Outcome.MISSED, "a second process compiles the same program again")
        if is_new:
            self.shared.keep(self, what, first)
        return first

    def _is_found(self, expected: float, *calls: Call) -> bool:
        return self.expect(self.run(*calls), expected).first.found is not False

    def look_at(self, make: Callable[[Bench], T]) -> T:
        """What `make` makes on a bench of its own, once for all scenarios that look at it and change nothing there."""
        return self.shared.made_by(make, self)

    # ---------------------------------------------------------------- the store

    def files(self, store: Path | None = None) -> list[Path]:
        """The files of a store, in order."""
        return sorted(path for path in (store or self.store).rglob("*") if path.is_file() and not path.is_symlink())

    def damage(self, change: Callable[[Path, bytes], bytes | None], files: Iterable[Path] | None = None) -> int:
        """Replace what is in files of the store, in place; None leaves one as it is. How many were changed."""
        count = 0
        for path in files if files is not None else self.files():
            old = path.read_bytes()
            new = change(path, old)
            if new is None or new == old:
                continue
            mode, times = stat.S_IMODE(path.stat().st_mode), path.stat()
            path.chmod(0o600)
            path.write_bytes(new)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            path.chmod(mode)
            count += 1
        self._say(f"damage {count} files")
        return count

    def copy(self, name: str = "copy") -> Path:
        """A copy of the store, times and modes included."""
        target = self.root / name
        shutil.copytree(self.store, target, symlinks=True)
        return target

    def changes(self) -> int:
        """How many calls that change a file of the store a process makes that compiles and stores the program; counted once for each.

        Raises:
            Cannot: none can be seen.
        """
        return self.shared.changes(self._program, self._count_changes)

    def _count_changes(self) -> int:
        trial = self.root / "trial"
        trial.mkdir(mode=0o700)
        self.works(store=trial, env=self.faulty("count:0", trial))
        path = self.root / "count"
        counted = max((int(word) for word in path.read_text().split()), default=0) if path.exists() else 0
        if counted < 2:
            raise Cannot("no change of a file was seen: the system calls the kernel otherwise")
        return counted

    def faulty(self, fault: str, place: Path | None = None) -> dict[str, str]:
        """The variables of a process whose calls of libc behave as `native/faults.c` says."""
        return {
            "LD_PRELOAD": str(library()),
            "CONFORMANCE_FAULT": fault,
            "CONFORMANCE_PLACE": str(place or self.store),
            "CONFORMANCE_COUNT": str(self.root / "count"),
        }

    def mounted(self, options: str, place: Path | None = None, *, keep: bool = False, full: bool = False) -> tuple[str, ...]:
        """The words before a command that mount an empty, or copied, file system over the store for that process alone."""
        unshare = shutil.which("unshare")
        if unshare is None:
            raise Lacking("needs `unshare`")
        own = () if os.geteuid() == 0 else ("-r",)
        place = place or self.store
        ro = options.endswith(",ro")
        script = _MOUNT + 'exec "$@"'
        return (
            unshare,
            *own,
            "-m",
            "sh",
            "-c",
            script,
            "sh",
            str(place),
            options.removesuffix(",ro"),
            str(int(keep)),
            str(int(ro)),
            str(int(full)),
        )

    def few(self, count: int) -> int:
        """So many times, or half as often where it is played quickly with a system that compiles few functions in its patience."""
        return count // 2 if self.is_quick and self.adapter.entries < 100 else count

    def rng(self) -> random.Random:
        """Chance that is the same in every run."""
        return random.Random(41)


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
