"""An interpreter that has imported what a program imports, and forks for each process that is asked for.

Arguments: the number of a socket, and a file with the names of modules, in the order of their imports. $PYTHONPATH is that of the
processes. It says 0 when all is imported. Then each line of the socket asks for one process, and is answered by its id. The process has no
parent here: it is a child of the nearest ancestor that takes those in, which is the suite.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import sys


def main():
    place = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # the suite's drivers, of which each program has a copy
    import_all(sys.argv[2])
    gc.collect()
    gc.freeze()
    lines = place.makefile("r")
    place.sendall(b"0\n")
    while True:
        line = lines.readline()
        if not line:
            return None
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            continue
        os.setsid()  # before the suite knows the process, which it ends with its group
        child = os.fork()
        if child:
            place.sendall(b"%d\n" % child)
            os._exit(0)
        lines.close()
        place.close()
        return json.loads(line)


def import_all(path):
    """What a program excluded is excluded here; what cannot be imported by itself is left to the program."""
    with open(path) as file:
        modules = json.load(file)
    for name, is_excluded in modules:
        if is_excluded:
            sys.modules.setdefault(name, None)
            continue
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def become(order):
    os.umask(order["umask"])
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, order["output"], os.O_WRONLY), (2, order["output"], os.O_WRONLY)):
        opened = os.open(path, flags | os.O_APPEND * bool(number))
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    sys.path.insert(0, os.path.dirname(order["program"]))
    sys.argv = [order["program"]]
    runpy.run_path(order["program"], run_name="__main__")


ORDER = main()
if ORDER is not None:
    become(ORDER)
