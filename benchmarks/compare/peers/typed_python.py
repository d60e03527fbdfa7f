"""typed_python's compiler cache: the ancestor. It needs an old Python, hence an environment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compare.peers.common import call, prepared

if TYPE_CHECKING:
    from compare.context import Context
    from compare.peers import Prepared
    from compare.work import Work

LABEL = "typed_python's compiler cache"


class TypedPython:
    """`@Entrypoint` with `TP_COMPILER_CACHE`: linked shared objects, and every manifest read at the first use."""

    label = LABEL
    light = False

    def missing(self, context: Context) -> str | None:
        return None if context.old_python else context.skipped.get(LABEL, "not asked for")

    def prepare(self, context: Context, work: Work) -> Prepared:
        assert context.old_python is not None
        directory = Path(context.workspace.fresh_directory(f"peer-typed-{work.name}"))
        (directory / "source").mkdir(parents=True)
        (directory / "cache").mkdir()
        module = f"typed_work_{work.name}"
        text = work.python("", "@Entrypoint", "from typed_python import Entrypoint\n")
        (directory / "source" / f"{module}.py").write_text(text, encoding="utf-8")
        cache = str(directory / "cache")
        code = f"import sys; sys.path.insert(0, {str(directory / 'source')!r}); import {module}; " + call(
            work, f"{module}.{work.entry}"
        )
        environment = {"TP_COMPILER_CACHE": cache}
        return prepared(
            context, code, code, cache, python=context.old_python, environment=environment, timeout=120
        )


PEERS = (TypedPython(),)
