"""Random modules of LLVM assembly, for what makes images of objects: whoever makes one, `check` gives the same number.

A module defines functions and variables of every linkage and visibility, in sections and alignments of all kinds, that refer to each
other, to the C library and to thread-local variables. `check` calls the functions, follows the addresses and adds up what it finds.
"""

from __future__ import annotations

import random
from typing import NamedTuple

__all__ = ["RandomModule", "random_module"]

_LINKAGES = ("", "internal ", "private ", "hidden ", "protected ", "weak ", "weak_odr ", "linkonce_odr ", "dso_local ")
_ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64, 256, 4096)
_SECTIONS = ("", "", "", ', section "own_section"', ', section ".data.own"')
_HEAD = """\
declare i64 @strlen(ptr)
declare i32 @abs(i32)
declare double @fabs(double)
declare double @sin(double)
declare ptr @memcpy(ptr, ptr, i64)
declare extern_weak void @nobody_defines_this()
declare extern_weak i64 @labs(i64)
@sum = internal global i64 0
"""


class RandomModule(NamedTuple):
    """The assembly of a module, and the names of its functions."""

    text: str
    functions: tuple[str, ...]


class _Maker:
    def __init__(self, seed: int, export: str) -> None:
        self._random = random.Random(seed)
        self._export = export
        self.lines = [_HEAD]
        self.functions: list[str] = []
        self.variables: list[tuple[str, int]] = []  # of i64, with how many there are
        self.tables: list[tuple[str, int]] = []  # of addresses of variables of i64
        self.strings: list[str] = []
        self.threads: list[str] = []
        self.calls: list[str] = []  # addresses of functions in variables

    def _number(self) -> int:
        return self._random.randrange(-(1 << 40), 1 << 40)

    def _attributes(self, name: str) -> tuple[str, str]:
        """Linkage of a definition, and the group that it belongs to."""
        linkage = self._random.choice(_LINKAGES)
        group = ""
        if linkage.startswith(("linkonce", "weak_odr")) and self._random.random() < 0.7:
            self.lines.append(f"${name} = comdat any")
            group = " comdat"
        return linkage, group

    def add_variable(self, number: int) -> None:
        name, count = f"v{number}", self._random.randrange(1, 40)
        linkage, group = self._attributes(name)
        separated = "," * bool(group) + group
        kind = self._random.choice(("constant", "global", "global", "zero", "common"))
        if kind == "common" and not linkage and not group:
            self.lines.append(f"@{name} = common global [{count} x i64] zeroinitializer, align {self._random.choice((8, 64))}")
        else:
            values = ", ".join(f"i64 {self._number()}" for _ in range(count))
            value = "zeroinitializer" if kind in ("zero", "common") else f"[{values}]"
            section = self._random.choice(_SECTIONS) if kind == "global" and not group else ""
            word = "constant" if kind == "constant" else "global"
            align = max(self._random.choice(_ALIGNMENTS), 8)
            self.lines.append(f"@{name} = {linkage}{word} [{count} x i64] {value}{section}{separated}, align {align}")
        self.variables.append((name, count))

    def add_string(self, number: int) -> None:
        size = self._random.randrange(1, 60)
        letters = "".join(self._random.choice("abcxyz") for _ in range(size))
        self.lines.append(f'@s{number} = private unnamed_addr constant [{size + 1} x i8] c"{letters}\\00"')
        self.strings.append(f"s{number}")

    def add_table(self, number: int) -> None:
        """Addresses of variables, some of what is in the middle of them."""
        found = []
        for _ in range(self._random.randrange(1, 12)):
            name, count = self._random.choice(self.variables)
            found.append(f"ptr getelementptr (i8, ptr @{name}, i64 {8 * self._random.randrange(count)})")
        linkage, group = self._attributes(f"t{number}")
        separated = "," * bool(group) + group
        word = self._random.choice(("global", "constant"))
        self.lines.append(f"@t{number} = {linkage}{word} [{len(found)} x ptr] [{', '.join(found)}]{separated}, align 8")
        self.tables.append((f"t{number}", len(found)))

    def add_thread_local(self, number: int) -> None:
        linkage = self._random.choice(("", "internal ", "hidden "))
        value = self._random.choice((str(self._number()), "0"))
        align = self._random.choice((8, 16, 64))
        self.lines.append(f"@l{number} = {linkage}thread_local global i64 {value}, align {align}")
        self.threads.append(f"l{number}")

    def add_function(self, number: int) -> None:
        """A function of one number; it may call those before it."""
        name = f"f{number}"
        linkage, group = self._attributes(name)
        body = [f"%v0 = mul i64 %x, {self._random.randrange(1, 99) * 2 + 1}"]
        last = "%v0"

        def add(text: str) -> str:
            body.append(f"%v{len(body)} = {text}")
            return f"%v{len(body) - 1}"

        for _ in range(self._random.randrange(1, 8)):
            what = self._random.randrange(9)
            if what == 0 and self.functions:
                last = add(f"call i64 @{self._random.choice(self.functions)}(i64 {last})")
            elif what == 1 and self.variables:
                variable, count = self._random.choice(self.variables)
                place = add(f"getelementptr i64, ptr @{variable}, i64 {self._random.randrange(count)}")
                value = add(f"load i64, ptr {place}")
                last = add(f"add i64 {last}, {value}")
            elif what == 2 and self.strings:
                length = add(f"call i64 @strlen(ptr @{self._random.choice(self.strings)})")
                last = add(f"add i64 {last}, {length}")
            elif what == 3 and self.tables:
                table, count = self._random.choice(self.tables)
                at = add(f"getelementptr ptr, ptr @{table}, i64 {self._random.randrange(count)}")
                pointer = add(f"load ptr, ptr {at}")
                value = add(f"load i64, ptr {pointer}")
                last = add(f"xor i64 {last}, {value}")
            elif what == 4 and self.threads:
                variable = self._random.choice(self.threads)
                address = add(f"call ptr @llvm.threadlocal.address.p0(ptr @{variable})")
                value = add(f"load i64, ptr {address}")
                body.append(f"store i64 {last}, ptr {address}")
                body.append(f"%v{len(body)} = add i64 0, 0")
                last = add(f"add i64 {last}, {value}")
            elif what == 5:
                wide = add(f"sitofp i64 {last} to double")
                value = add(f"call double @{self._random.choice(('sin', 'fabs'))}(double {wide})")
                scaled = add(f"fmul double {value}, {self._random.choice(('1.0e3', '0x40091EB851EB851F'))}")
                whole = add(f"call i64 @llvm.fptosi.sat.i64.f64(double {scaled})")
                last = add(f"add i64 {last}, {whole}")
            elif what == 6:
                weak = self._random.choice(("nobody_defines_this", "labs"))
                missing = add(f"icmp eq ptr @{weak}, null")
                value = add(f"zext i1 {missing} to i64")
                last = add(f"add i64 {last}, {value}")
            elif what == 7 and self.functions:
                first, second = self._random.choices(self.functions, k=2)
                below = add(f"icmp slt i64 {last}, 0")
                pointer = add(f"select i1 {below}, ptr @{first}, ptr @{second}")
                last = add(f"call i64 {pointer}(i64 {last})")
            elif what == 8:
                last = add(f"call i64 @compcache.switch(i64 {last})")
        unwinds = self._random.choice(("uwtable ", "nounwind ", ""))
        self.lines.append(f"define {linkage}i64 @{name}(i64 %x) noinline {unwinds}{group} {{")
        self.lines += [*(f"  {line}" for line in body), f"  ret i64 {last}", "}"]
        self.functions.append(name)

    def add_aliases(self) -> None:
        for number, name in enumerate(self._random.sample(self.functions, min(2, len(self.functions)))):
            if f"${name} = comdat any" not in self.lines:
                self.lines.append(f"@a{number} = alias i64 (i64), ptr @{name}")
                self.functions.append(f"a{number}")

    def finish(self) -> RandomModule:
        cases = "\n".join(f"    i64 {n}, label %c{n}" for n in range(12))
        blocks = "\n".join(f"c{n}:\n  %r{n} = mul i64 %x, {self._random.randrange(1000)}\n  br label %done" for n in range(12))
        values = ", ".join(f"[%r{n}, %c{n}]" for n in range(12))
        self.lines.append(f"""\
define internal i64 @compcache.switch(i64 %x) noinline {{
  %low = and i64 %x, 15
  switch i64 %low, label %done [
{cases}
  ]
{blocks}
done:
  %v = phi i64 [%x, %0], {values}
  ret i64 %v
}}
define internal void @start() {{
  store i64 5, ptr @sum
  ret void
}}
@starts = internal constant ptr @start, section ".init_array"
define internal void @start_first() {{
  store i64 7, ptr @sum
  ret void
}}
@starts_first = internal constant ptr @start_first, section ".init_array.00101"
@llvm.used = appending global [2 x ptr] [ptr @starts, ptr @starts_first], section "llvm.metadata"
@pointers = internal global [{len(self.functions) + 1} x ptr] [{", ".join(f"ptr @{name}" for name in self.functions)}, ptr @strlen]
declare ptr @llvm.threadlocal.address.p0(ptr)
declare i64 @llvm.fptosi.sat.i64.f64(double)
define i64 @{self._export}() {{
  %v0 = load i64, ptr @sum""")
        number = 0
        for index in range(len(self.functions)):
            self.lines += [
                f"  %p{index} = load ptr, ptr getelementptr (ptr, ptr @pointers, i64 {index})",
                f"  %c{index} = call i64 %p{index}(i64 %v{number})",
                f"  %v{number + 1} = xor i64 %v{number}, %c{index}",
            ]
            number += 1
        for index, (name, count) in enumerate(self.tables):
            self.lines += [
                f"  %q{index} = load ptr, ptr getelementptr (ptr, ptr @{name}, i64 {count - 1})",
                f"  %d{index} = load i64, ptr %q{index}",
                f"  %v{number + 1} = add i64 %v{number}, %d{index}",
            ]
            number += 1
        for index, (name, _) in enumerate(self.variables):
            self.lines += [f"  %m{index} = and i64 ptrtoint (ptr @{name} to i64), 7", f"  %v{number + 1} = add i64 %v{number}, %m{index}"]
            number += 1
        self.lines += [f"  ret i64 %v{number}", "}"]
        return RandomModule("\n".join(self.lines) + "\n", tuple(self.functions))


def random_module(seed: int, export: str = "check", *, size: int = 8) -> RandomModule:
    """The module of a seed; `size` says about how many things of each kind it has."""
    maker = _Maker(seed, export)
    choose = random.Random(seed)
    kinds = [maker.add_variable, maker.add_string, maker.add_function, maker.add_function, maker.add_variable, maker.add_thread_local]
    maker.add_variable(0)
    maker.add_function(0)
    for number in range(1, size * 4):
        choose.choice([*kinds, maker.add_table])(number)
    maker.add_aliases()
    return maker.finish()
