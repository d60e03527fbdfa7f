"""Object files kept by a general cache, as one would do by hand: joblib.Memory and diskcache, with llvmlite's ORC to load them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compcache_conformance.adapter import Adapter

if TYPE_CHECKING:
    from pathlib import Path

_LOAD = """
import ctypes, os, threading

import conformance_front_end as front
import llvmlite, llvmlite.binding as llvm
from conformance_serve import serve

compiled = []

def emit(code, version):
    compiled.append(code)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    module = llvm.parse_assembly(code)
    return machine.emit_object(module)

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
jit = llvm.create_lljit_compiler()
loaded = {}

def ask(name, *arguments):
    if name not in loaded:
        before = len(compiled)
        code = front.code_whole(name)
        image = cached(code)
        builder = llvm.JITLibraryBuilder().add_object_img(image).export_symbol(name)
        library = builder.link(jit, "library_%s_%d" % (name, threading.get_native_id()))
        kinds = [ctypes.c_double] * (1 + len(front.function(name).arguments))
        loaded[name] = library, ctypes.CFUNCTYPE(*kinds)(library[name])
        return loaded[name][1](*arguments), len(compiled) == before
    return loaded[name][1](*arguments), None
"""


class _Objects(Adapter):
    makes_llvm: ClassVar[bool] = True
    shapes: ClassVar[frozenset[str]] = frozenset({"call", "files", "constant", "table", "environment", "data", "record", "closure", "fast"})
    entries: ClassVar[int] = 100
    chain: ClassVar[int] = 1000


class Joblib(_Objects):
    """A function that is memoized by joblib."""

    name: ClassVar[str] = "joblib"
    requirements: ClassVar[tuple[str, ...]] = ("joblib", "llvmlite")
    distribution: ClassVar[str] = "joblib"
    driver: ClassVar[str] = (
        _LOAD
        + """
import joblib

memory = joblib.Memory(os.environ["STORE"], verbose=0)
memoized = memory.cache(emit)

def cached(code):
    return memoized(code, llvm.llvm_version_info)

serve(ask)
"""
    )


class Diskcache(_Objects):
    """A `diskcache.Cache` of object files, its key the code and LLVM's version."""

    name: ClassVar[str] = "diskcache"
    requirements: ClassVar[tuple[str, ...]] = ("diskcache", "llvmlite")
    distribution: ClassVar[str] = "diskcache"
    driver: ClassVar[str] = (
        _LOAD
        + """
import diskcache

options = {"size_limit": int(os.environ["SIZE_LIMIT"])} if "SIZE_LIMIT" in os.environ else {}
cache = diskcache.Cache(os.environ["STORE"], **options)

def cached(code):
    key = (code, llvm.llvm_version_info)
    image = cache.get(key)
    if image is None:
        image = emit(*key)
        cache.set(key, image)
    return image

serve(ask)
"""
    )

    def limited_environment(self, size: int) -> dict[str, str]:
        """What the driver gives as `size_limit`."""
        return {"SIZE_LIMIT": str(size)}

    def environment(self, store: Path, folder: Path) -> dict[str, str]:  # noqa: ARG002
        """The directory."""
        return {"STORE": str(store)}
