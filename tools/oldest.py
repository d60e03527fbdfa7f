"""Prints the requirements of the project at their oldest versions, for `pip install`: ``click>=8.1`` as ``click==8.1.*``."""

from __future__ import annotations

import tomllib
from pathlib import Path

with (Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
    requirements = tomllib.load(file)["project"]["dependencies"]
print(*[f"{name}=={version.partition(',')[0]}" for name, _, version in (item.partition(">=") for item in requirements)])
