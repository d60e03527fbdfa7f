"""Tracks the functions that are being compiled: assigns symbols by content, and records the implementations that the compiler uses.

Numba numbers functions in the order in which a process compiles them, and puts the numbers into symbols. Therefore two processes may give
the same symbol to different code, and the linker drops one of the two definitions. Here, a symbol contains a token: a digest of everything
that determines the function, or, if this digest is in use or cannot be computed, another unique text (`_make_token`).
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
import weakref
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pickle import PicklingError
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from numba.core.dispatcher import ObjModeLiftedWith
from numba.core.extending import _Intrinsic
from numba.core.registry import cpu_target
from numba.core.types import Type

from compcache.numba.compilation.copied_objects import copied_variables
from compcache.numba.compilation.former_runs import former_attributes
from compcache.numba.fingerprints.examined import remember_during_look_up
from compcache.numba.fingerprints.fingerprint import fingerprint
from compcache.numba.fingerprints.fixed_code import CodeIdentity, record_symbol
from compcache.numba.fingerprints.former import former_function
from compcache.numba.fingerprints.history import record_code
from compcache.numba.fingerprints.implementations import digest_name, plain_function, stable_name
from compcache.numba.identity.dependencies import Dependency, dependency_of, dependency_of_generator, has_content
from compcache.numba.identity.kept_results import Result, digest_arguments, former_result, record_results
from compcache.numba.identity.key import flags_text, signature_text
from compcache.numba.identity.linked import Loop, linked_overload, take_linked
from compcache.numba.identity.settings import config_text
from compcache.numba.registered.jitclasses import reduce_type
from compcache.numba.registered.library import is_library_module, name_of_class
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compcache.numba.identity.linked import LinkedOverload

__all__ = [
    "Miss", "Scope", "compile_scope", "defer", "function_read", "has_miss", "implementation_read", "is_compiling", "look_up_scope",
    "next_unique_id", "pop_compile_seconds", "reads_former_values", "record_accepted", "record_address", "record_generator", "record_loop",
    "record_miss", "record_name", "record_run", "record_token", "record_tried", "record_type", "record_use", "reduce_to_name",
    "storing_scope", "tried_outside_scopes",
]  # fmt: skip


class Miss(NamedTuple):
    """An overload that was not found in its cache.

    Attributes:
        function: the Python function.
        args: the types of the arguments.
        store: stores the compile result before the process uses it.
    """

    function: Any
    args: tuple[Any, ...]
    store: Callable[[Any], None]


class Scope:
    """The records of a function that is being compiled.

    Attributes:
        function: the Python function.
        overload: the overload that is being compiled.
        loops: the loops that the compilation has added to ufuncs, in order.
        read: the function whose code and values the compiler reads: the function, or a copy with former values.
        is_former: whether loaded code contains the overload, so that the compiler reads former values.
        token: the token in the function's symbols.
        miss: the failed look-up that caused the compilation; None if no look-up caused it.
        symbol_count: the number of symbols that contain the token.
        tried: the user's implementations that the compiler tried, by id.
        first_dependencies: the dependency on each implementation before its first run in this compilation, by id.
        used: the results that the compiler used, by the ids of the implementations: the digests of the types, and the dependencies.
        changed: the dependencies on content that implementations got during the compilation.
        accepted: the ids of the implementations that accepted the compiler's types.
        problem: the reason why the code has no identity, or "".
        names: the digests of the names that the compiler looked up.
        generators: the functions that generated code, by id, each with the dependency on it before its first run in the compilation.
        types: the user-defined classes of Numba types for whose values code was generated.
    """

    __slots__ = (
        "accepted", "changed", "first_dependencies", "function", "generators", "is_former", "loops", "miss", "names", "overload",
        "problem", "read", "symbol_count", "token", "tried", "types", "used",
    )  # fmt: skip

    def __init__(self, function: Any, token: str, miss: Miss | None, overload: LinkedOverload, read: Any) -> None:
        self.function = function
        self.overload = overload
        self.loops: dict[Loop, None] = {}
        self.read = read
        self.is_former = False
        self.token = token
        self.miss = miss
        self.symbol_count = 0
        self.tried: dict[int, Any] = {}
        self.first_dependencies: dict[int, Dependency | None] = {}
        self.used: dict[int, dict[tuple[str, Dependency | None], None]] = {}
        self.changed: set[Dependency] = set()
        self.accepted: set[int] = set()
        self.problem = ""
        self.names: set[int] = set()
        self.generators: dict[int, tuple[Any, Dependency | None]] = {}
        self.types: dict[type, None] = {}


class _ThreadState(threading.local):
    """The state of one thread: running compilations, look-ups and stores, deferred actions, and the CPU time of compilations."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.deferred: list[Callable[[], None]] = []
        self.misses: list[Miss | None] = []
        self.running_stores = 0
        self.clock_start = self.compile_seconds = 0.0


_state = _ThreadState()
#: The tokens in symbols of this process. A second definition of a symbol would clash with the first.
_used_tokens: set[str] = set()
#: Implementations that a compilation outside all scopes has tried. Such a compilation was running when the backend was installed.
tried_outside_scopes: dict[int, Any] = {}


@contextmanager
def compile_scope(function: Any, dispatcher: Any, args: Any, return_type: Any, flags: Any, extra: str) -> Iterator[Scope]:
    """Provide the scope of a function during its compilation.

    See `linked_overload` for `dispatcher`, and `_make_token` for the other arguments. The names that the compilation records are added to
    the scope of the caller. After the outermost compilation, the actions from `defer` run; if it failed, after the next that succeeds.
    """
    overload = linked_overload(function, dispatcher, args)
    is_former = take_linked(overload)
    read = _copy_with_former_values(function, {}) if is_former else function
    scope = Scope(function, _make_token(read, function, args, return_type, flags, extra), _pop_miss(function, args), overload, read)
    scope.is_former = is_former
    if not _state.scopes:
        _state.clock_start, _state.compile_seconds = time.thread_time(), 0.0
    _state.scopes.append(scope)
    try:
        yield scope
    finally:
        _state.compile_seconds += _restart_clock()
        _state.scopes.pop()
        if _state.scopes:
            _state.scopes[-1].names |= scope.names
    if not _state.scopes:
        while _state.deferred:
            _state.deferred.pop()()


def _restart_clock() -> float:
    """Restart the measurement of this thread's CPU time, and return the seconds since the previous start."""
    start, _state.clock_start = _state.clock_start, time.thread_time()
    return _state.clock_start - start


def pop_compile_seconds() -> float:
    """Return the CPU time of this thread's compilations in seconds, and set it to 0.

    The measurement starts with the outermost compilation, or with the previous call during this compilation.
    """
    if _state.scopes:
        _state.compile_seconds += _restart_clock()
    seconds, _state.compile_seconds = _state.compile_seconds, 0.0
    return seconds


@contextmanager
def look_up_scope() -> Iterator[None]:
    """Mark the look-up of an overload, including the compilation of an overload that is not found."""
    _state.misses.append(None)
    try:
        with remember_during_look_up():
            yield
    finally:
        _state.misses.pop()


def record_miss(miss: Miss) -> None:
    """Record that this thread's running look-up found no overload. Do nothing if this thread looks up no overload."""
    if _state.misses:
        _state.misses[-1] = miss


def _pop_miss(function: Any, args: Any) -> Miss | None:
    """Return the failed look-up that caused this compilation, and forget it; None if no look-up caused the compilation."""
    miss = _state.misses[-1] if _state.misses else None
    if miss is None or miss.function is not function or miss.args != tuple(args):
        return None
    _state.misses[-1] = None
    return miss


@contextmanager
def storing_scope() -> Iterator[None]:
    """Mark the creation of an entry from a compile result."""
    _state.running_stores += 1
    try:
        yield
    finally:
        _state.running_stores -= 1


def reduce_to_name(value: Any) -> Any:
    """Return how Numba's pickler must pickle a class, an intrinsic or a jitclass's type by name, in code and in entries.

    Numba also pickles blocks in object mode. The running compilations are not cached if such a block would contain copies of objects.

    Returns:
        The function and the arguments that look up the name; NotImplemented for a class that the pickler must look up by name itself. None
        for any other value, which Numba pickles in its own way, or if this thread neither compiles nor stores a function.
    Raises:
        PicklingError: an entry would contain a jitclass that has no name.
    """
    if not (_state.scopes or _state.running_stores):
        return None
    if isinstance(value, ObjModeLiftedWith):
        for name in copied_variables(value):
            _record_problem(f"a block in object mode reads {name!r}, of which another process would read a copy: use a global instead")
    if isinstance(value, type):
        return _reduce_class(value)
    if isinstance(value, Type):
        return _reduce_type(value)
    return _reduce_intrinsic(value) if isinstance(value, _Intrinsic) else None


def _reduce_class(cls: type) -> Any:
    """Implement `reduce_to_name` for classes.

    Numba would pickle a copy of a class that the main program defines, or that its module contains under another name. Another process
    would then raise or return the copy instead of its own class.
    """
    if is_library_module(cls.__module__):
        return None
    name = name_of_class(cls)
    if name is not None and name != cls.__qualname__:
        return getattr, (sys.modules[cls.__module__], name)
    return NotImplemented if name is not None and cls.__module__ == "__main__" else None


def _reduce_type(type_: Type) -> Any:
    """Implement `reduce_to_name` for types.

    Raise `PicklingError` if an entry would contain a jitclass that has no name. The compilation of such code goes on; it is not cached.
    """
    try:
        return reduce_type(type_)
    except PicklingError as error:
        if _state.running_stores:
            raise
        _record_problem(str(error))
        return None


def _reduce_intrinsic(intrinsic: Any) -> Any:
    """Implement `reduce_to_name` for intrinsics.

    The result is None for an intrinsic that its module does not define under its name. Numba would pickle a copy of an intrinsic in
    function arguments, and register the copy on unpickling. A process that loads the entry would have two intrinsics with the same name.
    Then all other functions that use the intrinsic would appear to have changed.
    """
    module, name = sys.modules.get(intrinsic.__module__), intrinsic.__name__
    return (getattr, (module, name)) if getattr(module, name, None) is intrinsic else None


def has_miss(token: object) -> bool:
    """Return whether the innermost compilation has this token and was caused by a failed look-up."""
    scope = _state.scopes[-1] if _state.scopes else None
    return scope is not None and scope.miss is not None and scope.token == token


def is_compiling() -> bool:
    """Return whether this thread is compiling a function."""
    return bool(_state.scopes)


def defer(action: Callable[[], None]) -> bool:
    """Schedule an action to run after the outermost compilation of this thread, the last action first. See `compile_scope` for failures.

    Return whether the action was scheduled. The result is False if this thread is not compiling a function.
    """
    if not _state.scopes:
        return False
    _state.deferred.append(action)
    return True


def _make_token(function: Any, original: Any, args: Any, return_type: Any, flags: Any, extra: str) -> str:
    """Return the token for the symbols of a function that is being compiled, and record that the token is used.

    The token is a digest of everything that determines the function. If this digest is in use, the token is a digest of it and of the
    caller's token. If no digest can be computed, or the digests are in use, the token is random.
    `function` is the function that the compiler reads, `original` the program's function. `extra` has further inputs of the compiler.
    """
    try:
        function_content = fingerprint(function)
        part = function_content.parts[0]
        record_code([type(part)(original, part.digest, part.kind, callees=part.callees)])
        components = [
            function_content.content,
            signature_text(args),
            "" if return_type is None else signature_text((return_type,)),
            flags_text(flags),
            config_text(),
            extra,
        ]
    except Unidentifiable:
        token = uuid.uuid4().hex
        record_symbol(token, None)
        return token
    token = content = _digest(*components)
    if token in _used_tokens and _state.scopes:
        token = _digest(token, _state.scopes[-1].token)  # Numba compiles some of its own functions once per caller
    if token in _used_tokens:
        token = uuid.uuid4().hex
    else:
        _used_tokens.add(token)
    record_symbol(token, CodeIdentity(content, function_content.lines))
    return token


def _digest(*components: str) -> str:
    """Return a token: the digest of components that contain no NUL."""
    return blake2b("\0".join(components).encode(), digest_size=10, person=b"compcache-numba3").hexdigest()


def record_token(token: str) -> None:
    """Record the token of loaded code, so that no compilation uses the token."""
    _used_tokens.add(token)


def _copy_with_former_values(function: Any, copies: dict[Any, Any]) -> Any:
    """Return the result of `former_function`, and give copies of functions that compiled code may call the types of these functions."""
    copy = former_function(function, copies)
    context = cpu_target.typing_context
    context.refresh()
    for original, copied in copies.items():
        known = None if copied is original else context._lookup_global(original)
        if known is not None:
            context.insert_global(copied, known)
    return copy


def next_unique_id(function: Any) -> tuple[str, Any]:
    """Return a unique id for the symbols of a function that Numba is about to compile, and the function that the compiler must read.

    The innermost compilation's own function gets the token. Each further id, for example that of an inlined function, is the token with a
    number. Outside all scopes, ids are random.
    """
    if not _state.scopes:
        return uuid.uuid4().hex, function
    scope = _state.scopes[-1]
    if function is scope.function and not scope.symbol_count:
        scope.symbol_count = 1
        return scope.token, scope.read
    scope.symbol_count += 1
    read = _copy_with_former_values(function, {}) if scope.is_former else function
    return f"{scope.token}x{scope.symbol_count}", read


def function_read(function: Any) -> Any:
    """Return what the innermost compilation of a function reads: the function itself, or a copy with former values."""
    return next((scope.read for scope in reversed(_state.scopes) if scope.function is function), function)


class Run(NamedTuple):
    """A run of an implementation.

    Attributes:
        dependency: the dependency before the run; None if the implementation could not be identified.
        arguments: the digest of the types, from `digest_arguments`; "" if they have no digest, or if Numba does not keep the result.
        compilation: the token of the outermost compilation in which the implementation ran; "" if it ran with former values.
    """

    dependency: Dependency | None
    arguments: str
    compilation: str


#: The runs whose results the templates have kept, by the keys of the results.
_runs: weakref.WeakKeyDictionary[type, dict[Any, Run]] = weakref.WeakKeyDictionary()


def record_tried(function: Any) -> bool:
    """Record in all running compilations that the compiler tries one of the user's implementations. Return whether any is running."""
    if not _state.scopes:
        tried_outside_scopes[id(function)] = function
    for scope in _state.scopes:
        scope.tried[id(function)] = function
    return bool(_state.scopes)


def record_run(function: Any) -> None:
    """Record that one of the user's implementations is about to run, and that Numba does not keep its result."""
    if record_tried(function):
        _record_use_of_run(function, _begin_run(function, ""))


def record_use(function: Any, template: type, key: tuple[Any, ...], *, is_kept: bool) -> Any:
    """Record that the compiler uses the result of one of the user's implementations for some types.

    If loaded code contains a result for these types that was computed from other values, return copies, by their functions, that read the
    former values: of the implementation, and of functions to which the implementation refers. The caller must run the implementation's copy
    (`former_runs`). Otherwise return None. The running compilations are not cached if the copy does not have the former content, or if
    Numba has kept the result of a run that was not recorded.

    Args:
        function: the implementation.
        template: the template that keeps the result.
        key: the key under which the template keeps the result: the typing context, the types, and for overloads the compiler's flags.
        is_kept: whether the template has kept the result. Otherwise the implementation is about to run.
    """
    if not record_tried(function):
        return None
    copies: dict[Any, Any] | None = None
    runs = _runs.setdefault(template, {})
    if not is_kept:
        arguments = digest_arguments(function, *key[1:])
        run, former = _begin_run(function, arguments), former_result(function, arguments)
        if former is not None and former != run.dependency:
            copies = {}
            copy = copies.setdefault(function, _copy_with_former_values(function, copies))
            with former_attributes(function, copies):
                is_former = has_content(former, function, copy)
            if is_former:
                run = run._replace(dependency=former, compilation="")
            else:
                _record_problem(f"{stable_name(function)} has changed since loaded code used it: do not change the values that it reads")
        runs[key] = run
        if run.dependency is not None:
            record_results([Result(run.dependency, run.arguments)])
        _record_use_of_run(function, run)
    elif key in runs:
        _record_use_of_run(function, runs[key])
    else:
        _record_problem(f"{stable_name(function)} was run before compilations were recorded: install compcache.numba first")
    return copies


def _record_problem(problem: str) -> None:
    """Record why the code of all running compilations has no identity."""
    for scope in _state.scopes:
        scope.problem = problem


def _begin_run(function: Any, arguments: str) -> Run:
    """Return the run of an implementation that starts now, with the dependency before its first run in the innermost compilation."""
    first_dependencies = _state.scopes[-1].first_dependencies
    known = id(function) in first_dependencies
    return Run(first_dependencies[id(function)] if known else _present_dependency(function), arguments, compilation=_state.scopes[0].token)


def _record_use_of_run(function: Any, run: Run) -> None:
    """Record in all running compilations that they use the result of a run.

    Implementations may change themselves. To repeat a compilation, a process needs the content before the first run in the compilation.
    """
    for scope in _state.scopes:
        dependency = run.dependency
        if run.compilation == _state.scopes[0].token:
            dependency = scope.first_dependencies.setdefault(id(function), dependency)
        if run.dependency is not None and run.dependency != dependency:
            scope.changed.add(run.dependency)
        scope.used.setdefault(id(function), {})[run.arguments, dependency] = None


def _present_dependency(function: Any) -> Dependency | None:
    """Return the dependency on an implementation with its present content, or None if the implementation cannot be identified.

    This is called before a run, because runs may store values that they create, and processes look up the entry before any run. The
    implementation may decline the types, so values that it reads as members of objects need no identity yet.
    """
    try:
        return dependency_of(function, declined=True)
    except Unidentifiable:
        return None


def record_accepted(function: Any) -> None:
    """Record in all running compilations of this thread that one of the user's implementations accepted the compiler's types."""
    for scope in _state.scopes:
        scope.accepted.add(id(function))


def record_address(generator: str) -> None:
    """Record that the user's code generator with this name puts an address of this process into the innermost compilation's code."""
    if _state.scopes:
        _state.scopes[-1].problem = f"the code generator {generator} puts an address of this process into the code"


def record_loop(dispatcher: Any, types: str) -> None:
    """Record in all running compilations of this thread that the compiler uses a loop of a ufunc, which it adds if the ufunc lacks it.

    `types` are the types of the operands, as in `Loop`, or "" if they have no text. Then the compilations are not cached.
    """
    if not types and _state.scopes:
        name = stable_name(dispatcher.py_func)
        _record_problem(f"the function adds a loop to the ufunc {name} for types that have no text: declare the signatures of the ufunc")
    for scope in _state.scopes:
        scope.loops[Loop(weakref.ref(dispatcher), types)] = None


def record_name(name: str) -> None:
    """Record that the innermost compilation of this thread looks up implementations of this name."""
    if _state.scopes:
        _state.scopes[-1].names.add(digest_name(name))


def record_generator(implementation: Any) -> Any:
    """Record that an implementation generates code for the innermost compilation of this thread, and return what must generate the code.

    See `implementation_read` for what that is.
    """
    if not _state.scopes:
        return implementation
    scope = _state.scopes[-1]
    if id(implementation) not in scope.generators:
        dependency = None
        with suppress(Unidentifiable):  # the end of the compilation raises the error again
            dependency = dependency_of_generator(implementation)
        scope.generators[id(implementation)] = implementation, dependency
    if not scope.is_former or type(implementation) is not FunctionType:
        return implementation
    # An intrinsic defines its code generator. The values that the intrinsic reads are those that were kept.
    functions = [function for function in map(plain_function, scope.tried.values()) if function is not None]
    owner = next((function for function in functions if implementation.__code__ in function.__code__.co_consts), implementation)
    copy = implementation_read(owner)
    if copy is owner or owner is implementation:
        return implementation if copy is owner else copy
    values = implementation.__name__, implementation.__defaults__, implementation.__closure__
    return FunctionType(implementation.__code__, copy.__globals__, *values)


def reads_former_values() -> bool:
    """Return whether the innermost compilation of this thread reads former values, because loaded code contains the overload."""
    return bool(_state.scopes) and _state.scopes[-1].is_former


def implementation_read(function: Any) -> Any:
    """Return what the innermost compilation of this thread runs of an implementation whose results Numba does not keep.

    For an overload in loaded code, this is a copy that reads former values if a value has changed. Then the running compilations are not
    cached.
    """
    if not reads_former_values():
        return function
    copy = _copy_with_former_values(function, {})
    if copy is not function:
        _record_problem(f"{stable_name(function)} has changed since loaded code used it: do not change the values that it reads")
    return copy


def record_type(cls: type) -> None:
    """Record in all running compilations of this thread that code is generated for values of a user-defined class of Numba types."""
    for scope in _state.scopes:
        scope.types[cls] = None
