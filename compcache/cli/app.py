"""The command group and the entry point of the program. A failure becomes a message on standard error and an exit status.

Exit statuses: 0 for success, 1 if the command found a problem, 2 for a usage error or invalid input, 130 for an interrupt.
"""

from __future__ import annotations

import codecs
import gc
import os
import re
import shlex
import sys
import warnings
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import click

from compcache.cli.examples import EXAMPLES
from compcache.cli.output import PROGRAM, QUIET, did_you_mean, end_progress, is_quiet, print_message, printable
from compcache.cli.session import Session
from compcache.errors import CacheWarning, CompcacheError, NotCachedError, UntrustedDirectoryError
from compcache.facade import DEBUG_VARIABLE
from compcache.settings import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

__all__ = ["COMMANDS", "group", "main", "translate_advice"]

#: Advice that only a program can follow, and the words that join it to the advice after it.
_FOR_PROGRAMS = re.compile(
    r"Name (?:the function by its|functions by their) content \(an Identity, or Cache\.compile\),"
    r"(?: give the function another name,)? or (\w)"
)
_REMOVAL = re.compile(r"cache\.remove\((?:'([^']*)'|\"([^\"]*)\")\)")
_REMOVE_FIRST = re.compile(rf"Remove the cached code first: {_REMOVAL.pattern}")
BAD_INPUT = 2
_INTERRUPTED = 130
#: Commands that report invalid settings themselves or use no settings.
_COMMANDS_WITHOUT_CHECK = ("config", "doctor", "dir", "completion", "key")
_CHOICES = re.compile(r"'([^']*)' is not one of (.*)")
#: ASCII replacements for the characters of tables and trees, for terminals whose encoding lacks these characters.
_ASCII_FRAMES = {"\u2026": "~", "\u251c": "|", "\u2502": "|", "\u2514": "`", "\u2500": "-", "\u2501": "-", "\u2578": "-", "\u257a": "-"}
_shown: set[str] = set()  # the warnings that the command has written
_COLLECT_AFTER = 2_000_000  # new objects: listing a large cache creates many objects and no garbage

#: Every command with its module in this package and its summary. A name after a colon is the name of the command in its module. The module
#: is imported when the command runs: the start of the program must not become slower with each new command.
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
    "doctor": ("commands.read.doctor", "Look for problems with the directory, settings, keys, stores and tools."),
    "stats": ("commands.read.stats", "Show statistics: hits, misses, time saved."),
    "metrics": ("commands.read.metrics", "Show the counters in the text format of Prometheus."),
    "top": ("commands.read.top", "Show the most expensive functions: compile time, space, misses."),
    "report": ("report.command", "Write a page about the cache: content, savings, hits over time."),
    "check": ("commands.write.check", "Check the whole cache, and repair it."),
    "prune": ("commands.write.prune", "Remove modules by age, size, use or name."),
    "link": ("commands.write.link", "Link functions and the functions that they call into one image."),
    "compact": ("commands.write.compact", "Pack small modules into few files."),
    "rm": ("commands.write.rm", "Remove functions by name."),
    "export": ("commands.read.export", "Write functions and their dependencies to one file, a bundle."),
    "import": ("commands.write.import_", "Add the functions of a bundle."),
    "key": ("commands.write.key", "Make, show and trust keys that sign modules."),
    "pin": ("commands.write.pin", "Protect functions from pruning."),
    "unpin": ("commands.write.pin:unpin", "Allow the pruning of functions again."),
    "clear": ("commands.write.clear", "Remove everything from the cache."),
    "remote": ("commands.write.remote", "Show, fill and clean up a remote store."),
    "completion": ("completion", "Print a shell's completion script."),
}


@contextmanager
def _exiting_without_reader() -> Iterator[None]:
    """Exit with status 0 if the reader of standard output closes the pipe early, as `head` does."""
    try:
        yield
    except BrokenPipeError as error:
        # Further writes would fail, even at interpreter shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from error


class _LazyGroup(click.Group):
    """A group that imports the module of a command when the command is looked up."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Return the context with the options before the command; --help and --version write their text and exit."""
        with _exiting_without_reader():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and return its exit status. For a group of commands that is called without one, print its help."""
        with _exiting_without_reader():
            try:
                status = super().invoke(ctx)
            except click.UsageError as error:
                if type(error).__name__ != "NoArgsIsHelpError":  # older versions of click print the help themselves
                    raise
                click.echo(error.format_message())
                status = 0
            sys.stdout.flush()
        return status

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with ``help [COMMAND]`` as an alias of ``[COMMAND] --help``, as in git and cargo."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the interface of click
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the interface of click
        """Import and return a command with its shared options and examples; None for an unknown command."""
        if cmd_name not in COMMANDS:
            return None
        target, _ = COMMANDS[cmd_name]
        module, _, name = target.partition(":")
        command: click.Command = getattr(import_module(f"compcache.cli.{module}"), name or "command")
        if not any(parameter.name == "directory_here" for parameter in command.params):  # click may request a command twice
            own_options = {text for parameter in command.params for text in parameter.opts}
            command.params += [option for option in _shared_options() if own_options.isdisjoint(option.opts)]
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[cmd_name])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the interface of click
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, and the other arguments; raise `click.UsageError` for an unknown command."""
        if args and args[0] not in COMMANDS:
            raise click.UsageError(f"unknown command {args[0]!r}{did_you_mean(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)


def _shared_options() -> list[click.Parameter]:
    """Return new copies of the group's options that each command also accepts after its name."""
    return [
        click.Option(
            ["--dir", "directory_here"], metavar="DIR", expose_value=False, callback=_use_directory,
            help="The cache directory; same as --dir before the command.",
        ),
        *[
            click.Option(names, is_flag=True, expose_value=False, callback=callback, hidden=True, help="See compcache --help.")
            for names, callback in (
                (["--trust", "trust_here"], _use_trust),
                (["-v", "--verbose", "verbose_here"], _use_verbose),
                (["-q", "--quiet", "quiet_here"], _use_quiet),
            )
        ],
    ]  # fmt: skip


def _use_directory(ctx: click.Context, _: click.Parameter, directory: str | None) -> None:
    """Use the directory of --dir after a command, if given, as the cache directory. See `_reject_empty_directory` for the exception."""
    if directory is not None:
        _reject_empty_directory(directory)
        session = ctx.find_object(Session)
        ctx.obj = Session(directory, trust=session is not None and session.trust)


def _use_trust(ctx: click.Context, _: click.Parameter, trust: bool) -> None:
    """Apply --trust after a command like --trust before the command."""
    session = ctx.find_object(Session)
    if trust:
        ctx.obj = Session(session.given if session is not None else None, trust=True)


def _use_verbose(_: click.Context, __: click.Parameter, verbose: bool) -> None:
    """If `verbose` is true, set the variable that shows debugging messages, for child processes too."""
    if verbose:
        os.environ[DEBUG_VARIABLE] = "1"


def _use_quiet(ctx: click.Context, _: click.Parameter, quiet: bool) -> None:
    """If `quiet` is true, record that -q was given (`is_quiet`)."""
    if quiet:
        ctx.meta[QUIET] = True


def _reject_empty_directory(directory: str) -> None:
    """Raise `click.UsageError` if the directory of --dir is empty."""
    if not directory:
        raise click.UsageError("--dir is empty: give a directory, or leave the option out")


def _print_version(ctx: click.Context, _: click.Parameter, is_requested: bool) -> None:
    """If --version was given (`is_requested`), print the version and exit. Do nothing while a shell completes the command line."""
    if is_requested and not ctx.resilient_parsing:
        from compcache import __version__

        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit()


@click.command(
    cls=_LazyGroup,
    subcommand_metavar="COMMAND [ARGS]...",
    invoke_without_command=True,  # what bare invocations do differs between versions of click
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Results go to standard output, all other text to standard error. Exit status: 0 for success, 1 if the command "
    "found a problem, 2 for a usage error or invalid input. Colours and tables appear on a terminal only. NO_COLOR disables colours.",
)
@click.option("--dir", "directory", metavar="DIR", help="The cache directory. Without it: $COMPCACHE_DIR, else the user's cache directory.")
@click.option("--trust", is_flag=True, help="Use the directory even if other users own it or can write to it.")
@click.option(
    "-v", "--verbose", is_flag=True, expose_value=False, callback=_use_verbose,
    help="Log each hit, miss and compilation on standard error, like COMPCACHE_DEBUG=1.",
)  # fmt: skip
@click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=_use_quiet,
    help="Write only results and errors: no warnings, notes or progress.",
)  # fmt: skip
@click.option("-V", "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version.")
@click.pass_context
def group(ctx: click.Context, directory: str | None, trust: bool) -> None:
    """An on-disk cache of compiled LLVM modules: inspect it, fill it, call its functions."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return
    if directory is not None:
        _reject_empty_directory(directory)
    has_settings = any(name.startswith("COMPCACHE_") for name in os.environ)
    if ctx.invoked_subcommand not in _COMMANDS_WITHOUT_CHECK and (has_settings or configuration()):
        _validate_settings()
    ctx.obj = Session(directory, trust=trust)


def _validate_settings() -> None:
    """Check all settings. Without -q, write a warning for each variable that resembles a setting and is not a setting.

    Raise `click.ClickException` if a setting is not valid.
    """
    from compcache.cli.environment import invalid_settings, misspelt_settings

    for _, message in invalid_settings():
        raise click.ClickException(message)
    for name, suggestion in misspelt_settings(os.environ):
        if not is_quiet():
            print_message("warning", f"the variable {name} is ignored: it is not a setting of compcache; did you mean {suggestion}?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    This changes the process: warnings become messages, garbage is collected less often, and standard streams replace characters that they
    cannot encode. Closed standard streams are opened, and discard the output.

    Args:
        arguments: the arguments after the program name; None for the arguments of this process.
    """
    warnings.showwarning = _show_warning
    _shown.clear()
    codecs.register_error("compcache.plain", _replace_unencodable)
    gc.set_threshold(_COLLECT_AFTER, 20, 100)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="compcache.plain")  # a locale must not make printing a name fail
    try:
        status = group.main(args=None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        return _print_error(_usage_error_text(error))
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except (CompcacheError, OSError, ImportError) as error:  # ImportError: the native runtime, or a package of the installation
        return _print_error(_error_text(error))
    except CacheWarning as warning:  # PYTHONWARNINGS=error
        return _print_error(translate_advice(str(warning)))
    except MemoryError:
        return _print_error("not enough memory: name smaller files, or raise the limit that 'ulimit -v' shows")
    finally:
        end_progress()
    return status if isinstance(status, int) else 0


def _replace_unencodable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace a character that an encoding lacks: frame characters with ASCII, other characters with their escape sequence.

    This is an error handler for `codecs`. Return the replacement and the position at which encoding continues.
    """
    if isinstance(error, UnicodeEncodeError):
        replacement = _ASCII_FRAMES.get(error.object[error.start])
        if replacement is not None:
            return replacement, error.start + 1
    return codecs.backslashreplace_errors(error)


def _error_text(error: CompcacheError | OSError | ImportError) -> str:
    """Return the message of an error for users of the command line: with its options, the file of an `OSError`, and further advice."""
    text = str(error)
    if isinstance(error, NotCachedError):  # a message that suggests a similar name ends with a question mark
        return text if text.endswith("?") else f"{text}; '{PROGRAM} ls' lists the cached functions"
    if isinstance(error, UntrustedDirectoryError):
        return (
            f"{error.reason}, or, if you trust all users who can write there, give --trust before the command ({PROGRAM} --trust "
            "...), or set COMPCACHE_SIGNING_KEY"
        )
    if isinstance(error, CompcacheError):
        return translate_advice(text)
    if isinstance(error, ImportError):
        return text
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or text


def _print_error(message: str) -> int:
    """Write an error message to standard error, and return the exit status for it."""
    print_message("error", message)
    return BAD_INPUT


def _usage_error_text(error: click.ClickException) -> str:
    """Return the message of a click error, beginning in lower case, with the nearest choice and a reference to the command's help."""
    text = _unknown_option_text(error) or error.format_message().rstrip(".")
    choice = _CHOICES.search(text)
    if choice is not None:
        given, choices = choice.groups()
        text += did_you_mean(given, re.findall(r"'([^']*)'", choices))
    if not text[1:2].isupper():  # as in "NAME"
        text = text[:1].lower() + text[1:]
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    return f"{text}{' See' if text.endswith('?') else '; see'} '{context.command_path} --help'"


def _unknown_option_text(error: click.ClickException) -> str:
    """Return the message for an unknown option; empty for other errors. The messages of click's versions differ."""
    if not isinstance(error, click.NoSuchOption):
        return ""
    options = [] if error.ctx is None else [text for parameter in error.ctx.command.get_params(error.ctx) for text in parameter.opts]
    return f"no such option {error.option_name!r}{did_you_mean(error.option_name, options)}"


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    """Write a warning of the cache as one message, once, unless -q was given. Write other warnings as `warnings` formats them."""
    if issubclass(category, CacheWarning):
        text = translate_advice(str(message))
        if not is_quiet() and text not in _shown:
            _shown.add(text)
            print_message("warning", text)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print("\n".join(map(printable, text.split("\n"))), file=file or sys.stderr, end="")


def translate_advice(message: str) -> str:
    """Replace the Python calls in the message of a warning or error with commands, and return the message."""
    message = _FOR_PROGRAMS.sub(lambda match: match[1].upper(), message)
    context = click.get_current_context(silent=True)
    if context is not None and any(parameter.name == "replace" for parameter in context.command.params):
        message = _REMOVE_FIRST.sub("Add it with --replace, which removes the older code", message)
    return _REMOVAL.sub(lambda match: f"compcache rm {shlex.quote(match[1] or match[2] or '')}", message)
