"""SQLite: 1,500 functions, tables of methods, mutable statics, threads' locks, callbacks, varargs."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource, SignatureError

from . import libraries
from .bitcode import exported
from .freshpython import run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

STATEMENTS = [
    "CREATE TABLE city(name TEXT, people INTEGER, area REAL)",
    "INSERT INTO city VALUES ('Ulm', 126000, 118.7), ('Oslo', 709000, 454.1), ('Nara', 354000, 276.8), ('X', NULL, 0.5)",
    "CREATE INDEX by_people ON city(people)",
]
QUERIES = [
    "SELECT name, people FROM city ORDER BY people DESC",
    "SELECT count(*), sum(people), printf('%.3f', avg(area)), group_concat(name, '+') FROM city",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i * 3 FROM n WHERE i < 1000) SELECT i, hex(i) FROM n",
    "SELECT json_extract('{\"a\": [1, {\"b\": 2.5}]}', '$.a[1].b'), upper('straße'), 7 / 2, 7.0 / 2, -7 % 3",
    "SELECT a.name || '/' || b.name FROM city a JOIN city b ON a.area < b.area ORDER BY 1",
    "SELECT name, rank() OVER (ORDER BY people) FROM city WHERE people IS NOT NULL",
    "SELECT datetime(86400, 'unixepoch'), 'abc' LIKE '_B%', instr('banana', 'nan'), quote(x'00ff')",
]

LIBRARY = """
    import ctypes
    def opened(name):
        handle = ctypes.c_void_p()
        assert call("sqlite3_open", name, ctypes.byref(handle)) == 0
        return handle.value

    def rows(database, query):
        statement = ctypes.c_void_p()
        code = call("sqlite3_prepare_v2", database, query, -1, ctypes.byref(statement), None)
        if code:
            raise ValueError(ctypes.string_at(call("sqlite3_errmsg", database)).decode())
        found = []
        while call("sqlite3_step", statement.value) == 100:
            row = []
            for column in range(call("sqlite3_column_count", statement.value)):
                text = call("sqlite3_column_text", statement.value, column)
                row.append(ctypes.string_at(text).decode() if text else None)
            found.append(tuple(row))
        assert call("sqlite3_finalize", statement.value) == 0
        return found
"""


@pytest.fixture(scope="module")
def bitcode(compiler_named: Callable[[str], Compiler], sdist: Callable[[str], Path]) -> bytes:
    return libraries.SQLITE.module(sdist, compiler_named("zig"))


@pytest.fixture(scope="module")
def cache_dir(bitcode: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sqlite")
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(bitcode, optimize=0))
    return directory


def as_text(value: object) -> str | None:
    return None if value is None else str(value)


def test_every_visible_function_is_in_the_cache(cache_dir: Path, bitcode: bytes) -> None:
    names = exported(bitcode)
    assert len(names) >= 250
    with Cache(cache_dir) as cache:
        assert [name for name in names if not cache.has(name)] == []


def test_queries_answer_what_the_standard_library_answers(cache_dir: Path) -> None:
    script = f"""{LIBRARY}
    database = opened(b":memory:")
    for statement in statements:
        assert rows(database, statement.encode()) == []
    result = [rows(database, query.encode()) for query in queries]
    assert call("sqlite3_close", database) == 0
    """
    answers = run_fresh(cache_dir, script, statements=STATEMENTS, queries=QUERIES)
    reference = sqlite3.connect(":memory:")
    for statement in STATEMENTS:
        reference.execute(statement)
    for query, answer in zip(QUERIES, answers, strict=True):
        assert answer == [tuple(map(as_text, row)) for row in reference.execute(query)], query
    reference.close()


def test_the_standard_library_reads_the_file(cache_dir: Path, tmp_path: Path) -> None:
    script = f"""{LIBRARY}
    database = opened(path)
    for statement in statements:
        rows(database, statement.encode())
    assert call("sqlite3_close", database) == 0
    result = None
    """
    run_fresh(cache_dir, script, path=bytes(tmp_path / "cities"), statements=STATEMENTS)
    reference = sqlite3.connect(tmp_path / "cities")
    assert reference.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert reference.execute("SELECT count(*) FROM city").fetchall() == [(4,)]
    reference.close()


def test_an_error_reaches_the_caller(cache_dir: Path) -> None:
    script = f"""{LIBRARY}
    try:
        rows(opened(b":memory:"), b"SELECT * FROM nowhere")
    except ValueError as error:
        result = str(error)
    """
    assert run_fresh(cache_dir, script) == "no such table: nowhere"


def test_sqlite_calls_back_into_python(cache_dir: Path) -> None:
    script = f"""{LIBRARY}
    seen = []
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_void_p)
    def callback(context, count, values, names):
        seen.append((context, [values[number] for number in range(count)]))
        return 0
    assert call("sqlite3_exec", opened(b":memory:"), b"VALUES (1, 'a'), (2, 'b')", callback, 4711, None) == 0
    result = seen
    """
    assert run_fresh(cache_dir, script) == [(4711, [b"1", b"a"]), (4711, [b"2", b"b"])]


def test_a_target_serves_as_a_callback_of_another(cache_dir: Path) -> None:
    script = f"""{LIBRARY}
    database = opened(b":memory:")
    target = cache.get_target("sqlite3_result_zeroblob")  # void(context, n): as a function of SQL, n is the count
    assert call("sqlite3_create_function", database, b"zeroes", -1, 1, None, target.address, None, None) == 0
    result = rows(database, b"SELECT length(zeroes()), length(zeroes('x', 'y', 'z'))")
    """
    assert run_fresh(cache_dir, script) == [("0", "3")]


def test_threads_share_the_library(cache_dir: Path) -> None:
    script = f"""{LIBRARY}
    import threading
    answers = []
    def work(number):
        database = opened(b":memory:")
        rows(database, b"CREATE TABLE t(x)")
        for i in range(50):
            rows(database, b"INSERT INTO t VALUES (%d)" % (i * number))
        answers.append((number, rows(database, b"SELECT sum(x) FROM t")))
        call("sqlite3_close", database)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    result = sorted(answers)
    """
    assert run_fresh(cache_dir, script) == [(number, [(str(1225 * number),)]) for number in range(8)]


def test_a_function_with_varargs_is_stored_but_not_callable(cache_dir: Path) -> None:
    with Cache(cache_dir) as cache:
        assert cache.has("sqlite3_mprintf")
        with pytest.raises(SignatureError, match="sqlite3_mprintf"):
            cache.get_target("sqlite3_mprintf")
