"""Errors of commands: one line on stderr and an exit code, without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from gateway.cli.printable import clean


class ExitCode(IntEnum):
    """The exit codes of `dovecote`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


BROKEN_PACKAGES = frozenset({"BrokenAgent", "BrokenHook", "BrokenTool"})
"""Errors of installed packages, by name: their modules are not imported for other errors."""


class CommandFailed(Exception):
    """The command failed."""

    code = ExitCode.FAILED


class UsageError(CommandFailed):
    """Wrong usage, or the settings do not allow the command."""

    code = ExitCode.USAGE


class GatewayUnreachable(CommandFailed):
    """The gateway cannot be reached."""

    code = ExitCode.UNREACHABLE


class GatewaySilent(GatewayUnreachable):
    """Something accepts connections at the gateway's address, and sends no answer."""


def print_error(text: str) -> None:
    """Write a line to stderr, without control characters."""
    typer.echo(f"dovecote: {clean(text)}", err=True)


@contextmanager
def report_failures() -> Iterator[None]:
    """Exit with one error line and the right exit code for any exception inside."""
    try:
        yield
    except typer.Exit:
        raise
    except (KeyboardInterrupt, typer.Abort):  # Abort: of a question of typer
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:  # the outermost handler: the traceback is only for developers (python -X dev)
        if sys.flags.dev_mode:
            raise
        raise typer.Exit(_report_error(error)) from None


def first_error(error: BaseException) -> BaseException:
    """Return the first error of a group, because the others follow from it; or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _report_error(error: BaseException) -> ExitCode:
    """Print an exception to stderr and return its exit code."""
    from gateway.config.settings import InvalidSettings

    error = first_error(error)
    if isinstance(error, InvalidSettings):
        for problem in error.problems:
            print_error(str(problem))
        return ExitCode.USAGE
    if type(error).__name__ in BROKEN_PACKAGES:
        print_error(str(error))
        return ExitCode.USAGE
    if isinstance(error, BrokenPipeError):
        discard_stdout()
        return ExitCode.DONE
    if isinstance(error, CommandFailed):
        for line in (str(error), *getattr(error, "__notes__", ())):
            print_error(line)
        return error.code
    print_error(f"unexpected {type(error).__name__}: {error}")
    return ExitCode.FAILED


def discard_stdout() -> None:
    """Prevent a second error when stdout, which failed, is flushed at the end."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
