"""How a command ends: one clear line on stderr and an exit code, never a traceback at the user."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer


class ExitCode(IntEnum):
    """The exit codes of `dovecote`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class CommandFailed(Exception):
    """The command did not succeed."""

    code = ExitCode.FAILED


class UsageError(CommandFailed):
    """The command was called wrongly, or the settings do not allow it."""

    code = ExitCode.USAGE


class GatewayUnreachable(CommandFailed):
    """No gateway answers there."""

    code = ExitCode.UNREACHABLE


def print_error(text: str) -> None:
    """Write a line to stderr."""
    typer.echo(f"dovecote: {text}", err=True)


@contextmanager
def report_failures() -> Iterator[None]:
    """End the program with one line and the right exit code whatever goes wrong inside."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:  # the outermost loop: a traceback helps developers only (python -X dev)
        if sys.flags.dev_mode:
            raise
        raise typer.Exit(_report_error(error)) from None


def _report_error(error: BaseException) -> ExitCode:
    """Say on stderr what went wrong; returns the exit code."""
    from gateway.config.settings import InvalidSettings

    while isinstance(error, BaseExceptionGroup):  # one failure is told, its companions follow from it
        error = error.exceptions[0]
    if isinstance(error, InvalidSettings):
        for problem in error.problems:
            print_error(str(problem))
        return ExitCode.USAGE
    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return ExitCode.DONE
    if isinstance(error, CommandFailed):
        print_error(str(error))
        return error.code
    print_error(f"unexpected {type(error).__name__}: {error}")
    return ExitCode.FAILED


def _discard_stdout() -> None:
    """Keep the interpreter from complaining once more about the closed pipe when it flushes stdout."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
