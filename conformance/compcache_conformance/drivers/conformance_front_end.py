"""A small compiler for systems that keep LLVM code: it reads a program when the process starts, and makes LLVM code when it is asked to.

A process that finds all that it asks for pays for no more than this file: the suite's own language is loaded when there is code to make.
"""

import json
import os
import sys
import threading
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.setrecursionlimit(20_000)


def _value(said):
    name, source = said["name"], said["source"]
    if source == "environment":
        return float(os.environ["CONFORMANCE_" + name])
    if source == "tool":
        import subprocess

        return float(subprocess.check_output(["sh", os.path.join(HERE, name + ".sh")]))
    if source == "data":
        with open(os.path.join(HERE, name + ".txt")) as file:
            return float(file.read())
    return tuple(said["value"]) if isinstance(said["value"], list) else said["value"]


def _read():
    with open(os.path.join(HERE, "program.json")) as file:
        said = json.load(file)
    for constant in said["constants"]:
        constant["value"] = _value(constant)
    for function in said["functions"]:
        function["closes_over"] = tuple(tuple(pair) for pair in function["closes_over"])
    return said


PROGRAM = {}
_FUNCTIONS = {}


def read_again():
    PROGRAM.update(_read())
    _FUNCTIONS.update((said["name"], SimpleNamespace(**said)) for said in PROGRAM["functions"])


read_again()


def function(name):
    if name not in _FUNCTIONS:
        raise NameError(name)
    return _FUNCTIONS[name]


def callees(name):
    return [word for word in function(name).names if word in _FUNCTIONS]


def constants(name):
    used = set(function(name).names)
    return [SimpleNamespace(**said) for said in PROGRAM["constants"] if said["name"] in used]


# ---------------------------------------------------------------- code


_LOADING = threading.Lock()


def _language():
    """The suite's module, from its own file, so that what Python keeps beside it serves every project."""
    with _LOADING:
        if "conformance_language" not in sys.modules:
            import importlib.util

            spec = importlib.util.spec_from_file_location("conformance_language", PROGRAM["language"])
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            plain = [{key: value for key, value in said.items() if key != "names"} for said in PROGRAM["functions"]]
            functions = tuple(module.Function(**said) for said in plain)
            module.whole = module.Program(functions, tuple(module.Constant(**said) for said in PROGRAM["constants"]))
        return sys.modules["conformance_language"]


def code_alone(name):
    language = _language()
    return language.as_llvm(language.whole, name, callees=False)


def code_whole(name):
    language = _language()
    return language.as_llvm(language.whole, name)
