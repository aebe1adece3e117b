"""Commands on an account's records: channels, keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.arguments import parse_settings
from gateway.cli.errors import CommandFailed, ExitCode
from gateway.cli.group import (
    Config,
    Data,
    Json,
    Key,
    Url,
    explain_location,
    group,
    load_client_settings,
    load_settings,
    local,
    remote,
    with_gateway,
)
from gateway.cli.output import Columns, print_json, print_line, print_record, print_rows
from gateway.cli.questions import Yes, confirm_deletion
from gateway.cli.shown_once import print_once

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient
    from gateway.config.settings import Settings as GatewaySettings

keys = group("API keys of the account.")
channels = group("Connections to chat platforms.")

Name = Annotated[str, typer.Argument(help="An id or a name.")]
Settings = Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, as in the settings file.")]
Agent = Annotated[str | None, typer.Option(help="The agent that answers in this channel.")]


@remote(keys, "list")
async def list_keys(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the keys, without their text."""
    columns: Columns = {"id": "id", "name": "name", "scopes": "scopes", "created": "created_at"}
    found = await gateway.list_all("accounts", "me", "keys")
    print_rows(found, columns, as_json=as_json, empty="no keys")


@remote(keys, "create")
async def create_key(
    gateway: GatewayClient,
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    *,
    scope: Annotated[list[str] | None, typer.Option(help="A scope of the key; repeat for more.")] = None,
    as_json: Json = False,
) -> None:
    """Create a key and print it; it is not shown again."""
    body = {"name": name} | ({"scopes": scope} if scope else {})
    made = await gateway.post("accounts", "me", "keys", body=body)

    def show() -> None:
        print_json(made) if as_json else print_line(made["key"])

    await print_once(gateway, show, "accounts", "me", "keys", made["id"])


@remote(keys, "revoke")
async def revoke_key(gateway: GatewayClient, name: Name) -> None:
    """Revoke a key and close its connections."""
    await gateway.delete("accounts", "me", "keys", name)
    print_line(f"{name} revoked")


@remote(channels, "list")
async def list_channels(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the channels, including those of the settings file."""
    names = ("id", "name", "kind", "agent", "paused", "managed")
    columns: Columns = {name: name for name in names}
    found = await gateway.list_all("accounts", "me", "channels")
    print_rows(found, columns, as_json=as_json, empty="no channels")


@remote(channels, "show")
async def show_channel(gateway: GatewayClient, name: Name, *, as_json: Json = False) -> None:
    """Show one channel; every secret is shown as ***."""
    print_record(await gateway.get("accounts", "me", "channels", name), as_json=as_json)


@remote(channels, "add")
async def add_channel(
    gateway: GatewayClient,
    name: Annotated[str, typer.Argument(help="A name of your own.")],
    setting: Settings = None,
    *,
    kind: Annotated[str | None, typer.Option(help="The platform (default: the name).")] = None,
    agent: Agent = None,
    paused: Annotated[bool, typer.Option("--paused", help="Receive nothing until it is resumed.")] = False,
    as_json: Json = False,
) -> None:
    """Connect a platform; the gateway starts receiving without a restart."""
    body: dict[str, Any] = {"name": name, "kind": kind or name, "settings": parse_settings(setting or [])}
    body |= ({"agent": agent} if agent else {}) | ({"paused": True} if paused else {})
    print_record(await gateway.post("accounts", "me", "channels", body=body), as_json=as_json)


@remote(channels, "set")
async def change_channel(
    gateway: GatewayClient,
    name: Name,
    setting: Settings = None,
    *,
    agent: Agent = None,
    rename: Annotated[str | None, typer.Option(help="A new name of your own.")] = None,
    as_json: Json = False,
) -> None:
    """Change settings; others keep their values, and KEY=null gives one its default."""
    body: dict[str, Any] = {"settings": parse_settings(setting or [])}
    body |= ({"agent": agent} if agent else {}) | ({"name": rename} if rename else {})
    print_record(await gateway.patch("accounts", "me", "channels", name, body=body), as_json=as_json)


@remote(channels, "rm")
async def delete_channel(gateway: GatewayClient, name: Name, *, yes: Yes = False) -> None:
    """Delete a channel; what is still to be sent to its chats is not sent."""
    await confirm_deletion(name, "what is still to be sent to its chats is not sent", yes=yes)
    await gateway.delete("accounts", "me", "channels", name)
    print_line(f"{name} deleted")


@remote(channels, "pause")
async def pause_channel(gateway: GatewayClient, name: Name) -> None:
    """Stop receiving in a channel; what is sent to it is still sent."""
    await gateway.patch("accounts", "me", "channels", name, body={"paused": True})
    print_line(f"{name} is paused")


@remote(channels, "resume")
async def resume_channel(gateway: GatewayClient, name: Name) -> None:
    """Receive again in a paused channel."""
    await gateway.patch("accounts", "me", "channels", name, body={"paused": False})
    print_line(f"{name} receives again")


@remote(channels, "pair")
async def approve_pairing(
    gateway: GatewayClient,
    name: Name,
    code: Annotated[str, typer.Argument(help="The code that the bot sent to the user.")],
) -> None:
    """Approve the pairing with this code; the bot notifies the user."""
    found = await gateway.post("accounts", "me", "channels", name, "pairings", body={"code": code})
    print_line(f"{found['name'] or found['person']} ({found['person']}) is paired")


@remote(channels, "pairings")
async def list_pairings(gateway: GatewayClient, name: Name, *, as_json: Json = False) -> None:
    """List approved and pending pairings."""
    columns: Columns = {"person": "person", "name": "name", "state": "state", "since": "created_at"}
    found = await gateway.list_all("accounts", "me", "channels", name, "pairings")
    print_rows(found, columns, as_json=as_json, empty="no pairings")


@remote(channels, "unpair")
async def revoke_pairing(
    gateway: GatewayClient,
    name: Name,
    person: Annotated[str, typer.Argument(help="The user, as `channels pairings` shows it.")],
) -> None:
    """Revoke a pairing."""
    await gateway.delete("accounts", "me", "channels", name, "pairings", person)
    print_line(f"{person} is not paired any more")


@local(channels, "test")
def probe_channel(
    name: Annotated[str, typer.Argument(help="A channel of the settings file or of the gateway.")],
    *,
    url: Url = None,
    key: Key = None,
    data: Data = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Check a channel's token and permissions with its platform."""
    import asyncio

    flags = {"url": url, "key": key, "data_dir": data}
    table = load_settings(config, **flags).channels.get(name)
    if table is None:
        client = load_client_settings(config, **flags)
        with explain_location(client, config, flags):
            findings = asyncio.run(_probe_on_gateway(name, client))
    else:
        findings = asyncio.run(_probe(name, table))
    if as_json:
        print_json(findings)
    for finding in () if as_json else findings:
        remedy = f" → {finding['remedy']}" if finding["remedy"] and not finding["ok"] else ""
        print_line(f"{'✓' if finding['ok'] else '✗'} {finding['subject']}: {finding['detail']}{remedy}")
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


async def _probe_on_gateway(name: str, settings: GatewaySettings) -> list[dict[str, Any]]:
    """Check a channel through the gateway, which stores its token."""
    found: list[dict[str, Any]] = []

    async def ask(gateway: GatewayClient) -> None:
        found.extend((await gateway.post("channels", name, "test"))["findings"])

    await with_gateway(settings, ask)
    return found


async def _probe(name: str, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from channels.errors import ChannelError
    from channels.registry import plugin
    from egress.guard import TRUSTED
    from gateway.config.validation import adapter_settings

    adapter = plugin(str(table.get("kind", name)))
    try:
        found = await adapter.probe(adapter.settings.model_validate(adapter_settings(table)), TRUSTED)
    except ChannelError as error:
        raise CommandFailed(f"{name}: {error}") from error
    return [asdict(one) for one in found]
