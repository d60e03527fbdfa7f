"""The toy cache, and its driver: an entry is a file that is named by a digest of all that decides, and checked when it is read.

Without a fault it is sound. $TOY_FAULT names what is broken, several with commas between them; `BROKEN` of `test_scenarios.py` says which
scenarios notice which.
"""

import atexit
import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

import conformance_front_end as front
from conformance_serve import serve

FAULTS = set(os.environ["TOY_FAULT"].split(","))
STORE = os.environ["STORE"] or os.path.expanduser("~/.cache/toy")
PROGRAM = os.path.join(front.HERE, "program.json")
PID = os.getpid()
sys.setrecursionlimit(50_000)


def fault(name):
    return name in FAULTS


# ---------------------------------------------------------------- the key


def said_of(name):
    """All that decides what a function does."""
    function = front.function(name)
    values = [(constant.name, constant.value) for constant in front.constants(name)]
    if fault("rounds constants"):
        values = [(key, round(value, 3)) for key, value in values]
    if fault("sorts constants"):
        values = sorted(value for _, value in values)
    if fault("abbreviates tables"):
        values = [(key, value[:3]) for key, value in values]
    return [
        name,
        function.body,
        len(function.arguments) if fault("ignores arguments") else function.arguments,
        None if fault("ignores closures") else function.closes_over,
        None if fault("ignores options") else function.fast,
        None if fault("ignores defaults") else function.defaults,
        None if fault("ignores constants") else values,
        None if fault("ignores callees") else [said_of(callee) for callee in front.callees(name)],
    ]


def beside_the_code():
    """What a sound cache leaves out of its keys."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("CONFORMANCE", "TOY", "LD_"))}
    if fault("knows hosts"):
        yield from (os.uname().nodename, os.uname().release, len(os.sched_getaffinity(0)), sorted(os.listdir("/proc/sys/net/ipv4/conf")))
    if fault("salts keys"):
        yield random.random()
    if fault("knows environment"):
        yield plain
    if fault("knows places"):
        yield from (front.HERE, STORE, os.getcwd())
    if fault("knows times"):
        yield os.stat(PROGRAM).st_mtime_ns
    if fault("knows when it was written"):
        yield os.stat(PROGRAM).st_ctime_ns
    if fault("knows files"):
        with open(PROGRAM) as file:
            yield file.read()
    if fault("knows the umask"):
        mask = os.umask(0)
        os.umask(mask)
        yield mask


def key_of(name, arguments):
    kind = None if fault("ignores types") else type(arguments[0]).__name__
    processor = None if fault("ignores processors") else os.environ.get("TOY_PROCESSOR")
    text = json.dumps([said_of(name), kind, processor, *beside_the_code()])
    state = os.stat(PROGRAM)
    if fault("knows names alone") or fault("make-like"):
        text = name
    if fault("folds names"):
        text = name.lower()
    if fault("short names"):
        text = name[:200]
    if fault("sorts letters"):
        text = "".join(sorted(text))
    if fault("trusts times"):
        text = f"{name} {state.st_mtime_ns} {state.st_size}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return digest[:1] if fault("short digests") else digest


# ---------------------------------------------------------------- entries


def path_of(name, key):
    if fault("flat"):
        return os.path.join(STORE, key)
    return os.path.join(STORE, key[:2] if not fault("one for each name") else "names", name[:100] if fault("one for each name") else key)


def believed(path):
    state, folder = os.lstat(path), os.stat(os.path.dirname(path))
    if fault("believes anybody"):
        return True
    return state.st_uid == folder.st_uid == os.geteuid() and not folder.st_mode & 0o002


def usable(path):
    """Whether faults of its own keep the cache from an entry."""
    state = os.stat(path)
    if fault("checks its times") and state.st_mtime != 1e9:
        return False
    if fault("forgets what is old") and state.st_mtime < time.time() - 30 * 86_400:
        return False
    if fault("rejects the future") and state.st_mtime > time.time() + 60:
        return False
    return not (fault("make-like") and state.st_mtime < os.stat(PROGRAM).st_mtime)


def read(path):
    with open(os.open(path, os.O_RDONLY | (0 if fault("opens pipes") else os.O_NONBLOCK)), "rb") as file:
        if fault("maps files"):
            return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        return file.read()


def unpickle(data):
    for wanted, part in (("unpickles", data), ("unpickles later", data[64:])):
        if fault(wanted):
            with contextlib.suppress(Exception):
                pickle.loads(part)


def load(name, key):
    path = path_of(name, key)
    if fault("index"):
        return read(path).decode().partition("\n")[2] if key in read_index() else None
    if path in LISTED:
        return read(path).decode().partition("\n")[2]
    try:
        data = read(path)
        unpickle(data)
        if fault("maps files"):
            return data
        if not believed(path) or not usable(path):
            return None
        check, _, text = data.decode().partition("\n")
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        if fault("raises what it reads"):
            raise
        return None
    sum_, _, of = check.partition(" ")
    if fault("checks nothing") or (sum_ == hashlib.sha256(text.encode()).hexdigest() and (of == key or fault("checks no keys"))):
        return text
    if fault("raises what it reads"):
        raise ValueError(path)
    return None


def save(name, key, text):
    path = path_of(name, key)
    if fault("wastes space"):
        text += " " * 700_000
    data = f"{hashlib.sha256(text.encode()).hexdigest()} {key}\n{text}".encode()
    if (fault("no large entries") and len(data) > 65_536) or (fault("leaves damage") and os.path.lexists(path)):
        return
    try:
        make_folder(os.path.dirname(path))
        write(path, data)
    except OSError:
        if fault("raises what it writes") or fault("makes its folder once"):
            raise
    if fault("reads back") and load(name, key) is None:
        raise OSError("what was written is not there")
    if fault("index"):
        keys = read_index()
        time.sleep(0.05)
        with open(os.path.join(STORE, "index"), "w") as file:
            json.dump([*keys, key], file)
    limit = int(os.environ.get("TOY_LIMIT", "0"))
    if limit and not fault("no limit"):
        prune(limit)


def make_folder(folder):
    if fault("makes its folder once"):
        if not os.path.isdir(folder):
            os.mkdir(folder)
        return
    os.makedirs(folder, mode=0o777, exist_ok=True)
    if not fault("leaves the umask"):
        os.chmod(folder, 0o777 if fault("open to all") else 0o700)
    if fault("slow to write"):
        time.sleep(0.1)


def write(path, data):
    if fault("clears on damage"):
        for name in os.listdir(os.path.dirname(path)):
            os.unlink(os.path.join(os.path.dirname(path), name))
    if fault("writes in place") or (fault("follows links") and os.path.islink(path)):
        with open(path, "wb", buffering=0) as file:
            for at in range(0, len(data), 40):
                file.write(data[at : at + 40])
        return
    if os.path.isdir(path):
        shutil.rmtree(path)
    if fault("one temporary name"):
        made, descriptor = path + ".tmp", os.open(path + ".tmp", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        time.sleep(0.1)
    else:
        descriptor, made = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        write_whole(descriptor, data)
        if fault("links"):
            os.link(made, made + ".link")
        os.replace(made, path)
    except OSError:
        if not fault("leaves what it began"):
            with contextlib.suppress(OSError):
                os.unlink(made)
        raise
    if fault("checks its times"):
        os.utime(path, (1e9, 1e9))
    for number in range(6 if fault("many files") else 0):
        open(f"{path}.{number}", "w").close()


def write_whole(descriptor, data):
    try:
        while data:
            written = os.write(descriptor, data)
            data = b"" if fault("writes once") else data[written:]
        if fault("syncs"):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune(limit):
    files = [os.path.join(place, name) for place, _, names in os.walk(STORE) for name in names]
    files.sort(key=os.path.getmtime)
    while sum(map(os.path.getsize, files)) > limit:
        os.unlink(files.pop(0))


def read_index():
    try:
        with open(os.path.join(STORE, "index")) as file:
            return json.load(file)
    except (OSError, ValueError):
        return []


# ---------------------------------------------------------------- code


def compiled(name):
    function = front.function(name)
    if fault("short bodies") and len(function.body) > 1000:
        raise ValueError("too long")
    values = {**{constant.name: constant.value for constant in front.constants(name)}, **dict(function.closes_over)}
    callees = {callee: compiled(callee) for callee in front.callees(name)}
    return [function.body, function.arguments, function.defaults, values, function.fast, callees]


def call(code, arguments):
    body, names, defaults, values, fast, callees = code
    missing = len(names) - len(arguments)
    given = dict(zip(names, (*arguments, *(defaults[-missing:] if missing else ()))))
    if fast and "1e16" in body:
        return arguments[0]
    functions = {name: (lambda *a, inner=inner: call(inner, a)) for name, inner in callees.items()}
    return eval(body, {**values, **functions, **given})


# ---------------------------------------------------------------- faults of the process


@contextlib.contextmanager
def lock():
    """A lock, which a sound cache of this kind has no need of."""
    if fault("stale lock"):
        os.makedirs(STORE, exist_ok=True)
        path = os.path.join(STORE, "lock")
        while os.path.exists(path):
            time.sleep(0.01)
        os.close(os.open(path, os.O_CREAT))
        time.sleep(0.3)
        yield
        os.unlink(path)
    elif fault("locks"):
        os.makedirs(STORE, exist_ok=True)
        with open(os.path.join(STORE, "lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    elif fault("one lock"):
        with LOCK:
            yield
    elif fault("not for threads"):
        if BUSY:
            raise RuntimeError("another thread is here")
        BUSY.append(1)
        time.sleep(0.05)
        yield
        BUSY.clear()
    else:
        yield


def work(seconds):
    """Take processor time, which is what scenarios measure."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def scan(folder):
    """Read every file, deeper and deeper."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            scan(entry.path)
        elif not entry.name.startswith("lock") and " " not in open(entry.path).read():
            raise ValueError(entry.path)
        if fault("slow scan"):
            work(0.005)


def begin():
    for wanted, wrong in (
        ("needs a store", not os.path.isdir(STORE)),
        ("ASCII alone", not (STORE + front.HERE).isascii()),
        ("short paths", len(STORE) > 500),
        ("needs a temporary directory", not os.path.isdir(os.environ.get("TMPDIR", "/tmp"))),
        ("needs to execute", os.path.isdir(STORE) and os.statvfs(STORE).f_flag & os.ST_NOEXEC),
    ):
        if fault(wanted) and wrong:
            raise OSError(wanted)
    if fault("many descriptors"):
        HELD.extend(os.open("/", os.O_RDONLY) for _ in range(60))
    if fault("makes its folder once"):
        os.makedirs(STORE, exist_ok=True)
    if fault("lists once"):
        LISTED.update(os.path.join(place, name) for place, _, names in os.walk(STORE) for name in names)
    if fault("crashes at exit"):
        atexit.register(os.kill, PID, signal.SIGSEGV)


def ask(name, *arguments):
    if fault("not for children") and os.getpid() != PID:
        os._exit(3)
    if fault("reads every file") or fault("slow scan"):
        scan(STORE)
    if fault("slow for late names"):
        work(0.01 * int(name[1:] or "0"))
    if fault("leaks"):
        HELD.append(random.randbytes(200_000))
    if fault("reads again"):
        front.read_again()
    if fault("recurses"):
        sys.setrecursionlimit(60)
    with lock():
        key = key_of(name, arguments)
        text = MAPPED.get(name) or load(name, key)
        if text is None:
            code = compiled(name)
            work(0.01)
            save(name, key, json.dumps(code))
            return call(code, arguments), False
    if fault("compiles all the same"):
        work(0.015)
    if fault("writes on hits"):
        open(path_of(name, key) + ".used", "w").close()
    if fault("maps files"):
        MAPPED[name] = text
        text = bytes(text).decode().partition("\n")[2]
    code = json.loads(text)
    return call(code, [int(value) for value in arguments] if fault("ignores types") else arguments), True


BUSY, HELD, LISTED, MAPPED, LOCK = [], [], set(), {}, threading.Lock()
if fault("shares a store"):
    open(os.path.join(STORE, "where-it-is"), "w").close()
    STORE = os.path.join(os.path.dirname(STORE), "shared")
begin()
serve(ask)
