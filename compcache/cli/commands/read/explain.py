"""``compcache explain``: explain why a function is a hit or a miss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import resolve, resolve_last_part, short_name
from compcache.cli.output import age_text, plural, printable, short_id, show_progress, style
from compcache.cli.render.comparison import difference_lines, shows_only_digests
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
    """Explain why a function is a hit or a miss on this host now, and how it differs from the variant stored before.

    NAME is a function or a label. For a label with several functions, the latest function is explained. NAME may also be the
    last part of a function name, if no other function name ends with it: 'norm' for 'linalg.norm'. For a Numba function
    without types, each stored signature is explained.

    Each realization is listed with the reason why it is not used: CPU, damage, signature, missing dependency, global.
    Functions stored with an Identity are compared with the functions stored before under the same label: component by
    component, texts line by line. With COMPCACHE_REMOTE, the answer of the remote store is shown. Exit status 1 if the
    function is a miss. COMPCACHE_DEBUG=1 logs the same reasons while a program runs.
    """
    with session.open_to_read() as cache:
        explanation = cache.explain(_resolve_name(cache, name), progress=show_progress)
    if as_json:
        print_json(explanation)
    else:
        _print_explanation(explanation)
    return 0 if explanation.hit else 1


def _resolve_name(cache: Cache, name: str) -> str:
    """Return the function that a NAME matches; the NAME itself if it is a label of several functions, or matches no function.

    Raise `click.ClickException` if any other NAME matches several functions.
    """
    if cache.has(name):
        return name
    labelled = cache.labelled(name)
    if len(labelled) > 1:  # `Cache.explain` chooses the latest function of a label
        return name
    return labelled[0] if labelled else resolve_last_part(cache, resolve(cache, name))


def _print_explanation(explanation: Explanation) -> None:
    """Print an explanation as text: the answer, then its reasons."""
    if explanation.hit:
        answer = style("hit", fg="green")
    else:
        answer = f"{style('miss', fg='red')} ({explanation.reason}): {printable(explanation.message)}"
    click.echo(f"{printable(explanation.func_name)}: {answer}")
    for verdict in explanation.verdicts:
        _print_verdict(verdict)
    for variable in explanation.separate:
        click.echo(printable(f"  {variable}"))
    for overload in explanation.overloads:
        state = style("hit", fg="green") if overload.hit else f"{style('miss', fg='red')}: {printable(overload.message)}"
        click.echo(f"  {printable(overload.label)}: {state}")
        if overload.before is not None:
            _print_change(overload.before, "    ")
    if explanation.remote is not None:
        remote = explanation.remote
        advice = "" if remote.is_asked else "; misses of plain names do not ask the store: fetch it with compcache remote pull"
        click.echo(printable(f"  remote store {remote.url}: {remote.outcome}: {remote.message}{advice}"))
    if explanation.hit:
        for refusal in explanation.refusals:
            click.echo(f"  {printable(refusal.text)}")
    if not explanation.overloads:
        _print_variants(explanation.variants)


def _print_variants(variants: Sequence[Variant]) -> None:
    """Print the changes since the first variant, and one line for each other variant."""
    for variant in variants[:1]:
        _print_change(variant, "  ")
    if len(variants) > 1:
        click.echo(f"  {plural(len(variants) - 1, 'other stored variant')}:")
    for variant in variants[1:]:
        _print_variant(variant)


def _print_verdict(verdict: Verdict) -> None:
    """Print a realization, whether it is usable, the code inlined into it, and the realizations that it passes over."""
    copy = verdict.realization
    state = "usable" if not verdict.reason else f"not used ({verdict.reason}): {printable(verdict.message)}"
    click.echo(f"  module {short_id(copy.module_id)}, {printable(copy.cpu)}, LLVM {printable(copy.llvm_version)}: {state}")
    for inlined in verdict.inlined:
        click.echo(f"    with code inlined from {printable(inlined)}")
    for reason in verdict.passed_over:
        click.echo(f"    passed over: {printable(reason)}")


def _print_change(variant: Variant, indent: str) -> None:
    """Print how a function differs from a variant stored before. Differences of digests are printed only if there are no others."""
    description = f"{printable(short_name(variant.func_name))} (module {short_id(variant.module_id)}, {age_text(variant.created)} old)"
    if variant.differences is None:
        click.echo(f"{indent}the changes since {description} are not known: one of the two functions was stored without an Identity")
        return
    click.echo(f"{indent}changed since {description}:")
    text_differences = [difference for difference in variant.differences if not shows_only_digests(difference)]
    for difference in text_differences or variant.differences:
        for line in difference_lines(difference):
            click.echo(f"{indent}  {line}")


def _print_variant(variant: Variant) -> None:
    """Print a variant on one line, with the names of the components in which it differs."""
    names = ", ".join([difference.component for difference in variant.differences or ()])
    difference_text = f": differs in {printable(names)}" if names else ""
    click.echo(f"    {printable(short_name(variant.func_name))}, {age_text(variant.created)} old{difference_text}")
