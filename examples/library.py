"""A small numerical library as a batch: each function is a module of its own, and calls those of others.

compcache batch examples/library.py
compcache graph model.loss

A function is named by its `Identity`: its code, its signature, and the identities of the functions that it calls. Where one is
edited, that one is compiled, and whatever depends on it.
"""

from __future__ import annotations

from functools import cache

from compcache import Function, Identity, ModuleSource

X, XY = "x: const f64[:]", "x: const f64[:], y: const f64[:]"
_TYPES = {
    X: ("ptr %x, i64 %n", "ptr, i64"),
    XY: ("ptr %x, i64 %n, ptr %y, i64 %m", "ptr, i64, ptr, i64"),
    "x: f64[:], by: f64": ("ptr %x, i64 %n, double %by", "ptr, i64, double"),
    "x: f64": ("double %x", "double"),
}

#: What a loop adds up for each element (`%a` of x, `%b` of y), or stores back.
_SUMS = {
    "vector.sum": (X, "%t = fadd double %a, 0.0"),
    "vector.dot": (XY, "%t = fmul double %a, %b"),
    "vector.distance": (XY, "%d = fsub double %a, %b\n  %t = fmul double %d, %d"),
    "signal.total_variation": (X, "%t = call double @llvm.fabs.f64(double %a)"),
}
_MAPS = {
    "vector.scale": "%t = fmul double %a, %by",
    "vector.shift": "%t = fadd double %a, %by",
    "vector.clip": "%t = call double @llvm.minnum.f64(double %a, double %by)",
}
#: Straight-line code that calls other functions of the library.
_CALLS = {
    "vector.norm": (
        X,
        "%s = call double @vector.dot({x}, {x})\n  %r = call double @llvm.sqrt.f64(double %s)",
    ),
    "stats.mean": (
        X,
        "%s = call double @vector.sum({x})\n  %c = sitofp i64 %n to double\n  %r = fdiv double %s, %c",
    ),
    "stats.moment": (
        X,
        "%s = call double @vector.dot({x}, {x})\n  %c = sitofp i64 %n to double\n  %r = fdiv double %s, %c",
    ),
    "stats.variance": (
        X,
        (
            "%q = call double @stats.moment({x})\n  %a = call double @stats.mean({x})\n  %b = fmul double %a, %a\n  "
            "%r = fsub double %q, %b"
        ),
    ),
    "stats.deviation": (
        X,
        "%v = call double @stats.variance({x})\n  %r = call double @llvm.sqrt.f64(double %v)",
    ),
    "stats.covariance": (
        XY,
        (
            "%p = call double @vector.dot({x}, {y})\n  %c = sitofp i64 %n to double\n  %q = fdiv double %p, %c\n  "
            "%a = call double @stats.mean({x})\n  %b = call double @stats.mean({y})\n  %e = fmul double %a, %b\n  "
            "%r = fsub double %q, %e"
        ),
    ),
    "stats.correlation": (
        XY,
        (
            "%v = call double @stats.covariance({x}, {y})\n  %a = call double @stats.deviation({x})\n  "
            "%b = call double @stats.deviation({y})\n  %d = fmul double %a, %b\n  %r = fdiv double %v, %d"
        ),
    ),
    "signal.energy": (X, "%r = call double @vector.dot({x}, {x})"),
    "signal.rms": (X, "%s = call double @stats.moment({x})\n  %r = call double @llvm.sqrt.f64(double %s)"),
    "model.predict": (
        XY,
        "%z = call double @vector.dot({x}, {y})\n  %r = call double @model.sigmoid(double %z)",
    ),
    "model.sigmoid": (
        "x: f64",
        (
            "%i = fneg double %x\n  %e = call double @llvm.exp.f64(double %i)\n  %o = fadd double %e, 1.0\n  "
            "%r = fdiv double 1.0, %o"
        ),
    ),
    "model.regularizer": (X, "%s = call double @vector.norm({x})\n  %r = fmul double %s, 0.01"),
    "model.loss": (
        XY,
        (
            "%p = call double @model.predict({x}, {y})\n  %g = call double @model.regularizer({y})\n  "
            "%i = fsub double 1.0, %p\n  %r = fadd double %i, %g"
        ),
    ),
}
_INTRINSICS = """\
declare double @llvm.fabs.f64(double)
declare double @llvm.sqrt.f64(double)
declare double @llvm.exp.f64(double)
declare double @llvm.minnum.f64(double, double)
"""


def _loop(name: str, parameters: str, body: str, result: str) -> str:
    adds = result == "double"
    second = (
        "%y_at = getelementptr double, ptr %y, i64 %i\n  %b = load double, ptr %y_at"
        if "%y" in parameters
        else ""
    )
    return f"""{_INTRINSICS}
define {result} @{name}({parameters}) {{
entry:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi double [ 0.0, %entry ], [ %after, %loop ]
  %x_at = getelementptr double, ptr %x, i64 %i
  %a = load double, ptr %x_at
  {second}
  {body}
  {"" if adds else "store double %t, ptr %x_at"}
  %after = fadd double %sum, %t
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  %r = phi double [ 0.0, %entry ], [ %after, %loop ]
  ret {"double %r" if adds else "void"}
}}
"""


def _polynomial(degree: int) -> str:
    steps = [
        f"  %m{n} = fmul double %s{n}, %x\n  %s{n + 1} = fadd double %m{n}, {n}.5" for n in range(degree)
    ]
    start = "  %s0 = fadd double %x, 1.0"
    return "\n".join(
        [
            f"define double @poly.degree_{degree:02d}(double %x) {{",
            start,
            *steps,
            f"  ret double %s{degree}",
            "}",
        ]
    )


def _code(name: str) -> tuple[str, str, list[str]]:
    """The LLVM assembly of a function, its signature, and the functions that it calls."""
    if name in _SUMS:
        parameters, body = _SUMS[name]
        return _loop(name, _TYPES[parameters][0], body, "double"), f"f64({parameters})", []
    if name in _MAPS:
        return _loop(name, "ptr %x, i64 %n, double %by", _MAPS[name], "void"), "void(x: f64[:], by: f64)", []
    if name not in _CALLS:
        return _polynomial(int(name.rpartition("_")[2])), "f64(x: f64)", []
    parameters, body = _CALLS[name]
    known = {callee: types for callee, (types, _) in {**_SUMS, **_CALLS}.items()}
    calls = [callee for callee in known if f"@{callee}(" in body]
    declared = [f"declare double @{callee}({_TYPES[known[callee]][1]})" for callee in calls]
    text = body.format(x="ptr %x, i64 %n", y="ptr %y, i64 %m")
    define = f"define double @{name}({_TYPES[parameters][0]}) {{\n  {text}\n  ret double %r\n}}\n"
    return "\n".join([_INTRINSICS, *declared, define]), f"f64({parameters})", calls


@cache
def identity(name: str) -> Identity:
    """All that a function of the library depends on."""
    code, signature, calls = _code(name)
    return Identity(name, code=code, signature=signature, calls=[identity(callee) for callee in calls])


def _job(name: str) -> ModuleSource:
    code, signature, calls = _code(name)
    mine = identity(name)
    functions = {mine.func_name: Function(signature, symbol=name)}
    return ModuleSource(code, functions, imports={callee: identity(callee) for callee in calls}, identity=mine)


def jobs() -> list[ModuleSource]:
    """A module for every function."""
    return [_job(name) for name in [*_SUMS, *_MAPS, *_CALLS, *[f"poly.degree_{n:02d}" for n in range(2, 66)]]]
