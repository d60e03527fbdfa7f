"""What the commands share when they write: progress bars."""

from __future__ import annotations

import io
import sys

import pytest

from compcache.cli.output import show_progress


class Terminal(io.StringIO):
    """A standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [200, 40, 20])
def test_a_bar_grows_fits_and_disappears(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    for done in (0, 25_000, 50_000, 100_000):
        show_progress(done, 100_000)
    *shown, last = [part.replace("\x1b[K", "") for part in terminal.getvalue().split("\r")[1:]]
    assert last == ""
    filled = [part.count("#") for part in shown]
    assert filled == {200: [0, 7, 15], 40: [0, 1, 3], 20: [0, 0, 0]}[columns]
    assert all(len(part) < max(columns, 40) for part in shown)
    assert shown[1].endswith(" 25,000 of 100,000 modules read")


def test_what_is_short_or_goes_to_a_file_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, total in ((Terminal(), 1_000), (io.StringIO(), 100_000)):
        monkeypatch.setattr(sys, "stderr", stream)
        show_progress(10, total)
        assert stream.getvalue() == ""
