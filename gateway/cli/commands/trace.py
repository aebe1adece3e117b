"""`dovecote trace`: every step of one message, from acceptance to the platform's message id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.group import Json
from gateway.cli.output import Columns, print_json, print_rows, short

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient


async def trace(
    gateway: GatewayClient,
    message: Annotated[str, typer.Argument(help="The id of a message, turn, job or delivery.")],
    *,
    as_json: Json = False,
) -> None:
    """Show every step of a message, turn or job."""
    found = await gateway.get("trace", message)
    if as_json:
        print_json(found)
        return
    columns: Columns = {"time": "time", "what": "what", "id": "id", "state": "state"}
    columns = {**columns, "detail": lambda row: short(row.get("detail"), 100)}
    print_rows(found["steps"], columns, as_json=False, empty="no steps are known")
