"""``compcache explain``: why a function is a hit or a miss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import by_last_part, resolve
from compcache.cli.output import age_text, plural, printable, short_id, show_progress, style
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.cache import Cache
    from compcache.inspect.explain import Explanation, Variant, Verdict

__all__ = ["command"]


@click.command("explain")
@click.argument("name", shell_complete=complete_names)
@json_option
@pass_session
def command(session: Session, name: str, as_json: bool) -> int:
    """Explain why a function is a hit or a miss on this host now.

    NAME may be the last part of one: 'norm' for 'linalg.norm', where only one function has it.

    Lists each realization with the reason why it is not used: CPU, damage, signature, missing dependency, global.
    For names from compcache.Identity, also the stored variants with the same label, and the components in which they
    differ. For a Numba function, without types, each stored signature. Exit status 1 if the function is a
    miss. With COMPCACHE_REMOTE, also what the remote store has. COMPCACHE_DEBUG=1 logs the same as it happens.
    """
    with session.read() as cache:
        if not _has_variants(cache, name):
            name = by_last_part(cache, resolve(cache, name))
        found = cache.explain(name, progress=show_progress)
    if as_json:
        print_json(found)
    else:
        _print(found)
    return 0 if found.hit else 1


def _has_variants(cache: Cache, name: str) -> bool:
    """Whether several functions have this label, so that all are shown as variants."""
    return not cache.has(name) and len(cache.labelled(name)) > 1


def _print(found: Explanation) -> None:
    head = style("hit", fg="green") if found.hit else f"{style('miss', fg='red')} ({found.reason})"
    click.echo(f"{printable(found.func_name)}: {head}{'' if found.hit else f': {printable(found.message)}'}")
    for verdict in found.verdicts:
        _print_verdict(verdict)
    for variable in found.separate:
        click.echo(printable(f"  {variable}"))
    for overload in found.overloads:
        state = style("hit", fg="green") if overload.hit else f"{style('miss', fg='red')}: {printable(overload.message)}"
        click.echo(f"  {printable(overload.label)}: {state}")
    if found.remote is not None:
        answer = found.remote
        more = "" if answer.is_asked else "; misses do not ask for plain names: fetch it with compcache remote pull"
        click.echo(printable(f"  remote store {answer.url}: {answer.outcome}: {answer.message}{more}"))
    if found.hit:
        for refusal in found.refusals:
            click.echo(f"  {printable(refusal.text)}")
    if found.variants and not found.overloads:
        click.echo(f"{plural(len(found.variants), 'stored variant')} of the same label:")
        for variant in found.variants:
            _print_variant(variant)
        if any(variant.differences is None for variant in found.variants):
            click.echo("  (no differences: one of the two was stored without ModuleSource(identity=...))")


def _print_verdict(verdict: Verdict) -> None:
    copy = verdict.realization
    state = "usable" if not verdict.reason else f"not used ({verdict.reason}): {printable(verdict.message)}"
    click.echo(f"  module {short_id(copy.module_id)}, {printable(copy.cpu)}, LLVM {printable(copy.llvm_version)}: {state}")
    for other in verdict.inlined:
        click.echo(f"    with inlined code of {printable(other)}")
    for other in verdict.passed_over:
        click.echo(f"    passed over: {printable(other)}")


def _print_variant(variant: Variant) -> None:
    click.echo(f"  {printable(variant.func_name)}, {age_text(variant.created)} old")
    for difference in variant.differences or ():
        click.echo(f"    {printable(str(difference))}")
