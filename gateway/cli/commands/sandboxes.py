"""Commands on sandboxes: records and live ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands.account import add_changes
from gateway.cli.errors import CommandFailed, UsageError
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, Row, print_line, print_record, print_rows
from gateway.cli.printable import clean
from gateway.cli.questions import Yes, confirm_deletion

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

sandboxes = group("Sandboxes of the account.")

Name = Annotated[str, typer.Argument(help="The id of a live sandbox, or its record's id or name.")]
LIVE_ID_PREFIX = "box_"


@remote(sandboxes, "list")
async def list_sandboxes(
    gateway: GatewayClient,
    *,
    records: Annotated[bool, typer.Option("--records", help="List the records instead.")] = False,
    as_json: Json = False,
) -> None:
    """List the live sandboxes."""
    if records:
        await _list_records(gateway, as_json=as_json)
        return
    columns: Columns = {
        "id": "id",
        "name": "name",
        "state": "state",
        "provider": "provider",
        "provider id": "provider_id",
        "scope": "scope",
        "seconds": _seconds,
        "waits for jobs": lambda row: row.get("waiting_jobs") or "",
        "used": "used_at",
    }
    print_rows(await gateway.list_all("sandboxes"), columns, as_json=as_json, empty="no live sandboxes")


async def _list_records(gateway: GatewayClient, *, as_json: bool) -> None:
    found = await gateway.list_all("accounts", "me", "sandboxes")
    columns: Columns = {
        "id": "id",
        "name": "name",
        "provider": lambda row: row.get("config", {}).get("provider"),
        "reserved": lambda row: row.get("config", {}).get("persistent"),
        "network": lambda row: (row.get("config", {}).get("network") or {}).get("mode"),
        "permission": lambda row: row.get("config", {}).get("permissionMode"),
    }
    print_rows(found, columns, as_json=as_json, empty="no sandboxes")


def _seconds(row: Row) -> str:
    return "" if row.get("seconds") is None else f"{row['seconds']:.0f}"


@remote(sandboxes, "show")
async def show_sandbox(gateway: GatewayClient, name: Name, *, as_json: Json = False) -> None:
    """Show a live sandbox, or a record."""
    where = ("sandboxes", name) if name.startswith(LIVE_ID_PREFIX) else ("accounts", "me", "sandboxes", name)
    print_record(await gateway.get(*where), as_json=as_json)


async def _resolve_id(gateway: GatewayClient, name: str) -> str:
    """Return the id of the live sandbox with this id or record; raises for none or several."""
    if name.startswith(LIVE_ID_PREFIX):
        return name
    record = await gateway.get("accounts", "me", "sandboxes", name)
    found = [row["id"] for row in await gateway.list_all("sandboxes") if row["record"] == record["id"]]
    if not found:
        raise CommandFailed(f"{name} has no live sandbox now: the next turn that needs one starts it")
    if len(found) > 1:
        raise UsageError(f"{name} has several live sandboxes, name one of them: {', '.join(found)}")
    return str(found[0])


add_changes(sandboxes, "sandboxes", "a record: which sandboxes agents use")


@remote(sandboxes, "exec")
async def run_command(
    gateway: GatewayClient,
    name: Name,
    command: Annotated[list[str], typer.Argument(help="The bash command.")],
    *,
    timeout: Annotated[float, typer.Option(help="The time limit in seconds.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Run a command in a live sandbox; exits with its exit code."""
    body = {"command": " ".join(command), "timeout": timeout}
    result = await gateway.post("sandboxes", await _resolve_id(gateway, name), "exec", body=body)
    if as_json:
        print_record(result, as_json=True)
    else:
        sys.stdout.write(clean(result["stdout"]))
        sys.stderr.write(clean(result["stderr"]))
    raise typer.Exit(min(int(result["exit_code"]), 255))


@remote(sandboxes, "services")
async def list_services(gateway: GatewayClient, name: Name, *, as_json: Json = False) -> None:
    """List the services of a live sandbox, which resumes it."""
    found = await gateway.get("sandboxes", await _resolve_id(gateway, name), "services")
    columns: Columns = {
        "name": "name",
        "state": "state",
        "port": "port",
        "starts": "starts",
        "ends": "ends",
        "exit code": "exit_code",
    }
    print_rows(found["items"], columns, as_json=as_json, empty="no services")


@remote(sandboxes, "stop")
async def stop_sandbox(gateway: GatewayClient, name: Name) -> None:
    """Suspend a live sandbox; its next use resumes it."""
    sandbox = await _resolve_id(gateway, name)
    await gateway.post("sandboxes", sandbox, "stop")
    print_line(f"{sandbox} is suspended")


@remote(sandboxes, "rm")
async def delete_sandbox(gateway: GatewayClient, name: Name, *, yes: Yes = False) -> None:
    """Delete a live sandbox by its id, or a record with its live sandboxes; workspace files stay."""
    await confirm_deletion(
        name, "its jobs and its files outside workspaces are lost", yes=yes, scripts_need_yes=False
    )
    where = ("sandboxes", name) if name.startswith(LIVE_ID_PREFIX) else ("accounts", "me", "sandboxes", name)
    await gateway.delete(*where)
    print_line(f"{name} deleted")


@remote(sandboxes, "sweep")
async def sweep(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """Delete sandboxes and snapshots without an owner, at every provider."""
    swept = await gateway.post("sandboxes", "sweep")
    if as_json:
        print_record(swept, as_json=True)
    else:
        print_line(f"{swept['orphans']} deleted")
