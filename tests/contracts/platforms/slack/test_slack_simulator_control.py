"""Control the simulated Slack over HTTP alone: send messages, inject faults, and read the results."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from channels.errors import RateLimited
from channels.message import Button, ButtonPress, Command, Message
from channels.port import Connection
from channels.slack.simulator import Simulator
from channels.testing.connections import UpdateRecorder, receiving
from slack_connections import ROOM, make_reply, wait_for_update


class ControlApi:
    """The control surface, by its path."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def act(self, name: str, /, **given: Any) -> Any:
        """Do something; returns what came of it."""
        async with self._session.post(f"/_control/{name}", json=given) as answer:
            assert answer.status == 200, await answer.text()
            return (await answer.json())["result"]

    async def view(self, what: str = "state") -> Any:
        """Read the messages and calls."""
        async with self._session.get(f"/_control/{what}") as answer:
            return await answer.json()

    async def refused(self, name: str, /, **given: Any) -> int:
        """Do something that cannot be done; returns the status."""
        async with self._session.post(f"/_control/{name}", json=given) as answer:
            return answer.status


@pytest.fixture(name="hand")
async def control_api(simulator: Simulator) -> AsyncIterator[ControlApi]:
    """Return the control surface."""
    async with aiohttp.ClientSession(simulator.url) as session:
        yield ControlApi(session)


async def test_people_are_played_and_what_was_said_is_seen(hand: ControlApi, slack: Connection) -> None:
    """Words, a file, a command, a press and a modal, and then the state of it all."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        thread = await hand.act("say", room="C0ROOM", text="<@U0BOT> hello")
        content = base64.b64encode(b"notes").decode()
        await hand.act("send_file", room="C0ROOM", content=content, name="n.txt", media_type="text/plain")
        await hand.act("slash", room="C0ROOM", text="status")
        button = Button(label="Deny", data="apr_1:no", prompt="Why?")
        sent = await slack.sender.send(ROOM, make_reply("May I?", buttons=(button,)))
        await hand.act("press", room="C0ROOM", ts=sent.platform_id, value="apr_1:no")
        while not (await hand.view())["modals"]:
            continue
        await hand.act("submit", words="no")
        press = await wait_for_update(recorder, ButtonPress)
        assert isinstance(await wait_for_update(recorder, Command), Command)
    assert (press.comment, (await wait_for_update(recorder, Message)).address.thread) == ("no", thread)
    (said,) = [post for post in (await hand.view())["messages"] if post["user"] == "U0BOT"]
    assert (said["text"], said["buttons"]) == ("May I?", [{"label": "Deny", "value": "apr_1:no"}])
    calls = await hand.view("calls?after=1")
    assert "chat.postMessage" in [call["method"] for call in calls["calls"]]


async def test_fate_is_played(hand: ControlApi, slack: Connection) -> None:
    """Faults, rates and the clock."""
    await hand.act("fail", error="ratelimited", status=429, retry_after=9, method="chat.postMessage")
    with pytest.raises(RateLimited) as caught:
        await slack.sender.send(ROOM, make_reply("one"))
    assert caught.value.retry_after == 9
    await hand.act("rates", **{"chat.postMessage": {"burst": 1, "a_second": 0.01, "in_room": True}})
    await slack.sender.send(ROOM, make_reply("one"))
    with pytest.raises(RateLimited):
        await slack.sender.send(ROOM, make_reply("two"))
    await hand.act("advance", seconds=100)
    await slack.sender.send(ROOM, make_reply("two"))
    assert (await hand.view())["refused"] == 1


async def test_what_cannot_be_done_is_said(hand: ControlApi) -> None:
    """An unknown act is 404, wrong arguments are 400, and nothing breaks."""
    assert await hand.refused("fly") == 404
    assert await hand.refused("say", colour="red") == 400
    assert await hand.refused("press", room="C0ROOM", ts="1.0", value="x") == 400
    assert await hand.refused("submit", words="nobody asked") == 400
