"""Commands on conversations: list, show, rename, hand over and delete."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.commands.jobs import Id
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_line, print_record, print_rows
from gateway.cli.questions import Yes, confirm_deletion

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient


class HandoverState(StrEnum):
    """Who answers a conversation."""

    HUMAN = "human"
    AGENT = "agent"


conversations = group("Conversations of people and programs with agents.")


@remote(conversations, "list")
async def list_conversations(
    gateway: GatewayClient,
    *,
    channel: Annotated[str | None, typer.Option(help="Only those of this channel.")] = None,
    as_json: Json = False,
) -> None:
    """List the conversations, last active first."""
    columns: Columns = {
        "id": "id",
        "title": "title",
        "name": "name",
        "people": _people,
        "place": _place,
        "last activity": "active_at",
    }
    query: dict[str, str | int] = {"channel": channel} if channel else {}
    rows = await gateway.list_all("conversations", preview="true", **query)
    print_rows(rows, columns, as_json=as_json, empty="no conversations")


@remote(conversations, "show")
async def show_conversation(gateway: GatewayClient, conversation: Id, *, as_json: Json = False) -> None:
    """Show one conversation."""
    print_record(await gateway.get("conversations", conversation), as_json=as_json)


@remote(conversations, "rename")
async def rename_conversation(
    gateway: GatewayClient,
    conversation: Id,
    title: Annotated[
        str | None, typer.Argument(help="Without it, the start of the first message is the title again.")
    ] = None,
) -> None:
    """Change the title of a conversation."""
    renamed = await gateway.patch("conversations", conversation, body={"title": title})
    print_line(f"{renamed['id']} is now called: {renamed['title'] or renamed['id']}")


@remote(conversations, "handover")
async def hand_over(
    gateway: GatewayClient,
    conversation: Id,
    state: Annotated[HandoverState, typer.Argument(help="Who answers from now on.")],
    *,
    as_json: Json = False,
) -> None:
    """Let people answer a conversation instead of the agent (`human`), or the agent again (`agent`)."""
    found = await gateway.post("conversations", conversation, "handover", body={"state": state.value})
    if as_json:
        print_record(found, as_json=True)
        return
    who = "people answer; the agent is silent" if found["state"] == "human" else "the agent answers"
    print_line(f"{conversation}: {who}")


@remote(conversations, "say")
async def say_as_operator(
    gateway: GatewayClient, conversation: Id, text: Annotated[str, typer.Argument(help="The message.")]
) -> None:
    """Send a message of a person to a conversation that was handed over."""
    await gateway.post("conversations", conversation, "messages", body={"text": text, "as": "operator"})
    print_line(f"{conversation}: sent")


@remote(conversations, "rm")
async def delete_conversation(gateway: GatewayClient, conversation: Id, *, yes: Yes = False) -> None:
    """Delete a conversation with its events and files; its running jobs are stopped."""
    await confirm_deletion(
        conversation, "its messages and files are deleted", yes=yes, scripts_need_yes=False
    )
    await gateway.delete("conversations", conversation)
    print_line(f"{conversation} is deleted")


def _people(row: Any) -> list[str]:
    """Return the names of who wrote lately; people without a known name are shown by id."""
    preview = row.get("preview") or {}
    ids = preview.get("people") or []
    names = preview.get("people_names") or ids
    return [name for person, name in zip(ids, names, strict=False) if not person.startswith("key_")][:3]


def _place(row: Any) -> str:
    address = row.get("address") or {}
    channel = address.get("channel_name") or address.get("channel")
    room = address.get("room_name") or address.get("room")
    return " · ".join(str(part) for part in (channel, room, address.get("thread")) if part)
