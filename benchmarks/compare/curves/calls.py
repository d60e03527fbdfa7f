"""What a call costs, by binding and kind of argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import Samples

from compare.tables import pair, rows

if TYPE_CHECKING:
    from compare.context import Context

TITLE = "Calls"
CASES = {
    "add": "f64(f64, f64)",
    "increment": "i64(i64)",
    "length": "i64(cstr), 16 letters",
    "first": "f64(const f64[:]), array.array",
}


def measure(context: Context) -> dict[str, Any]:
    directory = context.workspace.fresh_directory("calls")
    taken = context.program(
        "call_costs", directory, context.repetitions(20_000, 5_000), context.repetitions(40, 12)
    )
    context.skipped.update(taken["skipped"])
    return {
        case: {label: Samples(label, "ns", tuple(values)).as_json() for label, values in sides.items()}
        for case, sides in taken["samples"].items()
    }


def markdown(record: dict[str, Any]) -> str:
    result = record["results"]
    labels = list(dict.fromkeys(label for sides in result.values() for label in sides))
    body = [[label, *(pair(result[case].get(label)) for case in CASES)] for label in labels]
    return "\n\n".join([
        ("Nanoseconds of one call in a plain `for` loop, whose own ten nanoseconds or so are part of every figure. All bindings run"
         " in one process, in turns: median (minimum). The functions do next to nothing. compcache, the C extension and Numba check"
         " their arguments, and accept a `str` and a buffer object directly. For ctypes and cffi, a line of Python encodes the `str`"
         " and converts the buffer, as a user would write it; ctypes does not detect a wrong element type. Numba does not accept"
         " `array.array`: its buffers are NumPy arrays."),
        rows(["", *(f"`{text}`" for text in CASES.values())], body),
    ])  # fmt: skip


def plot(record: dict[str, Any], figure: Any) -> None:
    result = record["results"]
    labels = list(dict.fromkeys(label for sides in result.values() for label in sides))
    axes = figure.subplots()
    height = 0.8 / len(CASES)
    for number, (case, text) in enumerate(CASES.items()):
        known = [
            (place, result[case][label]["minimum"])
            for place, label in enumerate(labels)
            if label in result[case]
        ]
        axes.barh([p + (number - 1.5) * height for p, _ in known], [v for _, v in known], height, label=text)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("ns a call (minimum, logarithmic)")
    axes.legend()
