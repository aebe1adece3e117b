"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; `serve` without the other commands, so that a gateway starts faster."""
    from gateway.cli.standard_streams import standard_streams

    is_serve = sys.argv[1:2] == ["serve"]
    with standard_streams(needs_stdout=not is_serve):
        if is_serve:
            from gateway.cli.machine.serve import command
        else:
            from gateway.cli.app import command
        command()(prog_name="dovecote")
