"""Commands on triggers: signed requests that start turns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands.schedules import Conversation, Id
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_line, print_record, print_rows, short
from gateway.cli.shown_once import print_once

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

triggers = group("Signed requests that start turns.")

PATH = ("accounts", "me", "triggers")


@remote(triggers, "list")
async def list_triggers(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the triggers, without their secrets."""
    columns: Columns = {
        "id": "id",
        "conversation": "conversation",
        "path": "path",
        "template": lambda row: short(row.get("template")),
    }
    found = await gateway.list_all(*PATH)
    print_rows(found, columns, as_json=as_json, empty="no triggers")


@remote(triggers, "add")
async def add_trigger(
    gateway: GatewayClient,
    template: Annotated[str, typer.Argument(help="What the agent is given, with {{body}} or {{a.field}}.")],
    *,
    conversation: Conversation,
    agent: Annotated[str | None, typer.Option(help="The agent of a new conversation.")] = None,
    as_json: Json = False,
) -> None:
    """Create a trigger and print its secret; it is not shown again."""
    body = {"conversation": conversation, "template": template} | ({"agent": agent} if agent else {})
    made = await gateway.post(*PATH, body=body)
    await print_once(gateway, partial(print_record, made, as_json=as_json), *PATH, made["id"])


@remote(triggers, "rm")
async def delete_trigger(gateway: GatewayClient, trigger: Id) -> None:
    """Delete a trigger; a turn that it has started continues."""
    await gateway.delete(*PATH, trigger)
    print_line(f"{trigger} deleted")
