"""``compcache call``: call a cached function with arguments from the command line."""

from __future__ import annotations

from typing import Any

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import resolve
from compcache.cli.output import print_text
from compcache.cli.session import Session, pass_session
from compcache.cli.values import parse_arguments, result_text

__all__ = ["command"]

_MOST_ELEMENTS = 64  # of a changed buffer, in text


@click.command("call", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("name", shell_complete=complete_names)
@click.argument("arguments", metavar="[ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--allow-pickle", is_flag=True, help="Unpickle globals that were stored with pickle.")
@json_option
@pass_session
def command(session: Session, name: str, arguments: tuple[str, ...], allow_pickle: bool, as_json: bool) -> None:
    """Call a cached function and print its result.

    NAME may also be the label of a function named by content, if only one function has this label.

    The signature of the function determines how arguments are parsed: integers (also 0x..), floats, true or false, text. A buffer
    is a list of its elements (1,2,3; 0*1000 repeats), or @FILE for the bytes of a file (@- for standard input). A pointer is
    an address, null, text:TEXT or @FILE. Buffers that the call changed are printed after the result.
    """
    with session.open_existing(allow_pickle=allow_pickle) as cache:
        target = cache.get_target(resolve(cache, name))
        values = parse_arguments(target.signature, arguments, name)
        contents_before = [_buffer_bytes(value) for value in values]
        try:
            result = target(*values)
        except (TypeError, ValueError, OverflowError) as error:
            raise click.ClickException(str(error)) from error
        names = target.signature.parameter_names()
        buffers = zip(names, values, contents_before, strict=True)
        changed = {name: value.tolist() for name, value, content in buffers if content != _buffer_bytes(value)}
        is_void = target.signature.result.kind == "void"
    _print_result(result, changed, is_void=is_void, as_json=as_json)


def _buffer_bytes(value: object) -> bytes | None:
    """Return the bytes of a buffer; None for other values."""
    return value.tobytes() if isinstance(value, memoryview) else None


def _print_result(result: Any, changed: dict[str, list[Any]], *, is_void: bool, as_json: bool) -> None:
    """Print the result of a call unless `is_void` is true, and the elements of the buffers that the call changed, by parameter name.

    Print both as JSON if `as_json` is true.
    """
    if as_json:
        print_json({"result": result, "buffers": changed})
        return
    if not is_void:
        print_text(result_text(result))
    for name, elements in changed.items():
        first_elements = ",".join(map(result_text, elements[:_MOST_ELEMENTS]))
        omitted = f",... ({len(elements)} elements; --json prints all)" if len(elements) > _MOST_ELEMENTS else ""
        print_text(f"{name}={first_elements}{omitted}")
