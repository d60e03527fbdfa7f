"""nlohmann::json, fmt and Eigen: exceptions, templates and the C++ library, beside the same source in an ordinary shared object."""

from __future__ import annotations

import ctypes
import json
import random
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from compcache import Cache, CompileError, ModuleSource

from .conftest import unavailable
from .debian import PackageUnavailableError, headers
from .libraries import CSRC

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]
_INPUTS = 1000
_ROOM = 100_000
_PADDING = 64


class Library(NamedTuple):
    """Functions of a source of ours that use a library, its package and its folder of headers, and what gives their inputs."""

    source: str
    package: str
    folder: str
    functions: tuple[str, ...]
    make_input: Callable[[random.Random], bytes]


def _json_text(generator: random.Random) -> bytes:
    text = json.dumps(_value(generator, 0), ensure_ascii=generator.random() < 0.5).encode()
    return text if generator.random() < 0.75 else text[: len(text) // 2] + b"\x01"


def _value(generator: random.Random, depth: int) -> Any:
    choice = generator.random()
    if depth > 3 or choice < 0.3:
        return generator.choice([1, 2.5, -7, "t\xe4xt", None, True, 1e300, generator.random(), '\n\t"\\'])
    if choice < 0.6:
        return [_value(generator, depth + 1) for _ in range(generator.randrange(5))]
    return {f"k{i}": _value(generator, depth + 1) for i in range(generator.randrange(5))}


def _format(generator: random.Random) -> bytes:
    noise = generator.randbytes(9).replace(b"\0", b"1")
    return generator.choice([b"{} {} {}", b"{0:08d} {1:>{0}}", b"{2:.3f}{0}", b"{", b"{5}", b"{:d} {:d}", noise])


LIBRARIES = (
    Library("json", "nlohmann-json3-dev", "", ("json_round", "json_cbor", "json_sum"), _json_text),
    Library("format", "libfmt-dev", "", ("format_numbers", "format_as_told", "format_range"), _format),
    Library(
        "matrices", "libeigen3-dev", "eigen3",
        ("matrix_inverse", "matrix_singular_values", "matrix_product", "matrix_eigenvalues"),
        lambda generator: generator.randbytes(generator.randrange(90)),
    ),
)  # fmt: skip


@pytest.fixture(scope="module", params=LIBRARIES, ids=lambda library: library.source)
def library(request: pytest.FixtureRequest) -> Library:
    found: Library = request.param
    return found


@pytest.fixture(scope="module", params=[("-O2",), ("-O1", "-g")], ids=["plain", "debug"])
def built(
    library: Library, request: pytest.FixtureRequest, peer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, ctypes.CDLL]:
    """The bitcode of the source, and a shared object of it."""
    if shutil.which("clang++") is None:
        unavailable("clang++ is not installed")
    try:
        include = headers(library.package, peer_dir / "debian") / library.folder
    except PackageUnavailableError as error:
        unavailable(str(error))
    out = tmp_path_factory.mktemp(library.source)
    command = ["clang++", "-std=c++17", "-Wno-everything", f"-I{include}", *request.param, str(CSRC / f"{library.source}.cpp")]
    subprocess.run([*command, "-c", "-emit-llvm", "-o", str(out / "module.bc")], check=True)
    subprocess.run([*command, "-shared", "-fPIC", "-o", str(out / "ordinary.so")], check=True)
    return (out / "module.bc").read_bytes(), ctypes.CDLL(str(out / "ordinary.so"))


@pytest.mark.parametrize("linker", ["ld", "ld.lld"])
def test_every_function_gives_what_it_gives_in_a_shared_object(
    library: Library, built: tuple[bytes, ctypes.CDLL], linker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(linker) is None:
        unavailable(f"{linker} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", linker)
    code, ordinary = built
    generator = random.Random(7)
    inputs = [library.make_input(generator) for _ in range(_INPUTS)]
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(code, dict.fromkeys(library.functions), libraries=["stdc++"]))
        for name in library.functions:
            target, reference = cache.get_target(name), getattr(ordinary, name)
            reference.restype = ctypes.c_long
            reference.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_long)
            for data in inputs:
                assert _result(target, data) == _result(reference, data), (name, data)


def _result(function: Callable[..., int], data: bytes) -> tuple[int, bytes]:
    given, out = ctypes.create_string_buffer(data, len(data) + _PADDING), ctypes.create_string_buffer(_ROOM)
    size = function(ctypes.addressof(given), len(data), ctypes.addressof(out), _ROOM)
    return size, ctypes.string_at(out, max(size, 0))


def test_without_a_linker_the_refusal_names_one(
    library: Library, built: tuple[bytes, ctypes.CDLL], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPCACHE_LINKER", "none")
    with Cache(tmp_path / "cache") as cache, pytest.raises(CompileError, match=r"needs a shared object.*install a linker"):
        cache.add_module(ModuleSource(built[0], dict.fromkeys(library.functions), libraries=["stdc++"]))
