"""Commands on an account: its agents, workspaces and skills, what it used, and who changed what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.arguments import parse_settings
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, Row, print_line, print_record, print_rows, short
from gateway.cli.questions import Yes, confirm_deletion

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

agents = group("Agents of the account.")
workspaces = group("Workspaces of the account.")
skills = group("Skills that agents of the account can load.")

Name = Annotated[str, typer.Argument(help="An id or a name.")]
NewName = Annotated[str, typer.Argument(help="A name of your own.")]
Settings = Annotated[
    list[str] | None, typer.Argument(help="KEY=VALUE of the config; a value that is JSON is parsed.")
]
COLUMNS: dict[str, Columns] = {
    "agents": {
        "id": "id",
        "name": "name",
        "model": lambda row: row.get("config", {}).get("model"),
        "sandbox": lambda row: row.get("config", {}).get("sandbox"),
        "managed": "managed",
    },
    "workspaces": {
        "id": "id",
        "name": "name",
        "read only": lambda row: row.get("config", {}).get("readOnly"),
        "managed": "managed",
    },
    "skills": {
        "id": "id",
        "name": "name",
        "description": lambda row: short(row.get("config", {}).get("description")),
    },
}

LOST = {
    "agents": "its conversations cannot continue",
    "workspaces": "its files are deleted",
    "skills": "its files are deleted",
}
"""What is lost with a record, by its kind."""

WAITS = "running jobs go on with the earlier settings: the change waits for them in their sandboxes ({})"
"""What a change of a sandbox record waits for."""


def add_changes(app: typer.Typer, plural: str, one: str) -> None:
    """Register add and set for one kind of record."""

    async def add_record(
        gateway: GatewayClient, name: NewName, setting: Settings = None, *, as_json: Json = False
    ) -> None:
        body = {"name": name, "config": parse_settings(setting or [], any_json=True)}
        print_record(await gateway.post("accounts", "me", plural, body=body), as_json=as_json)

    async def change_record(
        gateway: GatewayClient, name: Name, setting: Settings = None, *, as_json: Json = False
    ) -> None:
        body = {"config": parse_settings(setting or [], any_json=True)}
        changed = await gateway.patch("accounts", "me", plural, name, body=body)
        print_record(changed, as_json=as_json)
        if waiting := changed.get("waiting_jobs"):
            print_line(WAITS.format(waiting), err=True)

    add_record.__doc__ = f"Create {one}."
    change_record.__doc__ = "Change fields of the config; others keep their values."
    remote(app, "add")(add_record)
    remote(app, "set")(change_record)


def _add_commands(app: typer.Typer, plural: str) -> None:
    """Register list, show, add, set and rm for one kind of record."""
    one = plural.removesuffix("s")

    async def list_records(gateway: GatewayClient, *, as_json: Json = False) -> None:
        rows = await gateway.list_all("accounts", "me", plural)
        print_rows(rows, COLUMNS[plural], as_json=as_json, empty=f"no {plural}")

    async def show_record(gateway: GatewayClient, name: Name, *, as_json: Json = False) -> None:
        print_record(await gateway.get("accounts", "me", plural, name), as_json=as_json)

    async def delete_record(gateway: GatewayClient, name: Name, *, yes: Yes = False) -> None:
        await confirm_deletion(name, LOST[plural], yes=yes, scripts_need_yes=plural == "agents")
        await gateway.delete("accounts", "me", plural, name)
        print_line(f"{name} deleted")

    list_records.__doc__ = f"List the {plural}, those of the settings file included."
    show_record.__doc__ = f"Show one {one}."
    delete_record.__doc__ = f"Delete it, unless it is in use; {LOST[plural]}."
    remote(app, "list")(list_records)
    remote(app, "show")(show_record)
    add_changes(app, plural, f"a {one}" if one != "agent" else "an agent")
    remote(app, "rm")(delete_record)


for _app, _plural in ((agents, "agents"), (workspaces, "workspaces"), (skills, "skills")):
    _add_commands(_app, _plural)

Workspace = Annotated[str, typer.Argument(help="The workspace: an id or a name.")]


@remote(workspaces, "files")
async def list_files(
    gateway: GatewayClient,
    workspace: Workspace,
    path: Annotated[str, typer.Argument(help="A directory in it.")] = ".",
    *,
    as_json: Json = False,
) -> None:
    """List the files of a directory of a workspace."""
    parts = [] if path == "." else path.strip("/").split("/")
    rows = await gateway.list_all("accounts", "me", "workspaces", workspace, "files", *parts)
    columns: Columns = {"name": "name", "kind": "kind", "size": "size", "changed": "modified_at"}
    print_rows(rows, columns, as_json=as_json, empty="no files")


async def show_usage(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """Show what the account has used, by agent, and its budgets."""
    found = await gateway.get("accounts", "me", "usage")
    if as_json:
        print_record(found, as_json=True)
        return
    names = {one: f"{name} (deleted)" for one, name in found.get("deleted_agents", {}).items()}
    names |= {one["id"]: one["name"] for one in await gateway.list_all("accounts", "me", "agents")}
    amounts = {"total": found["total"], **found["agents"]}
    rows: list[Row] = [{"agent": names.get(one, one), **amount} for one, amount in amounts.items()]
    columns: Columns = {
        "agent": "agent",
        "requests": "requests",
        "tokens read": "input_tokens",
        "written": "output_tokens",
        "sandbox seconds": "sandbox_seconds",
        "cost": "cost",
    }
    print_rows(rows, columns, as_json=False, empty="")
    print_line(f"budget: {', '.join(_limits(found['budget'])) or 'none'}")
    if found["budgets"]:
        uses = [_to_use_row(one, names) for one in found["budgets"]]
        print_rows(uses, {name: name for name in _USE_COLUMNS}, as_json=False, empty="")


_USE_COLUMNS = ("owner", "period", "kind", "used", "reserved", "limit", "ends_at")


def _to_use_row(use: Row, names: Mapping[str, str]) -> Row:
    """Return the row of a budget: whose it is by name, and whole numbers of what is not money."""
    owner = names.get(use["owner"], use["owner"]) or "account"
    if use["kind"] == "cost":
        return {**use, "owner": owner}
    return {**use, "owner": owner, **{name: int(use[name]) for name in ("used", "reserved", "limit")}}


def _limits(budget: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the limits of a budget, those of days and months with the name of the period."""
    for name, value in budget.items():
        if isinstance(value, Mapping):
            yield from _limits(value, f"{name} ")
        elif value:
            yield f"{prefix}{name} {value:g}"


async def list_audit(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List who changed what over HTTP, newest first."""
    columns: Columns = {name: name for name in ("time", "actor", "action", "object", "status", "address")}
    rows: list[dict[str, Any]] = await gateway.list_all("accounts", "me", "audit")
    print_rows(rows, columns, as_json=as_json, empty="no changes")
