"""Makes the pictures of the README from real runs: `make screenshots`, or `python docs/screenshots.py [DIRECTORY]`.

The commands run on a terminal (a pty) and on a cache of their own, which `examples/library.py` fills; what they write is
drawn as SVG by rich. The pages of ``compcache graph`` and ``compcache report`` are photographed by Chromium, where there is
one (``apt-get install chromium``); without, those pictures stay as they are.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 96
#: How often each function is called before it is listed.
CALLS = {
    "model.loss": ["0.5,2,1", "1,0.2,3"], "stats.correlation": ["1,2,3", "2,4,7"], "signal.rms": ["3,4"],
    "stats.deviation": ["1,2,3,4"], "poly.degree_07": ["0.25"], "poly.degree_12": ["0.25"],
}  # fmt: skip
TIMES = {"model.loss": 9, "stats.correlation": 6, "signal.rms": 4, "stats.deviation": 3}
THEME = TerminalTheme(
    (253, 253, 253),
    (36, 41, 47),
    [(36, 41, 47), (207, 34, 46), (17, 99, 41), (149, 92, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131), (110, 119, 129)],
    [(87, 96, 106), (164, 14, 38), (26, 127, 55), (99, 60, 1), (33, 139, 255), (164, 117, 249), (49, 146, 170), (140, 149, 159)],
)  # fmt: skip


def run(directory: Path, *words: str) -> str:
    """What a command writes to a terminal, with the control sequences of colours alone."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    drop = ("NO_COLOR", "COLUMNS", "LINES", "COMPCACHE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    environment |= {
        "TERM": "xterm-256color",
        "COMPCACHE_DIR": str(directory / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "compcache", *words]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory, env=environment
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # what Linux says when nobody has the other end any more
            break
        if not part:
            break
        written += part
    os.close(ours)
    if process.wait() not in (0, 1):
        raise SystemExit(f"compcache {' '.join(words)}: {written.decode()}")
    return settled(written.decode())


def settled(text: str) -> str:
    """What a terminal shows in the end: lines that were written again, as progress bars are, have their last state."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        last = re.split(r"\r|\x1b\[\d*K", line)[-1]
        lines.append(re.sub(r"\x1b\[\?\d+[hl]", "", last))
    return "\n".join(lines).rstrip()


def draw(path: Path, title: str, session: list[tuple[str, str]]) -> None:
    """Draw commands and what they wrote."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for number, (command, written) in enumerate(session):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))
        console.print(Text.from_ansi(written), highlight=False)
    picture = console.export_svg(title=title, theme=THEME)
    # No fonts from elsewhere: pictures in a README are not allowed to fetch any.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code,", "ui-monospace,DejaVu Sans Mono,").replace(
        "Fira Code", "ui-monospace"
    )
    path.write_text(picture, encoding="utf-8")
    print(path)


def photograph(page: Path, path: Path, size: tuple[int, int]) -> None:
    """Take a picture of a page in a window of this width and height, if there is a browser."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        print(f"no Chromium is installed: {path} stays as it is", file=sys.stderr)
        return
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size[0]},{size[1]}",
        f"--user-data-dir={page.parent / 'profile'}", f"--screenshot={path}", "--virtual-time-budget=2000", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    print(path)


def main() -> None:
    """Run the commands and draw them."""
    images = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "images").resolve()
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compcache-") as scratch:
        directory = Path(scratch)
        shutil.copy(ROOT / "examples" / "library.py", directory)
        batches = [
            (f"compcache {' '.join(words)}", run(directory, *words))
            for words in [["batch", "library.py"]] * 2
        ]
        draw(images / "batch.svg", "compcache batch", batches)
        for name, arguments in CALLS.items():
            for _ in range(TIMES.get(name, 1)):
                run(directory, "call", name, *arguments)
        listed = ["ls", "--sort", "last-use", "--limit", "16"]
        draw(images / "ls.svg", "compcache ls", [(f"compcache {' '.join(listed)}", run(directory, *listed))])
        drawn = ["graph", "model.loss", "stats.correlation"]
        draw(
            images / "graph.svg",
            "compcache graph",
            [(f"compcache {' '.join(drawn)}", run(directory, *drawn))],
        )
        run(directory, *drawn, "-o", "graph.html")
        photograph(directory / "graph.html", images / "graph-page.png", (1400, 420))
        run(directory, "report", "-o", "report.html")
        photograph(directory / "report.html", images / "report-page.png", (840, 900))


if __name__ == "__main__":
    main()
