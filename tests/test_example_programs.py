"""The example compilers give right results, and the second process that asks compiles nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from array import array
from typing import TYPE_CHECKING

import pytest
from cli_process import environment
from helpers import PACKAGE_ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(PACKAGE_ROOT / "examples"))
einsum = pytest.importorskip("einsum")
regex_dfa = pytest.importorskip("regex_dfa")
stencil = pytest.importorskip("stencil")
sys.path.remove(str(PACKAGE_ROOT / "examples"))

if TYPE_CHECKING:
    from pathlib import Path

    from compcache import Cache


@pytest.mark.slow
@pytest.mark.parametrize("name", ["einsum", "regex_dfa", "stencil"])
def test_a_program_prints_the_same_and_imports_llvm_once(name: str, tmp_path: Path) -> None:
    outputs = []
    for compiles in (True, False):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-X", "importtime", PACKAGE_ROOT / "examples" / f"{name}.py"],
            cwd=tmp_path, env=environment({}), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ("llvmlite" in done.stderr) is compiles
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] != ""


PATTERNS = ["abc", "(ab|a)*c[0-9]+", "a?b*|c+d", "[^a]*", "", "(a|b)(a|b)?", ".a."]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pattern=st.sampled_from(PATTERNS), text=st.text("abcd01", max_size=6))
def test_a_compiled_pattern_matches_what_re_matches(cache: Cache, pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern, text, re.DOTALL) is not None
    assert regex_dfa.compile_regex(cache, pattern.encode())(text.encode()) is expected


@pytest.mark.parametrize("pattern", [b"(a", b"a)", b"[a"])
def test_a_malformed_pattern_is_an_error_of_the_compiler(cache: Cache, pattern: bytes) -> None:
    with pytest.raises(ValueError, match=r"pattern|group"):
        regex_dfa.compile_regex(cache, pattern)


@pytest.mark.parametrize("spec", ["ij,jk->ik", "ij->ji", "i,i->", "ijk,k,j->i", "i,j->ij", "ij->"])
def test_einsum_is_that_of_numpy(cache: Cache, spec: str) -> None:
    numpy = pytest.importorskip("numpy")
    extents = {"i": 2, "j": 3, "k": 4}
    inputs = spec.partition("->")[0].split(",")
    operands = [numpy.random.default_rng(7).random([extents[index] for index in indices]) for indices in inputs]
    numpy.testing.assert_allclose(einsum.einsum(cache, spec, *operands), numpy.einsum(spec, *operands))
    assert len(cache.modules()) == 1
    with pytest.raises((TypeError, ValueError)):
        einsum.einsum(cache, spec, *[operand.astype("float32") for operand in operands])


def test_a_stencil_is_what_python_computes_and_other_weights_are_other_code(cache: Cache) -> None:
    width, height = 7, 6
    grid = array("d", [float(n * n % 17) for n in range(width * height)])
    for weights in (stencil.HEAT, {(0, 0): 0.5, (1, 1): 0.25, (-2, 1): -1.5}):
        reach = max(max(map(abs, place)) for place in weights)
        after = array("d", grid)
        stencil.stencil(cache, weights)(after, grid, width=width)
        for y in range(reach, height - reach):
            for x in range(reach, width - reach):
                expected = sum(grid[(y + dy) * width + x + dx] * weight for (dy, dx), weight in weights.items())
                assert after[y * width + x] == pytest.approx(expected)
        assert after[:width] == grid[:width]
    assert len(cache.modules()) == 2
