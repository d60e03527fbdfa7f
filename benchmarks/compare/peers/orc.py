"""An ORC object cache as one writes it by hand on llvmlite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.peers.common import call, prepared, write_assembly

if TYPE_CHECKING:
    from compare.context import Context
    from compare.peers import Prepared
    from compare.work import Work


class HandWritten:
    """Object bytes in files keyed by digest, `add_object_img`, ctypes."""

    label = "ORC objects by hand (llvmlite)"
    light = True

    def missing(self, _: Context) -> str | None:
        return None

    def prepare(self, context: Context, work: Work) -> Prepared:
        directory = context.workspace.fresh_directory(f"peer-orc-{work.name}")
        path = write_assembly(context, work)
        get = f"orc_objects.get({directory!r}, {work.entry!r}, {work.entry!r})"
        cold = (
            f"import orc_objects\nobj = orc_objects.compile_object(open({path!r}).read())\n"
            f"orc_objects.store({directory!r}, {work.entry!r}, obj)\n{call(work, get)}"
        )
        hit = f"import orc_objects; {call(work, get)}"
        return prepared(context, cold, hit, directory)


PEERS = (HandWritten(),)
