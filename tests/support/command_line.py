"""Run commands of `dovecote` in the tests' own process."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from typer.testing import CliRunner, Result

from gateway.cli.app import command


def run_command_line(*words: str, typed: str = "", env: Mapping[str, str | None] | None = None) -> Result:
    """Return what a command prints, and its exit code; `typed` is its input.

    `CliRunner.invoke` builds the command line each time, which takes longer than most commands.
    """
    runner = CliRunner()
    code: object = 0
    with runner.isolation(input=typed, env=env) as streams:
        try:
            command()(args=words, prog_name="dovecote")
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
        stdout, stderr, output = (stream.getvalue() for stream in streams)
    return Result(runner, stdout, stderr, output, None, code if isinstance(code, int) else 1, None)
