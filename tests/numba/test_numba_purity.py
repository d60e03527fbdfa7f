"""What code may use while code is generated: functions of libraries that are known to read nothing but their arguments."""

from __future__ import annotations

import colorsys
from importlib import import_module
from time import time
from types import FunctionType
from typing import Any

import pytest

pytest.importorskip("numba")

_PURE = str.split("""
    builtins.len builtins.sorted builtins.getattr builtins.print math.sin cmath.exp operator.add operator.attrgetter itertools.product
    functools.wraps functools.reduce functools.lru_cache collections.namedtuple collections.OrderedDict re.compile string.Template
    textwrap.dedent types.SimpleNamespace typing.get_args copy.deepcopy warnings.warn contextlib.contextmanager inspect.signature
    inspect.getdoc os.path.join os.path.splitext os.fspath json.loads json.dumps hashlib.sha256 fractions.Fraction io.StringIO
    ctypes.c_int ctypes.sizeof logging.getLogger threading.Lock base64.b64encode bisect.bisect colorsys.rgb_to_hls
    numpy.sum numpy.mean numpy.dtype numpy.float64 numpy.zeros numpy.ones numpy.linspace numpy.asarray numpy.iinfo numpy.finfo
    numpy.result_type numpy.can_cast numpy.issubdtype numpy.dot numpy.linalg.solve numpy.linalg.inv numpy.sort numpy.add numpy.polyfit
    numpy.broadcast_shapes numpy.stack numpy.pad numpy.unique numpy.allclose numpy.array_equal numpy.lib.stride_tricks.as_strided
    numpy.meshgrid numpy.einsum numpy.kron numpy.median numpy.percentile numpy.fft.fft numpy.ndindex numpy.vectorize
    numba.njit numba.types.float64 numba.typeof llvmlite.ir.IRBuilder
    """)
_OUTSIDE = str.split("""
    builtins.open builtins.eval builtins.input io.open io.FileIO codecs.open gzip.open bz2.open lzma.open tokenize.open fileinput.input
    linecache.getline os.environ os.getenv os.getcwd os.stat os.access os.listdir os.popen os.system os.cpu_count os.urandom os.path.exists
    os.path.abspath os.path.expandvars os.path.expanduser os.path.realpath os.path.getmtime pathlib.Path pathlib.PosixPath glob.glob
    shutil.which shutil.disk_usage tempfile.gettempdir tempfile.mkdtemp filecmp.cmp mmap.mmap zipfile.ZipFile tarfile.open pkgutil.get_data
    importlib.import_module importlib.metadata.version importlib.metadata.distribution importlib.metadata.entry_points
    importlib.resources.files importlib.machinery.SourceFileLoader importlib.util.find_spec runpy.run_path configparser.ConfigParser
    sqlite3.connect shelve.open dbm.open pickle.loads marshal.loads subprocess.run socket.gethostname urllib.request.urlopen
    platform.node getpass.getuser locale.getlocale time.time datetime.datetime random.random secrets.token_bytes uuid.uuid4
    sys.modules sys._getframe sys.getrecursionlimit sys.getswitchinterval gc.get_threshold gc.get_objects threading.active_count
    threading.stack_size signal.getsignal faulthandler.is_enabled decimal.getcontext decimal.Decimal inspect.getsource inspect.stack
    ctypes.CDLL ctypes.util.find_library hashlib.file_digest logging.config.fileConfig
    numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile numpy.memmap numpy.savez numpy.geterr numpy.getbufsize
    numpy.get_printoptions numpy.array2string numpy.random.rand numpy.random.default_rng numpy.lib.npyio.DataSource
    numba.get_num_threads numba.threading_layer numba.core.config.reload_config
    """)


def _found(path: str) -> Any:
    module, names = path, list[str]()
    while True:
        try:
            found: Any = import_module(module)
        except ImportError:
            module, _, name = module.rpartition(".")
            names.insert(0, name)
        else:
            break
    for name in names:
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", _PURE)
def test_ordinary_functions_are_known_to_be_pure(path: str) -> None:
    from compcache.numba.registered.purity import external_state_of, is_external_state

    value = _found(path)
    assert not is_external_state(value)
    assert not external_state_of(value)


@pytest.mark.parametrize("path", _OUTSIDE)
def test_what_reads_the_world_is_not(path: str) -> None:
    from compcache.numba.registered.purity import external_state_of, is_external_state

    value = _found(path)
    assert is_external_state(value) or external_state_of(value)


@pytest.mark.parametrize("value", [True, False, 0, 1, "", ()])
def test_no_constant_is_external_state(value: object) -> None:
    """A constant is one object, wherever code reads it: an overload that reads a global would be refused because of another module."""
    from compcache.numba.registered.purity import is_external_state

    assert not is_external_state(value)


@pytest.mark.parametrize(("attribute", "defaults"), [("__defaults__", (time,)), ("__kwdefaults__", {"clock": time})])
def test_defaults_are_examined(attribute: str, defaults: object) -> None:
    from compcache.numba.registered.purity import external_state_of

    function = FunctionType(colorsys.yiq_to_rgb.__code__, vars(colorsys))
    setattr(function, attribute, defaults)
    assert external_state_of(function) == "time.time"
