"""Several realizations of a function for several CPUs: each host takes the best that it can run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from helpers import constant
from hosts import host_like, on_host

from compcache import Cache, Identity, ModuleSource, NotCachedError
from compcache.formats.host import platform_name
from compcache.publish.index_merge import merge
from compcache.publish.index_rebuild import rebuild_index
from compcache.publish.removal import remove_file
from compcache.targets.processor_words import enabled_features

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")

#: A name of content: all realizations are taken to do the same, whenever they were added.
NAME = Identity("f", version=1).func_name
#: The CPUs that there is code for, with what the code of each returns.
CODE = {"x86-64": 1, "x86-64-v2": 2, "x86-64-v3": 3, "haswell": 4, "x86-64-v4": 5}


@pytest.fixture
def mixed(directory: Path) -> Path:
    with Cache(directory) as cache:
        for cpu, value in CODE.items():
            cache.add_module(ModuleSource(constant(NAME, value), cpu=cpu))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "expected"),
    [("k8", 1), ("nehalem", 2), ("znver1", 4), ("haswell", 4), ("skylake-avx512", 5), ("znver4", 5), ("x86-64-v3", 3)],
)
@pytest.mark.parametrize("index", ["additions", "merged", "rebuilt"])
def test_a_host_takes_the_richest_that_it_can_run(mixed: Path, cpu: str, expected: int, index: str) -> None:
    with Cache(mixed) as cache:
        if index == "merged":
            merge(cache._store.index)
        elif index == "rebuilt":
            rebuild_index(cache._store)
    with on_host(Cache(mixed, retarget=False), host_like(cpu)) as cache:
        assert cache.get_target(NAME)() == expected
        assert len(cache.realizations(NAME)) == len(CODE)


def test_of_equal_requirements_the_same_tuning_is_taken(directory: Path) -> None:
    with Cache(directory) as cache:
        for value, features in enumerate(("+prefer-256-bit", "+prefer-128-bit")):
            cpu = ("skylake", "broadwell")[value]
            changes = f"{features},-clflushopt,-xsavec,-prfchw,-rdseed,-adx,-aes"
            cache.add_module(ModuleSource(constant(NAME, value), cpu=cpu, features=changes))
        skylake, broadwell = sorted(cache.realizations(NAME), key=lambda r: r.cpu, reverse=True)
        assert enabled_features(skylake.features) == enabled_features(broadwell.features)
    for cpu, value in (("skylake", 0), ("broadwell", 1)):
        with on_host(Cache(directory, retarget=False), host_like(cpu)) as cache:
            assert cache.get_target(NAME)() == value


def test_choosing_opens_one_module(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_host(Cache(mixed, retarget=False), host_like("nehalem")) as cache:
        opened = []
        real = type(cache._store).open_module

        def counted(store: object, module_id: bytes, **options: bool) -> object:
            opened.append(module_id)
            return real(store, module_id, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(type(cache._store), "open_module", counted)
        assert cache.get_target(NAME)() == 2
        assert len(opened) == 1


def test_what_is_pruned_leaves_the_next_best(mixed: Path) -> None:
    with on_host(Cache(mixed, retarget=False), host_like("haswell")) as cache:
        best = next(r.module_id for r in cache.realizations(NAME) if r.cpu == "haswell")
        remove_file(cache._store, bytes.fromhex(best))
        assert cache.get_target(NAME)() == 3


# ------------------------------------------------------------------ the C library

USES_LIBM = """\
declare double @exp(double)
define double @f(double %x) {
  %y = call double @exp(double %x)
  ret double %y
}
"""


@pytest.fixture
def of_libm(directory: Path) -> Path:
    if not os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("the C library is not glibc")
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(USES_LIBM, cpu="x86-64"))
        cache.add_module(ModuleSource(constant("pure", 1), cpu="x86-64"))
        if cache.realizations("f")[0].image_kind != "shared":
            pytest.skip("there is no linker")
    return directory


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("glibc 2.2.4", "needs glibc 2.29 or later, but this process has glibc 2.2.4"),
        (None, "needs glibc 2.29 or later, but this process has musl"),
    ],
)
def test_an_older_or_another_libc_is_told_before_anything_is_mapped(
    of_libm: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, message: str
) -> None:
    def confstr(_: str) -> str:
        if answer is None:
            raise ValueError("unrecognized configuration name")
        return answer

    monkeypatch.setattr(os, "confstr", confstr)
    with Cache(of_libm) as cache:
        with pytest.raises(NotCachedError, match=message):
            cache.get_target("f")
        assert not cache.has("f")
        assert cache.get_target("pure")() == 1


def test_a_later_libc_serves(of_libm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.137")
    with Cache(of_libm) as cache:
        assert cache.get_target("f")(0.0) == 1.0


_FUSABLE = """
define double @f(double %a, double %b, double %c) #0 {{
  %product = fmul {permitted} double %a, %b
  %sum = fadd {permitted} double %product, %c
  ret double %sum
}}
attributes #0 = {{ nounwind {attributes} }}
"""
_CPU = '"target-cpu"="x86-64"'


#: A target with changes to its CPU's features, like this host where its CPU's name does not say everything.
_WITH_FMA = "x86-64+fma"


@pytest.mark.parametrize(
    ("permitted", "attributes", "cpu", "fused"),
    [
        ("contract", "", "haswell", True),
        ("contract", "", "x86-64", False),
        ("contract", "", _WITH_FMA, True),
        ("contract", '"tune-cpu"="skylake"', _WITH_FMA, True),
        ("contract", _CPU, "haswell", False),  # as flang and rustc write it
        ("contract", _CPU, _WITH_FMA, False),
        ("contract", '"target-features"="+sse3"', _WITH_FMA, False),
        ("contract", '"target-features"="+sse3"', "haswell", False),
        ("contract", '"target-features"="+fma"', "x86-64", True),
        ("contract", f'{_CPU} "target-features"="+cx8,+sse2"', "haswell", False),  # as clang does
        ("contract", f'{_CPU} "target-features"="+cx8,+sse2"', None, False),
        ("contract", f'{_CPU} "target-features"="+avx2,+fma"', None, True),
        ("", "", "haswell", False),
        ("", _CPU, None, False),
    ],
)
def test_the_target_decides_whether_products_are_fused(cache: Cache, permitted: str, attributes: str, cpu: str | None, fused: bool) -> None:
    """With sums, as `docs/platforms.md` says. A fused product is not rounded."""
    if not llvm.get_host_cpu_features().get("fma"):
        pytest.skip("this processor cannot fuse products with sums")
    name, _, added = (cpu or "").partition("+")
    text = _FUSABLE.format(permitted=permitted, attributes=attributes)
    cache.add_module(ModuleSource(text, cpu=name or None, features=added and f"+{added}"))
    one = 1 + 2.0**-30
    assert cache.get_target("f")(one, one, -1 - 2.0**-29) == (2.0**-60 if fused else 0.0)


@pytest.mark.parametrize("attributes", [_CPU, '"target-features"="+sse3"'])
def test_code_with_its_own_cpu_is_the_same_for_all_targets(directory: Path, attributes: str) -> None:
    """Beside code that has none."""
    text = _FUSABLE.format(permitted="contract", attributes=attributes)
    texts = [text, _FUSABLE.format(permitted="contract", attributes="").replace("@f(", "@g(")]
    codes = set()
    for number, (cpu, features) in enumerate([("x86-64", "+fma"), ("haswell", None), ("x86-64-v4", None)]):
        with Cache(directory / str(number)) as cache:
            cache.add_modules([ModuleSource(text, cpu=cpu, features=features) for text in texts], group="both")
            codes.add(cache.asm("f"))
            assert "vfmadd" in cache.asm("g")
            assert not cache.realizations("f")[0].features
    (code,) = codes
    assert "mulsd" in code
