"""Batch compilation: the speed-up of two workers, and what one job costs above its own compilation.

    python benchmarks/batch.py                      200 jobs, 5 turns, 2 to 5 minutes
    python benchmarks/batch.py --jobs 60 --turns 2  shorter

Four sides take turns, each in a fresh process with an empty cache directory that knows the host:
*one process* adds the modules one after the other; *one worker* and *two workers* give the same jobs to
`compile_many`, whose time includes starting and ending the processes; *two halves* is what the machine itself can
do: two processes that know nothing of each other, each adds half of the modules, started together when both have
done their imports. Wall time and processor time (of the process
and of all that it started) are measured in the process, without its own start. On a machine that others use, the
processor times are the figures to trust: their ratio bounds the speed-up that the workers' own overhead allows. What
passes between two jobs of a worker (the answer, the record, the next job) is told from the workers' own clocks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workspace import Workspace

GOAL = 0.9
SIDES = ("one process", "one worker", "two workers", "two halves")

#: One function of a job: a loop over two buffers, of the size that generated numeric code has.
FUNCTION = """\
define double @{name}(ptr nocapture readonly %a, ptr nocapture %b, i64 %n) {{
entry:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %end
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi double [ 0.0, %entry ], [ %more, %loop ]
  %pa = getelementptr inbounds double, ptr %a, i64 %i
  %pb = getelementptr inbounds double, ptr %b, i64 %i
  %x = load double, ptr %pa, align 8
  %y = load double, ptr %pb, align 8
  %s = fmul fast double %x, {factor}.5
  %t = fadd fast double %s, %y
  store double %t, ptr %pb, align 8
  %more = fadd fast double %sum, %t
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %end, label %loop
end:
  %result = phi double [ 0.0, %entry ], [ %more, %loop ]
  ret double %result
}}
"""


def job_text(number: int, functions: int) -> str:
    """The code of one job; all jobs are equal but for names and one constant."""
    return "".join(FUNCTION.format(name=f"f{number}_{k}", factor=1000 + number) for k in range(functions))


def measure(side: str, jobs: range, functions: int, directory: str) -> dict[str, float]:
    """One turn of one side, or of half of it, in this process."""
    from compcache import Cache, ModuleSource
    from compcache.batch import compile_many

    sources = [ModuleSource(job_text(number, functions)) for number in jobs]
    extra: dict[str, float] = {}
    warm = ModuleSource("define i64 @warm() {\n  ret i64 1\n}\n")
    with Cache(directory) as cache:
        if side in ("one process", "two halves"):
            cache.add_module(warm)  # imports, LLVM's set-up
        if side == "two halves":
            print("ready", flush=True)
            sys.stdin.readline()
        started, spent = time.perf_counter(), processor_time()
        if side in ("one process", "two halves"):
            for source in sources:
                cache.add_module(source)
        else:
            workers = 1 if side == "one worker" else 2
            ends: list[float] = []
            report = compile_many(
                cache, sources, workers=workers, progress=lambda m: m.last and ends.append(m.seconds)
            )
            assert len(report.built) == len(jobs), report
            extra["start"] = ends[0] - report.built[0].seconds
            busy = sum(record.seconds for record in report.built)
            extra["between"] = (ends[-1] - extra["start"] - busy / workers) / len(jobs) * workers
        return {"wall": time.perf_counter() - started, "cpu": processor_time() - spent, **extra}


def processor_time() -> float:
    """The seconds of processor time of this process and of those that it has started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def prepare(workspace: Workspace) -> str:
    """A cache directory that knows the host, and nothing else."""
    place = workspace.fresh_directory("prepared")
    code = f"from compcache import Cache, ModuleSource as M\nCache({place!r}).add_module(M('define i64 @w() {{ ret i64 1 }}'))"
    subprocess.run([sys.executable, "-c", code], check=True, env=workspace.environment())
    for name in ("modules-v1", "index-v1", "tmp"):
        shutil.rmtree(os.path.join(place, name), ignore_errors=True)
    return place


def turn(side: str, arguments: argparse.Namespace, workspace: Workspace, prepared: str) -> dict[str, float]:
    """One turn of one side, in a fresh process, or two."""
    directory = workspace.fresh_directory("turn")
    shutil.copytree(prepared, directory)
    shares = 2 if side == "two halves" else 1
    bounds = [arguments.jobs * number // shares for number in range(shares + 1)]
    processes = []
    for first, end in itertools.pairwise(bounds):
        command = [
            sys.executable, os.path.abspath(__file__), "--side", side, "--directory", directory,
            "--first", str(first), "--jobs", str(end), "--functions", str(arguments.functions),
        ]  # fmt: skip
        processes.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=workspace.environment(),
            )
        )
    if shares > 1:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
    results = [json.loads(process.communicate()[0]) for process in release(processes)]
    return {
        key: (max if key == "wall" else sum)(result[key] for result in results)  # type: ignore[operator]
        for key in results[0]
    }


def release(processes: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    """Let the processes begin, all at once."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def summarize(samples: dict[str, list[dict[str, float]]], jobs: int) -> dict[str, Any]:
    """The figures of the medians and of the minima."""
    figures: dict[str, Any] = {}
    one, single, double, halves = SIDES
    for name, choose in (("median", statistics.median), ("minimum", min)):
        wall = {side: choose([sample["wall"] for sample in taken]) for side, taken in samples.items()}
        cpu = {side: choose([sample["cpu"] for sample in taken]) for side, taken in samples.items()}
        figures[name] = {
            "wall s": {side: round(value, 3) for side, value in wall.items()},
            "cpu s": {side: round(value, 3) for side, value in cpu.items()},
            "speed-up of 2 workers / 2 (wall)": round(wall[one] / wall[double] / 2, 3),
            "speed-up of two halves / 2 (wall)": round(wall[one] / wall[halves] / 2, 3),
            "2 workers / two halves (wall)": round(wall[double] / wall[halves], 3),
            "cpu of one process / cpu of 2 workers": round(cpu[one] / cpu[double], 3),
            "start of a worker, ms": round(choose([sample["start"] for sample in samples[single]]) * 1e3, 1),
            "between two jobs of a worker, ms": round(
                choose([sample["between"] for sample in samples[single]]) * 1e3, 2
            ),
            "one job above its own compilation, ms (cpu, two workers)": round(
                (cpu[double] - cpu[one]) / jobs * 1e3, 2
            ),
        }
    return figures


def main() -> int:
    """Run the benchmark; exit status 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--functions", type=int, default=3, help="functions in the module of each job")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write every sample")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        jobs = range(arguments.first, arguments.jobs)
        print(json.dumps(measure(arguments.side, jobs, arguments.functions, arguments.directory)))
        return 0
    # Not above: the comparison uses the jobs of this file in places where the workspace's module is not.
    from workspace import Workspace

    samples: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="compcache-batch-") as scratch:
        workspace = Workspace(Path(scratch), quick=True)
        prepared = prepare(workspace)
        for number in range(arguments.turns):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                samples[side].append(turn(side, arguments, workspace, prepared))
    figures = summarize(samples, arguments.jobs)
    figures["load average"] = os.getloadavg()
    print(json.dumps(figures, indent=2))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(
                {"command": sys.argv, "python": sys.version, "samples": samples, **figures}, file, indent=1
            )
    return 0 if figures["minimum"]["speed-up of 2 workers / 2 (wall)"] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
