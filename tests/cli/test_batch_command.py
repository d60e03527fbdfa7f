"""``compcache batch``: what a SPEC may be, what is printed where, and the exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from helpers import PACKAGE_ROOT, adder

from compcache import Cache, FormatError
from compcache.batch.spec import SpecError, read_specs
from compcache.cli import main

if TYPE_CHECKING:
    from pathlib import Path

RUN = """
import sys
from compcache.cli import app
app.COMMANDS.setdefault("batch", ("batch", "Compile many modules in several processes."))
sys.exit(app.main())
"""
JOBS = """
import time
from sys import exit
from compcache import ModuleSource
from compcache.batch import Job

def constant(name, value):
    return ModuleSource("define i64 @%s() {\\n  ret i64 %d\\n}\\n" % (name, value))

def hang(name):
    print("hanging", flush=True)
    time.sleep(100)

jobs = [("listed", constant, ("listed", 1)), constant("plain", 2)]
def more():
    yield Job("yielded", constant, ("yielded", 3))
def hanging():
    return [*jobs, *[Job("hangs%d" % n, hang, ("hangs",)) for n in range(3)]]
number = 3
numbers = [1, 2]
def broken():
    raise ZeroDivisionError("on purpose")
"""


def command(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-c", RUN, "--dir", str(directory), "batch", *arguments]


def run(directory: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(directory, *arguments),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        check=False,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with files that a SPEC may name."""
    path = tmp_path / "place"
    path.mkdir()
    (path / "text.ll").write_text(adder("text", 1))
    (path / "code.bc").write_bytes(llvm.parse_assembly(adder("code", 2)).as_bitcode())
    (path / "bad.ll").write_text("nothing that LLVM reads")
    (path / "batch_spec.py").write_text(JOBS)
    (path / "exits.py").write_text("raise SystemExit(5)\n")
    return path


@pytest.mark.slow
def test_every_kind_of_spec_and_a_second_run(directory: Path, place: Path) -> None:
    specs = ["text.ll", "code.bc", str(place / "batch_spec.py"), "batch_spec:more"]
    done = run(directory, "-j", "2", *specs, cwd=place)
    assert (done.returncode, done.stdout.split(" in ")[0]) == (0, "5 built, 0 cached, 0 failed"), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 5
    assert any("built   text.ll  " in line for line in lines)
    with Cache(directory) as cache:
        assert [cache.get_target(name)() for name in ("listed", "plain", "yielded")] == [1, 2, 3]
        assert [cache.get_target(name)(1) for name in ("text", "code")] == [2, 3]
    again = run(directory, "--json", "--quiet", *specs, cwd=place)
    report = json.loads(again.stdout)
    assert again.returncode == 0
    assert again.stderr == ""
    assert (len(report["built"]), len(report["cached"]), report["failed"], report["ok"]) == (0, 5, [], True)
    assert all(record["size"] > 0 for record in report["cached"])


@pytest.mark.slow
def test_failures_are_in_the_report_and_in_the_exit_status(directory: Path, place: Path) -> None:
    done = run(directory, "--json", "-q", "-j1", "bad.ll", "text.ll", cwd=place)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert [record["name"] for record in report["built"]] == ["text.ll"]
    (failed,) = report["failed"]
    assert (failed["name"], failed["error"], report["ok"]) == ("bad.ll", "CompileError", False)
    first, *code = done.stderr.splitlines()
    assert first.startswith("compcache: error: bad.ll: CompileError: ")
    assert all(line.startswith("  ") for line in code)  # where LLVM sees the error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.ll", "cannot read nowhere.ll"),
        ("nowhere.py", "file nowhere.py does not exist"),
        ("something", "is not a valid SPEC"),
        ("nowhere:jobs", "No module named 'nowhere'"),
        ("batch_spec.py:nothing", "has no attribute 'nothing'"),
        ("batch_spec.py:number", "is an object of type int, not an iterable of jobs: make it a list of jobs"),
        ("batch_spec.py:numbers", "job 0 is of type int"),
        ("batch_spec.py:broken", "ZeroDivisionError: on purpose"),
        ("exits.py", "exits.py cannot be imported: SystemExit: 5"),
        ("batch_spec.py:exit", "'exit' failed: SystemExit: "),
    ],
)
def test_a_spec_that_leads_to_no_jobs_says_why(
    directory: Path, place: Path, monkeypatch: pytest.MonkeyPatch, spec: str, message: str
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if spec.endswith(("numbers", "broken")):  # these two all the way through the command line
        done = run(directory, spec, cwd=place)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        return
    with pytest.raises(SpecError) as caught:
        read_specs([spec])
    assert message in str(caught.value)
    sys.modules.pop("batch_spec", None)


def test_errors_of_the_cache_are_no_wrong_usage(
    directory: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise FormatError("the index is damaged")

    monkeypatch.setattr("compcache.batch.compile_many", fail)
    assert main(["--dir", str(directory), "batch", str(place / "text.ll")])
    error = capsys.readouterr().err
    assert "the index is damaged" in error
    assert "--help" not in error


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_status_130(directory: Path, place: Path) -> None:
    with subprocess.Popen(
        command(directory, "-j", "1", "--json", "batch_spec.py:hanging"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[2/5]"):
                break
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
        assert time.monotonic() - started < 30  # the job would hang for 100
    report = json.loads(output)
    assert (process.returncode, len(report["built"]), report["interrupted"]) == (130, 2, True)
