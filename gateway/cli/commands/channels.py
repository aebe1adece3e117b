"""Commands on an account's records: channels, keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.errors import CommandFailed, ExitCode, UsageError
from gateway.cli.group import Config, Data, Json, Key, Url, group, load_settings, local, remote, with_gateway
from gateway.cli.output import Columns, clean, print_json, print_record, print_rows

if TYPE_CHECKING:
    from gateway.cli.client import GatewayClient
    from gateway.config.settings import Settings

keys = group("API keys of the account.")
channels = group("Connections to chat platforms.")

Name = Annotated[str, typer.Argument(help="An id or a name.")]


@remote(keys, "list")
async def list_keys(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the keys; their text is never shown again."""
    columns: Columns = {"id": "id", "name": "name", "scopes": "scopes", "created": "created_at"}
    found = await gateway.list_all("accounts", "me", "keys")
    print_rows(found, columns, as_json=as_json, empty="no keys")


@remote(keys, "create")
async def create_key(
    gateway: GatewayClient,
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    *,
    scope: Annotated[list[str] | None, typer.Option(help="A scope it has; repeat for more.")] = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it, this once."""
    body = {"name": name} | ({"scopes": scope} if scope else {})
    made = await gateway.post("accounts", "me", "keys", body=body)
    if as_json:
        print_json(made)
    else:
        typer.echo(made["key"])


@remote(keys, "revoke")
async def revoke_key(gateway: GatewayClient, name: Name) -> None:
    """End a key: its sockets are cut at once."""
    await gateway.delete("accounts", "me", "keys", name)
    typer.echo(f"{name} revoked")


@remote(channels, "list")
async def list_channels(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the channels, those of the settings file included."""
    columns: Columns = {"id": "id", "name": "name", "kind": "kind", "agent": "agent", "managed": "managed"}
    found = await gateway.list_all("accounts", "me", "channels")
    print_rows(found, columns, as_json=as_json, empty="no channels")


@remote(channels, "add")
async def add_channel(
    gateway: GatewayClient,
    name: Annotated[str, typer.Argument(help="A name of your own.")],
    setting: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, as in the settings file.")] = None,
    *,
    kind: Annotated[str | None, typer.Option(help="The platform (default: the name).")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that answers there.")] = None,
    as_json: Json = False,
) -> None:
    """Connect a platform; the gateway starts receiving without a restart."""
    body: dict[str, Any] = {"name": name, "kind": kind or name, "settings": parse_settings(setting or [])}
    if agent:
        body["agent"] = agent
    print_record(await gateway.post("accounts", "me", "channels", body=body), as_json=as_json)


@remote(channels, "pair")
async def approve_pairing(
    gateway: GatewayClient,
    name: Name,
    code: Annotated[str, typer.Argument(help="What the bot told the person, and they told you.")],
) -> None:
    """Let in the person who has this code; the bot tells them."""
    found = await gateway.post("accounts", "me", "channels", name, "pairings", body={"code": code})
    typer.echo(clean(f"{found['name'] or found['person']} ({found['person']}) is in"))


@remote(channels, "pairings")
async def list_pairings(gateway: GatewayClient, name: Name, *, as_json: Json = False) -> None:
    """List who was let in with a code, and who waits for it."""
    columns: Columns = {"person": "person", "name": "name", "state": "state", "since": "created_at"}
    found = await gateway.list_all("accounts", "me", "channels", name, "pairings")
    print_rows(found, columns, as_json=as_json, empty="nobody is paired, nobody waits")


@remote(channels, "unpair")
async def revoke_pairing(
    gateway: GatewayClient,
    name: Name,
    person: Annotated[str, typer.Argument(help="The person, as `channels pairings` shows them.")],
) -> None:
    """Let somebody in no more."""
    await gateway.delete("accounts", "me", "channels", name, "pairings", person)
    typer.echo(f"{person} is out")


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Read KEY=VALUE arguments; a value that is JSON is taken as such."""
    found: dict[str, Any] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{key!r} is no KEY=VALUE")
        found[key.strip()] = _parse_value(value)
    return found


def _parse_value(text: str) -> Any:
    if text[:1] in {"[", "{"} or text in {"true", "false"}:
        try:
            return json.loads(text)
        except ValueError as error:
            raise UsageError(f"{text!r} starts like JSON and is none: {error}") from error
    return text


@local(channels, "test")
def probe_channel(
    name: Annotated[str, typer.Argument(help="A channel of the settings file, or one of the gateway's.")],
    *,
    url: Url = None,
    key: Key = None,
    data: Data = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Ask the platform about a channel: is the token right, can it receive, may it send."""
    import asyncio

    settings = load_settings(config, url=url, key=key, data_dir=data)
    table = settings.channels.get(name)
    findings = asyncio.run(_probe_on_gateway(name, settings) if table is None else _probe(name, dict(table)))
    if as_json:
        print_json(findings)
    for finding in () if as_json else findings:
        remedy = f" → {finding['remedy']}" if finding["remedy"] and not finding["ok"] else ""
        typer.echo(
            clean(f"{'✓' if finding['ok'] else '✗'} {finding['subject']}: {finding['detail']}{remedy}")
        )
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


async def _probe_on_gateway(name: str, settings: Settings) -> list[dict[str, Any]]:
    """Let the gateway ask the platform: a channel made there keeps its token there."""
    found: list[dict[str, Any]] = []

    async def ask(gateway: GatewayClient) -> None:
        found.extend((await gateway.post("channels", name, "test"))["findings"])

    await with_gateway(settings, ask)
    return found


async def _probe(name: str, table: dict[str, Any]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from channels.errors import ChannelError
    from channels.registry import plugin

    adapter = plugin(str(table.pop("kind", name)))
    try:
        return [asdict(found) for found in await adapter.probe(adapter.settings.model_validate(table))]
    except ChannelError as error:
        raise CommandFailed(f"{name}: {error}") from error
