"""A small compiler for systems that keep LLVM code: it reads a program when the process starts, and makes LLVM code when it is asked to."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import conformance_language as language

HERE = Path(__file__).parent
sys.setrecursionlimit(20_000)


def _constant(said):
    constant = language.Constant(**said)
    if constant.source == "environment":
        return replace(constant, value=float(os.environ["CONFORMANCE_" + constant.name]))
    if constant.source == "tool":
        return replace(constant, value=float(subprocess.check_output(["sh", str(HERE / (constant.name + ".sh"))])))
    if constant.source == "data":
        return replace(constant, value=float((HERE / (constant.name + ".txt")).read_text()))
    return replace(constant, value=tuple(constant.value)) if isinstance(constant.value, list) else constant


def _function(said):
    closes_over = tuple((name, value) for name, value in said.pop("closes_over"))
    return language.Function(closes_over=closes_over, **said)


def _read():
    said = json.loads((HERE / "program.json").read_text())
    return language.Program(tuple(map(_function, said["functions"])), tuple(map(_constant, said["constants"])))


PROGRAM = _read()
_FUNCTIONS = {function.name: function for function in PROGRAM.functions}


def function(name):
    if name not in _FUNCTIONS:
        raise NameError(name)
    return _FUNCTIONS[name]


def callees(name):
    return sorted(language.names_in(function(name).body) & set(_FUNCTIONS))


def constants(name):
    used = language.names_in(function(name).body)
    return [constant for constant in PROGRAM.constants if constant.name in used]


def code_alone(name):
    used = replace(PROGRAM, constants=tuple(constants(name)))
    return language.as_llvm(used, name, callees=False)


def code_whole(name):
    return language.as_llvm(PROGRAM, name)
