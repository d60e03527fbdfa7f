"""Modules that are imported by computed names, the supported versions of Numba, and the metadata of packages that compile code."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata

datas = [row for name in ("compcache", "numba", "llvmlite", "numpy") for row in copy_metadata(name)]
datas += collect_data_files("compcache", includes=["numba/versions/*.json"])
hiddenimports = collect_submodules("compcache.numba")
