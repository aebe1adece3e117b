"""Commands on turns: list, show, retry and cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands.jobs import Id, State, filter_by_state
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_record, print_rows, short

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

turns = group("Turns of agents.")


@remote(turns, "list")
async def list_turns(
    gateway: GatewayClient,
    *,
    state: State = None,
    dead: Annotated[
        bool, typer.Option("--dead", help="Only dead-lettered turns that were not retried.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the turns, newest first."""
    columns: Columns = {
        "id": "id",
        "state": lambda row: "dead" if row.get("dead") else row.get("state"),
        "attempts": "attempt",
        "asked": "created_at",
        "input": lambda row: short(row.get("input"), 60),
        "error": lambda row: short(row.get("error"), 80),
        "next attempt": "next_at",
    }
    rows = [
        row for row in filter_by_state(await gateway.list_all("turns"), state) if row.get("dead") or not dead
    ]
    print_rows(rows, columns, as_json=as_json, empty="no turns")


@remote(turns, "show")
async def show_turn(gateway: GatewayClient, turn: Id, *, as_json: Json = False) -> None:
    """Show one turn."""
    print_record(await gateway.get("status", turn), as_json=as_json)


@remote(turns, "retry")
async def retry_turn(gateway: GatewayClient, turn: Id) -> None:
    """Retry a failed turn once, at the end of its queue, or make the next attempt of a waiting one now."""
    new = await gateway.post("turns", turn, "retry")
    typer.echo(f"{turn} is retried as {new['id']}" if new["id"] != turn else f"{turn} is tried again now")


@remote(turns, "cancel")
async def cancel_turn(gateway: GatewayClient, turn: Id) -> None:
    """Cancel a turn with its model call and running command."""
    now = await gateway.post("turns", turn, "cancel")
    typer.echo(f"{turn} is {'being cancelled' if now.get('cancelling') else now['state']}")
