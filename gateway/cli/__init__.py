"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; `serve` without the other commands, so that a gateway starts faster."""
    if sys.argv[1:2] == ["serve"]:
        from gateway.cli.machine.serve import command
    else:
        from gateway.cli.app import command
    command()(prog_name="dovecote")
