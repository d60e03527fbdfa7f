"""The cache of a function, a ufunc or a callback: compile results by signature."""

from __future__ import annotations

import contextlib
import functools
import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from numba.core import compiler, sigutils, typing
from numba.core.targetconfig import ConfigStack

from compcache import frontend
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.numba.compilation import scopes
from compcache.numba.dispatch.cache_object import CacheObject
from compcache.numba.entries import load, starts
from compcache.numba.entries.names import func_name_of, label_of
from compcache.numba.fingerprints import history
from compcache.numba.fingerprints.fixed_code import Compiled, note_compiled
from compcache.numba.fingerprints.numba_values import declared_locals
from compcache.numba.identity.key import Identity, flags_text, identify, type_text
from compcache.numba.lazy.entries import Key
from compcache.numba.lazy.garbage import few_collections
from compcache.numba.registered.options import of_compiler
from compcache.numba.registered.refusals import NotLazy, Unidentifiable, looks_at_programs

if TYPE_CHECKING:
    from compcache.numba.dispatch.backend import Backend

__all__ = ["FunctionCache"]


class FunctionCache(CacheObject):
    """The cache of one function: compile results by signature."""

    def __init__(
        self, backend: Backend, owner: Any, function: Any, *, is_asked_for: bool = True, other: Any = None, tells_starts: bool = False
    ) -> None:
        """`tells_starts`: the program starts without Numba if possible, so record what prevents that."""
        super().__init__(backend, owner, function, is_asked_for=is_asked_for, other=other)
        self._kept: dict[Any, bool] = {}
        self._tells_starts = tells_starts
        self._keys: dict[Any, Key | NotLazy | None] = {}

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored compile result for a signature, or None."""
        if not self._enabled:
            return None
        if self._is_anothers:
            return self._load_other(sig, target_context)
        asked, sig = sig, _parsed(sig)
        if getattr(self._owner, "_compiler", None) is None:
            target_context.refresh()  # a ufunc compiles its wrapper now, on a hit too
        identity = self._identify(sig, target_context)
        if not isinstance(identity, Identity):
            return self._count(sig, self._load_other(asked, target_context) if self._may_leave(identity) else None)
        if identity.key in self._flushed:
            return None
        cres = self._load(identity, sig, target_context)
        if cres is None and self._was_left(identity, sig):
            return self._count(sig, self._load_other(asked, target_context))
        if cres is not None:
            self._backend.count(hit=True)
            self._log("loaded from", func_name_of(identity, sig))
            history.note_code(identity.parts)  # the loaded code contains that of its callees
            self._note_compiled(sig, identity)
            if self._tells_starts:
                self._record(sig, self._start_key(sig), is_new=False)
        else:
            self._keys[_sig_key(sig)] = self._start_key(sig)
            self._backend.miss(func_name_of(identity, sig))
            _import_what_stores()
            scopes.missed(scopes.Miss(self._function, _args_of(sig), partial(self._keep, sig)))
        return cres

    def _load(self, identity: Identity, sig: Any, target_context: Any) -> Any:
        if history.has_old_code(identity.parts[1:]):
            return None  # Numba would link the code that this process has compiled
        try:
            name = func_name_of(identity, sig)
            return load.load_result(self._cache, name, identity.lines, _args_of(sig), self._function, target_context)
        except Exception as error:  # noqa: BLE001 - the entry refers to a name that is gone: a miss
            reraise_interrupt(error)
            self._note(sig, f"its entry cannot be loaded: {type(error).__name__}: {error}")
            return None

    def _keep(self, sig: Any, cres: Any) -> None:
        """Store a compile result before the process uses it, so that the process can use the stored form."""
        self._kept[_sig_key(sig)] = self._enabled and self._save(sig, cres)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compile result for a signature if it can be cached; otherwise leave it to the other cache."""
        if not self._enabled:
            return
        is_stored = False
        if not self._is_anothers:
            parsed = _parsed(sig)
            kept = self._kept.pop(_sig_key(parsed), None)
            is_stored = self._save(parsed, data) if kept is None else kept
        if not is_stored:
            self._other.save_overload(sig, data)

    def _save(self, sig: Any, data: Any) -> bool:
        """Store a compile result; return False if it is left to the other cache."""
        from compcache.numba.entries import save

        seconds = scopes.take_seconds()
        found = self._identities.get(_sig_key(sig)) or self._identify(sig, data.target_context)
        reason = save.why_numba_would_not(data)
        if reason:
            self._refuse(sig, reason)
            self._count_compiled(sig, seconds)
            return True
        if isinstance(found, Unidentifiable):
            self._give_up(sig, str(found), seconds)
            return not self._may_leave(found)
        is_stored = self._store(sig, data, found, seconds)
        if not scopes.is_compiling():  # one file for all that was compiled at once
            with contextlib.suppress(CompcacheError):  # what cannot be written now waits, and is told of when the process ends
                frontend.write_entries(self._cache)
        return is_stored

    def _store(self, sig: Any, data: Any, identity: Identity, seconds: float) -> bool:
        """Store an overload with an identity; return False as `_save` does."""
        from compcache.numba.entries import save

        changed = history.has_old_code(identity.parts[1:])
        if not changed and not history.is_latest(identity.parts[0]):
            changed = self._name()
        if changed:
            self._give_up(sig, f"a value that {changed} reads has changed since {changed} was compiled", seconds)
            return True  # another process would find what this one has compiled of other values
        self._note_compiled(sig, identity)
        name = func_name_of(identity, sig)
        try:
            save.save_result(self._cache, identity, name, data, self._backend.targets, seconds)
            self._accept(identity, sig, name)
            self._record(sig, self._keys.pop(_sig_key(sig), None))
        except save.NotYetCacheable as error:
            if not scopes.defer(partial(self._store_later, sig, data, identity, seconds)):
                self._give_up(sig, str(error), seconds)
        except save.NotCacheable as error:
            self._give_up(sig, str(error), seconds)
            if self._may_leave(error.__cause__):
                self._leave(identity, sig)
                return False
        except Exception as error:  # noqa: BLE001 - the function works, so failing to store it must not fail the call
            reraise_interrupt(error)
            self._backend.note_failure(self._name(), error)
        return True

    def _start_key(self, sig: Any) -> Key | NotLazy | None:
        """Return the present key for processes without Numba, or the reason why there is none; None for overloads that no process looks up
        by a key.
        """
        if getattr(self._owner, "_compiler", None) is None or hasattr(sig, "return_type") or not getattr(self._owner, "_can_compile", True):
            return None
        try:
            return starts.start_key(self._function, of_compiler(self._owner.targetoptions, self._owner.locals), _args_of(sig))
        except NotLazy as error:
            return NotLazy(*error.args)

    def _record(self, sig: Any, key: Key | NotLazy | None, *, is_new: bool = True) -> None:
        """Record an overload for starts without Numba. `key` is the one from before the compilation, which must not have changed it."""
        if isinstance(key, NotLazy):
            self._tell_start(sig, key)
        if not isinstance(key, Key) or (not is_new and starts.is_recorded(self._cache, key)):
            return
        now = self._start_key(sig) if is_new else key
        if not isinstance(now, Key) or now.name != key.name:
            return
        try:
            starts.record_start(self, self._cache, sig, key)
        except NotLazy as error:
            self._tell_start(sig, error)
        except CompcacheError:
            if is_new:
                raise
            # What was found is used, and the next start imports Numba for it as this one has.

    def _tell_start(self, sig: Any, reason: NotLazy) -> None:
        label = label_of(self._name(), sig)
        if self._tells_starts and label not in self._backend.refused:
            frontend.note_uncached(self._cache, label, f"was compiled, and starts import Numba for it: {reason}")

    def _store_later(self, sig: Any, data: Any, identity: Identity, seconds: float) -> None:
        if not self._store(sig, data, identity, seconds):
            self._other.save_overload(sig, data)

    def _give_up(self, sig: Any, reason: str, seconds: float) -> None:
        self._note(sig, reason)
        self._count_compiled(sig, seconds)

    def _count_compiled(self, sig: Any, seconds: float) -> None:
        frontend.count_compilation(self._cache, label_of(self._name(), sig), seconds)

    def _count(self, sig: Any, found: Any) -> Any:
        """Count a look-up that was left to the other cache. A miss of that is compiled."""
        if found is None:
            self._backend.miss(label_of(self._name(), sig), refused=True)
        return found

    def _note_compiled(self, sig: Any, identity: Identity) -> None:
        note_compiled(self._owner, _args_of(sig), Compiled(identity.key, identity.lines))

    def _identify(self, sig: Any, target_context: Any) -> Identity | Unidentifiable:
        """Return the present identity of the function, or the reason why it has none."""
        found: Identity | Unidentifiable
        try:
            found = identify(
                self._function, sig=sig, flags=flags_text(self._flags()), extra=self._extra(),
                codegen=target_context.codegen(),
            )  # fmt: skip
        except Unidentifiable as error:
            found = error.again()
        self._identities[_sig_key(sig)] = found
        return found

    def inherits_options(self, identity: Identity) -> bool:
        """Return whether code was compiled with flags that differ from its own declaration: callees inherit some from their callers."""
        if getattr(self._owner, "_compiler", None) is None:
            return False
        stack = ConfigStack()._stk
        callers = [stack.pop() for _ in range(len(stack))]
        try:
            return identity.components["flags"] != flags_text(self._flags())
        finally:
            for flags in reversed(callers):
                stack.push(flags)

    @looks_at_programs(Unidentifiable)
    def _flags(self) -> Any:
        compiler_ = getattr(self._owner, "_compiler", None)
        if compiler_ is None:  # a ufunc, which has pushed them already
            return ConfigStack.top_or_none()
        flags = compiler.Flags()
        # Copies: Numba modifies dictionaries while it reads them.
        options = {k: dict(v) if issubclass(type(v), dict) else v for k, v in compiler_.targetoptions.items()}
        compiler_.targetdescr.options.parse_as_flags(flags, options)
        return compiler_._customize_flags(flags)

    @looks_at_programs(Unidentifiable)
    def _extra(self) -> dict[str, str]:
        compiler_ = getattr(self._owner, "_compiler", None)
        pipeline = getattr(compiler_, "pipeline_class", compiler.Compiler)
        if not pipeline.__module__.startswith("numba.") or pipeline.__module__.startswith("numba.tests"):
            raise Unidentifiable(f"its compiler pipeline {pipeline.__module__}.{pipeline.__qualname__} has no identity")
        types_of_locals = declared_locals(getattr(compiler_, "locals", None) or getattr(self._owner, "locals", None))
        return {
            "kind": type(self._owner).__name__,
            "pipeline": pipeline.__qualname__,
            "locals": ", ".join(f"{k}: {type_text(v)}" for k, v in sorted(types_of_locals.items())),
        }


@functools.cache
def _import_what_stores() -> None:
    """Import everything that a miss needs and a hit does not. These modules live as long as the process."""
    with few_collections(lasting=True):
        importlib.import_module("compcache.numba.entries.save")
        importlib.import_module("compcache.linker")


def _parsed(sig: Any) -> Any:
    """Return a signature as an object; text is parsed."""
    if not isinstance(sig, str):
        return sig
    args, result = sigutils.normalize_signature(sig)
    return args if result is None else typing.signature(result, *args)


def _args_of(sig: Any) -> tuple[Any, ...]:
    return tuple(getattr(sig, "args", sig))


def _sig_key(sig: Any) -> Any:
    return (sig.args, sig.return_type) if hasattr(sig, "return_type") else tuple(sig)
