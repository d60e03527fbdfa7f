"""joblib.Memory over the compilation, ORC behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.peers import not_installed
from compare.peers.common import call, prepared, write_assembly

if TYPE_CHECKING:
    from compare.context import Context
    from compare.peers import Prepared
    from compare.work import Work


class Joblib:
    """`Memory(directory).cache(compile)(path)`, then `add_object_img`."""

    label = "joblib + ORC"
    light = False

    def missing(self, _: Context) -> str | None:
        return not_installed("joblib")

    def prepare(self, context: Context, work: Work) -> Prepared:
        directory = context.workspace.fresh_directory(f"peer-joblib-{work.name}")
        path = write_assembly(context, work)
        get = f"stored_objects.with_joblib({directory!r}, {path!r}, {work.entry!r})"
        code = f"import stored_objects; {call(work, get)}"
        return prepared(context, code, code, directory)


PEERS = (Joblib(),)
