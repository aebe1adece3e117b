"""Commands on schedules: turns and reminders at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_line, print_record, print_rows, short

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

schedules = group("Turns and reminders that begin at a time.")

PATH = ("accounts", "me", "schedules")
Id = Annotated[str, typer.Argument(help="The id, as the list shows it.")]
Conversation = Annotated[str, typer.Option(help="The conversation: an id, or a name, which may be new.")]

At = Annotated[str | None, typer.Option(help="Once: a time such as 2030-01-31T09:00:00+01:00.")]
Every = Annotated[str | None, typer.Option(help="At intervals: a duration such as PT15M or P1D.")]
Cron = Annotated[str | None, typer.Option(help="Five cron fields, such as '0 9 * * 1-5'.")]
Timezone = Annotated[str | None, typer.Option(help="The time zone of --cron.")]


@remote(schedules, "list")
async def list_schedules(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the schedules."""
    columns: Columns = {
        "id": "id",
        "name": "name",
        "state": "state",
        "due": "next_at",
        "when": lambda row: row.get("cron") or row.get("every") or row.get("at"),
        "kind": "kind",
        "conversation": "conversation",
        "text": lambda row: short(row.get("text")),
    }
    print_rows(await gateway.list_all(*PATH), columns, as_json=as_json, empty="no schedules")


@remote(schedules, "add")
async def add_schedule(
    gateway: GatewayClient,
    text: Annotated[str, typer.Argument(help="What the agent is given, or the reminder.")],
    *,
    conversation: Conversation,
    at: At = None,
    every: Every = None,
    cron: Cron = None,
    timezone: Timezone = None,
    missed: Annotated[str, typer.Option(help="Times without a gateway: skip, once or all.")] = "once",
    remind: Annotated[bool, typer.Option("--remind", help="Send the text itself.")] = False,
    heartbeat: Annotated[
        bool, typer.Option("--heartbeat", help="Send no message if the agent answers HEARTBEAT_OK.")
    ] = False,
    agent: Annotated[str | None, typer.Option(help="The agent of a new conversation.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Start nothing until it is resumed.")] = False,
    as_json: Json = False,
) -> None:
    """Create a schedule; give one of --at, --every and --cron."""
    body: dict[str, Any] = {
        "conversation": conversation,
        "text": text,
        "missed": missed,
        "kind": "reminder" if remind else "turn",
        "heartbeat": heartbeat,
        "paused": paused,
    }
    given = {"at": at, "every": every, "cron": cron, "timezone": timezone, "agent": agent}
    body |= {name: value for name, value in given.items() if value is not None}
    print_record(await gateway.post(*PATH, body=body), as_json=as_json)


@remote(schedules, "show")
async def show_schedule(gateway: GatewayClient, schedule: Id, *, as_json: Json = False) -> None:
    """Show one schedule."""
    print_record(await gateway.get(*PATH, schedule), as_json=as_json)


@remote(schedules, "set")
async def change_schedule(
    gateway: GatewayClient,
    schedule: Id,
    *,
    text: Annotated[str | None, typer.Option(help="What the agent is given, or the reminder.")] = None,
    at: At = None,
    every: Every = None,
    cron: Cron = None,
    timezone: Timezone = None,
    missed: Annotated[str | None, typer.Option(help="Times without a gateway: skip, once or all.")] = None,
    as_json: Json = False,
) -> None:
    """Change a schedule; what is not given keeps its value, and new times replace the old ones."""
    given = {"text": text, "at": at, "every": every, "cron": cron, "timezone": timezone, "missed": missed}
    body = {name: value for name, value in given.items() if value is not None}
    print_record(await gateway.patch(*PATH, schedule, body=body), as_json=as_json)


@remote(schedules, "pause")
async def pause_schedule(gateway: GatewayClient, schedule: Id) -> None:
    """Pause a schedule."""
    await gateway.patch(*PATH, schedule, body={"paused": True})
    print_line(f"{schedule} is paused")


@remote(schedules, "resume")
async def resume_schedule(gateway: GatewayClient, schedule: Id) -> None:
    """Resume a paused schedule at its next time."""
    changed = await gateway.patch(*PATH, schedule, body={"paused": False})
    print_line(f"{schedule} is due at {changed['next_at']}")


@remote(schedules, "run")
async def run_schedule(gateway: GatewayClient, schedule: Id) -> None:
    """Start what a schedule starts now, besides its times."""
    started = await gateway.post(*PATH, schedule, "run")
    print_line(started["turnId"] or f"{schedule}: the reminder is sent")


@remote(schedules, "rm")
async def delete_schedule(gateway: GatewayClient, schedule: Id) -> None:
    """Delete a schedule; a turn that it has started continues."""
    await gateway.delete(*PATH, schedule)
    print_line(f"{schedule} deleted")
