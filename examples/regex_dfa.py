"""A compiler of regular expressions: pattern -> NFA -> DFA -> a function with one block of code per state.

    python examples/regex_dfa.py '(ab|a)*c[0-9]+' abac17

Patterns have literals, ``.``, classes like ``[a-z_]`` and ``[^0-9]``, groups, ``|``, ``*``, ``+`` and ``?``, over bytes. The
compiled function is found again by the pattern and the version of this compiler: the second process that asks for a
pattern neither builds an automaton nor imports LLVM.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import compcache

VERSION = "1"
EVERY_BYTE = frozenset(range(256))


class Fragment(NamedTuple):
    """A part of the NFA: it is entered at `start` and left at `end`."""

    start: int
    end: int


class Nfa:
    """Thompson's construction. `edges[state]` are pairs of a set of bytes (None: no byte is read) and the next state."""

    def __init__(self, pattern: bytes) -> None:
        self.edges: list[list[tuple[frozenset[int] | None, int]]] = []
        self._rest = pattern
        self.whole = self._alternatives()
        if self._rest:
            raise ValueError(f"unexpected {self._rest[:1]!r} at the end of the pattern")

    def _state(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def _link(self, first: int, second: int, read: frozenset[int] | None = None) -> None:
        self.edges[first].append((read, second))

    def _take(self) -> int:
        if not self._rest:
            raise ValueError("the pattern ends too early")
        byte, self._rest = self._rest[0], self._rest[1:]
        return byte

    def _alternatives(self) -> Fragment:
        whole = self._sequence()
        while self._rest[:1] == b"|":
            self._take()
            other, both = self._sequence(), Fragment(self._state(), self._state())
            for part in (whole, other):
                self._link(both.start, part.start)
                self._link(part.end, both.end)
            whole = both
        return whole

    def _sequence(self) -> Fragment:
        start = end = self._state()
        while self._rest[:1] not in (b"", b"|", b")"):
            part = self._repeated()
            self._link(end, part.start)
            end = part.end
        return Fragment(start, end)

    def _repeated(self) -> Fragment:
        part = self._atom()
        while self._rest[:1] in (b"*", b"+", b"?"):
            mark = self._take()
            around = Fragment(self._state(), self._state())
            self._link(around.start, part.start)
            self._link(part.end, around.end)
            if mark in b"*+":
                self._link(part.end, part.start)
            if mark in b"*?":
                self._link(around.start, around.end)
            part = around
        return part

    def _atom(self) -> Fragment:
        byte = self._take()
        if byte == ord("("):
            inner = self._alternatives()
            if self._take() != ord(")"):
                raise ValueError("a group is not closed")
            return inner
        read = {ord("."): EVERY_BYTE, ord("["): None}.get(byte, frozenset((byte,)))
        atom = Fragment(self._state(), self._state())
        self._link(atom.start, atom.end, self._class() if read is None else read)
        return atom

    def _class(self) -> frozenset[int]:
        negated = self._rest[:1] == b"^"
        if negated:
            self._take()
        found: set[int] = set()
        while (byte := self._take()) != ord("]"):
            last = byte
            if self._rest[:1] == b"-" and self._rest[1:2] != b"]":
                self._take()
                last = self._take()
            found.update(range(byte, last + 1))
        return EVERY_BYTE - found if negated else frozenset(found)


class Dfa(NamedTuple):
    """`moves[state]` maps a byte to the next state; state 0 is the first."""

    moves: list[dict[int, int]]
    accepting: list[bool]


def determinize(nfa: Nfa) -> Dfa:
    """The subset construction: a state of the DFA is a set of states of the NFA."""

    def closure(states: set[int]) -> frozenset[int]:
        todo, seen = list(states), set(states)
        while todo:
            for read, target in nfa.edges[todo.pop()]:
                if read is None and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return frozenset(seen)

    sets = [closure({nfa.whole.start})]
    moves: list[dict[int, int]] = []
    for states in sets:  # which grows meanwhile
        row: dict[int, int] = {}
        for byte in EVERY_BYTE:
            after = closure({t for s in states for read, t in nfa.edges[s] if read is not None and byte in read})
            if after:
                if after not in sets:
                    sets.append(after)
                row[byte] = sets.index(after)
        moves.append(row)
    return Dfa(moves, [nfa.whole.end in states for states in sets])


def assembly(dfa: Dfa) -> str:
    """One block per state: at the end of the text say whether the state accepts, else switch on the next byte."""
    lines = ["define i1 @matches(ptr %text, i64 %size) {", "entry:", "  br label %state0", "reject:", "  ret i1 false"]
    entered: list[list[str]] = [[] for _ in dfa.moves]
    entered[0].append("[ 0, %entry ]")
    for state, row in enumerate(dfa.moves):
        for target in row.values():  # a phi names a block once for each case that leads here
            entered[target].append(f"[ %next{state}, %read{state} ]")
    for state, row in enumerate(dfa.moves):
        cases = " ".join(f"i8 {byte}, label %state{target}" for byte, target in row.items())
        lines += [
            f"state{state}:",
            f"  %at{state} = phi i64 {', '.join(entered[state])}",
            f"  %done{state} = icmp eq i64 %at{state}, %size",
            f"  br i1 %done{state}, label %end{state}, label %read{state}",
            f"end{state}:",
            f"  ret i1 {'true' if dfa.accepting[state] else 'false'}",
            f"read{state}:",
            f"  %place{state} = getelementptr i8, ptr %text, i64 %at{state}",
            f"  %byte{state} = load i8, ptr %place{state}",
            f"  %next{state} = add i64 %at{state}, 1",
            f"  switch i8 %byte{state}, label %reject [ {cases} ]",
        ]
    return "\n".join([*lines, "}", ""])


def compile_regex(cache: compcache.Cache, pattern: bytes) -> compcache.TypedCallTarget:
    """A function that tells whether a whole text (any buffer of bytes) matches.

    Raises:
        ValueError: the pattern is malformed.
    """

    def build() -> compcache.ModuleSource:
        return compcache.ModuleSource(assembly(determinize(Nfa(pattern))), {"matches": "bool(text: const u8[:])"})

    return cache.get_or_compile(compcache.Identity("matches", pattern=pattern, compiler=VERSION), build)


if __name__ == "__main__":
    wanted, *texts = sys.argv[1:] or ["(ab|a)*c[0-9]+", "abac17", "abab"]
    with compcache.Cache("examples-cache") as opened:
        matches = compile_regex(opened, wanted.encode())
        for each in texts:
            print(each, matches(each.encode()))
