"""Batches compare content: what was edited is compiled, what differs under one name is an error, and the check of CI works."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from helpers import adder, constant

from compcache import Cache, CacheWarning, CompcacheError, ModuleSource
from compcache.batch import BatchReport, ConflictingJobsError, Job, compile_many

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path
    from typing import Any

INLINE = "define linkonce_odr i64 @shared() {{\n  ret i64 {value}\n}}\n"


class Here:
    """An executor that runs each job at once, in this process: a batch that starts no workers."""

    _max_workers = 1

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        from concurrent.futures import Future

        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done


def batch(cache: Cache, *jobs: Any) -> BatchReport:
    return compile_many(cache, jobs, executor=Here(), progress=False)  # type: ignore[arg-type] # all that it needs of one


def counts(report: BatchReport) -> tuple[int, int, int]:
    return len(report.built), len(report.cached), len(report.failed)


def bitcode(text: str) -> ModuleSource:
    return ModuleSource(llvm.parse_assembly(text).as_bitcode())


@pytest.mark.parametrize("as_source", [ModuleSource, bitcode])
def test_an_edited_source_is_compiled_and_a_reverted_one_as_well(cache: Cache, as_source: Any) -> None:
    other = ModuleSource(constant("other", 1))
    for value, expected in [(1, (2, 0, 0)), (1, (0, 2, 0)), (2, (1, 1, 0)), (1, (1, 1, 0)), (1, (0, 2, 0))]:
        assert counts(batch(cache, as_source(constant("f", value)), other)) == expected
        assert cache.get_target("f")() == value


def test_what_is_the_same_needs_no_llvm(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = ModuleSource(constant("f", 1)), ModuleSource(constant("g", 1))
    batch(cache, *jobs)

    def refuse(*_: object) -> None:
        raise AssertionError("LLVM is asked")

    monkeypatch.setattr("compcache.build.codegen.parse", refuse)
    assert counts(batch(cache, *jobs)) == (0, 2, 0)


def with_functions(text: str) -> ModuleSource:
    return ModuleSource(llvm.parse_assembly(text).as_bitcode(), {"scale": "i64()"})


@pytest.mark.parametrize("as_source", [ModuleSource, with_functions])
def test_two_sources_of_one_name_are_an_error_that_names_both(cache: Cache, as_source: Any) -> None:
    jobs = [Job(None, as_source(constant("scale", value) + constant(f"own{value}", 1)), label=f"{value}.ll") for value in (1, 2)]
    with pytest.raises(ConflictingJobsError, match=r"'scale' is defined by job 0 \('1\.ll'\) and by job 1 \('2\.ll'\), whose sources"):
        batch(cache, *jobs)
    assert cache.functions() == ()


def test_names_in_bitcode_are_not_compared(cache: Cache) -> None:
    """Only LLVM knows the names in bitcode, and a batch does not ask LLVM before its jobs run."""
    assert counts(batch(cache, *[bitcode(constant("scale", value)) for value in (1, 2)])) == (2, 0, 0)
    assert cache.get_target("scale")() == 2


def test_the_same_source_twice_and_inline_functions_are_no_error(cache: Cache) -> None:
    report = batch(cache, ModuleSource(constant("f", 1)), ModuleSource(constant("f", 1)))
    assert counts(report) == (1, 1, 0)
    made_by: dict[int, Any] = {1: ModuleSource, 2: ModuleSource, 3: bitcode}
    inline = [make(INLINE.format(value=value) + adder(f"own{value}", 1)) for value, make in made_by.items()]
    assert counts(batch(cache, *inline)) == (3, 0, 0)


def test_a_build_that_gives_other_code_is_told_of_where_that_is_asked_for(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_of.py").write_text(
        "from compcache import ModuleSource\nvalue = 1\ndef f():\n    return ModuleSource('define i64 @f() { ret i64 %d }' % value)\n"
    )
    job = Job("f", "made_of:f")
    assert counts(batch(cache, job)) == (1, 0, 0)
    sys.modules["made_of"].value = 2  # type: ignore[attr-defined] # written above
    assert counts(batch(cache, job)) == (0, 1, 0)
    monkeypatch.setenv("COMPCACHE_CHECK", "1")
    with pytest.warns(CacheWarning, match="f: function 'f' was compiled from different code than it has now; the cached code is used"):
        assert counts(batch(cache, job)) == (0, 1, 0)
    sys.modules["made_of"].value = 1  # type: ignore[attr-defined] # as above
    assert counts(batch(cache, job)) == (0, 1, 0)
    assert cache.get_target("f")() == 1


def test_an_edited_source_is_told_of_where_that_is_asked_for(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_CHECK", "1")
    assert counts(batch(cache, ModuleSource(constant("f", 1)))) == (1, 0, 0)
    assert counts(batch(cache, ModuleSource(constant("f", 1)))) == (0, 1, 0)
    with pytest.warns(CacheWarning, match="'f' was compiled from different code than it has now; it is compiled again"):
        assert counts(batch(cache, ModuleSource(constant("f", 2)))) == (1, 0, 0)
    assert not issubclass(ConflictingJobsError, CompcacheError)


def test_a_job_that_needs_what_another_one_edits_is_tried_again(cache: Cache) -> None:
    """Where the cache has the function with another type only, the source with the fitting one may be in the same batch."""
    cache.add_module(ModuleSource(constant("f", 1)))
    user = "declare double @f()\ndefine double @g() {\n  %x = call double @f()\n  ret double %x\n}\n"
    assert counts(batch(cache, ModuleSource(user), ModuleSource(constant("f", 2.5, "double")))) == (2, 0, 0)
    assert cache.get_target("g")() == 2.5
