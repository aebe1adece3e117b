"""Commands on webhook endpoints, and a local listener that verifies and prints deliveries."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.errors import CommandFailed, UsageError, print_error
from gateway.cli.group import Json, group, local, remote
from gateway.cli.output import Columns, print_line, print_record, print_rows, short, to_json
from gateway.cli.printable import clean
from gateway.cli.questions import ask_secret
from gateway.cli.shown_once import print_once, print_or_fail
from gateway.cli.stdout_reader import while_stdout_is_read

if TYPE_CHECKING:
    from aiohttp import web

    from gateway.cli.client import GatewayClient

webhooks = group("Webhook endpoints of the account.")

MAX_BODY_BYTES = 2**20
"""Bytes of a delivery that the listener accepts."""

Id = Annotated[str, typer.Argument(help="An id or a name.")]


@remote(webhooks, "list")
async def list_webhooks(gateway: GatewayClient, *, as_json: Json = False) -> None:
    """List the endpoints."""
    columns: Columns = {
        "id": "id",
        "url": "url",
        "events": "events",
        "conversation": "conversation",
        "enabled": "enabled",
        "why not": "disabled_why",
    }
    found = await gateway.list_all("accounts", "me", "webhooks")
    print_rows(found, columns, as_json=as_json, empty="no webhooks")


@remote(webhooks, "add")
async def add_webhook(
    gateway: GatewayClient,
    target: Annotated[str, typer.Argument(help="Where to post the events.", metavar="URL")],
    *,
    event: Annotated[list[str] | None, typer.Option(help="An event type to send; repeat for more.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Only this conversation's events.")] = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Send one event at a time.")] = False,
    as_json: Json = False,
) -> None:
    """Add an endpoint and print its secret; it is not shown again."""
    body: dict[str, Any] = {"url": target, "events": event or ["agent.finished"]}
    if conversation:
        body["conversation"] = conversation
    if ordered:
        body["ordered"] = True
    made = await gateway.post("accounts", "me", "webhooks", body=body)
    show = partial(print_record, made, as_json=as_json)
    await print_once(gateway, show, "accounts", "me", "webhooks", made["id"])


@remote(webhooks, "show")
async def show_webhook(gateway: GatewayClient, webhook: Id, *, as_json: Json = False) -> None:
    """Show one endpoint, without its secret."""
    print_record(await gateway.get("accounts", "me", "webhooks", webhook), as_json=as_json)


@remote(webhooks, "set")
async def change_webhook(
    gateway: GatewayClient,
    webhook: Id,
    *,
    target: Annotated[str | None, typer.Option(help="Where to post the events: a URL.")] = None,
    event: Annotated[list[str] | None, typer.Option(help="An event type to send; repeat for more.")] = None,
    ordered: Annotated[bool | None, typer.Option(help="Send one event at a time, or many.")] = None,
    rename: Annotated[str | None, typer.Option(help="A new name of your own.")] = None,
    as_json: Json = False,
) -> None:
    """Change an endpoint; what is not given keeps its value."""
    given = {"url": target, "events": event or None, "ordered": ordered, "name": rename}
    body = {name: value for name, value in given.items() if value is not None}
    print_record(await gateway.patch("accounts", "me", "webhooks", webhook, body=body), as_json=as_json)


@remote(webhooks, "test")
async def send_test(gateway: GatewayClient, webhook: Id) -> None:
    """Send a test event to an endpoint."""
    answer = await gateway.post("webhooks", webhook, "test")
    print_line(f"test event sent to {webhook}" if not answer else json.dumps(answer))


@remote(webhooks, "rotate")
async def rotate_webhook(gateway: GatewayClient, webhook: Id, *, as_json: Json = False) -> None:
    """Rotate an endpoint's secret; deliveries are signed with both for a day."""
    made = await gateway.post("webhooks", webhook, "rotate")
    lost = f"{webhook} has a new secret that nobody saw: rotate it again"
    print_or_fail(partial(print_record, made, as_json=as_json), lost=lost)


@remote(webhooks, "enable")
async def enable_webhook(gateway: GatewayClient, webhook: Id) -> None:
    """Enable a disabled endpoint; `webhooks replay` sends what it missed."""
    await gateway.patch("accounts", "me", "webhooks", webhook, body={"enabled": True})
    print_line(f"{webhook} is enabled")


@remote(webhooks, "replay")
async def replay_webhook(
    gateway: GatewayClient,
    webhook: Id,
    *,
    after: Annotated[str | None, typer.Option(help="From this time on: 2026-01-31T00:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Until this time.")] = None,
    event: Annotated[list[str] | None, typer.Option(help="An event's id; repeat for more.")] = None,
) -> None:
    """Send events of a time range, or by their ids, to an endpoint again."""
    if not event and after is None:
        raise UsageError("pass --after or --event to select events")
    given = {"ids": event, "after": after, "until": until}
    body = {name: value for name, value in given.items() if value}
    count = 0
    while True:
        answer = await gateway.post("webhooks", webhook, "replay", body=body)
        count += answer.get("replayed", 0)
        if not answer.get("next"):
            break
        body["cursor"] = answer["next"]
    print_line(f"{count} events will be sent again")


@remote(webhooks, "rm")
async def delete_webhook(gateway: GatewayClient, webhook: Id) -> None:
    """Delete an endpoint; its open deliveries are suppressed."""
    await gateway.delete("accounts", "me", "webhooks", webhook)
    print_line(f"{webhook} deleted")


@local(webhooks, "listen", logs=False)
def listen(
    *,
    secret: Annotated[str, typer.Option(help="The endpoint's whsec_ secret; asked for if left out.")] = "",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=0, max=65535)] = 8099,
    as_json: Json = False,
) -> None:
    """Receive webhooks on this machine, verify their signatures and print them."""
    from delivery.webhooks.signing import BadSecret, secret_key

    if not secret and not sys.stdin.isatty():
        raise UsageError("pass --secret")
    secret = secret or asyncio.run(ask_secret("secret (whsec_…)"))
    try:
        secret_key(secret)
    except BadSecret as error:
        raise UsageError(f"--secret: {error}") from None
    try:
        asyncio.run(_serve(WebhookListener(secret, as_json=as_json), host, port))
    except KeyboardInterrupt:
        print_line("stopped", err=True)


class WebhookListener:
    """Responds to deliveries with 204 for a valid signature, else 401."""

    def __init__(self, secret: str, *, as_json: bool) -> None:
        self._secret = secret
        self._as_json = as_json

    async def receive(self, request: web.Request) -> web.Response:
        """Verify one delivery and print it."""
        from aiohttp import web

        from delivery.webhooks.signing import BadSignature, verify

        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            verify([self._secret], headers, body, now=datetime.now(UTC))
        except BadSignature as error:
            print_error(f"refused a delivery: {error}")
            return web.Response(status=401)
        print_line(self.describe(headers, body))
        return web.Response(status=204)

    def describe(self, headers: dict[str, str], body: bytes) -> str:
        """Return the line to print for a verified delivery."""
        text = body.decode("utf-8", "replace")
        if self._as_json:
            return to_json(json.loads(text))
        kind, identity = headers.get("ce-type", "event"), headers.get("webhook-id", "")
        return clean(f"✓ {kind} {identity} {short(text, 400)}")


async def _serve(listener: WebhookListener, host: str, port: int) -> None:
    from aiohttp import web

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/{path:.*}", listener.receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise CommandFailed(
                f"cannot listen on {host}:{port}: {error.strerror}; pass another --port"
            ) from error
        at = runner.addresses[0]
        print_line(f"listening on http://{at[0]}:{at[1]}/ (Ctrl-C ends)", err=True)
        async with while_stdout_is_read():
            await asyncio.get_running_loop().create_future()
    finally:
        await runner.cleanup()
