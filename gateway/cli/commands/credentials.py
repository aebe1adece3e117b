"""Commands on credentials: what sandboxes may use at a host without seeing it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.errors import UsageError
from gateway.cli.group import Json, group, remote
from gateway.cli.output import Columns, print_line, print_record, print_rows
from gateway.cli.questions import ask_secret

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient

credentials = group("Credentials that sandboxes use at a host without seeing them.")

PATH = ("accounts", "me", "credentials")


@remote(credentials, "list")
async def list_credentials(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the credentials, without their secrets."""
    columns: Columns = {
        "id": "id",
        "name": "name",
        "host": "host",
        "kind": "kind",
        "agents": lambda row: ", ".join(row.get("agents", ())),
    }
    print_rows(await gateway.list_all(*PATH), columns, as_json=as_json, empty="no credentials")


@remote(credentials, "add")
async def add_credential(
    gateway: GatewayClient,
    name: Annotated[str, typer.Argument(help="The name of the credential.")],
    *,
    host: Annotated[str, typer.Option(help="The host, such as github.com.")],
    kind: Annotated[str, typer.Option(help="header, basic, oauth or github_app.")],
    agent: Annotated[list[str], typer.Option(help="An agent that may use it; * for every agent.")],
    as_json: Json = False,
) -> None:
    """Create a credential; the secret is read from the terminal, or from standard input."""
    body = {"name": name, "host": host, "kind": kind, "agents": agent, "secret": await _read_secret()}
    print_record(await gateway.post(*PATH, body=body), as_json=as_json)


@remote(credentials, "rm")
async def delete_credential(
    gateway: GatewayClient,
    credential: Annotated[str, typer.Argument(help="The id or name.")],
) -> None:
    """Delete a credential; the next request of a sandbox goes without it."""
    await gateway.delete(*PATH, credential)
    print_line(f"{credential} deleted")


async def _read_secret() -> str | dict[str, Any]:
    """Return the secret: a text, or the fields of a JSON object."""
    if sys.stdin.isatty():
        text = await ask_secret("secret (a text, or a JSON object)")
    else:
        text = sys.stdin.read()
    text = text.strip()
    if not text.startswith("{"):
        return str(text)
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the secret begins with {{ and is no JSON object: {error}") from None
    return fields
