"""compcache itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.peers.common import call, prepared, write_assembly

if TYPE_CHECKING:
    from compare.context import Context
    from compare.peers import Prepared
    from compare.work import Work


class Compcache:
    """`Cache(directory).get_target(name)`."""

    label = "compcache"
    light = True

    def missing(self, _: Context) -> str | None:
        return None

    def prepare(self, context: Context, work: Work) -> Prepared:
        directory = context.workspace.fresh_directory(f"peer-compcache-{work.name}")
        path = write_assembly(context, work)
        cold = (
            f"from compcache import Cache, ModuleSource\ncache = Cache({directory!r})\n"
            f"cache.add_module(ModuleSource(open({path!r}).read()))\n"
            f"{call(work, f'cache.get_target({work.entry!r})')}"
        )
        hit = f"import compcache; {call(work, f'compcache.Cache({directory!r}).get_target({work.entry!r})')}"
        return prepared(context, cold, hit, directory)


PEERS = (Compcache(),)
