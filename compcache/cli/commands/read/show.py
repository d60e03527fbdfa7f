"""``compcache show``: show the details of functions and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import groups_among, resolve_all, short_name
from compcache.cli.output import (
    Column,
    cell_texts,
    is_terminal,
    plural,
    print_code,
    print_fields,
    print_rows,
    seconds_text,
    short_id,
    size_text,
    time_text,
)
from compcache.cli.session import Session, pass_session
from compcache.usage.summaries import GroupSummary
from compcache.wording import shorten

if TYPE_CHECKING:
    from compcache.inspect.descriptions import FunctionReport, Provenance

__all__ = ["command"]

_MOST_CHARACTERS = 100  # of a value of a global variable or a component of an identity
_ORIGINS = {"compiled": "compilation", "bundle": "a bundle", "remote": "the remote store"}
_SIGNERS = {
    "trusted": "trusted here",
    "wrong": "NOT VALID for the trusted key of this name",
    "unknown": "no key of this name is trusted here",
    "unchecked": "not checked: PyNaCl is not installed",
}
_UNNAMED = "<string>"  # LLVM's name for assembly without the name of a file


@click.command("show")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--ir", is_flag=True, help="Print the function's optimized LLVM assembly instead.")
@click.option("--asm", is_flag=True, help="Print the function's native assembly instead.")
@click.option("--whole-module", is_flag=True, help="With --ir or --asm: print the code of the function's whole module.")
@click.option("--module", "module_id", metavar="ID", help="With --ir or --asm: the module of the realization; a prefix is enough.")
@click.option("--provenance", is_flag=True, help="Show the origin of each realization instead: makers, signatures, source.")
@json_option
@pass_session
def command(
    session: Session,
    names: tuple[str, ...],
    ir: bool,
    asm: bool,
    whole_module: bool,
    module_id: str | None,
    provenance: bool,
    as_json: bool,
) -> None:
    """Show the details of functions: signature, realizations, dependencies, globals, parts and entries. For a group, show the members.

    With --provenance show the recorded origin.

    With --ir or --asm print the code of the functions. Their modules must have been stored with their code.
    """
    has_code = ir or asm
    if has_code and provenance:
        raise click.UsageError("--provenance cannot be combined with --ir or --asm")
    if not has_code and (whole_module or module_id is not None):
        raise click.UsageError("--module and --whole-module require --ir or --asm")
    with session.open_to_read() as cache:
        groups = {} if has_code or provenance else groups_among(cache, names)
        functions = [name for name in names if name not in groups]
        chosen = resolve_all(cache, functions)
        if has_code:
            producers = [*([("ir", cache.ir)] if ir else ()), *([("asm", cache.asm)] if asm else ())]
            rows = []
            for name in chosen:
                codes = {kind: produce(name, module_id=module_id, whole_module=whole_module) for kind, produce in producers}
                rows.append({"func_name": name, **codes})
            _print_code_of_functions(rows, as_json=as_json)
            return
        reports = [cache.function(name) for name in chosen]
    if provenance:
        _print_provenance(reports, as_json=as_json)
        return
    summaries: list[GroupSummary | FunctionReport] = [*groups.values(), *reports]
    if as_json:
        print_json(summaries[0] if len(names) == len(summaries) == 1 else summaries)
        return
    for number, report in enumerate(summaries):
        if number:
            click.echo()
        if isinstance(report, GroupSummary):
            _print_group(report)
        else:
            _print_function(report)


def _print_code_of_functions(rows: list[dict[str, str]], *, as_json: bool) -> None:
    """Print the code of functions, as JSON if `as_json` is true.

    Each row has the name of a function and the code of the function, as "ir", "asm" or both.
    """
    if as_json:
        print_json(rows[0] if len(rows) == 1 else rows)
        return
    for row in rows:
        for kind, language in (("ir", "llvm"), ("asm", "gas")):
            if kind in row:
                print_code(row[kind], language)


def _print_provenance(reports: list[FunctionReport], *, as_json: bool) -> None:
    """Print the origin of every realization of the functions, as JSON if `as_json` is true."""
    if as_json:
        rows = [{"func_name": report.func_name, "provenance": report.provenance} for report in reports]
        print_json(rows[0] if len(rows) == 1 else rows)
        return
    pairs = [(report.func_name, row) for report in reports for row in report.provenance]
    for number, (func_name, row) in enumerate(pairs):
        if number:
            click.echo()
        print_fields([("function", func_name), *_provenance_fields(row)])


def _provenance_fields(row: Provenance) -> list[tuple[str, str]]:
    """Return names and values of the fields that describe the origin of a realization."""
    fields = [("realization", short_id(row.module_id)), ("made by", ", ".join(map(str, row.makers)))]
    fields += [(f"digest of the {name}", value) for name, value in row.digests.items()]
    fields += [("compiled", time_text(row.compiled))] if row.compiled else []
    fields += [("came from", _ORIGINS.get(row.origin, row.origin))]
    fields += [("in the layer", row.layer)] if row.layer else []
    fields += [("added", time_text(row.added) + (f", by user {row.owner}" if row.owner else ""))]
    fields += [("addition number", str(row.order))] if row.order else []
    fields += [("signed by", f"{signer.name} ({_SIGNERS[signer.status]})") for signer in row.signers]
    if row.keyed_digest:
        fields.append(("signed with", f"{'this' if row.keyed_digest == 'own' else 'another'} cache's signing key"))
    elif not row.signers:
        fields.append(("signed by", "no key"))
    return fields


def _print_group(group: GroupSummary) -> None:
    """Print the modules of a group, and the exports of each member."""
    fields = [("group", group.name), ("size", size_text(group.size)), ("added", time_text(group.created))]
    fields += [("module", short_id(module_id)) for module_id in group.modules]
    fields += [
        (f"file {member.label if member.label not in ('', _UNNAMED) else number}", " ".join(member.functions) or "exports nothing")
        for number, member in enumerate(group.members)
    ]
    print_fields(fields)


def _print_function(report: FunctionReport) -> None:
    """Print the details of a function and a table of its realizations."""
    fields = [("function", report.func_name), ("signature", report.signature)]
    fields += [("compiled", f"in {seconds_text(report.seconds)}, {'with' if report.has_code else 'without'} its code")]
    if report.dependencies:
        fields.append(("calls", " ".join(report.dependencies)))
    if report.natives:
        fields.append(("native symbols", " ".join(report.natives)))
    fields += [
        (f"global {var.name}", f"{var.kind}, {var.form} of {size_text(var.size)}: {shorten(var.definition, _MOST_CHARACTERS)}")
        for var in report.globals
    ]
    fields += [(f"identity {key}", shorten(value, _MOST_CHARACTERS)) for key, value in report.identity]
    fields += [("part", f"{short_name(part.func_name)}, {size_text(part.size)}, {plural(part.uses, 'use')}") for part in report.parts]
    for entry in report.entries:
        holder = f"{'pack' if entry.pack else 'module'} {short_id(entry.module_id)}"
        other_name = f", as {short_name(entry.name)}" if entry.name != report.func_name else ""
        fields.append((f"entry {entry.kind}", f"{size_text(entry.size)}, in {holder}{other_name}"))
    print_fields(fields)
    _print_realizations(report)


def _print_realizations(report: FunctionReport) -> None:
    """Print the realizations of a function: a table on a terminal, one line each in a pipe."""
    columns = [
        Column("realization"), Column("cpu"), Column("llvm"), Column("image"), Column("size", True), Column("age", True),
        Column("uses", True), Column("health", flexible=True),
    ]  # fmt: skip
    shorten, _, age = cell_texts()
    rows = [
        (
            shorten(copy.module_id),
            copy.cpu,
            copy.llvm_version,
            copy.image_kind,
            size_text(copy.size) if is_terminal() else f"{copy.size} bytes",
            age(copy.created),
            str(uses) if is_terminal() else plural(uses, "use"),
            copy.problem or "usable",
        )
        for copy, (uses, _) in zip(report.realizations, report.uses, strict=True)
    ]
    if is_terminal():
        print_rows(columns, rows)
    else:
        print_fields(("realization", ", ".join(row)) for row in rows)
