"""DIRECTORY WORKERS JOBS FUNCTIONS: seconds of wall and processor time for the jobs; 0 workers: one after the other."""

import json
import sys
import time

from batch import job_text, processor_time

from compcache import Cache, ModuleSource
from compcache.batch import compile_many


def main(directory: str, workers: int, jobs: int, functions: int) -> None:
    sources = [ModuleSource(job_text(number, functions)) for number in range(jobs)]
    with Cache(directory) as cache:
        cache.add_module(ModuleSource("define i64 @warm() {\n  ret i64 1\n}\n"))
        started, spent = time.perf_counter(), processor_time()
        if workers:
            report = compile_many(cache, sources, workers=workers)
            assert len(report.built) == jobs, report
        else:
            for source in sources:
                cache.add_module(source)
        print(json.dumps({"wall": time.perf_counter() - started, "cpu": processor_time() - spent}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
