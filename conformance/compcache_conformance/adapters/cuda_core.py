"""NVIDIA's cuda.core program cache, without a driver: NVRTC compiles, the cache keeps PTX code, which is interpreted."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import as_c

if TYPE_CHECKING:
    from pathlib import Path

    from compcache_conformance.language import Program

_DRIVER = """
import os, pathlib, re

import conformance_ptx
from conformance_serve import serve
from cuda.bindings import nvrtc
from cuda.core import ProgramOptions
from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

here = pathlib.Path(__file__).parent
source = (here / "program.cu").read_text()
fast = (here / "fast").exists()
limit = int(os.environ["SIZE_LIMIT"]) if "SIZE_LIMIT" in os.environ else None
cache = FileStreamProgramCache(os.environ["STORE"], max_size_bytes=limit)
options = ProgramOptions(std="c++17", arch="sm_80", use_fast_math=fast)

def ask(name, *arguments):
    head = re.search(r"double %s\\(([^)]*)\\)" % re.escape(name), source)
    if head is None:
        raise NameError(name)
    parameters = [word.split()[-1] for word in head.group(1).split(",")]
    kernel = 'extern "C" __global__ void kernel_%s(double *out, %s) { *out = %s(%s); }' % (name, head.group(1), name, ", ".join(parameters))
    code = source + kernel
    key = make_program_cache_key(code=code, code_type="c++", options=options, target_type="ptx")
    kept = cache.get(key)
    image = compiled(code) if kept is None else kept
    if kept is None:
        cache[key] = image
    text = bytes(getattr(image, "code", image)).decode()
    return conformance_ptx.run(text, "kernel_" + name, list(map(float, arguments))), kept is not None

def compiled(code):
    flags = [b"--gpu-architecture=compute_80", b"--std=c++17"] + ([b"--use_fast_math"] if fast else [])
    program = said(nvrtc.nvrtcCreateProgram(code.encode(), b"program.cu", 0, [], []))
    said(nvrtc.nvrtcCompileProgram(program, len(flags), flags))
    image = b" " * said(nvrtc.nvrtcGetPTXSize(program))
    said(nvrtc.nvrtcGetPTX(program, image))
    return image

def said(answer):
    if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(str(answer[0]))
    return answer[1] if len(answer) > 1 else None

serve(ask)
"""


_RAW = "its documents: an entry is the compiled binary, without a header"


class CudaCore(Adapter):
    """`FileStreamProgramCache` with `make_program_cache_key`, by hand, since `Program.compile` asks for a driver."""

    name: ClassVar[str] = "cuda.core"
    requirements: ClassVar[tuple[str, ...]] = ("cuda-core[cu12]",)
    distribution: ClassVar[str] = "cuda-core"
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant"})
    driver: ClassVar[str] = _DRIVER
    drivers: ClassVar[tuple[str, ...]] = ("conformance_ptx.py",)
    patience: ClassVar[float] = 60.0
    limits: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("truncated", "zero-filled", "flipped bits", "planted entry", "files that shrink under a reader"), _RAW),
        **dict.fromkeys(("moved lines", "new function in the file"), "its documents: the key is made of the text of the source"),
    }

    def write(self, folder: Path, program: Program) -> None:
        """All files of a program as one source: the cache takes texts, and refuses what reads other files."""
        text = "\n".join(as_c(program, file) for file in program.files)
        lines = [line for line in text.splitlines() if not line.startswith("#include")]
        lines = ["__device__ " + line if line.startswith(("double", "static double")) else line for line in lines]
        self.put(folder / "program.cu", "\n".join(lines) + "\n")
        (folder / "fast").unlink(missing_ok=True)

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The directory, which the driver gives to the cache."""
        return {"STORE": str(store)}

    def limited_environment(self, size: int) -> dict[str, str]:
        """What the driver gives as `max_size_bytes`."""
        return {"SIZE_LIMIT": str(size)}
