"""Modules that are imported by names that are put together, which Numba is supported, and the metadata of what compiles code."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata

datas = [row for name in ("compcache", "numba", "llvmlite", "numpy") for row in copy_metadata(name)]
datas += collect_data_files("compcache", includes=["numba/versions/*.json"])
hiddenimports = collect_submodules("compcache.numba")
