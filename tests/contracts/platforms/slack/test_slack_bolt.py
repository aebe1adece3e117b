"""Slack's framework, Bolt, lives in our simulator as it lives at Slack: by socket, and posted to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from slack_bolt.adapter.aiohttp import to_aiohttp_response, to_bolt_request
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from channels.slack.simulator import Simulator
from slack_connections import slack_simulator  # noqa: F401 - fixtures

ROOM = "C0ROOM"
BUTTONS = [
    {"type": "section", "text": {"type": "mrkdwn", "text": "May I?"}},
    {
        "type": "actions",
        "elements": [
            {
                "type": "button",
                "text": {"type": "plain_text", "text": "No"},
                "value": "no",
                "action_id": "decide",
            }
        ],
    },
]
MODAL = {
    "type": "modal",
    "callback_id": "why",
    "private_metadata": "kept",
    "title": {"type": "plain_text", "text": "Why?"},
    "submit": {"type": "plain_text", "text": "Send"},
    "blocks": [
        {
            "type": "input",
            "block_id": "b",
            "label": {"type": "plain_text", "text": "Words"},
            "element": {"type": "plain_text_input", "action_id": "a"},
        }
    ],
}


def make_app(simulator: Simulator) -> AsyncApp:
    """Return an app as in Bolt's guides: it answers, asks, opens a modal, and takes its text."""
    client = AsyncWebClient(token=simulator.tokens[0], base_url=f"{simulator.url}/api/")
    app = AsyncApp(client=client, signing_secret=simulator.signing_secret)

    @app.event("app_mention")
    async def answer(event: Any, say: Any) -> None:
        await say(text=f"you said {event['text']}", thread_ts=event["ts"])

    @app.command("/dovecote")
    async def execute(ack: Any, command: Any, respond: Any, say: Any) -> None:
        await ack("at once")
        await respond(f"later: {command['text']}")
        await say(text="May I?", blocks=BUTTONS)

    @app.action("decide")
    async def ask(ack: Any, body: Any, client: Any) -> None:
        await ack()
        await client.views_open(trigger_id=body["trigger_id"], view=MODAL)

    @app.view("why")
    async def take(ack: Any, view: Any, client: Any) -> None:
        await ack()
        words = view["state"]["values"]["b"]["a"]["value"]
        await client.chat_postMessage(channel=ROOM, text=f"{view['private_metadata']}: {words}")

    @app.event("reaction_added")
    async def see(event: Any, client: Any) -> None:
        text = f"{event['user']} put {event['reaction']}"
        await client.chat_postMessage(channel=event["item"]["channel"], text=text)

    @app.event("message")
    async def hear() -> None:
        """Leave plain messages alone."""

    return app


@asynccontextmanager
async def run_socket_mode(simulator: Simulator, app: AsyncApp) -> AsyncIterator[None]:
    """Run the app by Socket Mode."""
    to_open = AsyncWebClient(token=simulator.tokens[1], base_url=f"{simulator.url}/api/")
    handler = AsyncSocketModeHandler(app, simulator.tokens[1], web_client=to_open)
    await handler.connect_async()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        await handler.close_async()  # type: ignore[no-untyped-call]


@asynccontextmanager
async def run_http_mode(simulator: Simulator, app: AsyncApp) -> AsyncIterator[None]:
    """Run the app behind an address that Slack posts to."""

    async def take(request: web.Request) -> web.Response:
        answered = await app.async_dispatch(await to_bolt_request(request))
        return await to_aiohttp_response(answered)

    application = web.Application()
    application.router.add_post("/", take)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        simulator.request_url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        yield
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("way", [run_socket_mode, run_http_mode])
async def test_bolt_lives_here(simulator: Simulator, way: Any) -> None:
    """Mention, slash command, button, modal and reaction reach Bolt's listeners and are answered."""
    said = simulator.messages
    async with way(simulator, make_app(simulator)):
        asked = await simulator.say(ROOM, "<@U0BOT> hello")
        (answer,) = await simulator.wait_for_messages(1)
        assert (answer.thread, "hello" in answer.text) == (asked, True)
        await simulator.slash(ROOM, "status")
        await simulator.wait_for_messages(2)
        await simulator.wait_until(lambda: len(simulator.world.notices) > 1)
        assert {notice["text"] for notice in simulator.world.notices} == {"at once", "later: status"}
        await simulator.press(ROOM, said()[1].ts, "no")
        await simulator.wait_until(lambda: bool(simulator.open_modals()))
        await simulator.submit("too risky")
        await simulator.wait_for_messages(3)
        await simulator.react(ROOM, asked, "tada")
        await simulator.wait_for_messages(4)
    assert [post.text for post in said()[2:]] == ["kept: too risky", "U0ADA put tada"]
    assert simulator.open_modals() == []
    assert all(statuses[-1] == 200 for statuses in simulator.statuses if statuses)


async def test_slack_repeats_what_bolt_did_not_store(simulator: Simulator) -> None:
    """Three retries, counted in a header; an acknowledged event is not sent again."""
    numbers: list[str | None] = []
    done = asyncio.Event()
    app = make_app(simulator)

    @app.middleware
    async def count(req: Any, resp: Any, next: Any) -> Any:  # noqa: A002 - Bolt names it so
        numbers.append(req.headers.get("x-slack-retry-num", [None])[0])
        if len(numbers) < 4:
            resp.status = 500
            return resp
        done.set()
        return await next()

    async with run_http_mode(simulator, app):
        await simulator.say(ROOM, "hello")
        for seconds in (60, 300):
            await simulator.advance(seconds)
            async with asyncio.timeout(10):
                while len(simulator.statuses[0]) < (3 if seconds == 60 else 4):
                    await simulator.poster.changed.wait()
    assert (numbers, done.is_set()) == ([None, "1", "2", "3"], True)
    assert simulator.statuses == [[500, 500, 500, 200]]
