"""The build hook for hatchling (entry point ``hatch``). A project enables it by ``[tool.hatch.build.hooks.compcache]``."""

from __future__ import annotations

import os
import shutil
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from compcache.packaging.build import build_kernels, read_settings, wheel_tag
from compcache.processes.scratch import make_directory_until_exit

__all__ = ["KernelsHook", "hatch_register_build_hook"]


class KernelsHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles the kernels of ``[tool.compcache]`` into the wheel."""

    PLUGIN_NAME = "compcache"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels to a temporary directory and add them to the wheel. Do nothing for editable builds and other targets.

        Raises:
            ValueError: the project names no kernels, or a setting is not valid.
            ImportError, AttributeError: a module or function that the setting names does not exist.
            CompcacheError: a kernel does not compile.
        """
        settings = read_settings(self.root)
        if settings is None:
            raise ValueError("[tool.hatch.build.hooks.compcache] requires kernels: name kernels in the setting kernels of [tool.compcache]")
        if version == "editable" or self.target_name != "wheel":
            return
        self._scratch = make_directory_until_exit("compcache-kernels-")
        source = os.path.join(self.root, "src")
        created = build_kernels(settings, source if os.path.isdir(source) else self.root, self._scratch)
        build_data["force_include"].update({path: directory for directory, path in created.items()})
        build_data["pure_python"] = False
        build_data["tag"] = wheel_tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - the interface
        """Remove the temporary directory."""
        if hasattr(self, "_scratch"):
            shutil.rmtree(self._scratch, ignore_errors=True)


@hookimpl  # type: ignore[untyped-decorator]
def hatch_register_build_hook() -> type[KernelsHook]:
    """Return the class of the build hook. hatchling calls this function."""
    return KernelsHook
