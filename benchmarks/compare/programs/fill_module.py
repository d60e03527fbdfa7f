"""ASSEMBLY DIRECTORY SYMBOL: the same module as a compcache, as an object of a hand-written cache, as a shared object."""

import os
import sys

import orc_objects

from compcache import Cache, ModuleSource
from compcache.images.linkers.find import find_linker
from compcache.images.linkers.link import link_shared

LEVEL = 1


def main(assembly: str, directory: str, symbol: str) -> None:
    with open(assembly, encoding="utf-8") as file:
        text = file.read()
    os.makedirs(directory)
    with Cache(f"{directory}/cache") as cache:
        cache.add_module(ModuleSource(text, optimize=LEVEL))
        cache.get_target(symbol)
    obj = orc_objects.compile_object(text, LEVEL)
    orc_objects.store(f"{directory}/orc", "module", obj)
    linker = find_linker()
    assert linker is not None
    image = link_shared(linker, [obj], soname="module.so", libraries=[], export=[symbol])
    with open(f"{directory}/module.so", "wb") as file:
        file.write(image)


main(*sys.argv[1:])
print("null")
