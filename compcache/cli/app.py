"""The group of commands; turns failures into one line and an exit status.

Exit statuses: 0 done, 1 a finding, 2 usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import codecs
import gc
import os
import re
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

import click

from compcache.cli.advice import in_commands
from compcache.cli.examples import EXAMPLES
from compcache.cli.output import PROGRAM, QUIET, end_progress, is_quiet, near_name, printable, say
from compcache.cli.session import Session
from compcache.errors import CacheWarning, CompcacheError, NotCachedError, UntrustedDirectoryError
from compcache.facade import DEBUG_VARIABLE
from compcache.settings import configuration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["COMMANDS", "group", "main"]

BAD_INPUT = 2
_INTERRUPTED = 130
#: Commands that show settings which are not valid, or need none.
_SHOWING_SETTINGS = ("config", "doctor", "dir", "completion", "key")
_CHOICES = re.compile(r"'([^']*)' is not one of (.*)")
#: What stands for the signs of tables and trees where a terminal's encoding lacks them.
_PLAIN = {"\u2026": "~", "\u251c": "|", "\u2502": "|", "\u2514": "`", "\u2500": "-", "\u2501": "-", "\u2578": "-", "\u257a": "-"}
_COLLECT_AFTER = 2_000_000  # new objects: listing a large cache creates many, none of them garbage

#: Every command: its module in this package, and its summary. The module is imported when the command
#: runs, so that the start of the program does not depend on their number.
COMMANDS = {
    "info": ("commands.read.info", "Show where the cache is, its content, and its linker and host."),
    "ls": ("commands.read.ls", "List functions or modules."),
    "show": ("commands.read.show", "Show the details of a function."),
    "graph": ("commands.read.graph", "Draw the dependencies of functions."),
    "add": ("commands.write.add", "Compile LLVM assembly, bitcode or source files into the cache."),
    "batch": ("commands.write.batch", "Compile many modules in several processes."),
    "call": ("commands.read.call", "Call a cached function."),
    "explain": ("commands.read.explain", "Explain why a function is a hit or a miss."),
    "dir": ("commands.read.dir", "Print the cache directory."),
    "config": ("commands.read.config", "Show every setting and where it comes from."),
    "doctor": ("commands.read.doctor", "Look for what is wrong: directory, settings, keys, store, tools."),
    "stats": ("commands.read.stats", "Show statistics: hits, misses, time saved."),
    "metrics": ("commands.read.metrics", "Show what was counted as text for Prometheus."),
    "top": ("commands.read.top", "Show the most expensive functions: compile time, space, misses."),
    "report": ("report.command", "Write a page about the cache: content, savings, hits over time."),
    "check": ("commands.write.check", "Check the whole cache, and repair it."),
    "prune": ("commands.write.prune", "Remove modules by age, size, use or name."),
    "link": ("commands.write.link", "Link the code that functions reach in several modules."),
    "compact": ("commands.write.compact", "Put small modules together in few files."),
    "rm": ("commands.write.rm", "Remove functions by name."),
    "export": ("commands.read.export", "Write functions and what they need to one file."),
    "import": ("commands.write.import_", "Add the functions of such a file."),
    "key": ("commands.write.key", "Make, show and trust keys that sign modules."),
    "pin": ("commands.write.pin", "Keep functions from being pruned."),
    "unpin": ("commands.write.unpin", "Let functions be pruned again."),
    "clear": ("commands.write.clear", "Remove everything from the cache."),
    "remote": ("commands.write.remote", "Show, fill and clean up a remote store."),
    "completion": ("completion", "Print a shell's completion script."),
}


class _LazyGroup(click.Group):
    """A group that imports a command when it is needed."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A reader that closes the pipe early, like `head`, is not a failure."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Further writes would fail, even at interpreter shutdown.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return status

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Treat ``help`` and ``help COMMAND`` as ``--help`` and ``COMMAND --help``, as in git and cargo."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the interface of click
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(f"compcache.cli.{COMMANDS[cmd_name][0]}").command
        if not any(parameter.name == "directory_here" for parameter in found.params):
            own = {text for parameter in found.params for text in parameter.opts}
            found.params += [option for option in _where_options() if own.isdisjoint(option.opts)]
            found.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[cmd_name])
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            raise click.UsageError(f"unknown command {args[0]!r}{near_name(args[0], COMMANDS, ', ')}", ctx)
        return super().resolve_command(ctx, args)


def _where_options() -> list[click.Parameter]:
    """Return the options that choose the cache, which every command accepts too."""
    return [
        click.Option(
            ["--dir", "directory_here"], metavar="DIR", expose_value=False, callback=_use_directory,
            help="The cache directory; same as --dir before the command.",
        ),
        click.Option(
            ["--trust", "trust_here"], is_flag=True, expose_value=False, callback=_use_trust, hidden=True,
            help="See compcache --help.",
        ),
        click.Option(
            ["-v", "--verbose", "verbose_here"], is_flag=True, expose_value=False, callback=_use_verbose, hidden=True,
            help="See compcache --help.",
        ),
        click.Option(
            ["-q", "--quiet", "quiet_here"], is_flag=True, expose_value=False, callback=_use_quiet, hidden=True,
            help="See compcache --help.",
        ),
    ]  # fmt: skip


def _use_directory(ctx: click.Context, _: click.Parameter, directory: str | None) -> None:
    if directory is not None:
        _require_directory(directory)
        known = ctx.find_object(Session)
        ctx.obj = Session(directory, trust=known is not None and known.trust)


def _use_trust(ctx: click.Context, _: click.Parameter, trust: bool) -> None:
    known = ctx.find_object(Session)
    if trust:
        ctx.obj = Session(known.given if known is not None else None, trust=True)


def _use_verbose(_: click.Context, __: click.Parameter, verbose: bool) -> None:
    if verbose:
        os.environ[DEBUG_VARIABLE] = "1"


def _use_quiet(ctx: click.Context, _: click.Parameter, quiet: bool) -> None:
    if quiet:
        ctx.meta[QUIET] = True


def _require_directory(directory: str) -> None:
    if not directory:
        raise click.UsageError("--dir is empty: give a directory, or leave the option out")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from compcache import __version__

        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit()


@click.command(
    cls=_LazyGroup,
    subcommand_metavar="COMMAND [ARGS]...",
    invoke_without_command=True,  # what bare invocations do differs between versions of click
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Results go to standard output, everything else to standard error. Exit status: 0 done, 1 a finding, 2 usage "
    "or bad input. Colours and tables appear on a terminal only; NO_COLOR switches the colours off.",
)
@click.option("--dir", "directory", metavar="DIR", help="The cache directory. Without it: $COMPCACHE_DIR, else the user's cache directory.")
@click.option("--trust", is_flag=True, help="Use the directory even if other users own it or can write to it.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_use_verbose,
    help="Log each hit, miss and compilation on standard error, like COMPCACHE_DEBUG=1.",
)
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_use_quiet,
    help="Write only results and errors: no warnings, notes or progress.",
)
@click.option("-V", "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version.")
@click.pass_context
def group(ctx: click.Context, directory: str | None, trust: bool) -> None:
    """An on-disk cache of compiled LLVM modules: inspect it, fill it, call its functions."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return
    if directory is not None:
        _require_directory(directory)
    if ctx.invoked_subcommand not in _SHOWING_SETTINGS and (any(name.startswith("COMPCACHE_") for name in os.environ) or configuration()):
        _look_at_settings()
    ctx.obj = Session(directory, trust=trust)


def _look_at_settings() -> None:
    """Reject invalid settings before a command meets them, and report misspelt names."""
    from compcache.cli.environment import invalid_settings, misspelt_settings

    for _, message in invalid_settings():
        raise click.ClickException(message)
    for name, near in misspelt_settings(os.environ):
        if not is_quiet():
            say("warning", f"{name} is not a setting of compcache and is ignored; did you mean {near}?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (that of the process by default); return the exit status."""
    warnings.showwarning = _show_warning
    codecs.register_error("compcache.plain", _plain)
    gc.set_threshold(_COLLECT_AFTER, 20, 100)
    if sys.stdout is None:  # it was closed by the parent process
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="compcache.plain")  # so that any name can be printed in any locale
    try:
        status = group.main(args=None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        return _refuse(error)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except (CompcacheError, OSError, ImportError) as error:  # ImportError: the native runtime, or a package of the installation
        return _fail(_explanation(error))
    except CacheWarning as warning:  # PYTHONWARNINGS=error
        return _fail(in_commands(str(warning)))
    except MemoryError:
        return _fail("there is not enough memory for this: look at the sizes of the files that you named, and at 'ulimit -v'")
    finally:
        end_progress()
    return status if isinstance(status, int) else 0


def _refuse(error: click.ClickException) -> int:
    """Report a command line that is not valid; show the help of a group that was called without a command."""
    if type(error).__name__ != "NoArgsIsHelpError":  # older versions of click print the help themselves
        return _fail(_usage_text(error))
    click.echo(error.format_message())
    return 0


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace what an encoding lacks: frames by ASCII, all else by its escape."""
    if not isinstance(error, UnicodeEncodeError) or error.object[error.start] not in _PLAIN:
        return codecs.backslashreplace_errors(error)
    return _PLAIN[error.object[error.start]], error.start + 1


def _explanation(error: CompcacheError | OSError | ImportError) -> str:
    """Return the message of an error, with command-line options instead of Python arguments."""
    text = str(error)
    if isinstance(error, NotCachedError):
        return text if text.endswith("?") else f"{text}; 'compcache ls' lists what is there"
    if isinstance(error, UntrustedDirectoryError):
        return (
            f"{error.reason}, or, if you trust all users who can write there, give --trust before the command ({PROGRAM} --trust "
            "...), or set COMPCACHE_SIGNING_KEY"
        )
    if isinstance(error, CompcacheError):
        return in_commands(text)
    if isinstance(error, ImportError):
        return text
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or text


def _fail(message: str) -> int:
    say("error", message)
    return BAD_INPUT


def _usage_text(error: click.ClickException) -> str:
    text = _with_near_option(error) or error.format_message().rstrip(".")
    chosen = _CHOICES.search(text)
    if chosen is not None:
        text += near_name(chosen[1], re.findall(r"'([^']*)'", chosen[2]), ", ")
    if not text[1:2].isupper():
        text = text[:1].lower() + text[1:]
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    see = f"see '{context.command_path} --help'"
    return f"{text} {see[0].upper()}{see[1:]}" if text.endswith("?") else f"{text}; {see}"


def _with_near_option(error: click.ClickException) -> str:
    """Return a message about an unknown option, in the words of that for an unknown command. Versions of click word it differently."""
    if not isinstance(error, click.NoSuchOption):
        return ""
    known = [] if error.ctx is None else [text for parameter in error.ctx.command.get_params(error.ctx) for text in parameter.opts]
    return f"no such option {error.option_name!r}{near_name(error.option_name, known, ', ')}"


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    if issubclass(category, CacheWarning):
        if not is_quiet():
            say("warning", in_commands(str(message)))
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print("\n".join(map(printable, text.split("\n"))), file=file or sys.stderr, end="")
