"""Other processors and hosts."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from compcache_conformance.language import program
from compcache_conformance.results import Lacking, Outcome, Violation
from compcache_conformance.scenarios.registry import scenario

if TYPE_CHECKING:
    from compcache_conformance.bench import Bench


def _tool(name: str, *arguments: str) -> tuple[str, ...]:
    path = shutil.which(name)
    if path is None:
        raise Lacking(f"needs `{name}`")
    return (path, *arguments)


@scenario("hosts", "older processor", "Code for this processor is not run if an older processor is requested.", "JuliaLang/julia#50102")
def older_processor(bench: Bench) -> None:
    older = bench.adapter.processor_environment("generic")
    bench.filled(program())
    run = bench.works(env=older)
    if run.first.found and bench.adapter.knows_used_features:
        bench.note("found: the code uses nothing that the older one has not, which the entry says")
    elif run.first.found:
        raise Violation(Outcome.WRONG, "code for this processor was found for an older one")
    bench.keeps(env=older, why="code for the older processor is not kept")


@scenario("hosts", "two processors in turn", "A store shared by hosts with two kinds of processors keeps the code for both.", "")
def two_processors(bench: Bench) -> None:
    older = bench.adapter.processor_environment("generic")
    bench.filled(program())
    bench.works(env=older)
    bench.keeps()
    bench.keeps(env=older)


@scenario("hosts", "other host name", "A different host name does not cause a compilation.", "")
def other_host_name(bench: Bench) -> None:
    own = () if os.geteuid() == 0 else ("-r",)
    bench.filled(program())
    wrap = (*_tool("unshare"), *own, "--uts", "sh", "-c", 'hostname another-host || exit 97; exec "$@"', "sh")
    if bench.start(wrap=(*wrap, "true")).wait().status == 97:
        raise Lacking("the host name cannot be changed here")
    bench.keeps(wrap=wrap)


@scenario("hosts", "other kernel", "A different kernel release does not cause a compilation.", "")
def other_kernel(bench: Bench) -> None:
    bench.filled(program())
    bench.keeps(wrap=_tool("setarch", "--uname-2.6"))


@scenario("hosts", "fewer processors", "A process that may use one processor finds code stored by a process with more.", "")
def fewer_processors(bench: Bench) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        raise Lacking("it has one processor")
    bench.filled(program())
    bench.keeps(wrap=_tool("taskset", "-c", str(min(os.sched_getaffinity(0)))))


@scenario("hosts", "no network", "A process without a network finds stored code.", "")
def no_network(bench: Bench) -> None:
    own = () if os.geteuid() == 0 else ("-r",)
    bench.filled(program())
    bench.keeps(wrap=(*_tool("unshare"), *own, "--net"))
