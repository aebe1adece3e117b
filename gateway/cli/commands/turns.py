"""Commands on turns: list, show, retry and cancel; the files that they left."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.commands.jobs import Id, filter_by_state, state_option
from gateway.cli.errors import CommandFailed
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_json, print_line, print_record, print_rows, short

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

turns = group("Turns of agents.")


class TurnFilter(StrEnum):
    """The states of turns in the API."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@remote(turns, "list")
async def list_turns(
    gateway: GatewayClient,
    *,
    state: Annotated[TurnFilter | None, state_option(TurnFilter)] = None,
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


@remote(turns, "log")
async def show_log(gateway: GatewayClient, turn: Id, *, as_json: Json = False) -> None:
    """Print a turn's run log: every tool call with its result."""
    steps = (await gateway.get("turns", turn, "log"))["items"]
    if as_json:
        print_json(steps)
        return
    for step in steps:
        print_line(_render_step(step))
    if not steps:
        print_line("no tool calls")


def _render_step(step: dict[str, Any]) -> str:
    """Return a call's time, name, arguments and state, and its result below it."""
    args = json.dumps(step["args"], ensure_ascii=False)
    head = f"{step['started_at']}  {step['tool']} {args}  [{step['state']}]"
    result = (step.get("result") or {}).get("content")
    if not result:
        return head
    return "\n".join([head, *(f"    {line}" for line in str(result).splitlines())])


@remote(turns, "continue")
async def continue_turn(
    gateway: GatewayClient,
    turn: Id,
    *,
    name: Annotated[str | None, typer.Option(help="A name for the new conversation.")] = None,
) -> None:
    """Open a new conversation on the sandbox and workspaces of a turn."""
    opened = await gateway.post("turns", turn, "continue", body={"conversation": name} if name else {})
    shared = " and ".join(opened["shares"])
    print_line(f"{opened['conversationId']} shares the {shared} of {turn}")


@remote(turns, "files")
async def list_files(
    gateway: GatewayClient,
    turn: Id,
    *,
    diff: Annotated[bool, typer.Option("--diff", help="Print the changes of text files instead.")] = False,
    archive: Annotated[
        Path | None, typer.Option(help="Write the changed files to this gzip tar instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the files of a turn's workspaces at its end, those that it changed first."""
    if diff:
        content, _ = await gateway.download("turns", turn, "files.diff")
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    if archive is not None:
        content, _ = await gateway.download("turns", turn, "files.tar.gz")
        try:
            archive.write_bytes(content)
        except OSError as error:
            raise CommandFailed(f"{archive} cannot be written: {error.strerror}") from error
        print_line(f"{archive}: {len(content)} bytes written")
        return
    found = await gateway.get("turns", turn, "files")
    columns: Columns = {"change": "change", "path": "path", "size": "size", "modified": "modified"}
    print_rows(found["files"], columns, as_json=as_json, empty="the turn changed no files")


@remote(turns, "restore")
async def restore_turn(
    gateway: GatewayClient,
    turn: Id,
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files relative to the workspace; all without them.")
    ] = None,
    *,
    workspace: Annotated[str, typer.Option(help="Only this one of the turn's workspaces.")] = "",
    remove: Annotated[
        bool, typer.Option("--remove", help="Also remove files that the turn did not have.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put the files of a turn's workspaces back as they were at its end."""
    body = {"paths": paths or None, "workspace": workspace, "remove": remove}
    done = await gateway.post("turns", turn, "restore", body=body)
    if as_json:
        print_json(done)
        return
    for one in done["items"]:
        print_line(f"{one['state']:9} {one['path']}")
    print_line(f"{done['unchanged']} files were as they should be")
    if any(one["state"] == "missing" for one in done["items"]):
        raise CommandFailed(
            "the contents of the missing files are not stored (files.turn_bytes, files.retention)"
        )


@remote(turns, "retry")
async def retry_turn(gateway: GatewayClient, turn: Id) -> None:
    """Retry a failed turn once, at the end of its queue, or make the next attempt of a waiting one now."""
    new = await gateway.post("turns", turn, "retry")
    print_line(f"{turn} is retried as {new['id']}" if new["id"] != turn else f"{turn} is tried again now")


@remote(turns, "cancel")
async def cancel_turn(gateway: GatewayClient, turn: Id) -> None:
    """Cancel a turn with its model call and running command."""
    now = await gateway.post("turns", turn, "cancel")
    print_line(f"{turn} is {'being cancelled' if now.get('cancelling') else now['state']}")


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
