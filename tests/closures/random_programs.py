"""Random programs of several modules of LLVM code: state, constructors, variables of threads and such as linkers merge, tables, aliases,
addresses that are compared, tail calls.
"""

from __future__ import annotations

import random
from typing import NamedTuple

__all__ = ["Program", "random_program"]

_OPERATIONS = ("add", "xor", "mul", "sub")


class Program(NamedTuple):
    """The code of each module, the functions i64(i64) that can be called, and the calls to make."""

    modules: tuple[str, ...]
    functions: tuple[str, ...]
    calls: tuple[tuple[str, int], ...]


class _Function(NamedTuple):
    name: str
    module: int
    rank: int  # it calls those of greater rank, in whatever module: programs end


def random_program(seed: int) -> Program:
    """The program of this number."""
    chance = random.Random(seed)
    modules = chance.randint(2, 6)
    functions = [_Function(f"f{module}_{number}", module, 0) for module in range(modules) for number in range(chance.randint(1, 4))]
    ranks = list(range(len(functions)))
    chance.shuffle(ranks)
    functions = [function._replace(rank=rank) for function, rank in zip(functions, ranks, strict=True)]
    shared = [module for module in range(modules) if chance.random() < 0.4]
    texts = tuple([_Module(chance, number, functions, shared).text() for number in range(modules)])
    calls = tuple([(chance.choice(functions).name, chance.randrange(100)) for _ in range(3 * len(functions))])
    return Program(texts, tuple([function.name for function in functions]), calls)


class _Module:
    def __init__(self, chance: random.Random, number: int, functions: list[_Function], shared: list[int]) -> None:
        self._chance = chance
        self._number = number
        self._all = functions
        self._own = [function for function in functions if function.module == number]
        self._shared = shared
        self._used: dict[str, str] = {}  # declarations of what others define
        self._has_state = chance.random() < 0.5
        self._has_thread_local = chance.random() < 0.2
        self._has_constructor = self._has_state and chance.random() < 0.4
        self._merges = chance.random() < 0.3
        self._has_alias = chance.random() < 0.2
        self._table_has_address = chance.random() < 0.3
        self._lines: list[str] = []

    def text(self) -> str:
        number = self._number
        lines = []
        if self._has_state:
            lines.append(f"@count = internal global i64 {self._chance.randrange(9)}")
        if self._has_thread_local:
            lines.append("@own = internal thread_local global i64 5")
        if self._merges:
            lines.append("@merged = linkonce_odr global i64 7, comdat\n@again = linkonce_odr constant [2 x i64] [i64 5, i64 6], comdat")
            lines += ["$merged = comdat any", "$again = comdat any"]
        if self._has_alias:
            lines.append(f"@second{number} = alias i64 (i64), ptr @{self._own[0].name}")
        if number in self._shared:
            lines.append(f"@shared{number} = global i64 {number}")
        unnamed = "" if self._table_has_address else "unnamed_addr "
        lines.append(f"@table = internal {unnamed}constant [4 x i64] [i64 3, i64 {number}, i64 8, i64 1]")
        lines.append(f"@list{number} = {'' if self._chance.random() < 0.5 else 'unnamed_addr '}constant [2 x i64] [i64 {number}, i64 77]")
        target = self._chance.choice(self._own).name
        pointer = self._chance.choice(("internal", "")) + " " + self._chance.choice(("constant", "global"))
        lines.append(f"@pointer{number} = {pointer.strip()} ptr @{target}")
        body = [self._function(function) for function in self._own]
        body.append(f"define ptr @address{number}() {{\n  ret ptr @{target}\n}}")
        body.append(self._helper())
        if self._has_constructor:
            entry = "{ i32, ptr, ptr }"
            lines.append(f"@llvm.global_ctors = appending global [1 x {entry}] [{entry} {{ i32 65535, ptr @start, ptr null }}]")
            body.append("define internal void @start() {\n  store i64 41, ptr @count\n  ret void\n}")
        return "\n".join([*lines, *self._used.values(), *body, ""])

    def _helper(self) -> str:
        quiet = " noinline" if self._chance.random() < 0.5 else ""
        state = self._has_state and self._chance.random() < 0.3
        more = "  %c = load i64, ptr @count\n  %r = add i64 %b, %c\n" if state else "  %r = add i64 %b, 2\n"
        return f"define internal i64 @helper(i64 %x){quiet} {{\n  %b = mul i64 %x, 3\n{more}  ret i64 %r\n}}"

    def _function(self, function: _Function) -> str:
        lines, value = [], "%x"
        for step in range(self._chance.randint(2, 6)):
            new, result = self._step(function, value, f"{step}")
            lines += new
            value = result
        others = [other for other in self._all if other.rank > function.rank and other.module != self._number]
        if others and self._chance.random() < 0.2:
            other = self._chance.choice(others)
            self._used[other.name] = f"declare i64 @{other.name}(i64)"
            lines.append(f"  %last = musttail call i64 @{other.name}(i64 {value})")
            value = "%last"
        return "\n".join([f"define i64 @{function.name}(i64 %x) {{", *lines, f"  ret i64 {value}", "}"])

    def _step(self, function: _Function, value: str, at: str) -> tuple[list[str], str]:
        """Lines that compute something of a value, and the name of the result."""
        ways = [self._arithmetic, self._call, self._call, self._read_table, self._call_helper, self._compare, self._call_pointer]
        ways += [self._read_list]
        ways += [self._count] if self._has_state else []
        ways += [self._thread_local] if self._has_thread_local else []
        ways += [self._share] if self._shared else []
        ways += [self._merge, self._merge_constant] if self._merges else []
        ways += [self._floating]
        return self._chance.choice(ways)(function, value, at)

    def _arithmetic(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        return [f"  %r{at} = {self._chance.choice(_OPERATIONS)} i64 {value}, {self._chance.randrange(1, 1000)}"], f"%r{at}"

    def _call(self, function: _Function, value: str, at: str) -> tuple[list[str], str]:
        others = [other for other in self._all if other.rank > function.rank]
        if not others:
            return self._arithmetic(function, value, at)
        other = self._chance.choice(others)
        if other.module != self._number:
            self._used[other.name] = f"declare i64 @{other.name}(i64)"
        return [f"  %s{at} = call i64 @{other.name}(i64 {value})", f"  %r{at} = add i64 %s{at}, {value}"], f"%r{at}"

    def _call_helper(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        return [f"  %r{at} = call i64 @helper(i64 {value})"], f"%r{at}"

    def _read_table(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        return [
            f"  %i{at} = and i64 {value}, 3", f"  %p{at} = getelementptr i64, ptr @table, i64 %i{at}",
            f"  %l{at} = load i64, ptr %p{at}", f"  %r{at} = add i64 {value}, %l{at}",
        ], f"%r{at}"  # fmt: skip

    def _read_list(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        other = self._chance.choice(self._all).module
        if other != self._number:
            self._used[f"list{other}"] = f"@list{other} = external constant [2 x i64]"
        return [f"  %l{at} = load i64, ptr @list{other}", f"  %r{at} = xor i64 {value}, %l{at}"], f"%r{at}"

    def _count(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        return [
            f"  %l{at} = load i64, ptr @count", f"  %n{at} = add i64 %l{at}, 1", f"  store i64 %n{at}, ptr @count",
            f"  %r{at} = add i64 {value}, %n{at}",
        ], f"%r{at}"  # fmt: skip

    def _thread_local(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        return [
            f"  %l{at} = load i64, ptr @own", f"  %n{at} = add i64 %l{at}, 3", f"  store i64 %n{at}, ptr @own",
            f"  %r{at} = xor i64 {value}, %n{at}",
        ], f"%r{at}"  # fmt: skip

    def _merge(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        return [
            f"  %l{at} = load i64, ptr @merged", f"  %n{at} = add i64 %l{at}, 5", f"  store i64 %n{at}, ptr @merged",
            f"  %r{at} = xor i64 {value}, %n{at}",
        ], f"%r{at}"  # fmt: skip

    def _merge_constant(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        return [f"  %l{at} = load i64, ptr getelementptr (i64, ptr @again, i64 1)", f"  %r{at} = add i64 {value}, %l{at}"], f"%r{at}"

    def _floating(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        return [
            f"  %m{at} = and i64 {value}, 4095", f"  %d{at} = sitofp i64 %m{at} to double", f"  %e{at} = fdiv double %d{at}, 3.0",
            f"  %f{at} = fmul double %e{at}, 7.0", f"  %g{at} = fptosi double %f{at} to i64", f"  %r{at} = add i64 {value}, %g{at}",
        ], f"%r{at}"  # fmt: skip

    def _share(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        other = self._chance.choice(self._shared)
        if other != self._number:
            self._used[f"shared{other}"] = f"@shared{other} = external global i64"
        return [
            f"  %l{at} = load i64, ptr @shared{other}", f"  %n{at} = add i64 %l{at}, {value}", f"  %m{at} = and i64 %n{at}, 1023",
            f"  store i64 %m{at}, ptr @shared{other}", f"  %r{at} = add i64 {value}, %m{at}",
        ], f"%r{at}"  # fmt: skip

    def _compare(self, _: _Function, value: str, at: str) -> tuple[list[str], str]:
        """Whether the address that a module gives of a function is that which this one has."""
        other = self._chance.choice(self._all)
        if other.module != self._number:
            self._used[f"address{other.module}"] = f"declare ptr @address{other.module}()"
            self._used[other.name] = f"declare i64 @{other.name}(i64)"
        return [
            f"  %a{at} = call ptr @address{other.module}()", f"  %e{at} = icmp eq ptr %a{at}, @{other.name}",
            f"  %z{at} = zext i1 %e{at} to i64", f"  %r{at} = add i64 {value}, %z{at}",
        ], f"%r{at}"  # fmt: skip

    def _call_pointer(self, function: _Function, value: str, at: str) -> tuple[list[str], str]:
        """Call what a pointer of this module says, if that ends."""
        others = [other for other in self._own if other.rank > function.rank]
        if not others:
            return self._arithmetic(function, value, at)
        return [
            f"  %o{at} = load ptr, ptr @pointer{self._number}", f"  %e{at} = icmp eq ptr %o{at}, @{others[0].name}",
            f"  %t{at} = select i1 %e{at}, ptr %o{at}, ptr @{others[0].name}", f"  %s{at} = call i64 %t{at}(i64 {value})",
            f"  %r{at} = add i64 {value}, %s{at}",
        ], f"%r{at}"  # fmt: skip
