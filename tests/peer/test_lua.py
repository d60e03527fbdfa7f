"""Lua: an interpreter in thirty modules, linked into one: computed jumps, longjmp, callbacks, a garbage collector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource

from . import libraries
from .compilers import OLD_AND_NEW
from .freshpython import run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .compilers import Compiler

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

INTERPRETER = """
    import ctypes

    def run(state, program):
        "Status and results of a program, as texts."
        call("lua_settop", state, 0)
        status = call("luaL_loadstring", state, program) or call("lua_pcallk", state, 0, -1, 0, 0, None)
        length = ctypes.c_size_t()
        texts = []
        for index in range(1, call("lua_gettop", state) + 1):
            address = call("luaL_tolstring", state, index, ctypes.byref(length))
            texts.append(ctypes.string_at(address, length.value))
            call("lua_settop", state, -2)
        return status, texts

    state = call("luaL_newstate")
    call("luaL_openlibs", state)
"""


@pytest.fixture(scope="module", params=OLD_AND_NEW)
def cache_dir(
    request: pytest.FixtureRequest,
    compiler_named: Callable[[str], Compiler],
    sdist: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    directory = tmp_path_factory.mktemp("lua")
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(libraries.LUA.module(sdist, compiler_named(request.param)), optimize=1))
    return directory


def test_programs_compute(cache_dir: Path) -> None:
    programs = [
        b"local function fib(n) if n < 2 then return n end return fib(n-1) + fib(n-2) end return fib(22)",
        b"local t = {} for i = 1, 1000 do t[i] = (i * 7919) % 1009 end table.sort(t) return t[1], t[500], #t",
        b"return string.format('%5.2f|%-6s|%x', 3.14159, 'ab', 255), ('hello world'):gsub('o', '0')",
        b"return 7 // 2, 7 % -3, 2^10, 1/0, math.maxinteger + 1 == math.mininteger, 10 == 10.0",
        b"local co = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i * i) end end) return co(), co(), co()",
        b"local m = setmetatable({}, {__index = function(_, k) return k .. '!' end}) return m.x",
    ]
    script = INTERPRETER + "    result = [run(state, program) for program in programs]\n"
    assert run_fresh(cache_dir, script, programs=programs) == [
        (0, [b"17711"]),
        (0, [b"%d" % n for n in lua_sorted()]),
        (0, [b" 3.14|ab    |ff", b"hell0 w0rld", b"2"]),
        (0, [b"3", b"-2", b"1024.0", b"inf", b"true", b"true"]),
        (0, [b"1", b"4", b"9"]),
        (0, [b"x!"]),
    ]


def lua_sorted() -> tuple[int, int, int]:
    values = sorted(i * 7919 % 1009 for i in range(1, 1001))
    return values[0], values[499], len(values)


def test_errors_jump_out_of_c(cache_dir: Path) -> None:
    script = f"""{INTERPRETER}
    result = [run(state, b"local t = nil; return t.x"), run(state, b"return return"), run(state, b"error({{}})")[0]]
    result.append(run(state, b"return pcall(error, 'caught')"))
    """
    failed, malformed, table, caught = run_fresh(cache_dir, script)
    assert failed[0] == 2
    assert b"attempt to index a nil value (local 't')" in failed[1][0]
    assert malformed[0] == 3
    assert table == 2
    assert caught == (0, [b"false", b"caught"])


def test_lua_calls_python(cache_dir: Path) -> None:
    script = f"""{INTERPRETER}
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def double(state):
        call("lua_pushinteger", state, 2 * call("lua_tointegerx", state, 1, None))
        return 1
    call("lua_pushcclosure", state, double, 0)
    call("lua_setglobal", state, b"double")
    result = run(state, b"return double(21) + double(double(1))")
    """
    assert run_fresh(cache_dir, script) == (0, [b"46"])


def test_memory_is_collected_and_states_are_closed(cache_dir: Path) -> None:
    script = f"""{INTERPRETER}
    program = b"for i = 1, 20000 do local t = {{i, tostring(i)}} end collectgarbage() return collectgarbage('count') < 2000"
    result = run(state, program)
    call("lua_close", state)
    for _ in range(20):
        call("lua_close", call("luaL_newstate"))
    """
    assert run_fresh(cache_dir, script) == (0, [b"true"])
