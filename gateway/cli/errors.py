"""How a command ends: one clear line on stderr and an exit code, never a traceback at the user."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer


class Exit(IntEnum):
    """The exit codes of `dovecote`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class Failure(Exception):
    """The command did not succeed."""

    code = Exit.FAILED


class WrongUsage(Failure):
    """The command was called wrongly, or the settings do not allow it."""

    code = Exit.USAGE


class Unreachable(Failure):
    """No gateway answers there."""

    code = Exit.UNREACHABLE


def complain(text: str) -> None:
    """Write a line to stderr."""
    typer.echo(f"dovecote: {text}", err=True)


@contextmanager
def plain_failures() -> Iterator[None]:
    """End the program with one line and the right exit code whatever goes wrong inside."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    except Exception as error:  # the outermost loop: a traceback helps developers only (python -X dev)
        if sys.flags.dev_mode:
            raise
        raise typer.Exit(_report(error)) from None


def _report(error: BaseException) -> Exit:
    """Say on stderr what went wrong; returns the exit code."""
    from gateway.config.settings import Misconfigured

    while isinstance(error, BaseExceptionGroup):  # one failure is told, its companions follow from it
        error = error.exceptions[0]
    if isinstance(error, Misconfigured):
        for problem in error.problems:
            complain(str(problem))
        return Exit.USAGE
    if isinstance(error, BrokenPipeError):
        _forget_stdout()
        return Exit.DONE
    if isinstance(error, Failure):
        complain(str(error))
        return error.code
    complain(f"unexpected {type(error).__name__}: {error}")
    return Exit.FAILED


def _forget_stdout() -> None:
    """Keep the interpreter from complaining once more about the closed pipe when it flushes stdout."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
