"""Data files of the package, and modules that are imported by computed names."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

#: Packages that PyInstaller includes only in programs that import them. Including them always would include Numba and click, too.
_ON_REQUEST = ("compcache.numba", "compcache.packaging", "compcache.cli")

datas = collect_data_files("compcache", includes=["arch/tables/*.json"])
hiddenimports = collect_submodules("compcache", filter=lambda name: not name.startswith(_ON_REQUEST))
