"""Commands on memories (notes about people, rooms, agents and the account), and on people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_line, print_record, print_rows, short

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

memories = group("Notes about people, rooms, agents and the account.")
persons = group("People, and their identities on platforms.")

PATH = ("accounts", "me", "memories")
PERSONS = ("accounts", "me", "persons")
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
    print_line(f"{memory} changed")


@remote(memories, "rm")
async def delete_memory(gateway: GatewayClient, memory: Id) -> None:
    """Delete a note."""
    await gateway.delete(*PATH, memory)
    print_line(f"{memory} deleted")


@remote(persons, "list")
async def list_persons(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the people with their identities."""
    columns: Columns = {
        "id": "id",
        "identities": lambda row: ", ".join(_described(one) for one in row.get("identities", ())),
        "since": "created_at",
    }
    print_rows(await gateway.list_all(*PERSONS), columns, as_json=as_json, empty="no person has written yet")


def _described(identity: Mapping[str, Any]) -> str:
    name = identity.get("name")
    return f"{identity['id']} ({name})" if name else str(identity["id"])


@remote(persons, "link")
async def link_person(
    gateway: GatewayClient,
    person: Annotated[str, typer.Argument(help="The id of the person who is joined to another one.")],
    code: Annotated[str, typer.Argument(help="The code that /link gave to the other one.")],
    *,
    as_json: Json = False,
) -> None:
    """Join a person to the one who got a code."""
    print_record(await gateway.post(*PERSONS, person, "link", body={"code": code}), as_json=as_json)


@remote(persons, "unlink")
async def unlink_identity(
    gateway: GatewayClient,
    person: Annotated[str, typer.Argument(help="The person's id.")],
    identity: Annotated[str, typer.Argument(help="The identity, as the list shows it.")],
) -> None:
    """Make an identity a person of its own."""
    await gateway.delete(*PERSONS, person, "identities", identity)
    print_line(f"{identity} is a person of its own")
