"""diskcache as the store of the objects, ORC behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.peers import not_installed
from compare.peers.common import call, prepared, write_assembly

if TYPE_CHECKING:
    from compare.context import Context
    from compare.peers import Prepared
    from compare.work import Work


class Diskcache:
    """`diskcache.Cache(directory)[name]`, then `add_object_img`."""

    label = "diskcache + ORC"
    light = False

    def missing(self, _: Context) -> str | None:
        return not_installed("diskcache")

    def prepare(self, context: Context, work: Work) -> Prepared:
        directory = context.workspace.fresh_directory(f"peer-diskcache-{work.name}")
        path = write_assembly(context, work)
        get = f"stored_objects.with_diskcache({directory!r}, {work.entry!r}, {work.entry!r})"
        cold = (
            f"import orc_objects, stored_objects\nobj = orc_objects.compile_object(open({path!r}).read())\n"
            f"stored_objects.put_into_diskcache({directory!r}, {work.entry!r}, obj)\n{call(work, get)}"
        )
        hit = f"import stored_objects; {call(work, get)}"
        return prepared(context, cold, hit, directory)


PEERS = (Diskcache(),)
