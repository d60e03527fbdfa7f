"""Answer the calls of one process and write a line for each: what every driver in Python does, whatever system it drives.

It stands beside a scenario's sources, and needs nothing but the standard library of Python 3.8 or later.
"""

import json
import os
import sys
import threading
import time
import traceback

with open(os.environ["CONFORMANCE_ORDER"]) as _file:
    ORDER = json.load(_file)
_replies = os.open(ORDER["replies"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def reply(**line):
    os.write(_replies, (json.dumps(line) + "\n").encode())


def wait_for(path):
    deadline = time.monotonic() + 60
    while path and not os.path.exists(path):
        if time.monotonic() > deadline:
            raise SystemExit("nothing came to " + path)
        time.sleep(0.002)


def _number(value):
    try:
        return float(value)
    except TypeError:
        return float(value.item())


def _answer(ask, index, name, arguments):
    started = time.process_time()
    try:
        answer, found = ask(name, *arguments)
        reply(call=index, answer=repr(_number(answer)), found=found, seconds=time.process_time() - started)
    except BaseException as error:  # whatever a system raises is a result
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        reply(call=index, error=text[-2000:], seconds=time.process_time() - started)
        traceback.print_exc()


def _each(ask):
    for index, (name, arguments) in enumerate(ORDER["calls"]):
        pause = ORDER["pauses"].get(str(index))
        if pause:
            open(pause + ".reached", "w").close()
            wait_for(pause)
        _answer(ask, index, name, arguments)


def _in_threads(ask):
    barrier = threading.Barrier(ORDER["threads"])

    def one(index):
        barrier.wait()
        _answer(ask, index, *ORDER["calls"][index % len(ORDER["calls"])])

    threads = [threading.Thread(target=one, args=(index,)) for index in range(ORDER["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _in_children(ask):
    """The first call here, all of them in forked children."""
    _answer(ask, 0, *ORDER["calls"][0])
    children = []
    for _ in range(ORDER["fork"]):
        child = os.fork()
        if child == 0:
            _each(ask)
            os._exit(0)
        children.append(child)
    _wait_for_children(children)


def _wait_for_children(children):
    for child in children:
        status = os.waitpid(child, 0)[1]
        if status:
            reply(call=-1, error="a forked child ended with status %d" % status)


def _beside_a_thread(ask):
    """The first call here; the second one in children that are forked while a thread makes the others."""
    (here, first), rest = ORDER["calls"][:2], ORDER["calls"][2:]
    _answer(ask, 0, *here)
    thread = threading.Thread(target=lambda: [_answer(ask, index + 2, *call) for index, call in enumerate(rest)])
    thread.start()
    children = []
    while len(children) < ORDER["fork"] and (thread.is_alive() or not children):
        time.sleep(0.02)  # so that they are forked in different moments of it
        child = os.fork()
        if child == 0:
            _answer(ask, 1, *first)
            os._exit(0)
        children.append(child)
    _wait_for_children(children)
    thread.join()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _again_and_again(ask):
    _each(ask)
    before = resident()
    for _ in range(ORDER["repeat"]):
        for name, arguments in ORDER["calls"]:
            ask(name, *arguments)
    reply(call=-2, answer="0.0", found=None, grown=resident() - before)


def serve(ask):
    """Play the order with `ask(name, *arguments) -> (answer, found)`; found is None where the system does not tell."""
    if ORDER["ready"]:
        open(ORDER["ready"] + str(os.getpid()), "w").close()
    wait_for(ORDER["barrier"])
    if ORDER["threads"]:
        _in_threads(ask)
    elif ORDER["beside"]:
        _beside_a_thread(ask)
    elif ORDER["fork"]:
        _in_children(ask)
    elif ORDER["repeat"]:
        _again_and_again(ask)
    else:
        _each(ask)
    reply(call=-3, seconds=time.process_time())
    spent = os.times()
    reply(call=-4, seconds=spent.children_user + spent.children_system)
    if ORDER["modules"]:
        with open(ORDER["modules"], "w") as file:
            json.dump([(name, module is None) for name, module in sys.modules.items()], file)
    sys.stdout.flush()


class Files:
    """What tells found from compiled where a system does not: whether it wrote a file into its store."""

    def __init__(self, store, ending=""):
        self.store, self.ending = store, ending

    def names(self):
        found = set()
        for place, _, files in os.walk(self.store):
            for name in files:
                if name.endswith(self.ending):
                    try:
                        state = os.stat(os.path.join(place, name))
                    except OSError:
                        continue
                    found.add((place, name, state.st_ino, state.st_mtime_ns))
        return found
