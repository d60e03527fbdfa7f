"""One shared object under many names, in stores that somebody would write: a directory of files, ccache's layout, SQLite, LMDB.

    KIND DIRECTORY fill COUNT IMAGE        microseconds of an addition; nothing waits for the disk
    KIND DIRECTORY hit NAME SYMBOL         microseconds and private KiB of the first load and call, libraries being imported
    KIND DIRECTORY names 20 | size - | remove NAME        a question, for whoever measures the process

What is kept inside a database is mapped from memory: the dynamic loader takes no offset into a file.
"""

import json
import os
import sqlite3
import sys
from hashlib import blake2b
from itertools import islice
from time import perf_counter

import bare_library
from children.private_memory import private_kib


def _write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.{os.getpid()}", "wb") as file:
        file.write(data)
    os.replace(f"{path}.{os.getpid()}", path)


def _in_memory(data):
    descriptor = os.memfd_create("image")
    os.write(descriptor, data)
    return f"/proc/self/fd/{descriptor}"


class Files:
    """A file for each name, in 256 directories."""

    def __init__(self, directory):
        self.root = directory

    def path(self, name):
        return f"{self.root}/{blake2b(name.encode(), digest_size=1).hexdigest()}/{name}"

    def fill(self, names, data):
        for name in names:
            _write(self.path(name), data)

    def image(self, name):
        return self.path(name)

    def names(self):
        for folder in os.scandir(self.root):
            yield from (entry.name for entry in os.scandir(folder.path))

    def size(self):
        entries = [entry.stat() for folder in os.scandir(self.root) for entry in os.scandir(folder.path)]
        return len(entries), sum(entry.st_size for entry in entries)

    def remove(self, name):
        os.unlink(self.path(name))


class Ccache(Files):
    """As ccache lays files out: a digest's first two digits are directories, and each first one counts files and bytes in a file.

    What is found is copied out of the store, as ccache copies results.
    """

    def path(self, name):
        digest = blake2b(name.encode(), digest_size=16).hexdigest()
        return f"{self.root}/{digest[0]}/{digest[1]}/{digest[2:]}R"

    def _count(self, path, files, size):
        stats = f"{path[: len(self.root) + 2]}/stats"
        try:
            with open(stats, encoding="ascii") as file:
                before = [int(line) for line in file]
        except FileNotFoundError:
            before = [0, 0]
        _write(stats, f"{before[0] + files}\n{before[1] + size}\n".encode())

    def fill(self, names, data):
        for name in names:
            path = self.path(name)
            _write(path, name.encode() + b"\0" + data)
            self._count(path, 1, len(data))

    def image(self, name):
        with open(self.path(name), "rb") as file:
            return _in_memory(file.read().partition(b"\0")[2])

    def names(self):
        for first in os.scandir(self.root):
            for second in os.scandir(first.path):
                for entry in os.scandir(second.path) if second.is_dir() else ():
                    with open(entry.path, "rb") as file:
                        yield file.read(256).partition(b"\0")[0].decode()

    def size(self):
        found = []
        for first in os.scandir(self.root):
            with open(f"{first.path}/stats", encoding="ascii") as file:
                found.append([int(line) for line in file])
        return tuple(map(sum, zip(*found, strict=True)))

    def remove(self, name):
        path = self.path(name)
        size = os.path.getsize(path)
        os.unlink(path)
        self._count(path, -1, -size)


class Sqlite:
    """A table of names and bytes."""

    def __init__(self, directory):
        os.makedirs(directory, exist_ok=True)
        self.connection = sqlite3.connect(f"{directory}/images.db", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.execute("CREATE TABLE IF NOT EXISTS images (name TEXT PRIMARY KEY, size INTEGER, image BLOB)")

    def fill(self, names, data):
        for name in names:  # each a transaction of its own, as additions are
            self.connection.execute("INSERT INTO images VALUES (?, ?, ?)", (name, len(data), data))

    def image(self, name):
        return _in_memory(self.connection.execute("SELECT image FROM images WHERE name = ?", (name,)).fetchone()[0])

    def names(self):
        return (name for (name,) in self.connection.execute("SELECT name FROM images ORDER BY name"))

    def size(self):
        return self.connection.execute("SELECT count(*), sum(size) FROM images").fetchone()

    def remove(self, name):
        self.connection.execute("DELETE FROM images WHERE name = ?", (name,))


class Lmdb:
    """A tree of names and bytes."""

    def __init__(self, directory):
        import lmdb

        self.tree = lmdb.open(directory, map_size=1 << 36, sync=False, metasync=False)

    def fill(self, names, data):
        for name in names:
            with self.tree.begin(write=True) as transaction:
                transaction.put(name.encode(), data)

    def image(self, name):
        with self.tree.begin(buffers=True) as transaction:
            return _in_memory(transaction.get(name.encode()))

    def names(self):
        with self.tree.begin() as transaction:
            yield from (name.decode() for name in transaction.cursor().iternext(values=False))

    def size(self):
        status = self.tree.stat()
        pages = status["branch_pages"] + status["leaf_pages"] + status["overflow_pages"]
        return status["entries"], pages * status["psize"]

    def remove(self, name):
        with self.tree.begin(write=True) as transaction:
            transaction.delete(name.encode())


KINDS = {"files": Files, "ccache": Ccache, "sqlite": Sqlite, "lmdb": Lmdb}


def main(kind, directory, action, name, more=""):
    if action != "hit":
        store = KINDS[kind](directory)
    if action == "fill":
        with open(more, "rb") as file:
            data = file.read()
        names = [f"package.module_{number:06d}.function_00" for number in range(int(name))]
        started = perf_counter()
        store.fill(names, data)
        return {"us": (perf_counter() - started) / len(names) * 1e6}
    if action == "names":
        return list(islice(store.names(), int(name)))
    if action == "size":
        return list(store.size())
    if action == "remove":
        return store.remove(name)
    if kind == "lmdb":
        import lmdb

        assert lmdb
    private_kib()
    before, started = private_kib(), perf_counter()
    bare_library.get(KINDS[kind](directory).image(name), more)(1.0, 2.0)
    elapsed = perf_counter() - started
    return {"us": elapsed * 1e6, "kib": private_kib() - before}


print(json.dumps(main(*sys.argv[1:])))
