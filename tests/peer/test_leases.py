"""Leases between real processes, each with a helper of its own as on a host of its own, over Redis and S3."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .remote_servers import SERVERS, stop, variables

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

HOSTS, FUNCTIONS = {"redis": 16, "s3": 6}, 6  # the server of S3 is a simulation, which takes one request at a time
HOST = """
import os, random, sys, time
from compcache import Cache, Identity
directory, url, number, hosts, warm = sys.argv[1:]
compiled = 0
with Cache(directory, remote=url, remote_mode="write") as cache:
    if warm == "1":
        cache.has_many([Identity("starts the helper")])
    open(directory + ".ready", "w").close()
    while len([name for name in os.listdir(os.path.dirname(directory)) if name.endswith(".ready")]) < int(hosts):
        time.sleep(0.05)
    for function in random.Random(int(number)).sample(range(%d), %d):
        def build():
            global compiled
            compiled += 1
            time.sleep(0.4)
            return "define i64 @f() {\\n ret i64 %%d\\n}\\n" %% function
        assert cache.get_or_compile(Identity("f", number=function), build)() == function
    cache.flush_uploads(60)
print(compiled)
""" % (FUNCTIONS, FUNCTIONS)  # noqa: UP031 - the text has braces


@pytest.mark.parametrize(("kind", "warm"), [("redis", "1"), ("redis", "0"), ("s3", "0")])
def test_hosts_that_start_together_with_an_empty_store_compile_little_twice(kind: str, warm: str, tmp_path: Path) -> None:
    """Without leases each host compiles each. Above 1 are hosts that did not hear of another one in time: the machine is busy.

    `warm`: their helpers run; else they are all started at this moment.
    """
    server, port, url = SERVERS[kind](tmp_path)
    own = {**os.environ, **variables(port), "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))}
    hosts = []
    try:
        for number in range(HOSTS[kind]):
            runtime = tmp_path / f"run{number}"
            runtime.mkdir(mode=0o700)
            command = [
                sys.executable,
                "-c",
                HOST,
                str(tmp_path / f"host{number}"),
                url.format(port=port),
                str(number),
                str(HOSTS[kind]),
                warm,
            ]
            hosts.append(subprocess.Popen(command, env={**own, "XDG_RUNTIME_DIR": str(runtime)}, stdout=subprocess.PIPE, text=True))
        compiled = [int(host.communicate()[0]) for host in hosts]
    finally:
        for runtime in tmp_path.glob("run*"):
            shutil.rmtree(runtime)  # the helper processes end with it
        stop(server)
    assert FUNCTIONS <= sum(compiled) <= 1.5 * FUNCTIONS
