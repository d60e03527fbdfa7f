"""What the commands share when they write: progress bars."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cli_process import environment
from helpers import constant

from compcache import Cache, ModuleSource
from compcache.cli import app, output
from compcache.cli.output import ProgressBar, end_progress, show_progress

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(io.StringIO):
    """A standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A standard error where bars appear at once. (pytest has another one for fixtures.)"""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(output, "_DELAY", 0.0)
    monkeypatch.setattr(output, "_progress_bar", {})
    monkeypatch.setattr(output, "is_quiet", lambda: False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return terminal


def plain(terminal: Terminal) -> str:
    """What was written, without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())


@pytest.mark.parametrize("columns", [200, 60, 20])
def test_a_bar_says_how_far_it_is_and_disappears(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    for done in (0, 25_000, 50_000):
        show_progress(done, 100_000)
        bar = output._progress_bar["bar"]._bar
        assert bar is not None
        bar._progress.refresh()  # which a thread does ten times a second
    shown = plain(terminal)
    if columns == 200:
        assert "50,000/100,000" in shown
        assert "left modules read" in shown
    lines = [re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]", shown)]
    assert max(map(len, lines)) <= columns
    show_progress(100_000, 100_000)
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back


def test_a_bar_that_is_interrupted_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    show_progress(10, 100_000)
    assert "\x1b[?25l" in terminal.getvalue()
    end_progress()
    assert "\x1b[?25h" in terminal.getvalue()

    def add() -> None:
        with ProgressBar("files added") as bar:
            bar.update(1, 10)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        add()
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 2


def test_what_is_short_or_goes_to_a_file_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, total, moment in ((Terminal(), 1_000, 0.0), (io.StringIO(), 100_000, 0.0), (Terminal(), 100_000, 60.0)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(output, "_DELAY", moment)
        show_progress(10, total)
        end_progress()
        assert stream.getvalue() == ""


def test_rows_are_written_soon_and_read_no_further_than_the_reader_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader closes the pipe after the first lines, as `head` does."""
    read: list[int] = []

    class Pipe(io.StringIO):
        def flush(self) -> None:
            if len(read) > 64:
                raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Pipe())
    rows = ((str(number),) for number in range(10_000) if not read.append(number))  # type: ignore[func-returns-value]
    with pytest.raises(BrokenPipeError):
        output.print_rows([], rows)
    assert len(read) <= 64 + 128


@pytest.mark.parametrize("arguments", ["", "--help", "--version", "ls --help", "key", "remote", "config", "completion bash"])
def test_a_reader_that_leaves_early_is_no_failure(arguments: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        outcome = subprocess.run(
            [sys.executable, "-m", "compcache", "--dir", str(tmp_path), *arguments.split()],
            stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=environment({}),
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (outcome.returncode, outcome.stderr) == (0, "")


class Pipe(io.StringIO):
    """A standard output that counts how often it is asked whether it is a terminal."""

    asked = 0

    def isatty(self) -> bool:
        self.asked += 1
        return False


@pytest.mark.parametrize("command", [("ls", "--modules"), ("prune", "--dry-run", "--max-modules", "0")], ids=["ls", "prune"])
def test_listings_ask_once_whether_somebody_looks(cache: Cache, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    asked = []
    for number in range(9):
        cache.add_module(ModuleSource(constant(f"f{number}", number)))
        if number in (1, 8):
            monkeypatch.setattr(sys, "stdout", pipe := Pipe())
            assert app.main(["--dir", cache.path, *command]) == 0
            assert len(pipe.getvalue().splitlines()) == number + 1
            asked.append(pipe.asked)
    assert asked[0] == asked[1]
