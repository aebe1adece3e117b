"""Commands on memories: notes about people, rooms, agents and the account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_record, print_rows, short

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

memories = group("Notes about people, rooms, agents and the account.")

PATH = ("accounts", "me", "memories")
Id = Annotated[str, typer.Argument(help="The id, as the list shows it.")]
Text = Annotated[str, typer.Argument(help="The note.")]
Scope = Annotated[str | None, typer.Option(help="person, room, agent or account.")]
Subject = Annotated[
    str | None, typer.Option(help="The person (telegram:4711), a conversation in the room, or the agent.")
]


@remote(memories, "list")
async def list_memories(
    gateway: GatewayClient,
    *,
    scope: Scope = None,
    subject: Subject = None,
    q: Annotated[str | None, typer.Option("--search", help="Words that the notes contain.")] = None,
    as_json: Json = False,
) -> None:
    """List the notes."""
    given = {"scope": scope, "subject": subject, "q": q}
    query = {name: value for name, value in given.items() if value is not None}
    columns: Columns = {
        "id": "id",
        "scope": "scope",
        "subject": "subject",
        "updated": "updated_at",
        "text": lambda row: short(row.get("text")),
    }
    print_rows(await gateway.list_all(*PATH, **query), columns, as_json=as_json, empty="no memories")


@remote(memories, "add")
async def add_memory(
    gateway: GatewayClient,
    text: Text,
    *,
    scope: Annotated[str, typer.Option(help="person, room, agent or account.")],
    subject: Subject = None,
    as_json: Json = False,
) -> None:
    """Write a note."""
    body = {"scope": scope, "text": text} | ({} if subject is None else {"subject": subject})
    print_record(await gateway.post(*PATH, body=body), as_json=as_json)


@remote(memories, "edit")
async def edit_memory(gateway: GatewayClient, memory: Id, text: Text) -> None:
    """Change the text of a note."""
    await gateway.patch(*PATH, memory, body={"text": text})
    typer.echo(f"{memory} changed")


@remote(memories, "rm")
async def delete_memory(gateway: GatewayClient, memory: Id) -> None:
    """Delete a note."""
    await gateway.delete(*PATH, memory)
    typer.echo(f"{memory} deleted")
