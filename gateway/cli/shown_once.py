"""Output of what is shown only once: if nobody can read it, what it belongs to is deleted again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed, discard_stdout
from gateway.cli.standard_streams import OutputFailed

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient


async def print_once(gateway: GatewayClient, show: Callable[[], None], *created: str) -> None:
    """Print the secret of what was just created at this path.

    If stdout does not take it, delete that, and raise CommandFailed.
    """
    try:
        print_or_fail(show)
    except CommandFailed as error:
        identity = created[-1]
        try:
            await gateway.delete(*created)
        except CommandFailed as second:
            error.add_note(f"{identity} exists, and its secret is lost: delete it ({second})")
        else:
            error.add_note(f"{identity} is deleted again, because nobody saw its secret")
        raise


def print_or_fail(show: Callable[[], None], *, lost: str = "") -> None:
    """Print what is shown only once; raises CommandFailed, with what is `lost`, if stdout is closed."""
    try:
        show()
        sys.stdout.flush()
    except (OutputFailed, BrokenPipeError) as raised:
        discard_stdout()
        error = raised if isinstance(raised, OutputFailed) else OutputFailed(raised)
        if lost:
            error.add_note(lost)
        raise error from None
