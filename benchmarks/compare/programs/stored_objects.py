"""The same objects, but kept by diskcache and by joblib, with ORC behind both."""

from __future__ import annotations

import orc_objects


def with_diskcache(directory: str, name: str, symbol: str):
    """The function, from an object in a diskcache.Cache."""
    import diskcache

    return orc_objects.Linker().function(diskcache.Cache(directory)[name], symbol)


def put_into_diskcache(directory: str, name: str, obj: bytes) -> None:
    import diskcache

    diskcache.Cache(directory)[name] = obj


def with_joblib(directory: str, path: str, symbol: str):
    """The function, from a joblib.Memory over the compilation of an assembly file."""
    import joblib

    compiled = joblib.Memory(directory, verbose=0).cache(compile_file)
    return orc_objects.Linker().function(compiled(path), symbol)


def compile_file(path: str) -> bytes:
    """What joblib memoizes."""
    with open(path, encoding="utf-8") as file:
        return orc_objects.compile_object(file.read())
