"""How Slack reaches us: sockets that are replaced, envelopes that come again, posts that are retried."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from channels.errors import Unauthorized
from channels.message import Button, ButtonPress, Command, Message, Update
from channels.port import Connection, WebhookRequest
from channels.slack import plugin
from channels.slack.api import connect
from channels.slack.receive.receiver import SlackReceiver
from channels.slack.settings import SlackSettings
from channels.slack.simulator import Simulator
from channels.slack.simulator.outgoing import signature_headers
from channels.slack.simulator.world import TEAM
from channels.slack.thread_locations import ThreadLocations
from channels.slack.workspaces import SingleWorkspace
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState
from egress.guard import TRUSTED
from slack_connections import ROOM, SECRET, TIMEOUT_SECONDS, make_reply, serve_webhook


def received_texts(recorder: UpdateRecorder) -> list[str]:
    """Return the texts that were received."""
    return [update.text for update in recorder.updates if isinstance(update, Message)]


async def test_retries_of_a_post_have_one_key(simulator: Simulator, posted_to: Connection) -> None:
    """What could not be stored is answered 503; it comes at once, after 1 and 5 minutes, as one message."""
    recorder = UpdateRecorder(refusals=3)
    async with serve_webhook(posted_to, recorder.accept) as simulator.request_url:
        await simulator.say("C0ROOM", "hello")
        assert (simulator.statuses[0], received_texts(recorder)) == ([503, 503], [])
        await simulator.advance(60)
        async with asyncio.timeout(10):
            while len(simulator.statuses[0]) < 3:
                await simulator.poster.changed.wait()
        await simulator.advance(300)
        await recorder.wait(1)
        await simulator.slash("C0ROOM", "status")
        sent = await posted_to.sender.send(ROOM, make_reply("May I?", buttons=(Button(label="A", data="a"),)))
        await simulator.press("C0ROOM", sent.platform_id, "a")
    assert simulator.statuses[0] == [503, 503, 503, 200]
    assert received_texts(recorder) == ["hello"]
    assert [update.name for update in recorder.updates if isinstance(update, Command)] == ["status"]
    assert [update.data for update in recorder.updates if isinstance(update, ButtonPress)] == ["a"]


async def test_a_retry_that_is_seen_first_is_taken(posted_to: Connection) -> None:
    """An event with a retry count is handled, because the first try may have been lost."""
    event = {"type": "message", "channel": "D0ADA", "channel_type": "im", "user": "U0ADA", "text": "hello"}
    shape = {
        "type": "event_callback",
        "team_id": "T0SIMULATED",
        "event": {**event, "ts": "1767225600.000100"},
    }
    body = json.dumps(shape).encode()
    retried = {"x-slack-retry-num": "3", "x-slack-retry-reason": "http_timeout"}
    request = WebhookRequest(
        headers={**signature_headers(SECRET, body, "application/json"), **retried}, body=body
    )
    recorder = UpdateRecorder()
    assert (await posted_to.receiver.receive(request, recorder.accept)).status == 200
    assert received_texts(recorder) == ["hello"]


async def test_a_refreshed_socket_loses_nothing(simulator: Simulator, slack: Connection) -> None:
    """Slack asks for a new connection now and then; events in between arrive, in order."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.say("C0ROOM", "one")
        await recorder.wait(1)
        await simulator.sockets.refresh("refresh_requested")
        await simulator.say("C0ROOM", "two")
        await recorder.wait(2)
    assert list(dict.fromkeys(received_texts(recorder))) == ["one", "two"]
    assert simulator.sockets.connected == 2


async def test_socket_mode_switched_off_needs_the_operator(simulator: Simulator, slack: Connection) -> None:
    """Trying on would not switch it on."""
    recorder = UpdateRecorder()
    task = asyncio.create_task(slack.receiver.run(recorder.accept, receiving=recorder.record_status))
    await simulator.say("C0ROOM", "one")
    await recorder.wait(1)
    await simulator.sockets.refresh("link_disabled")
    with pytest.raises(Unauthorized):
        await task


async def test_a_revoked_bot_token_ends_the_receiver(simulator: Simulator, slack: Connection) -> None:
    """The socket has a token of its own, and stays open; the error names the remedy."""
    recorder = UpdateRecorder()
    task = asyncio.create_task(slack.receiver.run(recorder.accept, receiving=recorder.record_status))
    await simulator.say("C0ROOM", "one")
    await recorder.wait(1)
    await simulator.uninstall(TEAM)
    with pytest.raises(Unauthorized, match="install the app again"):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await task


async def test_a_revocation_without_an_event_is_noticed(simulator: Simulator) -> None:
    """The token is checked now and then; Slack need not say that it was revoked."""
    async with connect(SlackSettings.model_validate(simulator.settings()), TRUSTED) as api:
        workspace = SingleWorkspace(api, await api.identify(), check_seconds=0.001)
        task = asyncio.create_task(workspace.watch())
        calls = len(simulator.calls)
        await simulator.wait_until(lambda: len(simulator.calls) > calls)
        assert not task.done()
        simulator.server.installations.revoke(TEAM)
        with pytest.raises(Unauthorized):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await task


async def test_an_envelope_is_acknowledged_after_it_is_stored(
    simulator: Simulator, slack: Connection
) -> None:
    """While `accept` has not returned, Slack still has the envelope."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def accept(_: object) -> None:
        entered.set()
        await leave.wait()

    task = asyncio.create_task(slack.receiver.run(accept, receiving=lambda *_: None))
    await simulator.say("C0ROOM", "one")
    await entered.wait()
    assert simulator.sockets.acknowledged == []
    assert len(simulator.sockets.waiting) == 1
    task.cancel()
    await asyncio.wait({task})


async def test_a_socket_is_replaced_when_slack_warns(simulator: Simulator, slack: Connection) -> None:
    """The old connection closes, the next one opens, and what comes again has the same key, in order."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.say("C0ROOM", "one")
        await recorder.wait(1)
        await simulator.sockets.warn()
        await simulator.say("C0ROOM", "two")
        await recorder.wait(2)
        async with asyncio.timeout(10):
            while simulator.sockets.connected < 2 or len(simulator.sockets.open) != 1:
                await simulator.sockets.changed.wait()
        await simulator.say("C0ROOM", "three")
        while "three" not in received_texts(recorder):
            await recorder.wait(len(recorder.updates) + 1)
    assert list(dict.fromkeys(received_texts(recorder))) == ["one", "two", "three"]
    assert (simulator.sockets.max_open, recorder.states) == (1, [True, True])


async def test_an_envelope_that_comes_again_has_its_key(simulator: Simulator, slack: Connection) -> None:
    """A connection that broke before the acknowledgement delivers the event again, with the same key."""
    recorder = UpdateRecorder()

    async def accept(update: Update) -> None:
        await recorder.accept(update)
        if len(recorder.updates) == 1:
            await simulator.sockets.cut(1)

    task = asyncio.create_task(slack.receiver.run(accept, receiving=recorder.record_status))
    await simulator.say("C0ROOM", "one")
    await recorder.wait(2)
    task.cancel()
    await asyncio.wait({task})
    assert [received_texts(recorder), len({update.key for update in recorder.updates})] == [["one", "one"], 1]
    assert simulator.sockets.retried == 1


async def test_events_of_no_concern_are_acknowledged(simulator: Simulator, slack: Connection) -> None:
    """An opened chat and what the user views next to it are acknowledged and ignored."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.open_agent("D0ADA")
        await simulator.change_context("C0ROOM")
        await simulator.say("D0ADA", "hello")
        await recorder.wait(1)
        async with asyncio.timeout(10):
            while simulator.sockets.waiting:
                await simulator.sockets.changed.wait()
    assert received_texts(recorder) == ["hello"]


@pytest.mark.parametrize("reason", ["refresh_requested", "warning"])
async def test_a_replacement_that_does_not_open_loses_nothing(
    simulator: Simulator, slack: Connection, reason: str
) -> None:
    """The old connection is used to its end, and then a new one is tried for."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.say("C0ROOM", "one")
        await recorder.wait(1)
        await simulator.fail("internal_error", method="apps.connections.open", times=2)
        await simulator.sockets.refresh(reason)
        await simulator.say("C0ROOM", "two")
        while "two" not in received_texts(recorder):
            await recorder.wait(len(recorder.updates) + 1)
    assert list(dict.fromkeys(received_texts(recorder))) == ["one", "two"]


async def test_a_connection_that_is_one_too_many_is_not_hurried(
    simulator: Simulator, slack: Connection
) -> None:
    """Slack allows a few connections per app: the next one is retried later, and the error is reported."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.say("C0ROOM", "one")
        await recorder.wait(1)
        await simulator.sockets.refresh("too_many_websockets")
        async with asyncio.timeout(10):
            while simulator.sockets.open:
                await simulator.sockets.changed.wait()
    assert simulator.sockets.connected == 1
    assert recorder.states == [True, False]


async def test_a_connection_without_a_hello_is_replaced(simulator: Simulator) -> None:
    """It answers pings, but Slack sends nothing on it: the next connection gets what waits."""
    simulator.sockets.silent = 1
    settings, state = SlackSettings.model_validate(simulator.settings()), MemoryChannelState()
    recorder = UpdateRecorder()
    async with connect(settings, TRUSTED) as api:
        workspaces = SingleWorkspace(api, await api.identify())
        locations = ThreadLocations(state)
        receiver = SlackReceiver(api, workspaces, locations, state, channel="chn_1", hello_seconds=0.1)
        receives = asyncio.create_task(receiver.run(recorder.accept, receiving=recorder.record_status))
        await simulator.say("C0ROOM", "one")
        await recorder.wait(1)
        receives.cancel()
        await asyncio.wait({receives})
    assert received_texts(recorder) == ["one"]
    assert recorder.reasons[0] == "Slack sent no hello on a new connection"
    assert simulator.sockets.connected == 2


async def test_a_revoked_app_token_ends_the_connection(simulator: Simulator, slack: Connection) -> None:
    """The next connection cannot be opened, and trying on would not change that."""
    recorder = UpdateRecorder()
    task = asyncio.create_task(slack.receiver.run(recorder.accept, receiving=recorder.record_status))
    await simulator.say("C0ROOM", "one")
    await recorder.wait(1)
    await simulator.fail("invalid_auth", method="apps.connections.open", times=1000)
    await simulator.sockets.cut(1)
    with pytest.raises(Unauthorized, match=r"apps\.connections\.open: invalid_auth"):
        await task


async def test_proxies_of_the_environment_are_not_used(
    simulator: Simulator, slack: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slack's SDK reads a proxy from the environment, which would see the tokens."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings()) as second, receiving(second, recorder):
        await simulator.say("C0ROOM", "one")
        await recorder.wait(1)
        await second.sender.send(ROOM, make_reply("two"))
    await slack.sender.send(ROOM, make_reply("three"))
    assert [post.text for post in simulator.messages()] == ["two", "three"]


_NO_EVENTS: tuple[object, ...] = ("text", [1], None, {"type": ["x"]}, {"user": {}})
_NO_TEXTS: tuple[object, ...] = ({}, 1, None)
UNREADABLE: tuple[object, ...] = (
    *([1], "text", {"team": 1, "type": "event_callback"}, {"authorizations": [7]}),
    *({"type": "event_callback", "event": one} for one in _NO_EVENTS),
    {"type": "event_callback", "event": {"type": "app_uninstalled"}, "event_time": "never"},
    *({"type": "block_actions", "user": one, "actions": one} for one in _NO_TEXTS),
    *({"command": one, "trigger_id": one} for one in _NO_TEXTS),
)
"""Payloads that Slack would not send, some of which Bolt cannot read either."""


async def test_an_envelope_that_is_no_object_is_acknowledged(simulator: Simulator, slack: Connection) -> None:
    """It would come again for ever, and hold up what follows."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        for payload in UNREADABLE:
            await simulator.send("events_api", cast("dict[str, Any]", payload))
        await simulator.say("C0ROOM", "one")
        await recorder.wait(1)
        async with asyncio.timeout(60):
            while simulator.sockets.waiting:
                await simulator.sockets.changed.wait()
    assert received_texts(recorder) == ["one"]
