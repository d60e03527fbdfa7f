"""Makes docs/benchmarks.md and its plots from the recorded results alone."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from compare import remarks

if TYPE_CHECKING:
    from pathlib import Path

#: The sections in the order of the document.
SECTIONS = (
    "first_call", "counted", "module_size", "cache_size", "stores", "apart", "calls", "adding", "adding_goals", "libraries",
    "real_programs", "crowd", "batch_speed", "maintenance_cost", "goals",
)  # fmt: skip

HEAD = """\
# Side by side

This page compares the costs and speed of compcache with the tools that you would use otherwise. `make bench` measures all of them,
writes the results as JSON into [benchmarks/](benchmarks), and makes this page and its plots. `make bench BENCH_ARGS=first_call`
measures a single section. `python benchmarks/publish.py --render` only makes the page and the plots from recorded results.

The sides of a table take turns within one run, in alternating order, on a machine that may have other work to do. Other work slows
down all sides, and draws ratios towards one. Therefore the minima are shown in parentheses, and each section records the load
average. Compare only figures of the same table. The package under test is a compiled copy, like an installed package. Each file of
results has the statistics of the samples (in most cases all samples), the machine, the versions and the command.
"""


def render(results: Path, page: Path) -> list[str]:
    """Write the page and its plots; the names of sections without results are returned."""
    records = {
        name: json.loads((results / f"{name}.json").read_text())
        for name in SECTIONS
        if (results / f"{name}.json").exists()
    }
    parts = [HEAD, remarks.summary(records)]
    for name, record in records.items():
        section = importlib.import_module(f"compare.curves.{name}")
        _plot(section, record, results / f"{name}.svg")
        parts += [
            f"## {section.TITLE}",
            section.markdown(record),
            f"![{section.TITLE}]({results.name}/{name}.svg)",
            *([remarks.SECTION[name]] if name in remarks.SECTION else []),
            _origin(name, record, results),
        ]
    page.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")
    return [name for name in SECTIONS if name not in records]


def _origin(name: str, record: dict[str, Any], results: Path) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    lines = [
        (f"[{name}.json]({results.name}/{name}.json), `{record['command']}`{' (quick)' if record['quick'] else ''}, "
        f"{record['date'][:10]}, revision {record['revision']}. {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['system']}, {machine['libc']}; load average "
        f"{machine['load_before'][0]} before, {machine['load_average'][0]} after. {versions}.")
    ]  # fmt: skip
    lines += [f"Left out: {who} ({why})." for who, why in record["skipped"].items()]
    return "<sub>" + " ".join(lines) + "</sub>"


def _plot(section: Any, record: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "compcache",
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        section.plot(record, figure)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
