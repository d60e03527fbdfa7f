"""Rewrites code for an executable so that it can be part of a shared object.

Three constructs need rewriting in the text, because LLVM's C API cannot change them. Declarations are marked `dso_local` or hidden although
another image defines the symbol, and linkers refuse such relocations. Thread-local models are valid only in executables. LLVM emits
constructors in the obsolete ``.ctors`` form. The LLVM Language Reference describes these constructs.
"""

from __future__ import annotations

import re
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from compcache.build.ir_text import ATTACHMENTS, change_lines, lines_from, lines_of_variables, quote, referenced_name, references
from compcache.build.llvm_types import Types
from compcache.errors import CompileError
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from compcache.build.ir_text import Definition

__all__ = [
    "ADDRESS_OF", "ALIAS", "FUNCTION_TYPE", "INITIALIZE", "NAME", "TERMINATE", "WORDS", "Alias", "Constructors", "aliases",
    "find_constructors", "for_shared_object", "merged_variables", "shared_thread_locals", "symbols_run_by_mapping", "thread_locals",
    "variable_aliases", "with_addresses", "with_deferred_start", "with_init_arrays", "with_own_variables", "with_used",
]  # fmt: skip

#: A reference to a global value.
NAME = r'@(?:"[^"]*"|[-$._A-Za-z0-9]+)'
#: The linkage and the attributes between the name of a global value and what the value is.
WORDS = r"(?:[a-z_]+(?:\([a-z0-9]*\))? )*?"
_DSO_LOCAL = re.compile(rf"^({NAME} = (?:external|extern_weak)|declare {ATTACHMENTS}(?:extern_weak )?)\s?dso_local\b", re.MULTILINE)
_HIDDEN = re.compile(
    rf"^({NAME} = (?:external|extern_weak)|declare {ATTACHMENTS}(?:extern_weak )?)((?: ?dso_local)?) ?(?:hidden|protected)\b", re.MULTILINE
)
#: A symbol that each image defines for itself, hidden (compcache.images.static_runtime). Most C++ files declare it.
_OF_IMAGE = "@__dso_handle = external hidden global"
#: The linkages of changeable variables that a linker merges by name.
_MERGED = re.compile(
    rf"^({NAME}) = (linkonce_odr|weak_odr|linkonce|weak|common) ((?:(?:dso_local|hidden|protected) )*)({WORDS})global ", re.MULTILINE
)
_THREAD_LOCAL = re.compile(rf"^({NAME}) = {WORDS}thread_local\b", re.MULTILINE)
_MODEL = re.compile(rf"^({NAME} = {WORDS}thread_local)\((?:localexec|initialexec|localdynamic)\)", re.MULTILINE)
#: A difference of two addresses in an initializer. Only the linker of an image that defines both can compute it.
_DIFFERENCE = re.compile(rf"\bsub \(i64 ptrtoint \(ptr ({NAME}) to i64\), i64 ptrtoint \(ptr ({NAME}) to i64\)\)")
#: The flag of code that was compiled for an executable. In such code, thread-local variables have fixed distances. Strings in code contain
#: no plain quotes, so only metadata matches.
_PIE_LEVEL = re.compile(r'(!"PIE Level", i32) [12]\b')
_LIST = re.compile(r"^@llvm\.global_(ctors|dtors) = appending global [^\n]*$", re.MULTILINE)
_ITEM = re.compile(rf"\{{ i32 (\d+), ptr ({NAME}), ptr ({NAME}|null) \}}")
_USED_LIST = re.compile(r"^@llvm\.(?:compiler\.)?used = [^\n]*", re.MULTILINE)
_USED = re.compile(r"^@llvm\.used = appending global \[\d+ x ptr\] \[([^\n]*)\], section \"llvm\.metadata\"$", re.MULTILINE)
_OPERATIONS = r"getelementptr(?: inbounds| nuw| nusw| inrange\(-?\d+, -?\d+\))*|ptrtoint|ptrtoaddr|inttoptr|bitcast|addrspacecast|trunc|(?:add|sub|xor)(?: nuw| nsw)*"  # noqa: E501
#: An alias or an ifunc. Its type and its target may contain quoted names. A target that is an expression is printed without its type.
ALIAS = re.compile(
    rf'^({NAME}) = ({WORDS})(alias|ifunc) ((?:[^"\n]|"[^"]*")*?), (?:ptr (?:addrspace\(\d+\) )?(?=@))?((?:@|(?:{_OPERATIONS}) \()[^\n]*)$',
    re.MULTILINE,
)
#: The result and the parameters of a function's type. Other types contain a space before a bracket only inside names.
FUNCTION_TYPE = re.compile(r'((?:[^"\n]|"[^"\n]*")*?) (\([^\n]*\))')
#: The prefix of functions that return the address of a thread-local variable for the calling thread.
ADDRESS_OF = "thread_local."
_ADDRESS = "%compcache.thread_local."
#: The prefixes of merged variables that point to the function of a merged thread-local variable in one module, and of these functions.
_SHARED, _OWN = "shared_thread_local.", "own_thread_local."
_BEFORE_TYPE = re.compile(r"[^\n]*? thread_local (?:[a-z_]+ )*?(?:global|constant) ")
#: Calls that register a destructor of a thread. Until it has run, the dynamic linker keeps the module that registers it.
_AT_THREAD_EXIT = re.compile(r'^(  [^\n"]*\b(?:call|invoke) [^\n"]*)@__cxa_thread_atexit\(', re.MULTILINE)
_KEEP_OTHERS = """\
@compcache.keeps = internal thread_local global i8 0
define internal void @compcache.release(ptr %p) nounwind {{
  ret void
}}
define internal i32 @compcache.thread_atexit(ptr %f, ptr %object, ptr %module) nounwind {{
  %keeps = load i8, ptr @compcache.keeps
  %first = icmp eq i8 %keeps, 0
  br i1 %first, label %keep, label %register
keep:
  store i8 1, ptr @compcache.keeps
  call i32 @__cxa_thread_atexit(ptr @compcache.release, ptr null, ptr @compcache.release)
{others}  br label %register
register:
  %status = call i32 @__cxa_thread_atexit(ptr %f, ptr %object, ptr %module)
  ret i32 %status
}}"""
_CONSTANT = re.compile(rf"\b({_OPERATIONS}) \(([^()]*{re.escape(_ADDRESS)}[^()]*)\)")
_BINARY = re.compile(r"(i\d+ [^,]+), i\d+ ([^,]+)\Z")
_INTRINSIC = r"(?:tail |notail )?call [^\n@]*ptr @llvm\.threadlocal\.address\.p0\(ptr [^\n@]*{name}\)(?: #\d+)?"
_LABEL = re.compile(r'(?:[-$._A-Za-z0-9]+|"[^"]*"):')
_IFUNC = re.compile(rf"{NAME[1:]} = {WORDS}ifunc ")
_RUN_SECTION = re.compile(r', section "\.(?:(?:preinit|init|fini)_array|ctors|dtors)[".]')
#: Words of assembly by which it makes the dynamic linker run functions.
_RUN_WORD = re.compile(r"\.(?:init|fini)\Z|\.(?:(?:preinit|init|fini)_array|ctors|dtors)(?:\.|\Z)|gnu_indirect_function")
_DEFAULT_PRIORITY = 65535
#: The functions that run the constructors of a module after its imports are bound, and its destructors before they are released.
INITIALIZE, TERMINATE = "compcache.initialize", "compcache.terminate"
_START = f"""\
@compcache.initialized = internal global i8 0
define hidden void @{INITIALIZE}() {{{{
  store i8 1, ptr @compcache.initialized
{{constructors}}  ret void
}}}}
define hidden void @{TERMINATE}() {{{{
  %ran = load i8, ptr @compcache.initialized
  %is = icmp ne i8 %ran, 0
  br i1 %is, label %run, label %done
run:
  store i8 0, ptr @compcache.initialized
{{destructors}}  br label %done
done:
  ret void
}}}}
"""
_HIDING = frozenset(("internal", "private", "hidden"))


class Alias(NamedTuple):
    """An externally visible alias or ifunc of a function.

    `head` is the head of a function ``alias`` with its type. `target` is the aliased function. If `is_ifunc` is true, `target` is the
    resolver, which chooses the implementation when the image is loaded.
    """

    head: str
    is_ifunc: bool
    target: str


class Constructors(NamedTuple):
    """Constructors and destructors, as (priority, function)."""

    constructors: tuple[tuple[int, str], ...]
    destructors: tuple[tuple[int, str], ...]

    def functions(self) -> tuple[str, ...]:
        """Return the names of all constructors and destructors."""
        return tuple([name for _, name in (*self.constructors, *self.destructors)])


def for_shared_object(text: str) -> str:
    """Return the text of a printed module without constructs that are valid only in an executable."""
    if not any(word in text for word in ("dso_local", "thread_local(", " hidden ", " protected ", "PIE Level")):
        return text
    for start in ("@", "declare "):
        text = change_lines(text, start, _for_shared_object)
    return _PIE_LEVEL.sub(r"\1 0", text) if "PIE Level" in text else text


def _for_shared_object(line: str) -> str:
    """Return the line of a definition or declaration in a form that is valid in shared objects."""
    if line.startswith(_OF_IMAGE):
        return line
    line = _MODEL.sub(r"\1", _DSO_LOCAL.sub(r"\1", _HIDDEN.sub(r"\1\2", line)))
    return _MERGED.sub(r"\1 = \2 \4global ", line)


def with_own_variables(text: str) -> str:
    """Return the text of a printed module with its own copies of the merged variables whose distances from others it stores.

    Examples are the counters of inline functions and weak functions for profiles (``-fprofile-instr-generate``).
    """
    if "sub (i64 ptrtoint" not in text:
        return text
    names = {name for line in lines_from(text, "@") for pair in _DIFFERENCE.findall(line) for name in pair}
    return _MERGED.sub(lambda match: f"{match[1]} = internal {match[4]}global " if match[1] in names else match[0], text)


def aliases(text: str) -> dict[str, Alias]:
    """Return the externally visible aliases and ifuncs of functions in a printed module, by name; {} if it has none."""
    if " alias " not in text and " ifunc " not in text:
        return {}
    visible = {}
    for match in ALIAS.finditer(text):
        function = FUNCTION_TYPE.fullmatch(match[4])
        if function and not _HIDING.intersection(match[2].split()):
            head = f"{function[1]} @alias{function[2]}"
            visible[referenced_name(match[1])] = Alias(head, match[3] == "ifunc", references(match[5])[0])
    return visible


def variable_aliases(text: str) -> frozenset[str]:
    """Return the externally visible aliases of variables in a printed module, except aliases of thread-local variables."""
    if " alias " not in text:
        return frozenset()
    hiding = {*_HIDING, "thread_local"}
    return frozenset([
        referenced_name(match[1])
        for match in ALIAS.finditer(text)
        if match[3] == "alias" and not FUNCTION_TYPE.fullmatch(match[4]) and hiding.isdisjoint(match[2].replace("(", " ").split())
    ])  # fmt: skip


def merged_variables(text: str) -> dict[str, str]:
    """Return the linkages of the variables of a printed module that a linker merges by name, by variable.

    Constants are left out, because their copies are equal, and so are thread-local variables.
    """
    return {referenced_name(match[1]): match[2] for match in _MERGED.finditer(text) if "thread_local" not in match[4]}


def thread_locals(text: str) -> frozenset[str]:
    """Return the thread-local variables of a printed module, declared or defined."""
    return frozenset([referenced_name(match[1]) for match in _THREAD_LOCAL.finditer(text)]) if "thread_local" in text else frozenset()


def with_addresses(text: str, imported: Collection[str], provided: Iterable[str], merged: Collection[str] = ()) -> str:
    """Return the module's text with calls in place of other modules' thread-local variables.

    Linkers cannot fill in the addresses of thread-local variables. Therefore the defining module also defines a function that returns the
    variable's address (`ADDRESS_OF`). Other modules call this function. `imported` are variables of other modules. For the variables in
    `provided`, the module defines functions. The functions for `merged`, variables that several modules may define, call the function of
    one module, through a merged variable. The variables of one name and size are one variable. A thread that has registered a destructor
    keeps the modules with these variables. Raise `CompileError` if the code uses a variable in a way that cannot be rewritten.
    """
    chunks = text.split("\n}\n")
    heads = {referenced_name(line.partition(" = ")[0]): line for line in lines_from(text, "@")} if merged else {}
    types = Types(text)
    shared = {name: _reference_text(f"{_SHARED}{_size_of(types, heads[name])}.{name}") for name in merged}
    for number, name in enumerate([*imported, *merged]):
        chunks = [_with_calls(chunk, name, f"{_ADDRESS}{number}") if _reference_text(name) in chunk else chunk for chunk in chunks]
    lines = [f"declare nonnull ptr {_reference_text(ADDRESS_OF + name)}() nounwind readnone willreturn" for name in imported]
    lines += [_function_returning("hidden", ADDRESS_OF + name, _reference_text(name)) for name in provided]
    for name, pointer in shared.items():
        lines += [
            heads[name],
            f"{pointer} = linkonce_odr global ptr {_reference_text(_OWN + name)}",
            _function_returning("internal", _OWN + name, _reference_text(name)),
            _function_returning("hidden", ADDRESS_OF + name, "%p", f"  %f = load ptr, ptr {pointer}\n  %p = call ptr %f()\n"),
        ]
    code, count = "\n}\n".join(chunks), 0
    if shared:
        code, count = _AT_THREAD_EXIT.subn(r"\1@compcache.thread_atexit(", code)
    if count:
        lines.append(_KEEP_OTHERS.format(others="".join(map(_code_to_keep_module, range(len(shared)), shared.values()))))
    return "\n".join([code, *lines, ""])


def _size_of(types: Types, line: str) -> int:
    """Return the size in bytes of the thread-local variable that a line defines, or -1 if it is not known."""
    match = _BEFORE_TYPE.match(line)
    with suppress(ValueError, RecursionError):
        return types.leading(line, match.end()).size if match else -1
    return -1


def _code_to_keep_module(number: int, pointer: str) -> str:
    """Return code that keeps the module with the function to which a variable points, until the thread ends."""
    register = f"call i32 @__cxa_thread_atexit(ptr @compcache.release, ptr null, ptr %f{number})"
    return f"  %f{number} = load ptr, ptr {pointer}\n  {register}\n"


def _function_returning(linkage: str, name: str, result: str, body: str = "") -> str:
    """Return the definition of a function that returns an address."""
    return f"define {linkage} nonnull ptr {_reference_text(name)}() nounwind {{\n{body}  ret ptr {result}\n}}"


def _reference_text(name: str) -> str:
    """Return a reference to a symbol in LLVM assembly."""
    return "@" + quote(name)


def _with_calls(chunk: str, name: str, value: str) -> str:
    """Return a piece of the text, up to the end of a function, with calls that return the address of a thread-local variable.

    Calls replace LLVM's intrinsic for such addresses. A function with direct uses, from older compilers, gets one call at its start, whose
    result is named `value`. Raise `CompileError` if an initializer contains the address.
    """
    use = rf"{re.escape(_reference_text(name))}(?![-$._A-Za-z0-9])"
    chunk = re.sub(rf"^{use} = [^\n]*\n", "", chunk, count=1, flags=re.MULTILINE)
    call = f"call ptr {_reference_text(ADDRESS_OF + name)}()"
    chunk = re.sub(_INTRINSIC.format(name=use), lambda _: call, chunk)
    chunk = _USED_LIST.sub(lambda match: re.sub(use, lambda _: _reference_text(ADDRESS_OF + name), match[0]), chunk)
    uses = re.compile(rf'({use})|"[^"]*"')  # strings, which are not uses, are skipped
    start = chunk.rfind("\ndefine ") + 1
    head, brace, body = chunk[start:].partition("{\n")
    if any(match[1] for match in uses.finditer(chunk[: len(chunk) - len(body)])):
        raise CompileError(
            f"the module cannot be compiled, because a variable's initializer contains the address of {name!r}, a thread-local variable of "
            "another module: assign the address in a function"
        )
    changed = uses.sub(lambda match: value if match[1] else match[0], body)
    return chunk if changed == body else chunk[:start] + head + brace + _with_call_at_start(changed, value, call)


def _with_call_at_start(body: str, value: str, call: str) -> str:
    """Return the body of a function with a call at its start. Constant expressions with its result become instructions after the call."""
    lines = [f"  {value} = {call}"]
    label, line, code = body.partition("\n") if _LABEL.match(body) else ("", "", body)
    while (match := _CONSTANT.search(code)) is not None:
        operation, operands = match[1], match[2]
        if operation.startswith(("add", "sub", "xor")):
            operands = _BINARY.sub(r"\1, \2", operands)  # an instruction states the type once
        part = f"{value}.{len(lines)}"
        lines.append(f"  {part} = {operation} {operands}")
        code = code.replace(match[0], part)
    return label + line + "\n".join([*lines, code])


def shared_thread_locals(variables: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the thread-local variables that a printed module shares with others, in three sets: declared, defined, and merged by linkers.

    Merged ones are under the one-definition rule of C++. Those with aliases are left out, because an alias would mean another copy.
    `variables` are the lines of the module's variables.
    """
    if "thread_local" not in variables:
        return frozenset(), frozenset(), frozenset()
    declared, defined, merged = set(), set(), set()
    for match in _THREAD_LOCAL.finditer(variables):
        words = match[0][len(match[1]) :].split()[1:]
        if words[0] in ("external", "extern_weak"):
            declared.add(referenced_name(match[1]))
        elif words[0].endswith("_odr"):
            merged.add(referenced_name(match[1]))
        elif not {"internal", "private", "linkonce", "available_externally"}.intersection(words):
            defined.add(referenced_name(match[1]))
    aliased = [name for alias in ALIAS.finditer(variables) for name in references(alias[5])] if merged else ()
    return frozenset(declared), frozenset(defined), frozenset(merged.difference(aliased))


def find_constructors(text: str) -> Constructors:
    """Return the constructors and destructors of a printed module."""
    lists: dict[str, tuple[tuple[int, str], ...]] = {"ctors": (), "dtors": ()}
    if "@llvm.global_" in text:
        for match in _LIST.finditer(lines_of_variables(text)):
            lists[match[1]] = tuple([(int(item[1]), referenced_name(item[2])) for item in _ITEM.finditer(match[0])])
    return Constructors(lists["ctors"], lists["dtors"])


def symbols_run_by_mapping(
    definitions: Mapping[str, Definition], constructors: Constructors, in_assembly: Collection[str]
) -> tuple[str, ...]:
    """Return the symbols that cause the dynamic linker to run functions while it maps or unmaps an image.

    These are constructors, destructors, ifuncs, and the variables in sections of pointers to functions that the dynamic linker runs. If the
    names `in_assembly` contain such sections or ifuncs, these are also all symbols among them.
    """
    mentioned = sorted(in_assembly) if any(map(_RUN_WORD.match, in_assembly)) else []
    variables = [
        name
        for name, definition in definitions.items()
        if definition.kind == "variable"
        and (_IFUNC.match(definition.head) or _RUN_SECTION.search(definition.head))
        and definition.references != (TERMINATE,)  # does nothing unless the constructors have run
    ]
    return tuple(dict.fromkeys([name for name in (*constructors.functions(), *variables, *mentioned) if name in definitions]))


def with_deferred_start(text: str, constructors: Constructors) -> str:
    """Return the module's text with a function that runs the constructors (`INITIALIZE`), and one that runs the destructors (`TERMINATE`).

    These functions replace the module's lists. Unmapping the image calls `TERMINATE` if there are destructors. Destructors run only if the
    constructors have run. Constructors run by priority, the lowest first, and destructors in the reverse order.
    """
    by_priority = itemgetter(0)  # constructors with the same priority run in the order of the list, destructors in the reverse order
    constructor_calls = [f"  call void @{quote(name)}()\n" for _, name in sorted(constructors.constructors, key=by_priority)]
    destructor_calls = [f"  call void @{quote(name)}()\n" for _, name in sorted(constructors.destructors, key=by_priority)]
    text += _START.format(constructors="".join(constructor_calls), destructors="".join(reversed(destructor_calls)))
    return with_init_arrays(text, Constructors((), ((0, TERMINATE),) if destructor_calls else ()), keep=(INITIALIZE, TERMINATE))


def with_init_arrays(text: str, constructors: Constructors, keep: Iterable[str] = ()) -> str:
    """Return the module's text with its constructors and destructors as pointers in ``.init_array`` and ``.fini_array`` sections.

    The lists ``llvm.global_ctors`` and ``llvm.global_dtors`` are removed: LLVM may write them as ``.ctors``, which GNU ld converts and
    other linkers drop. LLVM keeps the pointers and the functions in `keep`.
    """
    pointers = _pointers_in(".init_array", constructors.constructors) | _pointers_in(".fini_array", constructors.destructors)
    for line in lines_from(text, "@llvm."):
        if _LIST.match(line):
            text = text.replace(line + "\n", "\n", 1)
    return with_used("\n".join([text, *pointers.values()]), [*keep, *pointers])


def with_used(text: str, symbols: Iterable[str]) -> str:
    """Return the text of a printed module in which LLVM keeps these symbols, even without a use, and those that it kept before."""
    used = [f"ptr @{quote(symbol)}" for symbol in symbols]
    if not used:
        return text
    kept_list = next(filter(None, map(_USED.match, lines_from(text, "@llvm.used"))), None)
    if kept_list:
        used = [*re.findall(rf"ptr {NAME}", kept_list[1]), *used]
        text = text.replace(kept_list[0] + "\n", "\n", 1)
    return f'{text}\n@llvm.used = appending global [{len(used)} x ptr] [{", ".join(used)}], section "llvm.metadata"\n'


def _pointers_in(section: str, functions: Iterable[tuple[int, str]]) -> dict[str, str]:
    """Return variables that point to functions from a section, each by its name. `functions` are pairs of a priority and a symbol."""
    variables = {}
    for number, (priority, symbol) in enumerate(functions):
        name = f"compcache{section}.{number}"
        section_name = section if priority == _DEFAULT_PRIORITY else f"{section}.{priority:05d}"
        variables[name] = f'@{quote(name)} = internal constant ptr @{quote(symbol)}, section "{section_name}"'
    return variables
