"""LLVM assembly for the measures: trivial functions by the thousand, and realistic ones for the cost of adding."""

from __future__ import annotations

from random import Random

#: What every hit calls: the smallest function that shows arguments and a result.
SMALL_NAME = "bench_add"
SMALL = """
define double @bench_add(double %a, double %b) {
  %sum = fadd double %a, %b
  ret double %sum
}
"""


def small_module(names: list[str], seed: int = 0) -> str:
    """A module of functions f64(f64, f64), each a little different."""
    parts = []
    for number, name in enumerate(names):
        parts.append(
            f"define double @{name}(double %a, double %b) {{\n"
            f"  %x = fmul double %a, {number + seed}.5\n"
            f"  %y = fadd double %x, %b\n"
            f"  ret double %y\n}}\n"
        )
    return "\n".join(parts)


def realistic_module(count: int, seed: int) -> str:
    """`count` functions of some 20 to 100 instructions after optimization: loops, branches, tables, calls."""
    random = Random(seed)
    parts = [_table(random), "declare double @llvm.sqrt.f64(double)", "declare double @sin(double)"]
    makers = (_polynomial, _reduction, _collatz, _polynomial, _hash, _polynomial, _stencil, _lookup)
    for number in range(count):
        name = f"f{seed}_{number}"
        if number >= len(makers) and number % len(makers) == 0:
            parts.append(_polynomial(random, name, f"f{seed}_{number - len(makers)}"))  # calls another one
        else:
            parts.append(makers[number % len(makers)](random, name))
    return "\n".join(parts)


def _table(random: Random) -> str:
    values = ", ".join(f"i32 {random.randrange(1 << 16)}" for _ in range(256))
    return f"@table = private unnamed_addr constant [256 x i32] [{values}]"


def _number(random: Random) -> str:
    return f"{random.randrange(1, 4096) / 256.0:.8f}"


def _reduction(random: Random, name: str) -> str:
    a, b, c = (_number(random) for _ in range(3))
    return f"""
define double @{name}(ptr %data, i64 %n) {{
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %latch ]
  %sum = phi double [ 0.0, %entry ], [ %sum.next, %latch ]
  %most = phi double [ {a}, %entry ], [ %most.next, %latch ]
  %at = getelementptr inbounds double, ptr %data, i64 %i
  %x = load double, ptr %at
  %big = fcmp ogt double %x, %most
  br i1 %big, label %large, label %small
large:
  %root = call double @llvm.sqrt.f64(double %x)
  %scaled = fmul double %root, {b}
  br label %latch
small:
  %square = fmul double %x, %x
  %shifted = fadd double %square, {c}
  br label %latch
latch:
  %term = phi double [ %scaled, %large ], [ %shifted, %small ]
  %most.next = phi double [ %x, %large ], [ %most, %small ]
  %sum.next = fadd double %sum, %term
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  %result = phi double [ 0.0, %entry ], [ %sum.next, %latch ]
  %low = phi double [ 0.0, %entry ], [ %most.next, %latch ]
  %both = fadd double %result, %low
  ret double %both
}}"""


def _stencil(random: Random, name: str) -> str:
    a, b, c = (_number(random) for _ in range(3))
    return f"""
define void @{name}(ptr %out, ptr %in, i64 %n) {{
entry:
  %some = icmp sgt i64 %n, 2
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 1, %entry ], [ %next, %loop ]
  %before = add nsw i64 %i, -1
  %next = add nuw nsw i64 %i, 1
  %at0 = getelementptr inbounds double, ptr %in, i64 %before
  %at1 = getelementptr inbounds double, ptr %in, i64 %i
  %at2 = getelementptr inbounds double, ptr %in, i64 %next
  %x0 = load double, ptr %at0
  %x1 = load double, ptr %at1
  %x2 = load double, ptr %at2
  %y0 = fmul double %x0, {a}
  %y1 = fmul double %x1, {b}
  %y2 = fmul double %x2, {c}
  %z0 = fadd double %y0, %y1
  %z1 = fadd double %z0, %y2
  %to = getelementptr inbounds double, ptr %out, i64 %i
  store double %z1, ptr %to
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""


def _hash(random: Random, name: str) -> str:
    prime, offset = random.randrange(1 << 31) | 1, random.randrange(1 << 40)
    turn = random.randrange(3, 31)
    return f"""
define i64 @{name}(ptr %data, i64 %n, i64 %seed) {{
entry:
  %start = xor i64 %seed, {offset}
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %h = phi i64 [ %start, %entry ], [ %h4, %loop ]
  %at = getelementptr inbounds i8, ptr %data, i64 %i
  %byte = load i8, ptr %at
  %wide = zext i8 %byte to i64
  %h1 = xor i64 %h, %wide
  %h2 = mul i64 %h1, {prime}
  %left = shl i64 %h2, {turn}
  %right = lshr i64 %h2, {64 - turn}
  %h3 = or i64 %left, %right
  %h4 = add i64 %h3, %i
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  %result = phi i64 [ %start, %entry ], [ %h4, %loop ]
  %fold = lshr i64 %result, 29
  %mixed = xor i64 %result, %fold
  ret i64 %mixed
}}"""


def _polynomial(random: Random, name: str, callee: str | None = None) -> str:
    lines = [f"define double @{name}(double %x, double %y) {{", "entry:", "  %v0 = fadd double %x, %y"]
    degree = random.randrange(8, 20)
    for step in range(degree):
        lines += [
            f"  %p{step} = fmul double %v{step}, {'%x' if step % 3 else '%y'}",
            f"  %v{step + 1} = fadd double %p{step}, {_number(random)}",
        ]
    called = f"@{callee}(double %v{degree}, double %y)" if callee else f"@sin(double %v{degree})"
    lines += [
        f"  %outside = fcmp ogt double %v{degree}, {_number(random)}e3",
        "  br i1 %outside, label %wrap, label %plain",
        "wrap:",
        f"  %wrapped = call double {called}",
        "  ret double %wrapped",
        "plain:",
        f"  %quotient = fdiv double %v{degree}, {_number(random)}",
        "  ret double %quotient",
        "}",
    ]
    return "\n".join(lines)


def _collatz(random: Random, name: str) -> str:
    factor, limit = random.randrange(3, 99, 2), random.randrange(100, 1000)
    return f"""
define i32 @{name}(i32 %start) {{
entry:
  br label %loop
loop:
  %x = phi i32 [ %start, %entry ], [ %x.next, %latch ]
  %steps = phi i32 [ 0, %entry ], [ %steps.next, %latch ]
  %bit = and i32 %x, 3
  switch i32 %bit, label %odd [
    i32 0, label %quarter
    i32 2, label %half
  ]
quarter:
  %q = lshr i32 %x, 2
  br label %latch
half:
  %h = lshr i32 %x, 1
  br label %latch
odd:
  %m = mul i32 %x, {factor}
  %o = add i32 %m, 1
  br label %latch
latch:
  %x.next = phi i32 [ %q, %quarter ], [ %h, %half ], [ %o, %odd ]
  %steps.next = add nuw nsw i32 %steps, 1
  %one = icmp ule i32 %x.next, 1
  %enough = icmp ugt i32 %steps.next, {limit}
  %stop = or i1 %one, %enough
  br i1 %stop, label %done, label %loop
done:
  %result = xor i32 %steps.next, %x.next
  ret i32 %result
}}"""


def _lookup(random: Random, name: str) -> str:
    mask, shift = random.randrange(1, 256), random.randrange(1, 8)
    return f"""
define i64 @{name}(ptr %data, i64 %n) {{
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %latch ]
  %sum = phi i64 [ {mask}, %entry ], [ %sum.next, %latch ]
  %at = getelementptr inbounds i32, ptr %data, i64 %i
  %key = load i32, ptr %at
  %folded = xor i32 %key, {mask}
  %index = and i32 %folded, 255
  %wide = zext i32 %index to i64
  %slot = getelementptr inbounds [256 x i32], ptr @table, i64 0, i64 %wide
  %value = load i32, ptr %slot
  %negative = icmp slt i32 %key, 0
  br i1 %negative, label %skip, label %take
take:
  %shifted = lshr i32 %value, {shift}
  %term = zext i32 %shifted to i64
  %added = add i64 %sum, %term
  br label %latch
skip:
  %turned = xor i64 %sum, {mask << 8}
  br label %latch
latch:
  %sum.next = phi i64 [ %added, %take ], [ %turned, %skip ]
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  %result = phi i64 [ 0, %entry ], [ %sum.next, %latch ]
  ret i64 %result
}}"""
