"""A user's program, for type checkers: `make types` runs pyright and mypy on it, both strict. It is never run."""

from __future__ import annotations

import logging
import pickle
from array import array
from datetime import timedelta
from pathlib import Path

import compcache
from compcache import (
    Cache,
    CacheWarning,
    CompileError,
    Function,
    Identity,
    ModuleSource,
    NotCachedError,
    PrunePolicy,
    Signature,
    TypedCallTarget,
    frontend,
)
from compcache.batch import BatchProgress, BatchReport, Job, compile_many
from compcache.globals import Buffer, NativeSymbol, ObjectByName, Pickled

CODE = "define double @scale(double %x) { ret double %x }"


def build() -> ModuleSource:
    return ModuleSource(CODE, {"scale": "f64(x: f64)"}, globals={"a": 1, "n": NativeSymbol("sin")}, imports=["b"])


def report(progress: BatchProgress) -> None:
    print(progress.done, progress.total)


def main(path: Path) -> float:
    with Cache(path, max_size="5GB") as cache:
        kernels = cache.compile(CODE)
        scale = kernels["scale"]
        other = kernels.scale
        print(scale.signature, scale.func_name, other.address, scale.module_id, scale.link_name)
        target: TypedCallTarget = cache.get_or_compile(Identity("scale", {"a": 1}, code=CODE, options={"fast": True}), build)
        text = cache.get_or_compile("plain", lambda: CODE)
        typed: TypedCallTarget[[float, int], float] = cache.get_target("typed")
        half: float = typed(1.0, 2) / 2
        typed("text")  # type: ignore  # noqa: PGH003 - both checkers must find the error here: an unused comment is one
        for plain, function_target in kernels.items():
            print(plain.upper(), function_target(half), kernels.func_names, list(kernels), len(kernels))
        result: float = target(2.0)
        try:
            cache.get_target("x")(array("d", [1.0]))
        except NotCachedError as error:
            print(error.func_name, error.cache_dir)
        except CompileError:
            pass
        for name in cache:
            print(name, len(cache), name in cache, bool(cache))
        for function in cache.functions():
            print(function.func_name, function.size, function.uses)
        for module in cache.modules():
            print(module.module_id, module.llvm_version)
        for node in cache.graph(["x"], reverse=True).nodes:
            print(node.name, node.kind)
        print(cache.ir("x"), cache.asm("x"), cache.explain("x").reason, cache.info().modules, cache.stats().hits)
        print([r.module_id for r in cache.realizations("x")], cache.dependencies("x", transitive=True))
        pruned = cache.prune(PrunePolicy(max_bytes="1GB", unused_for=timedelta(days=3), keep=["a"]), dry_run=True)
        print(pruned.removed, pruned.freed_size)
        print(cache.check(repair=False).findings, cache.remove("x", force=True))
        done: BatchReport = compile_many(cache, [build(), Job("a", build), ("b", build, ())], workers=2, progress=report)
        done.raise_for_failures()
        print(len(done.failed), done.built[0].seconds)
        again = compcache.batch.compile_many(cache, [])
        print(again.cached, compcache.errors.LinkError, compcache.__version__, Signature.parse("f64()"), ObjectByName, Function())
        print(pickle.dumps(text), CacheWarning, logging.DEBUG)
        cache.unload("x")
        for finding in cache.check(recompile=True).findings:
            print(finding)
        info = cache.info()
        print(info.functions, cache.path, cache.exists, cache.readonly, cache.loaded().modules, cache.pin("x"), cache.pinned())
        print(cache.function("x").signature, cache.remove_module("x"), cache.clear(), cache.labelled("x"), frontend.settings_of(cache))
        buffer: Buffer = Buffer.of(array("d", [1.0]))
        pickled: Pickled = Pickled.of({"a": 1})
        print(buffer, pickled.data)
        print(compcache.numba.install(), compcache.globals.NativeSymbol, compcache.batch.Job)
        return result


if __name__ == "__main__":
    main(Path("x"))
