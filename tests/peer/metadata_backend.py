"""A build backend that answers "what is this package called?" and builds nothing.

`pip download` insists on a source distribution's metadata, for which it runs the package's own build
backend. For the tests only the sources matter, and running somebody's `setup.py` to get them would be slow
and uncalled for. `sdists` copies this file to where pip looks for `setuptools.build_meta`.
It runs inside pip's child process, from the root of the unpacked distribution.
"""

from __future__ import annotations

import os
import re
import sys
from email import message_from_bytes
from typing import NoReturn

__legacy__ = sys.modules[__name__]  # the name for packages whose pyproject.toml names no backend


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    del config_settings
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: object = None) -> str:
    del config_settings
    with open("PKG-INFO", "rb") as stream:
        metadata = stream.read()
    message = message_from_bytes(metadata)
    name = re.sub(r"[-_.]+", "_", message["Name"]).lower()
    dist_info = f"{name}-{message['Version']}.dist-info"
    os.mkdir(os.path.join(metadata_directory, dist_info))
    with open(os.path.join(metadata_directory, dist_info, "METADATA"), "wb") as stream:
        stream.write(metadata)
    return dist_info


def build_wheel(
    wheel_directory: str, config_settings: object = None, metadata_directory: object = None
) -> NoReturn:
    del wheel_directory, config_settings, metadata_directory
    raise NotImplementedError("the tests read sources, they never build a peer")
