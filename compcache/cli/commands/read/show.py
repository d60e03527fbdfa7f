"""``compcache show``: one function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import (
    Column,
    age_text,
    is_terminal,
    plural,
    print_fields,
    print_rows,
    seconds_text,
    short_id,
    size_text,
    time_text,
)
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.cache import Cache
    from compcache.inspect.descriptions import FunctionReport, Realization

__all__ = ["command"]

_MAX_DEFINITION = 100


@click.command("show")
@click.argument("name", shell_complete=complete_names)
@click.option("--ir", "code", flag_value="ir", help="Print the function's optimized LLVM assembly instead.")
@click.option("--asm", "code", flag_value="asm", help="Print the function's native assembly instead.")
@click.option("--whole-module", is_flag=True, help="With --ir or --asm: the code of its module.")
@click.option(
    "--module", "module_id", metavar="ID", help="With --ir or --asm: of this realization; a prefix will do."
)
@json_option
@pass_session
def command(
    session: Session, name: str, code: str | None, whole_module: bool, module_id: str | None, as_json: bool
) -> None:
    """Show all that is known of a function: signature, realizations, dependencies, globals.

    With --ir or --asm print its code, where the module was stored with it.
    """
    from compcache.inspect.functions import describe_function

    if code is None and (whole_module or module_id is not None):
        raise click.UsageError("--module and --whole-module need --ir or --asm")
    with session.look() as cache:
        report = describe_function(cache._store, cache._loader, name)
        text = _code(cache, report, code, module_id, whole_module=whole_module) if code else ""
    if code:
        click.echo(text) if not as_json else print_json({"func_name": name, code: text})
    elif as_json:
        print_json(report)
    else:
        _print(report)


def _code(
    cache: Cache, report: FunctionReport, kind: str, module_id: str | None, *, whole_module: bool
) -> str:
    from compcache.inspect import assembly

    chosen = _choose(report, module_id)
    symbol = None if whole_module else chosen.link_name.rpartition("@")[0]
    produce = assembly.llvm_ir if kind == "ir" else assembly.assembly
    return produce(cache._store, chosen.module_id, symbol)


def _choose(report: FunctionReport, module_id: str | None) -> Realization:
    wanted = report.module_id if module_id is None else module_id
    found = [copy for copy in report.realizations if copy.module_id.startswith(wanted)]
    if len(found) != 1:
        known = ", ".join(copy.module_id for copy in report.realizations)
        which = "no realization" if not found else f"{len(found)} realizations"
        raise click.UsageError(f"{which} of {report.func_name!r} in a module {wanted}...; there are {known}")
    return found[0]


def _print(report: FunctionReport) -> None:
    fields = [("function", report.func_name), ("signature", report.signature)]
    fields += [
        (
            "compiled",
            f"in {seconds_text(report.seconds)}, {'with' if report.has_code else 'without'} its code",
        )
    ]
    if report.dependencies:
        fields.append(("calls", " ".join(report.dependencies)))
    if report.natives:
        fields.append(("native symbols", " ".join(report.natives)))
    fields += [
        (f"global {g.name}", f"{g.kind}, {g.form} of {size_text(g.size)}: {_short(g.definition)}")
        for g in report.globals
    ]
    fields += [(f"identity {key}", _short(value)) for key, value in report.identity]
    print_fields(fields)
    _print_realizations(report)


def _print_realizations(report: FunctionReport) -> None:
    columns = [
        Column("realization"), Column("cpu"), Column("llvm"), Column("image"), Column("size", True), Column("age", True),
        Column("uses", True), Column("health", flexible=True),
    ]  # fmt: skip
    rows = [
        (
            short_id(copy.module_id),
            copy.cpu,
            copy.llvm_version,
            copy.image_kind,
            size_text(copy.size) if is_terminal() else f"{copy.size} bytes",
            age_text(copy.created) if is_terminal() else time_text(copy.created),
            str(uses) if is_terminal() else plural(uses, "use"),
            copy.problem or "usable",
        )
        for copy, (uses, _) in zip(report.realizations, report.uses, strict=True)
    ]
    if is_terminal():
        print_rows(columns, rows)
    else:
        print_fields(("realization", ", ".join(row)) for row in rows)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_DEFINITION else f"{text[: _MAX_DEFINITION - 3]}..."
