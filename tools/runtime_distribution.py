"""Makes `compcache-runtime` of what was built of `compcache`: the same package, and no dependencies.

    python -m build                                   # dist/compcache-*.whl, dist/compcache-*.tar.gz
    python tools/runtime_distribution.py dist/*       # dist/compcache_runtime-*.whl, dist/compcache_runtime-*.tar.gz

Who only runs kernels installs it: no LLVM, no command line. `docs/decisions/0025-two-distributions.md` says why there are two.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import sys
import tarfile
import zipfile
from pathlib import Path

NAME = "compcache-runtime"
_OWN = ("compcache", "compcache_runtime")
#: Fields of the metadata that are about what else is to be installed.
_DROPPED = re.compile(r"^(?:Requires-Dist|Provides-Extra): .*\n", re.MULTILINE)


def convert(path: Path) -> Path:
    """The runtime's file beside a wheel or a source distribution."""
    target = path.with_name(path.name.replace(f"{_OWN[0]}-", f"{_OWN[1]}-", 1))
    if path.suffix == ".whl":
        _convert_wheel(path, target)
    else:
        _convert_sdist(path, target)
    return target


def _metadata(text: str) -> str:
    head, blank, description = text.partition("\n\n")
    head = _DROPPED.sub("", head + "\n").rstrip("\n")
    return re.sub(r"^Name: .*$", f"Name: {NAME}", head, count=1, flags=re.MULTILINE) + blank + description


def _convert_wheel(path: Path, target: Path) -> None:
    rows = []
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as result:
        for info in source.infolist():
            name = re.sub(rf"^{_OWN[0]}-([^/]*\.dist-info/)", rf"{_OWN[1]}-\1", info.filename)
            part = name.rpartition(".dist-info/")[2] if ".dist-info/" in name else ""
            if part in ("RECORD", "entry_points.txt"):  # the command and the hook for Numba need what is not there
                record = name if part == "RECORD" else ""
                continue
            data = source.read(info)
            if part == "METADATA":
                data = _metadata(data.decode()).encode()
            entry = zipfile.ZipInfo(name, info.date_time)
            entry.external_attr, entry.compress_type = info.external_attr, zipfile.ZIP_DEFLATED
            result.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
        record = f"{next(row for row in rows if '.dist-info/' in row).partition('.dist-info/')[0]}.dist-info/RECORD"
        entry = zipfile.ZipInfo(record, max(info.date_time for info in source.infolist()))
        entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
        result.writestr(entry, "".join([*rows, f"{record},,\n"]))


def _project(text: str) -> str:
    """The project's file: another name, nothing to install, no commands and hooks."""
    text = re.sub(r'^name = "compcache"$', f'name = "{NAME}"', text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^dependencies = \[\n.*?^\]\n", "dependencies = []\n", text, count=1, flags=re.MULTILINE | re.DOTALL)
    for table in (r"project\.optional-dependencies", r"project\.scripts", r"project\.entry-points\.[^\]\n]+"):
        text = re.sub(rf"^\[{table}\]\n.*?(?=^\[)", "", text, flags=re.MULTILINE | re.DOTALL)
    return text


def _convert_sdist(path: Path, target: Path) -> None:
    written = io.BytesIO()
    latest = 0
    with tarfile.open(path) as source, tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as result:
        for member in source:
            latest = max(latest, int(member.mtime))
            file = source.extractfile(member) if member.isfile() else None
            data = file.read() if file is not None else b""
            top, slash, rest = member.name.partition("/")
            if rest == "pyproject.toml":
                data = _project(data.decode()).encode()
            elif rest == "PKG-INFO":
                data = _metadata(data.decode()).encode()
            elif ".egg-info" in rest:
                continue
            member.name = top.replace(_OWN[0], _OWN[1], 1) + slash + rest
            member.size = len(data)
            result.addfile(member, io.BytesIO(data) if member.isfile() else None)
    target.write_bytes(gzip.compress(written.getvalue(), mtime=latest))


def main() -> int:
    """Convert the files that are named, but for those that are the runtime's already."""
    given = [Path(name) for name in sys.argv[1:] if not Path(name).name.startswith(_OWN[1])]
    for path in given:
        print(convert(path))
    return 0 if given else 2


if __name__ == "__main__":
    sys.exit(main())
