"""Answers of PTX code without a graphics card: straight-line code of doubles, as scenarios have it, is interpreted.

Enough for kernels that load their parameters, compute, and store one double; anything else is an error.
"""

import re
import struct


def run(text, entry, arguments):
    """The double that the kernel stores when its first parameter is the address of the result."""
    body = re.search(r"\.entry\s+%s\b.*?\{(.*)" % re.escape(entry), text, re.DOTALL)
    registers, stored = {}, None
    for line in body.group(1).splitlines():
        # One thread runs, for which stores under a predicate are made.
        step = re.sub(r"^@!?%\w+\s+", "", line.split("//")[0].strip().rstrip(";"))
        operation = (step.split() or [""])[0]
        rest = step[len(operation) :]
        words = [word.strip() for word in re.split(r",", rest.replace("{", "").replace("}", ""))]
        if operation == "ret":
            return stored
        if operation.startswith("st."):
            stored = _value(words[-1], registers)
        elif operation.startswith("ld.param"):
            number = int(re.search(r"_(\d+)\]", words[1]).group(1))
            registers[words[0]] = arguments[number - 1] if 0 < number <= len(arguments) else 0.0
        else:
            _step(operation.split("."), words, registers)
    return stored


_BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b}


def _step(operation, words, registers):
    if operation[-1] in ("f64", "b64") or operation[0] in ("fma", "mov"):
        if operation[0] in _BINARY:
            registers[words[0]] = _BINARY[operation[0]](_value(words[1], registers), _value(words[2], registers))
        elif operation[0] == "fma":
            first, second, third = (_value(word, registers) for word in words[1:])
            registers[words[0]] = first * second + third
        elif operation[0] == "neg":
            registers[words[0]] = -_value(words[1], registers)
        elif operation[0] == "mov" and operation[-1] in ("f64", "b64"):
            registers[words[0]] = _value(words[1], registers)


def _value(word, registers):
    if word.startswith("0d"):
        return struct.unpack(">d", bytes.fromhex(word[2:]))[0]
    if re.match(r"^-?\d+$", word):
        return struct.unpack("<d", struct.pack("<q", int(word)))[0]
    return registers[word]
