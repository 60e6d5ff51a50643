"""What the commands of the suite share: how wrong arguments and errors are reported, and how a command ends."""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from signal import SIGINT
from textwrap import wrap
from typing import IO, Any, TypeAlias, TypeVar

import click

from fleeting._durations import parse_duration
from fleeting._errors import (
    CatalogueEntry,
    ConfigError,
    FleetingError,
    GroupRefused,
    InterfaceMismatch,
    PluginBroken,
    SystemRefused,
    WrongArguments,
)
from fleeting._terminal import harmless

SUCCEEDED, FAILED, WRONG, SIGNALLED = 0, 1, 2, 128
"""Exit statuses; the signal's number is added to the last, as shells do."""

WRONG_FILE = (ConfigError, PluginBroken, InterfaceMismatch, GroupRefused, OSError)
"""What is wrong with a file, or with what it names, before anything has begun."""

Expected: TypeAlias = FleetingError | OSError
EXPECTED: tuple[type[Expected], ...] = (FleetingError, OSError)
"""What is reported in a sentence; anything else is a mistake of ours and shows where it is."""

YOUNG = 20_000
"""So many new objects, and the garbage collector looks at them, in a process that is a command's. With Python's own
700, a tenth of the time until a command has begun is spent on looking at what stays."""

E = TypeVar("E", bound=BaseException)


class _Command(click.Command):
    """A command that is named where its arguments are wrong, also by errors of click's that forget whose they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


class Commands(click.Group):
    """Commands whose wrong arguments are reported as all errors are."""

    command_class = _Command

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401  (click's)
        """Run it as a program, which without arguments it is: those of the process are its own."""
        if not args and extra.get("args") is None:
            gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
            atexit.register(gc.freeze)  # else a quarter of a short command goes into collecting what ends with it
        _open_what_was_closed()
        return super().main(*args, **extra)

    def make_context(self, info_name: str | None, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401  (click's)
        """Read the arguments before the command."""
        with _reworded(info_name or ""):
            return super().make_context(info_name, *args, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Read the command's own arguments, and run it."""
        with _reworded(ctx.command_path):
            return super().invoke(ctx)


def _open_what_was_closed() -> None:
    """Who was started without a standard input or output reads nothing, and writes to nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


class _Wrong(click.ClickException):
    """Wrong arguments, reported as all errors are."""

    exit_code = WRONG

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002  (errors have one place to go to)
        """Print it."""
        report_errors([WrongArguments(self.message)], self.exit_code)


@contextmanager
def _reworded(command: str) -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        message = error.format_message().removesuffix(".").replace(". Did you mean", "; did you mean")
        message = message.replace("is not a valid integer range", "is not a whole number")
        if ";" not in message:
            message += f"; see {error.ctx.command_path if error.ctx else command} --help"
        raise _Wrong(f"{message[:1].lower()}{message[1:]}") from error


def as_duration(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    """Read the value of an option that is a duration, in seconds; for its ``callback``."""
    try:
        return None if given is None else parse_duration(given)
    except ConfigError as error:
        raise click.BadParameter(f"{given!r} is not a duration such as 90s or 5m") from error


def outcome(command: Callable[[], int], *, failed: int = FAILED) -> int:
    """Run a command and return its exit status; expected errors are reported, and end it with *failed*.

    Some arguments are seen to be wrong only once the group was looked at; they end it with `WRONG` as all others do.
    """
    try:
        return command()
    except KeyboardInterrupt:  # before the event loop heeds signals
        return SIGNALLED + SIGINT
    except WrongArguments as error:
        return report_errors([error], WRONG)
    except EXPECTED as error:
        return report_errors([error], failed)
    except BaseExceptionGroup as group:
        expected, rest = group.split(EXPECTED)
        if expected is None or rest is not None:
            raise
        errors = [*_leaves(expected)]
        return report_errors(errors, WRONG if all(isinstance(error, WrongArguments) for error in errors) else failed)


def report_errors(errors: Iterable[Expected], status: int) -> int:
    """Print the errors on standard error and return the exit status."""
    for error in errors:
        for line in in_lines(error):
            print(fitted(line, sys.stderr), file=sys.stderr)  # noqa: T201  (a command's errors go there)
    return status


def fitted(line: str, stream: IO[str], *, indent: str = "  ") -> str:
    """Break a line as `folded` does where *stream* is a terminal; elsewhere it stays one, to be searched for."""
    if not stream.isatty():
        return line
    width = os.get_terminal_size(stream.fileno()).columns
    return folded(line, width, indent=indent) if width else line  # 0: it does not know


def folded(line: str, width: int, *, indent: str = "  ") -> str:
    """Break a line between words, and indent what follows. Words stay whole, so that a path can be copied."""
    lines = wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def in_lines(error: Expected) -> Iterator[str]:
    """Write an error: a line for each thing that is wrong, then what belongs to it, indented.

    What to do stands behind a semicolon, by the convention of our messages; where it does not, the catalogue says it.
    """
    if isinstance(error, OSError):
        error = SystemRefused(error)
    if isinstance(error, ConfigError):
        for line, problem in zip(error.lines, error.problems, strict=False):
            yield f"error: {' '.join(harmless(line).splitlines())} [{problem.mistake.value.code}]"
        if error.rest:
            yield f"  {error.rest}"
    else:
        first, *more = harmless(str(error)).splitlines() or [""]
        yield f"error: {_with_remedy(first, error.entry)} [{error.entry.code}]"
        yield from (f"  {line}" for line in more)


def _with_remedy(message: str, entry: CatalogueEntry) -> str:
    if ";" in message:
        return message
    remedy = entry.remedy.removesuffix(".")
    return f"{message}; {remedy[:1].lower()}{remedy[1:]}"


def _leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    """Take groups of errors apart."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
