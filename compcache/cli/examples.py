"""Examples for the help of every command. The test suite runs each example."""

from __future__ import annotations

__all__ = ["EXAMPLES"]

EXAMPLES = {
    "info": ("compcache info", "compcache --dir /scratch/cache info --json"),
    "ls": ("compcache ls", "compcache ls 'd*' --sort last-use --limit 10", "compcache ls --modules --jsonl", "compcache ls --uncached"),
    "show": ("compcache show norm", "compcache show norm --ir", "compcache show norm --asm --whole-module"),
    "graph": ("compcache graph norm", "compcache graph --reverse dot", "compcache graph --all -o graph.html"),
    "add": (
        "compcache add kernels/sieve.ll",
        "compcache add kernels/dot.ll --export 'dot=f64(a: const f64[:], b: const f64[:])'",
        "compcache add kernels/norm.ll --import dot --targets x86-64-v3,native",
    ),
    "batch": ("compcache batch kernels/dot.ll kernels/sieve.ll", "compcache batch library.py --workers 2 --quiet"),
    "call": ("compcache call norm 3,4,12", "compcache call sieve '1*30' --json"),
    "explain": ("compcache explain norm", "compcache explain norm --json"),
    "dir": ("compcache dir", 'du -sh "$(compcache dir)"'),
    "config": ("compcache config", "compcache config --json"),
    "doctor": ("compcache doctor", "compcache doctor --json"),
    "stats": ("compcache stats --since 7d", "compcache stats --zero"),
    "metrics": ("compcache metrics", "compcache metrics --textfile compcache.prom"),
    "top": ("compcache top", "compcache top --by size --limit 5", "compcache top --by misses --jsonl"),
    "report": ("compcache report -o report.html", "compcache report --since 30d --json"),
    "check": ("compcache check", "compcache check --repair", "compcache check --recompile --json"),
    "prune": (
        "compcache prune --unused-for 30d --dry-run",
        "compcache prune --max-size 2GiB --yes",
        "compcache prune --duplicates --stale 90d --keep 'n*' --yes",
    ),
    "link": ("compcache link norm", "compcache link norm sieve --into kernels --json", "compcache link --all"),
    "compact": ("compcache compact --grace 0s", "compcache compact --grace 1s --json"),
    "rm": ("compcache rm sieve", "compcache rm --dry-run 'd*t' norm", "compcache rm --force dot"),
    "export": ("compcache export 'norm' -o app.ccb", "compcache export dot norm --targets native -o app.ccb"),
    "import": ("compcache import app.ccb",),
    "key": ("compcache key new example.org-1 -o publish.secret", "compcache key show publish.secret"),
    "pin": ("compcache pin norm", "compcache pin 'n*'", "compcache pin"),
    "unpin": ("compcache unpin norm",),
    "clear": ("compcache clear --dry-run", "compcache clear --yes"),
    "remote": ("compcache remote --help",),
    "completion": ('eval "$(compcache completion bash)"', 'eval "$(compcache completion zsh)"'),
}
