"""Runs the command line, for ``python -m compcache``."""

from __future__ import annotations

import sys

from compcache.cli import main

if __name__ == "__main__":
    sys.exit(main())
