"""Overloads that read the world while types are inferred: the world changes, and each program says what it says with plain Numba."""

from __future__ import annotations

import pytest
from numba_edits import Edit, Told, assert_edit_counts, overloaded, run_own_edits  # noqa: F401 - a fixture

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1500)]
pytest.importorskip("numba")

_READER = """
    {before}
    import os
    PATH = os.path.join(os.path.dirname(__file__), "settings.py")

    def digit(text):
        return int("".join(c for c in str(text) if c.isdigit())[-1])

    @overload(scaled)
    def implementation(x):
        by = {read}
        return lambda x: x * by
    """
#: How a program reads a file that ends with a digit: what it does before, and the expression.
_OF_FILES = (
    ("import numpy as np", "digit(np.genfromtxt(PATH, dtype=str, delimiter='=')[1])"),
    ("import numpy as np", "int(np.fromfile(PATH, dtype=np.uint8)[-1]) - 48"),
    ("import numpy as np", "int(np.memmap(PATH, dtype=np.uint8, mode='r')[-1]) - 48"),
    ("import numpy as np", "digit(np.lib.npyio.DataSource(None).open(PATH).read())"),
    ("from pathlib import Path", "digit(Path(PATH).open().read())"),
    ("from pathlib import Path\n    HERE = Path(__file__)", "digit(HERE.with_name('settings.py').open().read())"),
    ("from pathlib import Path", "Path(PATH).stat().st_size - 12"),
    ("from pathlib import PosixPath", "digit(PosixPath(PATH).read_bytes().decode())"),
    ("from pathlib import Path", "3 if Path(PATH).with_name(os.path.basename(PATH)).exists() and Path(PATH).stat().st_size % 2 else 4"),
    ("import pkgutil", "digit(pkgutil.get_data(__name__, 'settings.py').decode())"),
    ("import sys\n    from importlib.machinery import SourceFileLoader", "SourceFileLoader('x', PATH).load_module().FACTOR"),
    ("import runpy", "runpy.run_path(PATH)['FACTOR']"),
    ("import codecs", "digit(codecs.open(PATH).read())"),
    ("import io", "digit(io.FileIO(PATH).read().decode())"),
    ("import io", "digit(io.open(PATH).read())"),
    ("import _io", "digit(_io.open(PATH).read())"),
    ("import tokenize", "digit(tokenize.open(PATH).read())"),
    ("import fileinput", "digit(''.join(fileinput.input(PATH)))"),
    ("import configparser", ("(p := configparser.RawConfigParser(), p.read_string('[a]\\nb=' + p.BOOLEAN_STATES.__class__.__name__),"
     " len(p.read(PATH[:-3] + '.ini')) + os.stat(PATH).st_size - 8)[2]")),
    ("import linecache", "digit(linecache.getline(PATH, 1))"),
    ("import subprocess", "digit(subprocess.run(['cat', PATH], capture_output=True).stdout.decode())"),
    ("", "digit(os.popen('cat ' + PATH).read())"),
    ("", "os.system('exit ' + '$(tail -c1 ' + PATH + ')') >> 8"),
    ("import posix", "digit(posix.read(posix.open(PATH, 0), 100).decode())"),
    ("import mmap", "digit(mmap.mmap(os.open(PATH, 0), 0, prot=mmap.PROT_READ)[:].decode())"),
    ("from importlib.util import module_from_spec, spec_from_file_location",
     "(s := spec_from_file_location('y', PATH), m := module_from_spec(s), s.loader.exec_module(m), m.FACTOR)[3]"),
    ("import inspect, builtins", "digit(getattr(builtins, 'op' + 'en')(PATH).read())"),
    ("", "digit(__builtins__['open'](PATH).read())"),
    ("", "digit(digit.__globals__['__builtins__']['open'](PATH).read())"),
    ("", "digit(__loader__.get_data(PATH).decode())"),
    ("", "digit(__spec__.loader.get_data(PATH).decode())"),
    ("import tomllib", "tomllib.loads(io_open(PATH))['FACTOR']"),
    ("import glob", "3 + len([name for name in glob.glob(PATH) if os.path.getsize(name) > 10])"),
    ("import shutil", "3 if shutil.disk_usage(PATH).total and os.path.getsize(PATH) > 10 else 4"),
    ("", "4 - os.access(PATH, os.X_OK) - (os.path.getsize(PATH) > 10)"),
    ("import importlib.resources", "digit((importlib.resources.files('json') / os.path.abspath(PATH)).read_text())"),
    ("import sqlite3", "digit(sqlite3.connect(':memory:').execute('select ?', (open(PATH).read(),)).fetchone()[0])"),
    ("import shelve, dbm", "3 + (dbm.whichdb(PATH) is None) + (os.path.getsize(PATH) > 10)"),
)  # fmt: skip
#: How a program reads state of its process that the module `settings` sets: both, and the expression.
_OF_STATE = (
    ("sys", "sys.setrecursionlimit(200{})", "digit(sys.getrecursionlimit())"),
    ("numpy as np", "np.setbufsize(16000 + 16 * {})", "(np.getbufsize() - 16000) // 16"),
    ("numpy as np", "np.seterr(divide='ignore' if {} == 3 else 'raise')", "len(np.geterr()['divide'])"),
    ("decimal", "decimal.getcontext().prec = {}", "decimal.getcontext().prec"),
    ("decimal", "decimal.getcontext().prec = {}", "len(str(decimal.Decimal(1) / decimal.Decimal(3)))"),
    ("tempfile", "tempfile.tempdir = '/{}'", "digit(tempfile.tempdir)"),
    ("tempfile", "tempfile.tempdir = '/{}'", "digit(tempfile.gettempdir())"),
    ("sys", "sys.setswitchinterval({})", "int(sys.getswitchinterval())"),
    ("random", "random.seed({})", "random.randrange(10 ** 9)"),
    ("numpy as np", "np.random.seed({})", "np.random.randint(10 ** 9)"),
    ("numpy as np", "np.set_printoptions(precision={})", "len(np.array2string(np.array([1 / 3])))"),
    ("os", "os.umask({})", "(u := os.umask(0), os.umask(u))[0]"),
    ("os", "os.chdir('/usr' if {} == 3 else '/')", "len(os.path.abspath('x'))"),
    ("os", "(os.nice(0), os.sched_setaffinity(0, {{0}} if {} == 3 else {{1}}))", "min(os.sched_getaffinity(0)) + 2"),
    ("locale", "locale.setlocale(locale.LC_ALL, 'C') and setattr(locale, 'F', {})", "locale.F"),
    ("signal", "signal.signal(signal.SIGUSR1, signal.SIG_IGN if {} == 3 else signal.SIG_DFL)",
     "4 - (signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)"),
    ("threading", "threading.stack_size({} << 20)", "threading.stack_size() >> 20"),
    ("faulthandler", "faulthandler.enable() if {} == 3 else faulthandler.disable()", "faulthandler.is_enabled() + 3"),
    ("sys", "sys.argv[1:] = ['{}']", "digit(sys.argv[1])"),
    ("sys", "sys.path.append('{}')", "digit(sys.path[-1])"),
    ("warnings", "warnings.filters.append(('ignore', None, Warning, None, {}))", "warnings.filters[-1][4]"),
)
#: How a function that an overload calls reads the file, with imports of its own.
_BY_IMPORTS = (
    "import pkgutil; return pkgutil.get_data(__name__, 'settings.py').decode()",
    "import subprocess; return subprocess.run(['cat', PATH], capture_output=True).stdout.decode()",
    "from codecs import open as opened; return opened(PATH).read()",
    "from importlib import resources; return resources.files('json').joinpath(PATH).read_text()",
    "import importlib.machinery as m; return m.SourceFileLoader('x', PATH).get_data(PATH).decode()",
    "from os import popen; return popen('cat ' + PATH).read()",
    "import os.path as p, os as o; return o.popen('cat ' + PATH).read()",
    "import gzip, shutil; o = __import__('io'); return o.open(PATH).read()",
    "import zipapp as z; return z.pathlib.Path(PATH).open().read()",
)
_OF_ENVIRONMENT = (
    ("", "digit(os.path.expandvars('$FACTOR'))"),
    ("import subprocess", "digit(subprocess.check_output('echo $FACTOR', shell=True).decode())"),
    ("", "digit(os.getenvb(b'FACTOR').decode())"),
    ("from os import environ", "digit(environ.get('FACTOR'))"),
    ("from os import environb", "digit(environb[b'FACTOR'].decode())"),
    ("import posix", "len(os.path.expanduser('~') * 0) + digit(os.popen('echo $FACTOR').read())"),
    ("import ctypes\n    ctypes.pythonapi", "digit(os.popen('printenv FACTOR').read())"),
    ("import platform", "digit(os.get_exec_path({'PATH': os.environ['FACTOR']})[0])"),
)


def _of_file(before: str, read: str) -> Edit:
    """Other sizes for `stat`: the second version's file is longer by a space."""
    before += "\n    import io\n    def io_open(path): return open(path).read()" if "io_open" in read else ""
    before += "\n    def fileinput_(path): return open(path)" if "fileinput_" in read else ""
    program = overloaded(_READER.replace("{before}", before).replace("{read}", read))
    return Edit(f"{before} {read}", program, "FACTOR = 3", "FACTOR  = 4" if "size" in read else "FACTOR = 4", "FACTOR = 3")


def _of_state(module: str, change: str, read: str) -> Edit:
    program = overloaded(_READER.replace("{before}", f"import {module}\n    import settings\n").replace("{read}", read))
    before, after = (change.format(number) for number in (3, 4))
    return Edit(f"{change} {read}", program, before, after, f"import {module}\n{before}\n")


EDITS = [
    *[_of_file(*row) for row in _OF_FILES],
    *[_of_file(f"def read():\n        {body}", "digit(read())") for body in _BY_IMPORTS],
    *[_of_state(*row) for row in _OF_STATE],
    *[
        Edit(f"{before} {read}", overloaded(_READER.replace("{before}", before).replace("{read}", read)), "same", "same",
             environment=("FACTOR", "3", "4"))
        for before, read in _OF_ENVIRONMENT
    ],
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(EDITS)), ids=[edit.name for edit in EDITS])
def test_the_world_counts(number: int, told: Told) -> None:
    assert_edit_counts(told, number)
