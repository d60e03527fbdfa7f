"""Modules that are imported by names that are put together, and the metadata by which packages are told apart that compile code."""

from PyInstaller.utils.hooks import collect_submodules, copy_metadata

datas = [row for name in ("compcache", "numba", "llvmlite", "numpy") for row in copy_metadata(name)]
hiddenimports = collect_submodules("compcache.numba")
