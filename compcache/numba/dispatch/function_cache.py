"""Defines the cache object of a function, a ufunc or a callback, which loads and stores compile results by signature."""

from __future__ import annotations

import functools
import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from numba.core import compiler, sigutils, typing
from numba.core.targetconfig import ConfigStack
from numba.experimental import function_type  # noqa: F401 - Numba registers the types of callbacks before it compiles

from compcache import frontend
from compcache.errors import CompcacheError
from compcache.interrupts import reraise_interrupt, suppress
from compcache.numba.compilation import libraries, scopes
from compcache.numba.dispatch.cache_object import CacheObject
from compcache.numba.entries import load, starts
from compcache.numba.entries.names import make_func_name, make_label
from compcache.numba.fingerprints import history
from compcache.numba.fingerprints.content import find_old_code
from compcache.numba.fingerprints.fixed_code import CodeIdentity, record_compiled, unknown_code_reason
from compcache.numba.fingerprints.numba_values import name_of_pipeline
from compcache.numba.identity.dependencies import functions_compiled_for
from compcache.numba.identity.kept_results import record_results_in
from compcache.numba.identity.key import Identity, flags_text, identify, type_text
from compcache.numba.identity.linked import decode_linked, is_linked, linked_overload, record_linked
from compcache.numba.lazy.entries import Key, find_record
from compcache.numba.lazy.garbage import few_collections
from compcache.numba.registered.options import compiler_options, declared_locals
from compcache.numba.registered.refusals import NotLazy, Unidentifiable, examines_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compcache.numba.dispatch import Backend
    from compcache.numba.fingerprints.history import Functions

__all__ = ["FunctionCache"]


class FunctionCache(CacheObject):
    """The cache object of one function.

    Args:
        backend, owner, function, is_requested, fallback: as in `CacheObject`.
        explains_starts: whether to record why later processes must import Numba for the function.
        pinned: the entries of overloads that ran without Numba, each by its argument types: the name, the lines and, if known, the
            implementations (`Record.entry_fields`), and the functions in the code.
    """

    def __init__(
        self, backend: Backend, owner: Any, function: Any, *, is_requested: bool = True, fallback: Any = None,
        explains_starts: bool = False, pinned: Mapping[Any, tuple[Sequence[str], Functions]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(backend, owner, function, is_requested=is_requested, fallback=fallback)
        self._stored_early: dict[Any, bool] = {}
        self._explains_starts = explains_starts
        self._pinned = pinned or {}
        self._keys: dict[Any, Key | NotLazy | None] = {}

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored compile result for a signature, or None if Numba must compile it.

        Count a hit or a miss, unless caching is off, the overload ran without Numba or was flushed, a package's locator names the entries,
        or the result is from the fallback cache.
        """
        parsed = _parse_signature(sig)
        if getattr(self._owner, "_compiler", None) is None and (self._enabled or self._pinned):
            target_context.typing_context.refresh()  # first, as before a compilation, for the same order of templates
            target_context.refresh()  # a ufunc compiles its wrapper even if the function is found
        pinned = self._pinned.get(_argument_types(parsed))
        cres = self._load_former(*pinned, parsed, target_context) if pinned is not None else None
        if cres is not None or not self._enabled:
            return cres
        if self._has_own_locator:
            return self._fallback.load_overload(sig, target_context)
        self._read_descriptions()
        identity = self._identify(parsed, target_context)
        if isinstance(identity, Identity):
            return self._load_identified(identity, parsed, target_context)
        if self._is_linked(parsed):
            self._backend.count(hit=False)
            return None
        return self._load_delegated(sig, target_context, identity)

    def _is_linked(self, sig: Any) -> bool:
        """Return whether loaded code contains the overload. That code has the former values of variables that have changed since."""
        return is_linked(linked_overload(self._function, self._owner, _argument_types(sig)))

    def _load_identified(self, identity: Identity, sig: Any, target_context: Any) -> Any:
        """Return the stored compile result for an identity.

        Return None if there is none, if the identity was flushed, or if this process has former code of a callee. Count a hit or a miss,
        unless the identity was flushed, or the result is from the fallback cache.
        """
        if identity.key in self._flushed:
            return None
        # Numba would link code that this process has compiled or loaded earlier.
        reason = find_old_code(identity.parts, 0 if self._is_linked(sig) else 1) or unknown_code_reason(identity.parts[1:])
        entry_fields, functions = (make_func_name(identity, sig), identity.lines), history.named_functions(identity.parts)
        cres = self._load(entry_fields, functions, sig, target_context) if not reason else None
        if cres is not None:
            self._record_loaded(identity, sig, cres)
        elif self._was_delegated(identity, sig):
            return self._load_delegated(sig, target_context)
        else:
            self._record_not_found(identity, sig)
        return cres

    def _load_former(self, entry_fields: Sequence[str], functions: Functions, sig: Any, target_context: Any) -> Any:
        """Return the compile result of an entry whose code this process has already, or None as in `_load`.

        Globals may have changed since that code was loaded. See `load_result` for `entry_fields` and `functions`.
        """
        cres = self._load(entry_fields, functions, sig, target_context)
        if cres is not None:
            record_compiled(self._owner, _argument_types(sig), CodeIdentity(entry_fields[0].rpartition("-")[2], entry_fields[1]))
        return cres

    def _read_descriptions(self) -> None:
        """Record the overloads and results in the descriptions of code that this process has loaded without Numba."""
        for record, functions in history.take_unread():
            entry = load.find_entry(self._cache, *record.entry_fields)
            if entry is not None:
                record_linked(decode_linked(entry[1], functions))
                record_results_in(entry[1])

    def _record_loaded(self, identity: Identity, sig: Any, cres: Any) -> None:
        """Count a hit, print Numba's messages, and record the code, its identity, and what is linked into it.

        Also record the overload for starts without Numba, if no record of it is stored. Ignore failures to store this record.
        """
        self._backend.count(hit=True)
        self._log("loaded from", make_func_name(identity, sig))
        recorded = libraries.collect_dependencies(cres.library)
        history.record_code([*identity.parts, *functions_compiled_for(recorded.dependencies)])  # loaded code contains that of its callees
        record_linked(recorded.linked)
        self._record_compiled(sig, identity)
        if self._explains_starts:
            self._record_start(sig, self._make_start_key(sig), is_new=False)

    def _record_not_found(self, identity: Identity, sig: Any) -> None:
        """Count a miss, import the modules that store overloads, and arrange that the overload is stored once Numba has compiled it."""
        self._keys[_signature_key(sig)] = self._make_start_key(sig)
        self._backend.count_miss(make_func_name(identity, sig))
        _import_storing_modules()
        scopes.record_miss(scopes.Miss(self._function, _argument_types(sig), partial(self._store_early, sig)))

    def _load(self, entry_fields: Sequence[str], functions: Functions, sig: Any, target_context: Any) -> Any:
        """Return the compile result of an entry, or None as in `load_result`. If loading fails, record the reason and return None."""
        args = _argument_types(sig)
        loading = partial(load.load_result, self._cache, entry_fields, lambda _: args, self._owner, target_context, functions)
        return self._backend.load_or_record(make_label(self._full_name(), sig), loading)

    def _store_early(self, sig: Any, cres: Any) -> None:
        """Store a compile result before the process uses it, so that the process can run the stored code."""
        self._stored_early[_signature_key(sig)] = self._enabled and self._save(sig, cres)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compile result for a signature, record why it is not cached, or delegate it to the fallback cache.

        Do nothing if caching is off.
        """
        if not self._enabled:
            return
        is_stored = False
        if not self._has_own_locator:
            parsed = _parse_signature(sig)
            stored_early = self._stored_early.pop(_signature_key(parsed), None)
            is_stored = self._save(parsed, data) if stored_early is None else stored_early
        if not is_stored:
            self._fallback.save_overload(sig, data)

    def _save(self, sig: Any, data: Any) -> bool:
        """Store a compile result, or record why it is not cached. Return False if the fallback cache must store the result, else True."""
        from compcache.numba.entries import save

        seconds = scopes.pop_compile_seconds()
        identity = self._identities.get(_signature_key(sig)) or self._identify(sig, data.target_context)
        reason = save.numba_refusal_reason(data)
        if reason:
            self._record_uncached_result(sig, reason, seconds)
            self._warn_uncached(reason)
            return True
        if isinstance(identity, Unidentifiable):
            self._record_uncached_result(sig, str(identity), seconds)
            return not self._may_delegate(identity)
        is_stored = self._store(sig, data, identity, seconds)
        if not scopes.is_compiling():  # one file for all functions of a compilation
            with suppress(CompcacheError):  # the exit of the process tries again, and issues a warning
                frontend.write_entries(self._cache)
        return is_stored

    def _store(self, sig: Any, data: Any, identity: Identity, seconds: float) -> bool:
        """Store a compile result under its identity, or record why it is not cached. Numba compiled for `seconds` of CPU time.

        Return False if the result must be delegated to the fallback cache; True otherwise.
        """
        from compcache.numba.entries import save

        reason = self._old_code_reason(identity)
        if reason:
            self._record_uncached_result(sig, reason, seconds)
            return True  # an entry would give other processes code that was compiled with other values
        self._record_compiled(sig, identity)
        name = make_func_name(identity, sig)
        try:
            save.save_result(self._cache, identity, name, data, self._backend.targets, seconds)
            self._record_stored(identity, sig, name)
            self._record_start(sig, self._keys.pop(_signature_key(sig), None))
        except save.NotYetCacheable as error:
            if not scopes.defer(partial(self._store_deferred, sig, data, identity, seconds)):
                self._record_uncached_result(sig, str(error), seconds)
        except save.NotCacheable as error:
            self._record_uncached_result(sig, str(error), seconds)
            if self._may_delegate(error.__cause__):
                self._mark_as_delegated(identity, sig)
                return False
        except Exception as error:  # noqa: BLE001 - the function works, so a failure to store it must not fail the call
            reraise_interrupt(error)
            self._backend.warn_not_stored(self._full_name(), error)
        return True

    def _make_start_key(self, sig: Any) -> Key | NotLazy | None:
        """Compute the present key for processes without Numba.

        Return the key; the error that says why there is no key; or None for an overload that no process looks up by such a key.
        """
        if getattr(self._owner, "_compiler", None) is None or hasattr(sig, "return_type") or not getattr(self._owner, "_can_compile", True):
            return None
        try:
            options = compiler_options(self._owner.targetoptions, self._owner.locals)
            return starts.make_start_key(self._function, options, _argument_types(sig))
        except NotLazy as error:
            return error.without_traceback()

    def _record_start(self, sig: Any, key: Key | NotLazy | None, *, is_new: bool = True) -> None:
        """Record an overload for starts without Numba. If they need Numba, record the reason, which `key` or a later step gives.

        Nothing is recorded if `key` is None, if the compilation has changed it, or if an overload that was loaded (not `is_new`) has a
        record. A failure for such an overload is ignored. Raise `CompcacheError` if the record of a new overload could not be stored.
        """
        if isinstance(key, NotLazy):
            self._record_start_reason(sig, key)
        if not isinstance(key, Key) or (not is_new and find_record(self._cache, key) is not None):
            return
        current = self._make_start_key(sig) if is_new else key
        if not isinstance(current, Key) or current.name != key.name:
            return
        try:
            starts.record_start(self, self._cache, sig, key)
        except NotLazy as error:
            self._record_start_reason(sig, error)
        except CompcacheError:
            if is_new:
                raise
            # The loaded overload works, and the next start imports Numba for it, as this start did.

    def _record_start_reason(self, sig: Any, reason: NotLazy) -> None:
        """Record for `compcache explain` why later processes import Numba for an overload, unless the code was refused."""
        label = make_label(self._full_name(), sig)
        if self._explains_starts and label not in self._backend.refused:
            frontend.note_uncached(self._cache, label, f"was compiled, but later processes import Numba to use it: {reason}")

    def _store_deferred(self, sig: Any, data: Any, identity: Identity, seconds: float) -> None:
        """Store a compile result after the outermost compilation, or delegate it to the fallback cache."""
        if not self._store(sig, data, identity, seconds):
            self._fallback.save_overload(sig, data)

    def _record_uncached_result(self, sig: Any, reason: str, seconds: float) -> None:
        """Record why a compile result is not cached, and count the compilation."""
        self._record_reason(sig, reason)
        frontend.count_compilation(self._cache, make_label(self._full_name(), sig), seconds)

    def _load_delegated(self, sig: Any, target_context: Any, refusal: Unidentifiable | None = None) -> Any:
        """Return the compile result from the fallback cache. If there is none, count a miss and return None.

        `refusal` is the reason why the function has no identity; None if the overload is marked as delegated.
        """
        cres = self._fallback.load_overload(sig, target_context) if self._may_delegate(refusal) else None
        if cres is None:
            self._backend.count_miss(make_label(self._full_name(), _parse_signature(sig)), refused=True)
        return cres

    def _record_compiled(self, sig: Any, identity: Identity) -> None:
        """Record for the dispatcher which identity an overload was compiled with."""
        record_compiled(self._owner, _argument_types(sig), CodeIdentity(identity.key, identity.lines))

    def _identify(self, sig: Any, target_context: Any) -> Identity | Unidentifiable:
        """Return the present identity of the function for a signature, or the error that says why there is none. Keep the result."""
        identity: Identity | Unidentifiable
        try:
            identity = identify(
                self._function, sig=sig, flags=flags_text(self._compiler_flags()), extra=self._further_components(),
                codegen=target_context.codegen(),
            )  # fmt: skip
        except Unidentifiable as error:
            identity = error.without_traceback()
        self._identities[_signature_key(sig)] = identity
        return identity

    def inherits_options(self, identity: Identity) -> bool:
        """Return whether the code with this identity was compiled with flags of a caller that differ from the function's own flags.

        Raise `Unidentifiable` if an option has no identity by content.
        """
        if getattr(self._owner, "_compiler", None) is None:
            return False
        stack = ConfigStack()._stk  # without the flags of callers on it, `_compiler_flags` returns the function's own flags
        callers = [stack.pop() for _ in range(len(stack))]
        try:
            return identity.components["flags"] != flags_text(self._compiler_flags())
        finally:
            for flags in reversed(callers):
                stack.push(flags)

    @examines_program(Unidentifiable)
    def _compiler_flags(self) -> Any:
        """Return the function's own compiler flags, or the flags that a ufunc has pushed.

        Raise `Unidentifiable` if an option of the program raised an error.
        """
        compiler_ = getattr(self._owner, "_compiler", None)
        if compiler_ is None:  # a ufunc has pushed its flags already
            return ConfigStack.top_or_none()
        flags = compiler.Flags()
        # Numba modifies dictionaries while it reads them, so they are copied.
        options = {name: dict(value) if issubclass(type(value), dict) else value for name, value in compiler_.targetoptions.items()}
        compiler_.targetdescr.options.parse_as_flags(flags, options)
        return compiler_._customize_flags(flags)

    @examines_program(Unidentifiable)
    def _further_components(self) -> dict[str, str]:
        """Return the key's components for the kind of the function, the compiler pipeline, and the declared types of variables.

        Raise `Unidentifiable` if the compiler pipeline is not one of Numba's pipelines, or a declared type has no identity by content.
        """
        compiler_ = getattr(self._owner, "_compiler", None)
        types_of_locals = declared_locals(getattr(compiler_, "locals", None) or getattr(self._owner, "locals", None))
        _, pipeline = name_of_pipeline(self._owner) or ("", compiler.Compiler.__qualname__)
        return {
            "kind": type(self._owner).__name__,
            "pipeline": pipeline,
            "locals": ", ".join(f"{name}: {type_text(type_)}" for name, type_ in sorted(types_of_locals.items())),
        }


@functools.cache
def _import_storing_modules() -> None:
    """Import the modules that only misses use. The modules live as long as the process."""
    with few_collections(lasting=True):
        importlib.import_module("compcache.numba.entries.save")
        importlib.import_module("compcache.linker")


def _parse_signature(sig: Any) -> Any:
    """Return a signature, parsed if it is text: Numba's signature object, or a tuple of argument types."""
    if not isinstance(sig, str):
        return sig
    args, result = sigutils.normalize_signature(sig)
    return args if result is None else typing.signature(result, *args)


def _argument_types(sig: Any) -> tuple[Any, ...]:
    """Return the argument types of a signature. A sequence of types is also accepted."""
    return tuple(getattr(sig, "args", sig))


def _signature_key(sig: Any) -> Any:
    """Return a hashable key for a signature or a tuple of argument types."""
    return (sig.args, sig.return_type) if hasattr(sig, "return_type") else tuple(sig)
