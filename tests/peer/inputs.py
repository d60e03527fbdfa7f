"""What the peers' programs are called with: bytes that a generator makes, well-formed ones and others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

_PROSE = (
    "the compiled code of a module is kept in a file that is named by its content and found by the names of its functions; "
    "what one module defines others import, and the loader binds them once all of them are there. A second look at it costs nothing.\n"
)
_MARKDOWN = (
    "# Heading {0}\n", "* one\n* two *{0}*\n    * deeper `code`\n", "> quoted {0}\n> > twice\n", "1. a\n2. b\n",
    "[link][r{0}]\n\n[r{0}]: /u 'T'\n",
    "```c\nint x{0};\n```\n", "<div>raw {0}</div>\n", "**strong** __too__ ***both*** _{0}_\n", "line  \nbreak\\\n{0}\n",
    '![i](/p{0} "t")\n',
    "a | b\n--|:-:\n1 | {0}\n", "&copy; &#x{0}; &nope; \u00e4\u20ac\n", "<http://x.y/{0}> www.example.org ~~gone~~\n",
    "- [x] done {0}\n- [ ] not\n",
    "----\n***\n", "setext {0}\n=====\n", "\tcode {0}\n", "text[^{0}]\n\n[^{0}]: note\n", "[unclosed](", "`` ` ``", "*a **b* c**",
)  # fmt: skip


def _prose(generator: Random, most: int) -> bytes:
    words = _PROSE.split(" ")
    text = " ".join(generator.choices(words, k=generator.randrange(1, most))).encode()
    return text + (generator.randbytes(generator.randrange(100)) if generator.random() < 0.5 else b"")


def text_to_compress(generator: Random) -> bytes:
    """A quality from 0 to 11, and what to compress with it."""
    return bytes([generator.randrange(12)]) + _prose(generator, 600)


def markdown(generator: Random) -> bytes:
    parts = [generator.choice(_MARKDOWN).format(generator.randrange(99)) for _ in range(generator.randrange(1, 30))]
    text = ("\n" if generator.random() < 0.5 else "").join(parts).encode()
    return text.replace(b"\0", b"") + (generator.randbytes(9).replace(b"\0", b"") if generator.random() < 0.3 else b"")


def script(generator: Random) -> bytes:
    one, two = generator.randrange(-9, 99), generator.randrange(1, 40)
    return generator.choice([
        f"[{one}, {two}].map(x => x ** 3).reduce((a, b) => a + b)",
        f"JSON.stringify({{a: [{one}, 'é'], b: new Date({two}e9).toISOString()}})",
        f"'{one}-{two}'.replace(/(\\d+)-(\\d+)/u, '$2:$1')",
        f"function f(n) {{ return n < 2 ? n : f(n - 1) + f(n - 2) }} f({two % 15})",
        f"let m = new Map(); for (let i = 0; i < {two}; i++) m.set(i * {one}, i); [...m.keys()].join()",
        f"class A {{ get x() {{ return {one} }} }} class B extends A {{ get x() {{ return super.x / {two} }} }} new B().x",
        f"{two}n ** {two}n % 1000007n",
        f"function* g() {{ for (let i = 0; i < {two}; i++) yield i }} Math.max(...g())",
        f"null.f{one}", f"throw new RangeError('{one}')", f"({one}", f"[{two}, 1, {one}].sort().toString() + typeof {one}",
        f"new Float64Array([{one}, NaN]).toString() + Math.hypot({one}, {two}).toFixed(12)",
    ]).encode()  # fmt: skip


def words(generator: Random) -> bytes:
    found = ["he", "she", "hers", "his", "a", "ab", "abc", "12", "-7", "x\u00e9", "he"]
    first, text = generator.randrange(33, 60), " ".join(generator.choices(found, k=generator.randrange(1, 12)))
    return bytes([first]) + text.encode() + generator.choice([
        b"\n" + " ".join(generator.choices(found, k=9)).encode(), b"", b"\nushers\xff"
    ])  # fmt: skip


def noise(generator: Random) -> bytes:
    return generator.randbytes(generator.choice([0, 3, 12, 30, 66, 73]))


def bytes_of_matrices(generator: Random) -> bytes:
    return generator.randbytes(generator.randrange(90))


def json_text(generator: Random) -> bytes:
    text = json.dumps(_value(generator, 0), ensure_ascii=generator.random() < 0.5).encode()
    return text if generator.random() < 0.75 else text[: len(text) // 2] + b"\x01"


def _value(generator: Random, depth: int) -> Any:
    choice = generator.random()
    if depth > 3 or choice < 0.3:
        return generator.choice([1, 2.5, -7, "t\xe4xt", None, True, 1e300, generator.random(), '\n\t"\\'])
    if choice < 0.6:
        return [_value(generator, depth + 1) for _ in range(generator.randrange(5))]
    return {f"k{i}": _value(generator, depth + 1) for i in range(generator.randrange(5))}


def format_text(generator: Random) -> bytes:
    odd = generator.randbytes(9).replace(b"\0", b"1")
    return generator.choice([b"{} {} {}", b"{0:08d} {1:>{0}}", b"{2:.3f}{0}", b"{", b"{5}", b"{:d} {:d}", odd])


_ATOMS = (
    "a", "b", "[a-c]+", "(x|y)*", r"\d", ".", "(?i)Ab", r"\pL", "$", "^", "a{2,3}", "[[:alpha:]]", "(", "\\", "*", "(?P<n>z)", "\u00e9",
    r"\b",
)  # fmt: skip


def expression(generator: Random) -> bytes:
    """A regular expression, mostly a valid one, and lines to search."""
    pattern = "".join(generator.choices(_ATOMS, k=generator.randrange(8)))
    text = "".join(generator.choices("abcxyzAB12 \u00e9\n", k=generator.randrange(60)))
    return f"{pattern}\n{text}".encode()


def date(generator: Random) -> bytes:
    """A date, or bytes that stand for a number of nanoseconds."""
    parts = [generator.randrange(most) for most in (100, 14, 33, 1000)]
    return generator.choice([generator.randbytes(12), "20{:02}-{:02}-{:02}T01:02:03.{}Z".format(*parts).encode()])


def document(generator: Random) -> bytes:
    """An expression of XPath and a document, either of which may have an error."""
    expressions = ("//b", "//a[@n > 1]/..", "//*[contains(., 'x')]/@n", "count(//b) + 1", "//[", "//b[position() = last()]", "id(", "//@n")
    parts: list[str] = []

    def element(depth: int) -> None:
        name = generator.choice("abc")
        parts.append(f"<{name} n='{generator.randrange(5)}'>")
        for _ in range(generator.randrange(4) if depth < 4 else 0):
            element(depth + 1)
        parts.append(generator.choice(("x&lt;&#65;", "<![CDATA[<z>]]>", "<!-- no -->", "\u00e9")))
        parts.append(f"</{name}>")

    element(0)
    if generator.randrange(8) == 0:
        parts.pop(generator.randrange(len(parts)))
    return f"{generator.choice(expressions)}\n{''.join(parts)}".encode()
