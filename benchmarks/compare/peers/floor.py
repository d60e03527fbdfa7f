"""What cannot be undercut: an empty process, a shared object opened by path, and the bare prototype of a cache."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import sources
from prototype_build import build_prototype

from compare.peers import Prepared
from compare.peers.common import call, write_assembly

if TYPE_CHECKING:
    from compare.context import Context
    from compare.work import Work


class Empty:
    """`python -c pass`."""

    label = "empty process"
    light = True

    def missing(self, _: Context) -> str | None:
        return None

    def prepare(self, _: Context, _work: Work) -> Prepared:
        return Prepared([sys.executable, "-c", "pass"], {}, None, None)


class Library:
    """`ctypes.CDLL(path)` and a call."""

    label = "ctypes.CDLL, path known"
    light = True

    def missing(self, _: Context) -> str | None:
        return None

    def prepare(self, context: Context, work: Work) -> Prepared:
        path = shared_object(context, work)
        hit = f"import bare_library; {call(work, f'bare_library.get({path!r}, {work.entry!r})')}"
        context.output([sys.executable, "-c", hit])
        return Prepared([sys.executable, "-c", hit], {}, None, None)


class Prototype:
    """An index in a memory map, binary search, `dlopen`, a builtin."""

    label = "bare prototype"
    light = True

    def missing(self, _: Context) -> str | None:
        return None

    def prepare(self, context: Context, work: Work) -> Prepared | None:
        if work.name != "small":
            return None  # its one image is written by hand
        directory = context.workspace.fresh_directory("prototype")
        build_prototype(directory, sources.SMALL_NAME)
        hit = f"import prototype; assert prototype.get_target({directory!r}, {sources.SMALL_NAME!r})(1.0, 2.0) == 3.0"
        context.output([sys.executable, "-c", hit])
        return Prepared([sys.executable, "-c", hit], {}, None, None)


def shared_object(context: Context, work: Work) -> str:
    """The path of the work as a shared object with every function exported."""
    path = str(context.workspace.root / f"work-{work.name}.so")
    code = f"""
import orc_objects
from compcache.images.linkers.find import find_linker
from compcache.images.linkers.link import link_shared
obj = orc_objects.compile_object(open({write_assembly(context, work)!r}).read())
image = link_shared(find_linker(), [obj], soname='work.so', libraries=[], export=[{work.entry!r}])
open({path!r}, 'wb').write(image)
"""
    context.output([sys.executable, "-c", code])
    return path


PEERS = (Empty(), Library(), Prototype())
