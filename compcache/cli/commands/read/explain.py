"""``compcache explain``: why a function is a hit or a miss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import by_last_part, resolve, short
from compcache.cli.output import age_text, plural, printable, short_id, show_progress, style
from compcache.cli.render.comparison import comparison, is_of_digests
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.cache import Cache
    from compcache.inspect.explain import Explanation, Variant, Verdict

__all__ = ["command"]


@click.command("explain")
@click.argument("name", shell_complete=complete_names)
@json_option
@pass_session
def command(session: Session, name: str, as_json: bool) -> int:
    """Explain why a function is a hit or a miss on this host now, and what changed since it was stored before.

    NAME is a function, the label of one (the latest is explained), or the last part of a name: 'norm' for 'linalg.norm', where only
    one function has it. For a Numba function, without types, each stored signature.

    Lists each realization with the reason why it is not used: CPU, damage, signature, missing dependency, global. What was stored
    with an Identity is compared with what was stored before under the same label: component by component, texts line by line.
    Exit status 1 if the function is a miss. With COMPCACHE_REMOTE, also what the remote store has. COMPCACHE_DEBUG=1 logs the
    same as it happens.
    """
    with session.read() as cache:
        found = cache.explain(_function(cache, name), progress=show_progress)
    if as_json:
        print_json(found)
    else:
        _print(found)
    return 0 if found.hit else 1


def _function(cache: Cache, name: str) -> str:
    """Return the function or the label that a NAME stands for."""
    if cache.has(name):
        return name
    labelled = cache.labelled(name)
    if len(labelled) > 1:  # the cache takes the latest
        return name
    return labelled[0] if labelled else by_last_part(cache, resolve(cache, name))


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
        if overload.before is not None:
            _print_change(overload.before, "    ")
    if found.remote is not None:
        answer = found.remote
        more = "" if answer.is_asked else "; misses do not ask for plain names: fetch it with compcache remote pull"
        click.echo(printable(f"  remote store {answer.url}: {answer.outcome}: {answer.message}{more}"))
    if found.hit:
        for refusal in found.refusals:
            click.echo(f"  {printable(refusal.text)}")
    if not found.overloads:
        _print_variants(found.variants)


def _print_variants(variants: Sequence[Variant]) -> None:
    for variant in variants[:1]:
        _print_change(variant, "  ")
    if len(variants) > 1:
        click.echo(f"  {plural(len(variants) - 1, 'other stored variant')}:")
    for variant in variants[1:]:
        _print_variant(variant)


def _print_verdict(verdict: Verdict) -> None:
    copy = verdict.realization
    state = "usable" if not verdict.reason else f"not used ({verdict.reason}): {printable(verdict.message)}"
    click.echo(f"  module {short_id(copy.module_id)}, {printable(copy.cpu)}, LLVM {printable(copy.llvm_version)}: {state}")
    for other in verdict.inlined:
        click.echo(f"    with inlined code of {printable(other)}")
    for other in verdict.passed_over:
        click.echo(f"    passed over: {printable(other)}")


def _print_change(variant: Variant, indent: str) -> None:
    """Print how a function differs from one that was stored before: each component, lines of texts side by side."""
    which = f"{printable(short(variant.func_name))} (module {short_id(variant.module_id)}, {age_text(variant.created)} old)"
    if variant.differences is None:
        click.echo(f"{indent}what changed since {which} is not known: one of the two was stored without an Identity")
        return
    click.echo(f"{indent}changed since {which}:")
    telling = [difference for difference in variant.differences if not is_of_digests(difference)]
    for difference in telling or variant.differences:
        for line in comparison(difference):
            click.echo(f"{indent}  {line}")


def _print_variant(variant: Variant) -> None:
    names = ", ".join([difference.component for difference in variant.differences or ()])
    differs = f": differs in {printable(names)}" if names else ""
    click.echo(f"    {printable(short(variant.func_name))}, {age_text(variant.created)} old{differs}")
