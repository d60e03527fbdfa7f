"""Programs that know nothing of compcache start without Numba: the import hook, and the command that runs a program with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from numba_helpers import Project

from compcache.numba.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

PROGRAM = """
    import sys
    import numba as nb
    from numba import njit, prange, vectorize

    @nb.njit(cache=True)
    def twice(x):
        return x * 2

    @njit
    def total(x):
        result = 0
        for i in prange(3):
            result += twice(x)
        return result

    @vectorize
    def shifted(x):
        return x + 1

    if __name__ == "__main__":
        print(twice(2), total(3), sys.argv[1:], nb.__version__, "numba.core" in sys.modules)
"""
INSTALL = "import compcache.numba, sys\nbackend = compcache.numba.install(lazy=True)\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A program, which one process has compiled."""
    made = Project(tmp_path_factory.mktemp("programs"))
    made.write(program=PROGRAM)
    script = INSTALL + "import program\nresult = program.twice(2), program.total(3), program.total(1.5)"
    assert made.run(script, backend=False, COMPCACHE_DIR=str(made.cache)) == (4, 18, 9.0)
    return made


def run(project: Project, text: str) -> object:
    return project.run(INSTALL + text, backend=False, COMPCACHE_DIR=str(project.cache))


def test_a_program_runs_without_numba(project: Project) -> None:
    text = "import program\nresult = program.twice(2), program.total(1.5), backend.hits, 'numba.core' in sys.modules"
    assert run(project, text) == (4, 9.0, 2, False)


def test_what_else_is_asked_for_is_numbas(project: Project) -> None:
    text = """
import program
program.twice(2)
kept = [sys.modules["numba"]]
import numba.core.types as first
from numba.core import types as second
from numba import int64, typed, objmode
import numba
numba.config.DEBUG  # for which nothing stands
stand_in = kept[0]
result = [first is second, int64 is numba.int64, stand_in.int64 is int64, numba is not stand_in, numba.types is first]
result += [program.nb is numba, typed is numba.typed, str(program.twice.signatures), program.twice(2.5)]
stand_in.config.BOUNDSCHECK = 1
result += [numba.config.BOUNDSCHECK, numba.__spec__.name, first.__spec__.name, program.total(4)]
"""
    assert run(project, text) == [
        True, True, True, True, True, True, True, "[(int64,)]", 5.0, 1, "numba", "numba.core.types", 24,
    ]  # fmt: skip


def test_loops_over_indices_need_no_numba(project: Project) -> None:
    project.write(indices="""
        import numpy as np
        from numba import njit, pndindex
        @njit(parallel=True)
        def filled(a):
            for i in pndindex(a.shape):
                a[i] = i[0] * 10 + i[1]
            return a
    """)
    text = "import indices, numpy as np\nresult = indices.filled(np.zeros((2, 3))).tolist(), 'numba.core' in sys.modules"
    answer = [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]
    assert [run(project, text), run(project, text)] == [(answer, True), (answer, False)]


def test_ufuncs_are_made_by_numba_when_they_are_used(project: Project) -> None:
    text = """
import program, numpy as np
before = "numba.core" in sys.modules
result = before, program.shifted(np.arange(3)).tolist(), float(program.shifted(2.5)), "numba.core" in sys.modules
"""
    assert run(project, text) == (False, [1, 2, 3], 3.5, True)


@pytest.mark.parametrize("module", ["numba", "numba.core.types", "numba.types", "numba.extending", "numba.typed", "numba.core.errors"])
def test_a_star_takes_what_numba_offers(project: Project, module: str) -> None:
    text = f"names = {{}}\nexec('from {module} import *', names)\n"
    text += "result = sorted(name for name, value in names.items() if name != '__builtins__' and value is not None)"
    assert run(project, text) == project.run(text, backend=False)


def test_numba_that_is_imported_already_stays(project: Project) -> None:
    text = "import numba, compcache.numba, program\nbackend = compcache.numba.install(lazy=True)\n"
    text += "result = program.twice(2), type(program.twice).__name__, backend.hits + backend.misses"
    assert project.run(text, backend=False, COMPCACHE_DIR=str(project.cache)) == (4, "CPUDispatcher", 1)


def test_uninstall_takes_the_stand_in_away(project: Project) -> None:
    text = "compcache.numba.uninstall()\nresult = 'numba' in sys.modules\nimport numba\nresult = result, 'core' in dir(numba)"
    assert run(project, text) == (False, True)


def command(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "compcache.numba", *arguments],
        env={"PYTHONPATH": str(PACKAGE_ROOT), "COMPCACHE_DIR": str(project.directory / "other")},
        cwd=project.source, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_command_runs_a_file_and_a_module(project: Project) -> None:
    assert command(project, "run", "program.py", "--x", "y").stdout.startswith("4 18 ['--x', 'y'] ")
    again = command(project, "run", "program.py", "--x", "y")
    assert (again.returncode, again.stdout.split()[-1], again.stderr) == (0, "False", "")
    assert command(project, "run", "-m", "program", "z").stdout.startswith("4 18 ['z'] ")


CARDS = """
    import sys
    from numba import cuda, njit
    from numba.cuda.cudadrv.driver import _raise_driver_not_found
    import numba.cuda as same

    @cuda.jit(device=True)
    def more(x):
        "More."
        return x + 1

    @cuda.jit
    def kernel(a):
        a[cuda.grid(1)] = more(a[cuda.grid(1)])

    class Owner:
        static = staticmethod(more)

    @njit
    def host(x):
        return more(x)

    result = [cuda.is_available(), same is cuda, more.__name__, more.__doc__, Owner.static.__module__ == __name__]
    without = "numba.core" not in sys.modules
    for call in (lambda: kernel[1, 2]([1]), lambda: more(2), cuda.current_context, lambda: host(1), _raise_driver_not_found):
        try:
            result.append(repr(call()))
        except Exception as error:
            result.append((type(error).__name__, str(error)[:40]))
    result += [cuda.is_available(), same is cuda, type(cuda).__name__, type(more).__name__]
"""


def test_the_command_imports_little_and_reads_sources_like_python(project: Project) -> None:
    def run(source: bytes) -> str:
        (project.source / "little.py").write_bytes(source)
        ran = command(project, "run", "little.py")
        return ran.stdout or ran.stderr.splitlines()[-1]

    asked = b"twice(2), total(3)\n    print({'zipfile', 'shutil', 're', 'ast', 'threading'} & set(sys.modules), '\xe9', "
    program = b"# coding: latin-1\n" + textwrap.dedent(PROGRAM).encode().replace(b"print(", asked)
    run(program)
    assert run(program).startswith("set() \u00e9 4 18 ")
    assert "null bytes" in run(b"print(1)\0\n")
    assert run(b"print(1\n") == run(b"\xef\xbb\xbfprint(1\n") == "SyntaxError: '(' was never closed"


def test_functions_for_cards_are_declared_without_numba(project: Project) -> None:
    project.write(cards=CARDS)
    hidden = {"NUMBA_CUDA_DRIVER": "0"}  # no card, whatever the host has
    script = "import cards\nresult = cards.result, cards.without"
    expected = project.run(script, backend=False, **hidden)[0]
    assert project.run(INSTALL + script, backend=False, COMPCACHE_DIR=str(project.cache), **hidden)[0] == expected
    if not expected[0]:
        answers = project.run(INSTALL + script, backend=False, COMPCACHE_DIR=str(project.cache))
        assert answers[1] or answers[0][0]  # Numba is only asked where there is a driver


def test_tracebacks_begin_with_the_program(project: Project) -> None:
    project.write(
        fails="def f(x):\n    return 1 / x\nif __name__ == '__main__':\n    f(0)\n", wrong="x = = 2\n", ends="raise SystemExit('no')\n"
    )
    (project.source / "failing").mkdir()
    (project.source / "failing" / "__main__.py").write_text("1 / 0\n")
    modules = [("-m", name) for name in ("fails", "wrong", "ends", "absent", "absent.absent", "failing.absent")]
    for program in (("fails.py",), ("wrong.py",), ("ends.py",), ("failing",), (os.path.dirname(__file__),), *modules):
        plain = subprocess.run([sys.executable, *program], cwd=project.source, capture_output=True, text=True, check=False)
        ours = command(project, "run", *program)
        assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr), program


LAST = """
    import atexit, pickle, sys, threading

    class Item:
        pass

    def told(who):
        print(who, __loader__.name, sys.modules["__main__"].Item is Item, pickle.loads(pickle.dumps(Item)) is Item)

    def wait():
        threading.main_thread().join()
        told("thread")

    atexit.register(told, "exit")
    threading.Thread(target=wait).start()
"""


def test_the_main_module_stays_after_the_program(project: Project) -> None:
    """For threads and exit handlers, however the program was started."""
    project.write(last=LAST)
    (project.source / "lasting").mkdir()
    (project.source / "lasting" / "__main__.py").write_text(textwrap.dedent(LAST))
    for program in (("last.py",), ("-m", "last"), ("lasting",)):
        plain = subprocess.run([sys.executable, *program], cwd=project.source, capture_output=True, text=True, check=False)
        ours = command(project, "run", *program)
        assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr), program


def test_numba_is_imported_with_few_walks_for_garbage(project: Project) -> None:
    text = """
import gc, program
walks = []
gc.callbacks.append(lambda phase, info: walks.append(phase))
program.twice.signatures
result = "numba.core" in sys.modules, len(walks) < 40
"""
    assert run(project, text) == (True, True)


def test_the_command_says_what_is_wrong(project: Project, tmp_path: Path) -> None:
    assert [command(project, *a).returncode for a in ([], ["run"], ["walk", "x"], ["run", "--dir"])] == [2, 2, 2, 2]
    missing = command(project, "run", str(tmp_path / "missing.py"))
    assert missing.returncode == 2
    assert "missing.py" in missing.stderr
    (tmp_path / "fails.py").write_text("import sys\nsys.exit(5)\n")
    assert command(project, "run", str(tmp_path / "fails.py")).returncode == 5


def test_a_pickler_that_is_older_than_numba_pickles_lazy_functions(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(recursive="""
        from compcache.numba import njit, vectorize

        @njit
        def even(x):
            return True if x == 0 else odd(x - 1)

        @njit
        def odd(x):
            return False if x == 0 else even(x - 1)

        @vectorize(["f8(f8)"])
        def shifted(x):
            return x + 1
        """)
    script = """
import pickle, sys, recursive as r
from multiprocessing.reduction import ForkingPickler
first = 'numba.core' in sys.modules
result = [int(pickle.loads(bytes(ForkingPickler.dumps(f)))(5)) for f in {functions}] + [first]
"""
    cold = script.format(functions="(r.even, r.odd, r.shifted)")
    assert project.run(cold, backend=False, COMPCACHE_DIR=str(project.cache)) == [0, 1, 6, True]
    for name, answer in (("even", 0), ("shifted", 6)):  # each imports Numba while it is pickled
        warm = script.format(functions=f"(r.{name},)")
        assert project.run(warm, backend=False, COMPCACHE_DIR=str(project.cache)) == [answer, False]


def test_what_nobody_asked_to_cache_gives_no_warning(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels="""
        import ctypes
        from numba import float64, njit, vectorize
        from numba.experimental import jitclass

        larger = ctypes.CDLL(None).labs
        larger.argtypes, larger.restype = (ctypes.c_long,), ctypes.c_long

        @jitclass([("x", float64)])
        class Pair:
            def __init__(self, x):
                self.x = x

        declared = njit("i8(i8)")(lambda i: larger(i))
        found = njit(lambda i: larger(i))
        loop = vectorize(lambda i: larger(int(i)))
        asked = njit(cache=True)(lambda i: larger(i))
        """)
    script = """
    import warnings, compcache.numba
    compcache.numba.install(lazy=True)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        import kernels
        answers = kernels.Pair(2.0).x, kernels.declared(3), kernels.found(4), int(kernels.loop(5))
        before = len(given)
        kernels.asked(6)
    result = answers, before, [str(w.message).split(" as ")[0] for w in given]
    """
    for _ in range(2):
        told = project.run(script, backend=False, COMPCACHE_DIR=str(project.cache))
        assert told == ((2.0, 3, 4, 5), 0, ['Cannot cache compiled function "<lambda>"'])


RAISES = """
    import sys, traceback
    from numba import njit

    @njit
    def checked(x):
        assert x != 9, "nine"
        if x < 0:
            raise ValueError("negative", x)
        return x + 1

    def said(x):
        try:
            return checked(x)
        except Exception as error:
            return type(error).__name__, error.args, [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]

    if __name__ == "__main__":
        print([said(-1), said(1), said(9)], "numba.core" in sys.modules)
"""


def test_ways_of_starting_a_program(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(raises=RAISES, __main__=RAISES, moved="#\n" + RAISES.replace("\n    ", "\n"))
    program = project.source / "raises.py"
    with zipfile.ZipFile(project.source / "program.pyz", "w") as archive:
        archive.write(program, "__main__.py")

    def start(*arguments: object) -> str:
        command = [sys.executable, "-W", "error::compcache.CacheWarning", *arguments]
        environment = {"COMPCACHE_DIR": str(project.cache), "PYTHONPATH": str(PACKAGE_ROOT), "PATH": ""}
        return subprocess.run(
            list(map(str, command)), env=environment, cwd=project.source, check=True, capture_output=True, text=True
        ).stdout.strip()

    run = ("-m", "compcache.numba", "run")
    for options, arguments in (
        ((), ("raises.py",)), (("-O",), ("raises.py",)), ((), ("-m", "raises")), ((), ("program.pyz",)), ((), (".",)), ((), ("moved.py",)),
        (("-X", "dev"), ("raises.py",)),
    ):
        plain = start(*options, *arguments).removesuffix(" True")
        assert start(*options, *run, *arguments).rpartition(" ")[0] == plain, (options, arguments)
        assert start(*options, *run, *arguments) == f"{plain} False", (options, arguments)


@pytest.mark.parametrize("arguments", [("--help",), ("run", "-h")])
def test_the_command_and_run_have_help(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m compcache.numba run ")


def test_programs_find_modules_as_with_python(tmp_path: Path) -> None:
    """In the same directories, also where links lead to the program, or Python adds no directory, and after a change of directory.

    The names of the program are the same, too.
    """
    project = Project(tmp_path)
    names = "print(sys.path, sys.argv, __file__, __package__)\n"
    project.write(paths=f"import os, sys\nos.chdir('/')\n{names}", __main__=f"import sys\n{names}")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "linked.py").symlink_to(project.source / "paths.py")
    with zipfile.ZipFile(project.source / "program.pyz", "w") as archive:
        archive.write(project.source / "__main__.py", "__main__.py")

    def start(*arguments: object) -> str:
        environment = {"COMPCACHE_DIR": str(project.cache), "PYTHONPATH": str(PACKAGE_ROOT)}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, env=environment, cwd=project.source, check=True, capture_output=True, text=True).stdout

    for arguments in (("paths.py",), (tmp_path / "links" / "linked.py",), ("-m", "paths"), ("program.pyz",), (project.source,)):
        for options in ((), ("-P",)):
            if options and arguments[0] == "-m":
                continue  # no module of the program is found
            assert start(*options, "-m", "compcache.numba", "run", *arguments) == start(*options, *arguments), (options, arguments)


PROBED = """
    import numba
    import numba.typed
    from numba import float64, guvectorize, njit, types, vectorize
    from numba.core.types import Integer
    from numba.extending import intrinsic

    @njit
    def f(x):
        return x

    @vectorize
    def v(x):
        return x

    @guvectorize("(n)->(n)")
    def g(x, y):
        y[:] = x

    @intrinsic
    def i(typingctx, x):
        pass

    @njit(float64(float64))
    def declared(x):
        return x
"""
PROBE = """
import probed
names = ["_mock_name", "_pytestfixturefunction", "pytestmark", "pytest_mock_example_attribute_that_shouldnt_exist"]
names += ["_repr_html_", "_ipython_display_"]
held = [value for name, value in vars(probed).items() if not name.startswith("__")]
answers = [(getattr(value, name, 7), hasattr(value, name)) for value in held for name in names]
imported = "numba.core" in sys.modules and type(sys.modules["numba.core"]).__module__ == "builtins"
for value in (probed.f, probed.v, probed.numba):
    value.pytestmark = 3
answers += [value.pytestmark for value in (probed.f, probed.v, probed.numba)]
result = answers, imported, len(held)
"""


def test_tools_that_ask_what_objects_are_import_nothing(project: Project) -> None:
    project.write(probed=PROBED)
    plain = project.run_in_fork("import sys\n" + PROBE)
    run(project, "import probed\nresult = None")
    found = run(project, PROBE)
    assert found == (plain[0], False, plain[2])


CONTAINERS = """
    from numba import njit

    @njit
    def counted(n):
        return {1: n, n: 2}

    @njit
    def listed(n):
        return [n, 2 * n], {"a": 1.5}
"""


def test_results_that_are_objects_of_numba(project: Project) -> None:
    project.write(containers=CONTAINERS)
    text = (
        "import containers as c\nanswers = dict(c.counted(3)), type(c.counted(2)).__name__, c.listed(2)[0], dict(c.listed(2)[1])\n"
        "result = answers"
    )
    plain = project.run_in_fork(text)
    assert [run(project, text) for _ in range(2)] == [plain] * 2


DISABLED = """
    import os
    import numba
    from DECORATORS import njit

    @njit
    def inner(x):
        return x * 4

    @njit
    def outer(x):
        return inner(x) + 1

    @njit("int64(int64)")
    def declared(x):
        return x * 4

    DISABLE
    told = outer(2**62), inner(2**62), declared(2**62)

    @njit
    def later(x):
        return x * 4

    told += later(2**62), later.__class__.__name__
"""


@pytest.mark.parametrize(("decorators", "disable"), [
    ("numba", "numba.config.DISABLE_JIT = True"),
    ("numba", "os.environ['NUMBA_DISABLE_JIT'] = '1'"),
    ("compcache.numba", "numba.config.DISABLE_JIT = True"),
])  # fmt: skip
def test_functions_that_were_declared_before_compilation_was_disabled_are_compiled(
    tmp_path: Path, decorators: str, disable: str
) -> None:
    project = Project(tmp_path)
    project.write(disabled=DISABLED.replace("DECORATORS", decorators).replace("DISABLE", disable, 1))
    first = INSTALL if decorators == "numba" else ""
    told = project.run(f"{first}import disabled\nresult = disabled.told", backend=False, COMPCACHE_DIR=str(project.cache))
    assert told == (1, 0, 0, 2**64, "function")


@pytest.mark.parametrize(("variables", "needs_numba"), [
    ({}, False),
    ({"NUMBA_NUM_THREADS": "1"}, False),
    ({"NUMBA_NUM_THREADS": " 2 "}, False),
    ({"NUMBA_NUM_THREADS": "many"}, True),
    ({"NUMBA_THREADING_LAYER": "OMP"}, False),
    ({"NUMBA_THREADING_LAYER": ""}, False),
    ({"NUMBA_DISABLE_JIT": "0"}, True),
    ({"NUMBA_DISABLE_JIT": "1"}, True),
])  # fmt: skip
def test_settings_that_packages_read_are_numbas(project: Project, variables: dict[str, str], needs_numba: bool) -> None:
    read = """
import sys, warnings
warnings.simplefilter("ignore")
from numba import config
from numba.core.config import NUMBA_NUM_THREADS
values = config.NUMBA_NUM_THREADS, NUMBA_NUM_THREADS, config.THREADING_LAYER, config.DISABLE_JIT
result = [(type(value).__name__, value) for value in values]
"""
    lazy = "import compcache.numba\ncompcache.numba.install('cache', lazy=True)" + read
    plain = project.run(read, backend=False, **variables)
    assert project.run(lazy + "result = result, 'numba.core.compiler' in sys.modules", backend=False, **variables) == (plain, needs_numba)


def test_settings_of_a_file_are_read_by_numba(tmp_path: Path) -> None:
    other = Project(tmp_path)
    (other.source / ".numba_config.yaml").write_text("threading_layer: workqueue\n")
    read = "from numba import config\nresult = config.THREADING_LAYER"
    plain = other.run("import warnings\nwarnings.simplefilter('ignore')\n" + read, backend=False)  # a fork has read the settings before
    lazy = "import compcache.numba\ncompcache.numba.install('cache', lazy=True)\nimport warnings\nwarnings.simplefilter('ignore')\n" + read
    assert other.run(lazy, backend=False) == plain


def test_threads_are_started_by_numba_if_a_file_has_settings(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    other = Project(tmp_path)
    (other.source / ".numba_config.yaml").write_text("num_threads: 1\n")
    read = "from compcache.numba import get_num_threads\nimport sys\nresult = get_num_threads(), 'numba.core' in sys.modules"
    assert other.run(read, backend=False) == (1, True)


@pytest.mark.parametrize("decorators", ["numba", "compcache.numba"])
def test_a_file_that_disables_compilation_leaves_plain_functions(tmp_path: Path, decorators: str) -> None:
    pytest.importorskip("yaml")
    other = Project(tmp_path)
    (other.source / ".numba_config.yaml").write_text("disable_jit: 1\n")
    text = """
        from DECORATORS import njit
        kinds = [decorate(lambda x: type(x).__name__) for decorate in (njit, njit("int64(int64)"), njit(cache=True))]
        print(*[(type(kind).__name__, kind(1)) for kind in kinds])
    """
    other.write(plain=text.replace("DECORATORS", "numba"), program=text.replace("DECORATORS", decorators))
    environment = {"PYTHONPATH": str(PACKAGE_ROOT), "COMPCACHE_DIR": str(tmp_path / "other")}
    starts = [["plain.py"], ["-m", "compcache.numba", "run", "program.py"] if decorators == "numba" else ["program.py"]]
    plain, answer = (
        subprocess.run([sys.executable, *start], env=environment, cwd=other.source, capture_output=True, text=True, check=True).stdout
        for start in starts
    )
    assert answer == plain
    assert answer.count("('function', 'int')") == 3


def test_a_start_imports_no_stand_ins_and_collects_little_garbage(project: Project) -> None:
    """Garbage is counted before the program runs. CPython 3.11 without a program collects eight times."""
    text = """
        import gc, sys
        collections = sum([generation["collections"] for generation in gc.get_stats()])
        from numba import njit

        @njit
        def scaled(x):
            return x * 3

        scaled(2.0)
        declarations = {name.rpartition(".")[2] for name in sys.modules if name.startswith("compcache.numba.declarations.")}
        print(sorted(declarations), "weakref" in sys.modules, collections < 18, "__version__" in vars(sys.modules["numba"]))
    """
    project.write(starting=text)
    answers = [command(project, "run", "starting.py").stdout for _ in range(2)]
    assert answers[1] == "['decorators', 'import_hook'] False True False\n"
